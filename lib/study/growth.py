"""How a cost grows with a size: the power law y = a x^b fitted to what was measured, and what
follows for sizes that were not.

Rows are those of `lib.study.costs` with what, over (the size that is swept) and size. Intervals say
how noisy the clock is, not whether a power law is right: for that, the largest size is predicted
from the others. `Thing`: what is measured, and what theory says of it.
"""

from itertools import product
from typing import NamedTuple

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.ticker import LogLocator

from lib.study.costs import medians, shown
from lib.study.figures import STYLE
from lib.study.statistics import interval

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
        law = power_law(costs)[0]
        ends = things[what].theory[over][name]
        line = (law[0], *interval(law[1:]), *ends, largest_predicted(costs)[0])
        lines[what, over, name] = line
    names = ["exponent", "low", "high", "least", "most", "held_out"]
    index = pd.MultiIndex.from_tuples(lines, names=COLUMNS)
    return pd.DataFrame(list(lines.values()), index, names)


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
    lines = {}
    largest = rows.groupby(["what", "over"])["size"].max()
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
        large = (
            {"markersize": 9, "markerfacecolor": "none"} if name == "stock" else {}
        )  # stays seen
        marks = {"color": colour, "marker": marker, "linestyle": "none", "label": name}
        axis.errorbar(sizes, middle, bars, **marks, **large)
    axis.set(xscale="log", yscale="log", xlabel=over)
    labels = [f"{size // 1024}k" if size >= 8192 else str(size) for size in sizes]
    axis.set_xticks(sizes, labels, fontsize="small")
    axis.yaxis.set_major_locator(LogLocator(subs=(1, 3)))
    axis.yaxis.set_major_formatter("{x:g}")
    axis.minorticks_off()
    title = ", ".join(f"{law[0, 0]:.2f} ({name})" for name, law in laws.items())
    axis.set_title(f"$b$ = {title}", fontsize="small")
