"""What a thing costs, in seconds or memory, measured in turns; and how that grows with a size: the
power law y = a x^b fitted to it. Rows are single measurements: id (the round), candidate, measured,
unit ("s" or "MB"); of growth also what, over (the size that is swept) and size. Intervals are a
bootstrap over rounds: how noisy the clock is, not whether a power law is right.
"""

import re
import resource
import time
import zlib
from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import NamedTuple

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from joblib.externals.loky import ProcessPoolExecutor
from matplotlib.ticker import LogLocator

from lib.study.figures import STYLE, with_interval
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
    function, status = prepare(), Path("/proc/self/status")
    if linux := status.exists():
        # what imports needed at their own peak must hide nothing
        Path("/proc/self/clear_refs").write_text("5")

    def peak() -> float:
        if linux:
            return int(re.search(r"VmHWM:\s+(\d+) kB", status.read_text())[1]) * 1024 / 1e6
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6

    before = peak()
    function()
    return peak() - before


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
        line["ratio"] = with_interval(over_rounds[0], *interval(over_rounds[1:]), 3)
        line["bound"] = bound
        lines[what] = line | {"met": "yes" if over_rounds[0] <= bound else "no"}
    return pd.DataFrame.from_dict(lines, orient="index").rename_axis("what").fillna("")


# ---- growth ---------------------------------------------------------------------------------


DRAWN_AS = {"stock": "none", "plain": "softmax", "ours": "sigmoid-full", "floor": "entropy"}
COLUMNS = ["what", "over", "candidate"]


class Thing(NamedTuple):
    """Something that grows."""

    title: str
    base: dict[str, int]  # where its sizes stand while another one is swept
    theory: dict[str, dict[str, tuple[float, float]]]  # size: candidate: least, largest exponent


def power_law(costs: pd.DataFrame) -> np.ndarray:
    """b and log a, of the data and of each resample (2, 1 + R): least squares on logarithms.
    `costs` (1 + R, S) has a column for each size.

    >>> power_law(pd.DataFrame([[3.0, 12.0, 48.0]], columns=[1, 2, 4])).round(3).T.tolist()
    [[2.0, 1.099]]
    """
    return np.polyfit(np.log(costs.columns.to_numpy(float)), np.log(costs.to_numpy()).T, 1)


def at_size(law: np.ndarray, size: float) -> np.ndarray:
    """The cost at a size. (2, 1 + R) -> (1 + R,)"""
    return np.exp(law[0] * np.log(size) + law[1])


def largest_predicted(costs: pd.DataFrame) -> np.ndarray:
    """The cost at the largest size, predicted from the others, over the one there. (1 + R,)"""
    largest = costs.columns[-1]
    return at_size(power_law(costs.iloc[:, :-1]), largest) / costs[largest].to_numpy()


def sweeps(rows: pd.DataFrame) -> dict[tuple[str, str, str], pd.DataFrame]:
    """By what, over and candidate: `medians` at each size. (1 + R, S)"""
    costs = {}
    for (what, over), group in rows.groupby(["what", "over"], sort=False):
        table = medians(group, ["candidate", "size"], f"{what} {over}")
        costs |= {(what, over, name): table[name] for name in group["candidate"].unique()}
    return costs


def project(rows: pd.DataFrame, base: dict[str, int], sizes: dict[str, int]) -> dict:
    """Cost of each candidate of one thing at `sizes` (others: at their base). (1 + R,) each

    A product of powers: the cost at the base, the mean of what the fits say on a log scale, times
    (size / base) ** b for each size. Raises ValueError for a size that was not swept.
    """
    if unknown := set(sizes) - set(base):
        raise ValueError(f"no size {min(unknown)!r} was swept, only {', '.join(base)}")
    at_base, steps = {}, {}
    for (_, over, name), costs in sweeps(rows).items():
        law = power_law(costs)
        at_base.setdefault(name, []).append(np.log(at_size(law, base[over])))
        steps.setdefault(name, []).append(law[0] * np.log(sizes.get(over, base[over]) / base[over]))
    return {name: np.exp(np.mean(at_base[name], 0) + np.sum(steps[name], 0)) for name in at_base}


# ---- tables and figures --------------------------------------------------------------------------


def exponents(rows: pd.DataFrame, things: dict[str, Thing]) -> pd.DataFrame:
    """Exponents as numbers: columns exponent, low, high, least, most, held_out."""
    lines = {}
    for (what, over, name), costs in sweeps(rows).items():
        law, ends = power_law(costs)[0], things[what].theory[over][name]
        lines[what, over, name] = (*law[:1], *interval(law[1:]), *ends, largest_predicted(costs)[0])
    names = ["exponent", "low", "high", "least", "most", "held_out"]
    return pd.DataFrame(lines, names).T.rename_axis(COLUMNS)


def exponent_table(rows: pd.DataFrame, things: dict[str, Thing]) -> pd.DataFrame:
    """What grows how, beside theory, for reading."""
    lines, unit = {}, rows.groupby("what")["unit"].first()
    for (what, over, name), costs in sweeps(rows).items():
        least, most = things[what].theory[over][name]
        first, last = costs.iloc[0, [0, -1]]
        lines[things[what].title, over, name] = {
            "from … to": f"{costs.columns[0]:,} … {costs.columns[-1]:,}",
            "cost there": f"{first:.3g} … {last:.3g} {unit[what]}",
            "exponent": shown(power_law(costs)[0], ".2f"),
            "theory": f"{least}" if least == most else f"{least} to {most}",
            "largest: predicted / measured": shown(largest_predicted(costs), ".2f"),
        }
    return pd.DataFrame(lines).T.rename_axis(COLUMNS)


def projection_table(
    rows: pd.DataFrame, things: dict[str, Thing], targets: dict[str, dict[str, int]]
) -> pd.DataFrame:
    """Costs projected to the sizes of each target, how far beyond the largest measured sizes that
    is, and the ratio to the first candidate.
    """
    lines, largest = {}, rows.groupby(["what", "over"])["size"].max()
    for target, what in product(targets, rows["what"].unique()):
        of_thing, base = rows[rows["what"] == what], things[what].base
        sizes = base | {name: n for name, n in targets[target].items() if name in base}
        beyond = {name: n / largest[what, name] for name, n in sizes.items()}
        projected, unit = project(of_thing, base, sizes), of_thing["unit"].iloc[0]
        for name, values in projected.items():
            far = [f"{size} ×{factor:.2g}" for size, factor in beyond.items() if factor > 1]
            lines[target, things[what].title, name] = {
                "at": ", ".join(f"{size} {n:,}" for size, n in sizes.items()),
                "beyond the measured": ", ".join(far) or "–",
                "projected": f"{shown(values)} {unit}",
                "ratio": shown(values / next(iter(projected.values()))),
            }
    return pd.DataFrame(lines).T.rename_axis(["sizes of", "what", "candidate"])


def growth_figure(rows: pd.DataFrame, things: dict[str, Thing]) -> plt.Figure:
    """Cost against each size, both on a log scale: a row a thing, a column a size."""
    names = list(rows["what"].unique())
    columns = list(max((things[what].theory for what in names), key=len))
    shape = {"figsize": (2.9 * len(columns), 2.6 * len(names)), "layout": "constrained"}
    figure, axes = plt.subplots(len(names), len(columns), squeeze=False, **shape)
    for what, line in zip(names, axes):
        of_thing = rows[rows["what"] == what]
        for over, axis in zip(columns, line):
            axis.set_visible(over in things[what].theory)
            if over in things[what].theory:
                _panel(axis, over, of_thing[of_thing["over"] == over])
        label = f"{things[what].title} ({of_thing['unit'].iloc[0]})"
        line[0].set_ylabel(label, fontsize="small")
        line[0].legend(fontsize="small", handlelength=2.5)
    return figure


def _panel(axis: plt.Axes, over: str, rows: pd.DataFrame) -> None:
    """Medians with their intervals; lines are the power laws."""
    laws = {}
    for (_, _, name), costs in sweeps(rows).items():
        colour, marker, style = STYLE[DRAWN_AS.get(name, name)]
        sizes, laws[name] = costs.columns.to_numpy(), power_law(costs)
        drawn = {"color": colour, "linestyle": style, "linewidth": 1.2}
        axis.plot(sizes, [at_size(laws[name], size)[0] for size in sizes], **drawn)
        middle, (low, high) = costs.iloc[0], np.quantile(costs[1:], [0.025, 0.975], axis=0)
        bars = np.clip([middle - low, high - middle], 0, None)
        marks = {"color": colour, "marker": marker, "linestyle": "none", "label": name}
        if name == "stock":  # stays visible under the others
            marks |= {"markersize": 9, "markerfacecolor": "none"}
        axis.errorbar(sizes, middle, bars, **marks)
    axis.set(xscale="log", yscale="log", xlabel=over)
    labels = [f"{size // 1024}k" if size >= 8192 else str(size) for size in sizes]
    axis.set_xticks(sizes, labels, fontsize="small")
    axis.yaxis.set_major_locator(LogLocator(subs=(1, 3)))
    axis.yaxis.set_major_formatter("{x:g}")
    axis.minorticks_off()
    title = ", ".join(f"{law[0, 0]:.2f} ({name})" for name, law in laws.items())
    axis.set_title(f"$b$ = {title}", fontsize="small")
