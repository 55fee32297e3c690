"""One way to a number with its interval, and one to a difference: paired cluster bootstrap. Groups
of items (near-duplicates, sets, territories, sources) are resampled whole, the same ones alike, so
that two methods on the same items are compared pair by pair. A measure is a function of rows and
their resamples to (1 + R,), the sample itself first: lambda rows, draws: draws.mean(rows["error"])
"""

from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import pandas as pd
from scipy.stats import t as student_t

RESAMPLES = 2000
CHUNK = 8_000_000  # numbers held at once, where items by resamples are needed

Measure = Callable[[pd.DataFrame, "Draws"], np.ndarray]


class Draws:
    """Bootstrap resamples of clusters; the first is the sample itself."""

    def __init__(self, clusters: Sequence, resamples: int = RESAMPLES, seed: int = 0):
        # cluster of each item (N,), and how often each cluster is drawn (1 + R, C)
        self.member, names = pd.factorize(np.asarray(clusters), sort=True)
        self.drawn = _resamples(len(names), resamples, seed)

    @property
    def clusters(self) -> int:
        """Number of clusters."""
        return self.drawn.shape[1]

    def sum(self, values: Sequence) -> np.ndarray:
        """Sum over items. (N,) -> (1 + R,)"""
        return self.drawn @ np.bincount(self.member, np.asarray(values, float), self.clusters)

    def mean(self, values: Sequence) -> np.ndarray:
        """Mean over items. (N,) -> (1 + R,)"""
        return self.sum(values) / self.sum(np.ones(len(values)))

    def weights(self) -> Iterator[np.ndarray]:
        """How often each item is drawn, some resamples at a time. (r, N)"""
        size = max(1, CHUNK // max(1, len(self.member)))
        for start in range(0, len(self.drawn), size):
            yield self.drawn[start : start + size][:, self.member]


@lru_cache(maxsize=4)  # drawing them takes ten times as long as using them
def _resamples(count: int, resamples: int, seed: int) -> np.ndarray:
    even = np.full(count, 1 / max(count, 1))
    drawn = np.random.default_rng(seed).multinomial(count, even, size=resamples)
    return np.vstack([np.ones((1, count)), drawn])


class Estimate(NamedTuple):
    """A number with its bootstrap replicates (R,), and what it is made of."""

    value: float
    replicates: np.ndarray
    n: int  # rows
    clusters: int
    by_seed: tuple[float, ...] = ()

    low = property(lambda self: interval(self.replicates)[0])  # ends of the 95 % interval
    high = property(lambda self: interval(self.replicates)[1])


# ---- measures ----------------------------------------------------------------------------------


def mean(column: str) -> Measure:
    """Mean of a column."""

    return _pooling_seeds(lambda rows, draws: draws.mean(rows[column]))


def ratio(numerator: str, denominator: str, after: Callable = np.asarray) -> Measure:
    """`after` of the ratio of two sums: `ratio("nll", "tokens", np.exp)` is a perplexity."""

    def measure(rows: pd.DataFrame, draws: Draws) -> np.ndarray:
        with np.errstate(invalid="ignore", divide="ignore"):
            return after(draws.sum(rows[numerator]) / draws.sum(rows[denominator]))

    return _pooling_seeds(measure)


def _pooling_seeds(measure: Measure) -> Measure:
    measure.pools_seeds = True
    return measure


# ---- numbers -----------------------------------------------------------------------------------


def sample(
    rows: pd.DataFrame,
    measure: Measure,
    cluster: str = "group",
    seed: str = "seed",
    resamples: int = RESAMPLES,
    draws: Draws | None = None,
) -> Estimate:
    """A measure of rows with its replicates; taken of each seed and averaged, where there are
    several (`mean` and `ratio` take all at once: each item averaged over its seeds). `draws`: the
    resamples of these very clusters, where they are at hand: making them takes most of the time.

    Raises ValueError for no rows or a missing cluster: nothing is dropped silently.
    """
    if rows.empty:
        raise ValueError("nothing to measure: there are no rows")
    if rows[cluster].isna().any():
        raise ValueError(f"{rows[cluster].isna().sum()} rows have no {cluster!r}: each needs one")

    def values(some: pd.DataFrame) -> np.ndarray:
        return np.asarray(measure(some, draws or Draws(some[cluster], resamples)), float)

    several = seed in rows and rows[seed].nunique() > 1
    by_seed = [values(some) for _, some in rows.groupby(seed)] if several else [values(rows)]
    if several and not getattr(measure, "pools_seeds", False):
        drawn = np.mean(by_seed, 0)
    else:
        drawn = values(rows) if several else by_seed[0]
    own = tuple(float(one[0]) for one in by_seed)
    return Estimate(float(drawn[0]), drawn[1:], len(rows), rows[cluster].nunique(), own)


def estimate(
    rows: pd.DataFrame,
    measure: Measure,
    by: Sequence[str] = (),
    cluster: str = "group",
    seed: str = "seed",
) -> pd.DataFrame:
    """A table of a measure with its 95 % interval, one row a combination of the columns `by`.

    Columns: `by`, value, low, high, n (rows), clusters.
    """
    groups = rows.groupby(list(by), sort=False, dropna=False) if by else [((), rows)]
    lines = []
    for key, some in groups:
        one = sample(some, measure, cluster, seed)
        lines.append((*key, one.value, one.low, one.high, one.n, one.clusters))
    return pd.DataFrame(lines, columns=[*by, "value", "low", "high", "n", "clusters"])


def average(estimates: Sequence[Estimate]) -> Estimate:
    """Mean of estimates of the same items, such as those of several seeds."""
    by_seed = tuple(e.value for e in estimates)
    replicates = np.mean([e.replicates for e in estimates], 0)
    mean_value = float(np.mean(by_seed))
    return estimates[0]._replace(value=mean_value, replicates=replicates, by_seed=by_seed)


def difference(a: Estimate, b: Estimate, ratio: bool = False) -> Estimate:
    """a - b (or a / b) of two estimates of the same clusters: replicates are paired.

    By seed, where one has a single seed it stands for every seed of the other.
    """
    combine = np.divide if ratio else np.subtract
    seeds = max(len(a.by_seed), len(b.by_seed))
    one, other = (e.by_seed * seeds if len(e.by_seed) == 1 else e.by_seed for e in (a, b))
    by_seed = tuple(float(combine(x, y)) for x, y in zip(one, other))
    value, replicates = combine(a.value, b.value), combine(a.replicates, b.replicates)
    return Estimate(float(value), replicates, a.n, min(a.clusters, b.clusters), by_seed)


def compare(
    pairs: dict[object, tuple[Estimate, Estimate]], ratio: bool = False, level: float = 0.05
) -> pd.DataFrame:
    """Paired differences (or ratios) of one family, such as the rows of a table.

    Index: the labels of `pairs`. Columns: value, low, high, p (two-sided, that there is no
    difference), p_holm (corrected over the family), seeds (the difference in each seed), and clear:
    p_holm below `level`, and one sign in all seeds.
    """
    lines, neutral = {}, 1.0 if ratio else 0.0
    for label, (a, b) in pairs.items():
        step, apart = difference(a, b, ratio), difference(a, b)
        p = p_value(apart.value, apart.replicates, apart.clusters)
        numbers = {"value": step.value, "low": step.low, "high": step.high}
        lines[label] = numbers | {"p": p, "seeds": step.by_seed}
    columns = ["value", "low", "high", "p", "seeds"]
    table = pd.DataFrame.from_dict(lines, orient="index", columns=columns)
    table.insert(4, "p_holm", holm(table["p"].to_numpy(float)))
    one_sign = [len({value > neutral for value in seeds}) == 1 for seeds in table["seeds"]]
    return table.assign(clear=(table["p_holm"] < level) & np.array(one_sign, bool))


def interval(replicates: np.ndarray, level: float = 0.95) -> tuple[float, float]:
    """Percentile interval of bootstrap replicates (R,); NaN where none is defined."""
    if not np.isfinite(replicates).any():
        return np.nan, np.nan
    low, high = np.nanquantile(replicates, [(1 - level) / 2, (1 + level) / 2])
    return float(low), float(high)


def p_value(value: float, replicates: np.ndarray, clusters: int) -> float:
    """Two-sided p-value that a quantity is 0: Student's t with the standard error of its bootstrap
    replicates (R,), clusters - 1 degrees of freedom (counting replicates beyond 0 would end at
    2 / R, too coarse for many comparisons). NaN where undefined.
    """
    if np.isnan(value) or not np.isfinite(replicates).any() or clusters < 2:
        return np.nan
    error = np.nanstd(replicates)
    if error == 0:
        return float(value == 0)
    return float(2 * student_t.sf(abs(value) / error, clusters - 1))


def holm(p_values: np.ndarray) -> np.ndarray:
    """Holm-corrected p-values of one family. (M,) -> (M,); undefined ones stay so, and count.

    >>> holm(np.array([0.01, 0.04])).round(2).tolist()
    [0.02, 0.04]
    """
    p = np.asarray(p_values, float)
    order = np.argsort(p)  # NaN last
    steps = np.maximum.accumulate(p[order] * np.arange(len(p), 0, -1))
    return np.minimum(1.0, steps)[np.argsort(order)]
