"""What a thing costs, in seconds or memory, measured in turns.

Rows are single measurements: id (the round), candidate, measured, unit ("s" or "MB"). Intervals are
a bootstrap over rounds, with the same resamples for all that was measured in turns.
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

from lib.study.figures import with_interval
from lib.study.statistics import RESAMPLES, interval


def interleaved(
    candidates: list[tuple[dict, Callable]], repeats: int, measure: Callable[[Callable], float]
) -> pd.DataFrame:
    """`measure` (seconds, peak_mb) of (columns, function) in every round, in turns: a slow moment
    hits all alike. The order turns by one each round; rounds before 0 warm up.
    """
    rows, unit = [], "MB" if measure is peak_mb else "s"
    for turn in range(-min(2, repeats // 2), repeats):
        first = turn % len(candidates)
        for columns, function in candidates[first:] + candidates[:first]:
            rows += [{"id": turn, **columns, "measured": measure(function), "unit": unit}]
    return pd.DataFrame(rows).query("id >= 0").sort_values("id", kind="stable", ignore_index=True)


def seconds(function: Callable[[], object]) -> float:
    """How long a function takes."""
    start = time.perf_counter()
    function()
    return time.perf_counter() - start


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


def ratio(rows: pd.DataFrame, judged: str, baseline: str) -> np.ndarray:
    """Median over rounds of what one candidate takes over another, and of resamples. (1 + R,)"""
    of_baseline = rows[rows["candidate"] == baseline].set_index("id")["measured"]
    by_round = rows.assign(measured=rows["measured"] / rows["id"].map(of_baseline))
    return medians(by_round, "candidate")[judged].to_numpy()


def shown(values: np.ndarray, form: str = ".3g") -> str:
    """`0.123 [0.12, 0.125]`: of the data and the interval of resamples (1 + R,); what was measured
    once has none.
    """
    low, high = interval(values[1:])
    return f"{values[0]:{form}}" + ("" if low == high else f" [{low:{form}}, {high:{form}}]")


def against_bounds(rows: dict[str, pd.DataFrame], bounds: list[tuple], judged: str) -> pd.DataFrame:
    """What the candidate `judged` costs beside the other, their ratio over rounds, and its bound.

    bounds: (..., what it is, against what, largest ratio allowed); rows: by what it is. Of several
    others the first measured counts.
    """
    lines = {}
    for *_, what, against, bound in bounds:
        median = rows[what].groupby("candidate", sort=False)["measured"].median()
        baseline = median.index.drop(judged)[0]
        over_rounds = ratio(rows[what], judged, baseline)
        measure = {"s": "seconds", "MB": "peak_mb"}[rows[what]["unit"].iloc[0]]
        line = {"against": against, measure: f"{median[judged]:.3g}"}
        line |= {f"{measure}, baseline": f"{median[baseline]:.3g}"}
        ends = interval(over_rounds[1:])
        line |= {"ratio": with_interval(over_rounds[0], *ends, 3), "bound": bound}
        lines[what] = line | {"met": "yes" if over_rounds[0] <= bound else "no"}
    return pd.DataFrame.from_dict(lines, orient="index").rename_axis("what").fillna("")
