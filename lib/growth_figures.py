"""How costs grow, and what they come to at sizes that were not measured: log-log panels and tables."""

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd

from lib import growth
from lib.figures import STYLE, with_interval
from lib.growth import SIZES, Thing
from lib.results import interval

UNITS = {"seconds": "s", "peak_mb": "MB"}
_DRAWN_AS = {"stock": "none", "plain": "softmax", "ours": "sigmoid-full"}  # candidates that are no method of the study, by one that is


def growth_plot(items: pd.DataFrame, things: dict[str, Thing]) -> plt.Figure:
    """Cost against each size, both on a log scale: a row a thing, a column a size. Medians with their intervals, lines: the power laws."""
    sizes = [over for over in SIZES if any(over in thing.theory for thing in things.values())]
    figure, axes = plt.subplots(
        len(things), len(sizes), figsize=(2.9 * len(sizes), 2.4 * len(things)), sharex="col", squeeze=False, layout="constrained"
    )
    for row, (what, thing) in zip(axes, things.items()):
        swept = growth.of_thing(items, what)
        for axis, over in zip(row, sizes):
            axis.set_visible(over in swept)
            for name, (x, costs) in swept.get(over, {}).items():
                _draw(axis, name, x, costs)
        shown = [axis for axis in row if axis.get_visible()]
        shown[0].set_ylabel(f"{thing.title} ({UNITS[thing.measure]})")
        shown[0].legend(fontsize="small", handlelength=2.5)
    for column, over in zip(axes.T, sizes):
        lowest = [axis for axis in column if axis.get_visible()][-1]  # below it there is none to carry the label
        lowest.set_xlabel(over)
        lowest.tick_params(axis="x", labelbottom=True)
    return figure


def _draw(axis: plt.Axes, name: str, sizes: np.ndarray, costs: np.ndarray) -> None:
    colour, marker, line = STYLE[_DRAWN_AS.get(name, name)]
    low, high = interval(costs[1:])
    bars = np.clip([costs[0] - low, high - costs[0]], 0, None)
    law = growth.fit(sizes, costs[:1])
    label = f"{name}: $b$ = {law.exponent[0]:.2f}"
    axis.plot(
        sizes,
        [np.exp(law.log_at(size))[0] for size in sizes],
        color=colour,
        linestyle=line,
        linewidth=1.2,
        label=label,
        marker=marker,
        markersize=0,
    )
    axis.errorbar(sizes, costs[0], bars, color=colour, marker=marker, linestyle="none", markersize=5, elinewidth=0.8)
    axis.set(xscale="log", yscale="log")
    axis.set_xticks(sizes, [f"{size // 1024}k" if size >= 8192 else str(size) for size in sizes], fontsize="small", minor=False)
    axis.tick_params(axis="y", labelsize="small")
    axis.minorticks_off()


def exponent_table(found: pd.DataFrame, things: dict[str, Thing]) -> pd.DataFrame:
    """`growth.exponents` for reading."""
    lines = {}
    for (what, over, name), row in found.iterrows():
        thing = things[what]
        lines[thing.title, over, name] = {
            "from … to": " … ".join(f"{size:,}" for size in row["sizes"]),
            "cost there": " … ".join(f"{cost:.3g}" for cost in row["costs"]) + f" {UNITS[thing.measure]}",
            "exponent": with_interval(row["exponent"], row["low"], row["high"]),
            "theory": f"{row['least']:g}" if row["least"] == row["most"] else f"{row['least']:g} to {row['most']:g}",
            "largest: predicted / measured": with_interval(row["held_out"], row["held_out_low"], row["held_out_high"]),
        }
    return pd.DataFrame(lines).T.rename_axis(["what", "over", "candidate"])


def projection_table(items: pd.DataFrame, things: dict[str, Thing], targets: dict[str, dict[str, int]]) -> pd.DataFrame:
    """Projected cost at each target's sizes, and over that of the first candidate; how far beyond the largest measured sizes that is."""
    lines = {}
    for target, wanted in targets.items():
        for what, thing in things.items():
            sizes = {over: size for over, size in wanted.items() if over in thing.base}
            costs = growth.project(items, what, thing, sizes)
            baseline = next(iter(costs))
            for name, values in costs.items():
                ratio = values / costs[baseline]
                lines[target, thing.title, name] = {
                    "at": ", ".join(f"{over} {size:,}" for over, size in {**thing.base, **sizes}.items()),
                    "beyond the measured": _beyond(items, what, sizes) or "–",
                    "projected": f"{printed(values)} {UNITS[thing.measure]}",
                    "ratio": "–" if name == baseline else f"{printed(ratio)}",
                }
    return pd.DataFrame(lines).T.rename_axis(["sizes of", "what", "candidate"])


def _beyond(items: pd.DataFrame, what: str, sizes: dict[str, int]) -> str:
    """`width ×4`: by how much each size exceeds the largest one measured."""
    parts = items[items["method"] == what].groupby("part")["size"].max()
    factors = {over: size / parts[growth.PART + over] for over, size in sizes.items()}
    return ", ".join(f"{over} ×{factor:.2g}" for over, factor in factors.items() if factor > 1)


def check_table(items: pd.DataFrame, things: dict[str, Thing], rows: pd.DataFrame, checks: dict[str, tuple[str, dict]]) -> pd.DataFrame:
    """Projections to where a bound was measured: projected and measured seconds, and the ratio of the two (column `ratio`, a number).

    `checks`: what was measured -> (thing, sizes); `rows`: of those measurements.
    """
    lines = {}
    for part, (what, sizes) in checks.items():
        measured = rows[(rows["setting"] == f"what={part}") & (rows["metric"] == "seconds")].set_index("method")["value"]
        for name, values in growth.project(items, what, things[what], sizes).items():
            if name in measured:
                at = ", ".join(f"{over} {size:,}" for over, size in sizes.items())
                numbers = {"projected": f"{printed(values)} s", "measured": f"{measured[name]:.3g} s"}
                ratio = values / measured[name]
                lines[things[what].title, at, name] = {**numbers, "ratio": ratio[0], "projected / measured": printed(ratio)}
    return pd.DataFrame(lines).T.rename_axis(["what", "at", "candidate"])


def printed(values: np.ndarray) -> str:
    """Three digits, with the interval over resamples: `0.123 [0.12, 0.125]`. (1 + R,)"""
    low, high = interval(values[1:])
    return f"{values[0]:.3g} [{low:.3g}, {high:.3g}]"
