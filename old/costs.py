"""Time of one thing against another: measured side by side in one process, in turns, so that a slow moment hits both."""

import multiprocessing
import re
import resource
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd

from old.results import RESAMPLES, interval, make_table, setting_name
from old.units import Unit


def interleaved(candidates: dict[str, Callable[[], object]], repeats: int) -> pd.DataFrame:
    """Seconds of every candidate in every round, in turns, the order turned by one each round; after a warm-up. (repeats, candidates)"""
    names, seconds = list(candidates), []
    for turn in range(-min(2, repeats // 2), repeats):
        row = {}
        for name in np.roll(names, turn):
            start = time.perf_counter()
            candidates[name]()
            row[name] = time.perf_counter() - start
        if turn >= 0:
            seconds.append(row)
    return pd.DataFrame(seconds)[names]


def medians(seconds: pd.DataFrame, baseline: str, seed: int = 0) -> pd.DataFrame:
    """Median seconds of each candidate, and the median over rounds of its ratio to `baseline`, with bootstrap intervals over rounds.

    Index candidate; columns seconds, seconds_low, seconds_high, ratio, ratio_low, ratio_high.
    """
    draws = np.random.default_rng(seed).integers(0, len(seconds), (RESAMPLES, len(seconds)))
    table = {}
    for label, values in (("seconds", seconds), ("ratio", seconds.div(seconds[baseline], axis=0))):
        low, high = interval(np.median(values.to_numpy()[draws], axis=1))
        table |= {label: values.median(), f"{label}_low": low, f"{label}_high": high}
    return pd.DataFrame(table)


def rows(unit: Unit, measured: pd.DataFrame, baseline: str, measure: str = "seconds") -> pd.DataFrame:
    """Result rows of one measurement: median (`measure`: seconds or peak_mb) and ratio of each candidate, with intervals."""
    common = unit.identity | {"setting": setting_name(what=unit.part), "slice": "all"}
    found = []
    for name, line in medians(measured, baseline).iterrows():
        for column, metric in (("seconds", measure), ("ratio", "ratio")):
            numbers = {"value": line[column], "ci_low": line[f"{column}_low"], "ci_high": line[f"{column}_high"], "n": len(measured)}
            found.append({**common, "method": name, "metric": metric, **numbers})
    return make_table(found)


def peak_mb(prepare: Callable[[int], Callable[[], object]], size: int) -> float:
    """Extra memory at its peak, in MB (10^6 bytes), of the function that `prepare(size)` returns; in a fresh process.

    On Linux the process is forked from a server that has imported what it needs and computed nothing: that takes no time, and what the
    imports needed at their own peak hides nothing of the function's.
    """
    context = multiprocessing.get_context("forkserver" if sys.platform == "linux" else "spawn")
    if sys.platform == "linux":
        context.set_forkserver_preload([getattr(prepare, "func", prepare).__module__])
    with context.Pool(1) as pool:
        return pool.apply(_peak_mb, (prepare, size))


def _peak_mb(prepare: Callable[[int], Callable[[], object]], size: int) -> float:
    function = prepare(size)
    before = _peak()
    function()
    return _peak() - before


def _peak() -> float:
    """Largest resident size of this process so far, in MB."""
    status = Path("/proc/self/status")
    if status.exists():  # Linux hands getrusage's maximum on from the parent process, but not this one
        return int(re.search(r"VmHWM:\s+(\d+) kB", status.read_text()).group(1)) * 1024 / 1e6
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6
