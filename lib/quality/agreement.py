"""How well a score agrees with gold: one value and its cluster-bootstrap replicates a metric. Higher scores must mean better.

Any gold: `pearson`, `spearman`. Gold of only 0 and 1: also `auroc`, `ap`; and for scores in [0, 1] `bce` (nats), `brier`, `ece`.
An undefined value (one class only, a constant score) is NaN, with a warning.
"""

import warnings

import numpy as np
from scipy.stats import rankdata

from lib.results import RESAMPLES, cluster_weights

CORRELATIONS = ("pearson", "spearman")
RANKINGS = ("auroc", "ap")
PROBABILITIES = ("bce", "brier", "ece")
BINS = 10  # equally wide, of the expected calibration error
_CHUNK = 2_000_000  # weights held at once


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
    drawn, member = cluster_weights(clusters, resamples)
    drawn = np.vstack([np.ones((1, drawn.shape[1])), drawn])  # replicate 0 is the sample itself
    order = np.argsort(scores, kind="stable")
    x, y, member = scores[order], gold[order], member[order]
    values = {metric: np.empty(resamples + 1) for metric in metrics}
    size = max(1, _CHUNK // len(scores))
    for start in range(0, resamples + 1, size):
        weights = drawn[start : start + size][:, member]
        for metric in metrics:
            values[metric][start : start + size] = _FUNCTIONS[metric](x, y, weights)
    for metric, found in values.items():
        if np.isnan(found[0]):
            warnings.warn(f"{metric} is undefined: gold or scores do not vary ({len(scores)} items)", stacklevel=2)
    return {m: float(v[0]) for m, v in values.items()}, {m: v[1:] for m, v in values.items()}


# ---- each metric: scores in rising order (N,), gold (N,), weights (R, N) -> (R,) -----------------------------------------------------


def _pearson(x: np.ndarray, y: np.ndarray, weights: np.ndarray) -> np.ndarray:
    x, y, total = x - x.mean(), y - y.mean(), weights.sum(1)
    mean_x, mean_y = weights @ x / total, weights @ y / total
    covariance = weights @ (x * y) / total - mean_x * mean_y
    variance_x, variance_y = weights @ x**2 / total - mean_x**2, weights @ y**2 / total - mean_y**2
    varies = (variance_x > 1e-12 * x.var()) & (variance_y > 1e-12 * y.var())  # a resample may hold one value only
    return np.divide(covariance, np.sqrt(np.abs(variance_x * variance_y)), out=np.full(len(weights), np.nan), where=varies)


def _spearman(x: np.ndarray, y: np.ndarray, weights: np.ndarray) -> np.ndarray:
    return _pearson(rankdata(x), rankdata(y), weights)


def _auroc(x: np.ndarray, y: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """Share of (right, wrong) pairs in order; a tie counts one half."""
    right, wrong = y == 1, y == 0
    lower, upper = (np.searchsorted(x[wrong], x[right], side=side) for side in ("left", "right"))
    below = np.hstack([np.zeros((len(weights), 1)), np.cumsum(weights[:, wrong], 1)])  # weight of the wrong ones below each rank
    wins = ((below[:, lower] + below[:, upper]) / 2 * weights[:, right]).sum(1)
    with np.errstate(invalid="ignore", divide="ignore"):
        return wins / (below[:, -1] * weights[:, right].sum(1))


def _ap(x: np.ndarray, y: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """Average precision: precision at each score from the top, weighted by the recall gained there (as in scikit-learn)."""
    down, hits_of = weights[:, ::-1], (weights * (y == 1))[:, ::-1]
    last = len(x) - 1 - np.searchsorted(x, x[::-1], side="left")  # ties share one threshold
    hits, seen = np.cumsum(hits_of, 1), np.cumsum(down, 1)
    with np.errstate(invalid="ignore", divide="ignore"):
        return (np.nan_to_num(hits / seen)[:, last] * hits_of).sum(1) / hits[:, -1]


def _mean(per_item: np.ndarray, weights: np.ndarray) -> np.ndarray:
    return weights @ per_item / weights.sum(1)


def _bce(x: np.ndarray, y: np.ndarray, weights: np.ndarray) -> np.ndarray:
    clipped = np.clip(x, 1e-7, 1 - 1e-7)  # a score of exactly 0 or 1 would cost infinitely much
    return _mean(-(y * np.log(clipped) + (1 - y) * np.log1p(-clipped)), weights)


def _brier(x: np.ndarray, y: np.ndarray, weights: np.ndarray) -> np.ndarray:
    return _mean((x - y) ** 2, weights)


def _ece(x: np.ndarray, y: np.ndarray, weights: np.ndarray) -> np.ndarray:
    bins = np.minimum((x * BINS).astype(int), BINS - 1)
    gaps = [np.abs(weights[:, bins == b] @ (x - y)[bins == b]) for b in np.unique(bins)]
    return np.sum(gaps, 0) / weights.sum(1)


_FUNCTIONS = {"pearson": _pearson, "spearman": _spearman, "auroc": _auroc, "ap": _ap, "bce": _bce, "brier": _brier, "ece": _ece}
