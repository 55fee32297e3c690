"""How well a score agrees with gold, as measures of `lib.study.statistics`. Higher means better.

Any gold: `pearson`, `spearman`. Gold of only 0 and 1: also `auroc`, `ap` (average precision); and
for scores in [0, 1] `bce` (nats), `brier`, `ece` (expected calibration error). Undefined values
(one class only, a constant score) are NaN.
"""

from collections.abc import Sequence

import numpy as np
import pandas as pd
from scipy.sparse import csr_array
from scipy.stats import rankdata

from lib.study.statistics import CHUNK, Draws, Measure

CORRELATIONS = ("pearson", "spearman")
RANKINGS = ("auroc", "ap")
PROBABILITIES = ("bce", "brier", "ece")
BINS = 10  # equally wide, of the expected calibration error


def agreement(metric: str, score: str = "score", gold: str = "gold") -> Measure:
    """The measure `metric` of a column of scores against a column of gold.

    Raises ValueError, when it is applied, for scores or gold that are not finite numbers.
    """
    function = _FUNCTIONS[metric]

    def measure(rows: pd.DataFrame, draws: Draws) -> np.ndarray:
        x, y = rows[score].to_numpy(float), rows[gold].to_numpy(float)
        if not (np.isfinite(x).all() and np.isfinite(y).all()):
            raise ValueError(f"{score} and {gold} must be finite: score every item that has gold")
        return function(x, y, draws)

    return measure


def defined_metrics(scores: Sequence, gold: Sequence) -> tuple[str, ...]:
    """All metrics that gold and the range of the scores allow."""
    scores, binary = np.asarray(scores, float), bool(np.isin(gold, (0, 1)).all())
    inside = binary and scores.min() >= 0 and scores.max() <= 1
    return CORRELATIONS + (RANKINGS if binary else ()) + (PROBABILITIES if inside else ())


# ---- scores (N,), gold (N,), resamples -> (1 + R,): the sample itself, then every resample -----


def _pearson(x: np.ndarray, y: np.ndarray, draws: Draws) -> np.ndarray:
    x, y = x - x.mean(), y - y.mean()
    mean_x, mean_y = draws.mean(x), draws.mean(y)
    covariance = draws.mean(x * y) - mean_x * mean_y
    variance_x, variance_y = draws.mean(x**2) - mean_x**2, draws.mean(y**2) - mean_y**2
    # a resample may hold one value only
    varies = (variance_x > 1e-12 * x.var()) & (variance_y > 1e-12 * y.var())
    root, undefined = np.sqrt(np.abs(variance_x * variance_y)), np.full(len(mean_x), np.nan)
    return np.divide(covariance, root, out=undefined, where=varies)


def _auroc(x: np.ndarray, y: np.ndarray, draws: Draws) -> np.ndarray:
    """Share of (right, wrong) pairs in order; a tie counts one half. Counted once for every two
    clusters, where they are few: much less work than once for every resample.
    """
    right, wrong = np.flatnonzero(y == 1), np.flatnonzero(y == 0)
    wrong = wrong[np.argsort(x[wrong], kind="stable")]
    lower, upper = (np.searchsorted(x[wrong], x[right], side=side) for side in ("left", "right"))
    count, clusters = draws.sum(1.0 * (y == 1)) * draws.sum(1.0 * (y == 0)), draws.clusters
    if clusters > len(draws.drawn):
        wins = []
        for weights in draws.weights():  # (r, N); below: weight of wrong ones below a rank
            below = np.pad(np.cumsum(weights[:, wrong], 1), ((0, 0), (1, 0)))
            wins.append(((below[:, lower] + below[:, upper]) / 2 * weights[:, right]).sum(1))
        wins = np.concatenate(wins)
    else:
        cells = (draws.member[right], np.arange(len(right)))
        halves = csr_array((np.full(len(right), 0.5), cells), shape=(clusters, len(right)))
        pairs = np.zeros((clusters, clusters))  # (cluster of the right one, of the wrong one)
        width = max(1, CHUNK // (len(x) + 1))
        for first in range(0, clusters, width):
            columns = np.arange(first, min(first + width, clusters))
            belongs = draws.member[wrong][:, None] == columns
            below = np.zeros((len(wrong) + 1, len(columns)), np.float32)
            below[1:] = np.cumsum(belongs, axis=0, dtype=np.float32)
            pairs[:, columns] = halves @ (below[lower] + below[upper])
        wins = ((draws.drawn @ pairs) * draws.drawn).sum(1)
    with np.errstate(invalid="ignore", divide="ignore"):
        return wins / count


def _ap(x: np.ndarray, y: np.ndarray, draws: Draws) -> np.ndarray:
    """Average precision: precision at each score from the top, weighted by the recall gained there
    (as in scikit-learn).
    """
    down = np.argsort(-x, kind="stable")
    last = np.searchsorted(-x[down], -x[down], side="right") - 1  # ties share one threshold
    values = []
    for weights in draws.weights():
        gained, called = (weights * (y == 1))[:, down], np.cumsum(weights[:, down], 1)
        hits = np.cumsum(gained, 1)
        with np.errstate(invalid="ignore", divide="ignore"):
            precision = np.nan_to_num(hits / called)[:, last]
            values.append((precision * gained).sum(1) / hits[:, -1])
    return np.concatenate(values)


def _bce(x: np.ndarray, y: np.ndarray, draws: Draws) -> np.ndarray:
    clipped = np.clip(x, 1e-7, 1 - 1e-7)  # a score of exactly 0 or 1 would cost infinitely much
    return draws.mean(-(y * np.log(clipped) + (1 - y) * np.log1p(-clipped)))


def _ece(x: np.ndarray, y: np.ndarray, draws: Draws) -> np.ndarray:
    """Distance of the mean score from the share of right ones, over equal bins, by size."""
    bins = np.minimum((x * BINS).astype(int), BINS - 1)
    return np.sum([np.abs(draws.mean((bins == b) * (x - y))) for b in np.unique(bins)], 0)


_FUNCTIONS = {"pearson": _pearson, "auroc": _auroc, "ap": _ap, "bce": _bce, "ece": _ece}
# replicates use the ranks of the whole sample
_FUNCTIONS["spearman"] = lambda x, y, draws: _pearson(rankdata(x), rankdata(y), draws)
_FUNCTIONS["brier"] = lambda x, y, draws: draws.mean((x - y) ** 2)
