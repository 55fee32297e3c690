"""How well a score agrees with gold: one value and its cluster-bootstrap replicates a metric. Higher scores must mean better.

Any gold: `pearson`, `spearman`. Gold of only 0 and 1: also `auroc`, `ap`; and for scores in [0, 1] `bce` (nats), `brier`, `ece`.
An undefined value (one class only, a constant score) is NaN, with a warning.
"""

import warnings
from collections.abc import Iterator

import numpy as np
from scipy.sparse import csr_array
from scipy.stats import rankdata
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GroupKFold, cross_val_predict
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from old.results import RESAMPLES, cluster_weights

CORRELATIONS = ("pearson", "spearman")
RANKINGS = ("auroc", "ap")
PROBABILITIES = ("bce", "brier", "ece")
BINS = 10  # equally wide, of the expected calibration error
PENALTY = 1e-6  # of the squared slope of Platt scaling, halved: hardly any
_CHUNK = 8_000_000  # numbers held at once, where items by resamples (or by clusters) are needed


class Draws:
    """Bootstrap resamples of clusters; the first is the sample itself."""

    def __init__(self, clusters: np.ndarray, resamples: int = RESAMPLES):
        drawn, self.member = cluster_weights(clusters, resamples)
        self.drawn = np.vstack([np.ones((1, drawn.shape[1])), drawn])  # (1 + R, C)

    def sum(self, per_item: np.ndarray) -> np.ndarray:
        """Sum over items. (N,) -> (1 + R,)"""
        return self.drawn @ np.bincount(self.member, per_item, self.drawn.shape[1])

    def mean(self, per_item: np.ndarray) -> np.ndarray:
        """Mean over items. (N,) -> (1 + R,)"""
        return self.sum(per_item) / self.sum(np.ones(len(per_item)))

    def weights(self) -> Iterator[np.ndarray]:
        """How often each item is drawn, some resamples at a time. (r, N)"""
        size = max(1, _CHUNK // len(self.member))
        for start in range(0, len(self.drawn), size):
            yield self.drawn[start : start + size][:, self.member]


def agreement(
    scores: np.ndarray, gold: np.ndarray, clusters: np.ndarray, metrics: tuple[str, ...] | None = None, resamples: int = RESAMPLES
) -> tuple[dict[str, float], dict[str, np.ndarray]]:
    """Values {metric: float} and replicates {metric: (resamples,)} of one score against gold; all arrays (N,).

    `metrics` defaults to all that the gold and the range of the scores allow. Clusters are resampled whole; the same clusters get the same
    resamples, so that replicates of two scores may be subtracted. Spearman replicates use the ranks of the whole sample.
    Raises ValueError for NaN, infinities, or arrays of different sizes.
    """
    scores, gold = np.asarray(scores, float), np.asarray(gold, float)
    if not len(scores) == len(gold) == len(clusters) or len(scores) == 0:
        raise ValueError(f"scores, gold and clusters must have the same size, at least 1, not {len(scores)}, {len(gold)}, {len(clusters)}")
    if not (np.isfinite(scores).all() and np.isfinite(gold).all()):
        raise ValueError("scores and gold must be finite numbers: score every item, and leave out items without gold")
    binary = bool(np.isin(gold, (0, 1)).all())
    if metrics is None:
        inside = scores.min() >= 0 and scores.max() <= 1
        metrics = CORRELATIONS + (RANKINGS if binary else ()) + (PROBABILITIES if binary and inside else ())
    draws = Draws(clusters, resamples)
    values = {metric: _FUNCTIONS[metric](scores, gold, draws) for metric in metrics}
    for metric, found in values.items():
        if np.isnan(found[0]):
            warnings.warn(f"{metric} is undefined: gold or scores do not vary ({len(scores)} items)", stacklevel=2)
    return {m: float(v[0]) for m, v in values.items()}, {m: v[1:] for m, v in values.items()}


def platt(scores: np.ndarray, gold: np.ndarray, clusters: np.ndarray, folds: int = 5) -> np.ndarray:
    """Scores turned into probabilities by a logistic curve (Platt scaling) that was fitted on the other folds of clusters. All (N,)"""
    curve = make_pipeline(StandardScaler(), LogisticRegression(C=1 / PENALTY))  # two numbers
    splits = GroupKFold(min(folds, len(np.unique(clusters))))
    return cross_val_predict(curve, np.asarray(scores, float)[:, None], gold, groups=clusters, cv=splits, method="predict_proba")[:, 1]


# ---- each metric: scores (N,), gold (N,), resamples -> (1 + R,), of the sample itself and of every resample -------------------------


def _pearson(x: np.ndarray, y: np.ndarray, draws: Draws) -> np.ndarray:
    x, y = x - x.mean(), y - y.mean()
    mean_x, mean_y = draws.mean(x), draws.mean(y)
    covariance = draws.mean(x * y) - mean_x * mean_y
    variance_x, variance_y = draws.mean(x**2) - mean_x**2, draws.mean(y**2) - mean_y**2
    varies = (variance_x > 1e-12 * x.var()) & (variance_y > 1e-12 * y.var())  # a resample may hold one value only
    return np.divide(covariance, np.sqrt(np.abs(variance_x * variance_y)), out=np.full(len(mean_x), np.nan), where=varies)


def _spearman(x: np.ndarray, y: np.ndarray, draws: Draws) -> np.ndarray:
    return _pearson(rankdata(x), rankdata(y), draws)


def _auroc(x: np.ndarray, y: np.ndarray, draws: Draws) -> np.ndarray:
    """Share of (right, wrong) pairs in order; a tie counts one half.

    Counted once for every two clusters, which is much less work than once for every resample as long as clusters are few.
    """
    right, wrong = y == 1, np.flatnonzero(y == 0)
    wrong = wrong[np.argsort(x[wrong], kind="stable")]
    clusters = draws.drawn.shape[1]
    if clusters > len(draws.drawn):
        return np.concatenate([_weighted_auroc(x, right, wrong, weights) for weights in draws.weights()])
    right = np.flatnonzero(right)
    lower, upper = (np.searchsorted(x[wrong], x[right], side=side) for side in ("left", "right"))
    halves = csr_array((np.full(len(right), 0.5), (draws.member[right], np.arange(len(right)))), shape=(clusters, len(right)))
    pairs = np.zeros((clusters, clusters))  # (cluster of the right one, cluster of the wrong one)
    width = max(1, _CHUNK // (len(x) + 1))
    for first in range(0, clusters, width):
        columns = np.arange(first, min(first + width, clusters))
        below = np.zeros((len(wrong) + 1, len(columns)), np.float32)  # wrong ones of each cluster below each rank
        below[1:] = np.cumsum(draws.member[wrong][:, None] == columns, axis=0, dtype=np.float32)
        pairs[:, columns] = halves @ (below[lower] + below[upper])
    count = draws.sum(1.0 * (y == 1)) * draws.sum(1.0 * (y == 0))
    with np.errstate(invalid="ignore", divide="ignore"):
        return ((draws.drawn @ pairs) * draws.drawn).sum(1) / count


def _weighted_auroc(x: np.ndarray, right: np.ndarray, wrong: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """x (N,), right (N,) bool, wrong: ids in order of their scores, weights (r, N) -> (r,)"""
    lower, upper = (np.searchsorted(x[wrong], x[right], side=side) for side in ("left", "right"))
    below = np.hstack([np.zeros((len(weights), 1)), np.cumsum(weights[:, wrong], 1)])  # weight of the wrong ones below each rank
    wins = ((below[:, lower] + below[:, upper]) / 2 * weights[:, right]).sum(1)
    with np.errstate(invalid="ignore", divide="ignore"):
        return wins / (below[:, -1] * weights[:, right].sum(1))


def _ap(x: np.ndarray, y: np.ndarray, draws: Draws) -> np.ndarray:
    """Average precision: precision at each score from the top, weighted by the recall gained there (as in scikit-learn)."""
    down = np.argsort(-x, kind="stable")
    last = np.searchsorted(-x[down], -x[down], side="right") - 1  # ties share one threshold
    found = []
    for weights in draws.weights():
        hits_of, seen = (weights * (y == 1))[:, down], np.cumsum(weights[:, down], 1)
        hits = np.cumsum(hits_of, 1)
        with np.errstate(invalid="ignore", divide="ignore"):
            found.append((np.nan_to_num(hits / seen)[:, last] * hits_of).sum(1) / hits[:, -1])
    return np.concatenate(found)


def _bce(x: np.ndarray, y: np.ndarray, draws: Draws) -> np.ndarray:
    clipped = np.clip(x, 1e-7, 1 - 1e-7)  # a score of exactly 0 or 1 would cost infinitely much
    return draws.mean(-(y * np.log(clipped) + (1 - y) * np.log1p(-clipped)))


def _brier(x: np.ndarray, y: np.ndarray, draws: Draws) -> np.ndarray:
    return draws.mean((x - y) ** 2)


def ece(x: np.ndarray, y: np.ndarray, draws: Draws) -> np.ndarray:
    """Expected calibration error: in bins of equal width, the distance of the mean score from the share of right ones, by size."""
    bins = np.minimum((x * BINS).astype(int), BINS - 1)
    return np.sum([np.abs(draws.mean((bins == b) * (x - y))) for b in np.unique(bins)], 0)


_FUNCTIONS = {"pearson": _pearson, "spearman": _spearman, "auroc": _auroc, "ap": _ap, "bce": _bce, "brier": _brier, "ece": ece}
