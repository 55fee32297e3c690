"""What a thing costs, in seconds or memory, and how that grows with a size: timing, power laws.

Rows are single measurements: id (the round), candidate, measured, unit ("s" or "MB"); of a sweep
also what, over (the size that is swept) and size. Intervals are a bootstrap over rounds, with the
same resamples for all that was measured in turns. They say how noisy the clock is, not whether a
power law is right: for that, the largest size is predicted from the others.
"""

import re
import resource
import time
import zlib
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
from joblib.externals.loky import ProcessPoolExecutor

from lib.study.statistics import RESAMPLES, interval

# ---- measuring -----------------------------------------------------------------------------------


def interleaved(candidates: list[tuple[dict, Callable[[], object]]], repeats: int) -> pd.DataFrame:
    """Seconds of (columns, function) in every round, in turns: a slow moment hits all alike. The
    order turns by one each round; rounds before 0 warm up.
    """
    rows = []
    for turn in range(-min(2, repeats // 2), repeats):
        first = turn % len(candidates)
        for columns, function in candidates[first:] + candidates[:first]:
            start = time.perf_counter()
            function()
            seconds = time.perf_counter() - start
            rows += [{"id": turn, **columns, "measured": seconds, "unit": "s"}]
    return pd.DataFrame(rows).query("id >= 0").sort_values("id", kind="stable", ignore_index=True)


def peak_mb(prepare: Callable[[], Callable[[], object]]) -> float:
    """Extra memory at its peak, in MB (10^6 bytes), of the function that `prepare` returns; in a
    process of its own, which an earlier measurement has left no memory to.
    """
    with ProcessPoolExecutor(1) as pool:
        return pool.submit(_peak_mb, prepare).result()


def _peak_mb(prepare: Callable[[], Callable[[], object]]) -> float:
    function = prepare()
    if (reset := Path("/proc/self/clear_refs")).exists():
        reset.write_text("5")  # what imports needed at their own peak must hide nothing
    before = _peak()
    function()
    return _peak() - before


def _peak() -> float:
    """Largest resident size of this process so far, in MB."""
    status = Path("/proc/self/status")
    if status.exists():
        return int(re.search(r"VmHWM:\s+(\d+) kB", status.read_text())[1]) * 1024 / 1e6
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6


def medians(rows: pd.DataFrame, by: str | list[str], label: str = "") -> pd.DataFrame:
    """Medians over rounds, a column for each value of `by`; the first line is of the data, the
    others of resamples of rounds (1 + R, columns). Under another label resamples are independent.
    """
    table = rows.pivot(index="id", columns=by, values="measured")
    rng = np.random.default_rng(zlib.crc32(label.encode()))
    drawn = rng.integers(0, len(table), (RESAMPLES, len(table)))
    values = table.to_numpy(float)[np.vstack([np.arange(len(table)), drawn])]
    return pd.DataFrame(np.median(values, axis=1), columns=table.columns)


# ---- power laws: cost = a * size ** b ------------------------------------------------------------


def power_law(costs: pd.DataFrame) -> np.ndarray:
    """b and log a, of the data and of each resample (2, 1 + R): least squares on logarithms.
    `costs` (1 + R, S) has a column for each size.

    >>> power_law(pd.DataFrame([[3.0, 12.0, 48.0]], columns=[1, 2, 4])).round(3).T.tolist()
    [[2.0, 1.099]]
    """
    return np.polyfit(np.log(costs.columns.to_numpy(float)), np.log(costs.to_numpy()).T, 1)


def log_cost(law: np.ndarray, size: float) -> np.ndarray:
    """Logarithm of the cost at a size. (1 + R,)"""
    return law[0] * np.log(size) + law[1]


def sweeps(rows: pd.DataFrame) -> dict[tuple[str, str, str], pd.DataFrame]:
    """By what, over and candidate: `medians` at each size."""
    costs = {}
    for (what, over), part in rows.groupby(["what", "over"], sort=False):
        table = medians(part, ["candidate", "size"], f"{what} {over}")
        costs |= {(what, over, name): table[name] for name in part["candidate"].unique()}
    return costs


def exponents(rows: pd.DataFrame) -> pd.DataFrame:
    """What grows how, for each sweep and candidate: numbers with the ends of their intervals.

    Columns: exponent, low, high; held_out, held_out_low, held_out_high: the cost predicted at the
    largest size from the others over the one measured there; sizes (smallest, largest), costs.
    """
    lines = {}
    for key, costs in sweeps(rows).items():
        sizes, exponent = costs.columns, power_law(costs)[0]
        others = power_law(costs.iloc[:, :-1])
        held_out = np.exp(log_cost(others, sizes[-1])) / costs[sizes[-1]].to_numpy()
        line = [exponent[0], *interval(exponent[1:]), held_out[0], *interval(held_out[1:])]
        lines[key] = [*line, (sizes[0], sizes[-1]), tuple(costs.iloc[0, [0, -1]])]
    columns = ["exponent", "low", "high", "held_out", "held_out_low", "held_out_high"]
    index = pd.MultiIndex.from_tuples(lines, names=["what", "over", "candidate"])
    return pd.DataFrame(list(lines.values()), index, [*columns, "sizes", "costs"])


def project(
    rows: pd.DataFrame, base: dict[str, int], sizes: dict[str, int]
) -> dict[str, np.ndarray]:
    """Cost of each candidate of one thing at `sizes` (others: at their base). (1 + R,) each

    A product of powers: the cost at the base, the mean of what the fits say on a log scale, times
    (size / base) ** b for each size.
    """
    if unknown := set(sizes) - set(base):
        raise ValueError(f"no size {min(unknown)!r} was swept, only {', '.join(base)}")
    laws = {}
    for (_, over, name), costs in sweeps(rows).items():
        laws.setdefault(name, {})[over] = power_law(costs)
    projected = {}
    for name, by_size in laws.items():
        at_base = {over: log_cost(law, base[over]) for over, law in by_size.items()}
        there = {over: log_cost(law, sizes.get(over, base[over])) for over, law in by_size.items()}
        steps = [there[over] - at_base[over] for over in by_size]
        projected[name] = np.exp(np.mean(list(at_base.values()), axis=0) + np.sum(steps, axis=0))
    return projected


def printed(values: np.ndarray) -> str:
    """Three digits, with the interval over resamples: `0.123 [0.12, 0.125]`. (1 + R,)"""
    low, high = interval(values[1:])
    return f"{values[0]:.3g}" + ("" if low == high else f" [{low:.3g}, {high:.3g}]")
