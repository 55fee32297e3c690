"""How costs grow, and what they come to at sizes that were not measured: log-log panels and tables."""

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.ticker import LogLocator

from old import growth
from old.figures import STYLE
from old.growth import Thing
from old.results import interval

UNITS = {"seconds": "s", "peak_mb": "MB"}
_DRAWN_AS = {"stock": "none", "plain": "softmax", "ours": "sigmoid-full"}  # candidates that are no method of the study, by one that is


def growth_plot(items: pd.DataFrame, things: dict[str, Thing]) -> plt.Figure:
    """Cost against each size, both on a log scale: a row a thing, a column a size. Medians with their intervals, lines: the power laws."""
    sizes = list(max((thing.theory for thing in things.values()), key=len))
    shape = {"figsize": (2.9 * len(sizes), 2.5 * len(things)), "squeeze": False, "layout": "constrained"}
    figure, axes = plt.subplots(len(things), len(sizes), sharex="col", **shape)
    for row, (what, thing) in zip(axes, things.items()):
        swept = growth.of_thing(items, what)
        for axis, over in zip(row, sizes):
            axis.set_visible(over in swept)
            if over in swept:
                _panel(axis, swept[over])
        row[0].set_ylabel(f"{thing.title} ({UNITS[thing.measure]})", fontsize="small")
        row[0].legend(fontsize="small", handlelength=2.5)
    for column, over in zip(axes.T, sizes):
        lowest = [axis for axis in column if axis.get_visible()][-1]  # below it there is none to carry the label
        lowest.set_xlabel(over)
        lowest.tick_params(axis="x", labelbottom=True)
    return figure


def _panel(axis: plt.Axes, found: dict[str, tuple[np.ndarray, np.ndarray]]) -> None:
    """One size of one thing; `found`: see `growth.candidates`."""
    axis.set(xscale="log", yscale="log")
    laws = {name: growth.fit(sizes, costs[:1]) for name, (sizes, costs) in found.items()}
    for name, (sizes, costs) in found.items():
        colour, marker, line = STYLE[_DRAWN_AS.get(name, name)]
        low, high = interval(costs[1:])
        axis.plot(sizes, [np.exp(laws[name].log_at(size)[0]) for size in sizes], color=colour, linestyle=line, linewidth=1.2)
        bars = np.clip([costs[0] - low, high - costs[0]], 0, None)
        bare = {"markersize": 9, "markerfacecolor": "none"} if name == "stock" else {"markersize": 5}  # seen where others lie on it
        axis.errorbar(sizes, costs[0], bars, color=colour, marker=marker, linestyle="none", elinewidth=0.8, label=name, **bare)
        axis.set_xticks(sizes, [f"{size // 1024}k" if size >= 8192 else str(size) for size in sizes], fontsize="small")
    low, high = axis.get_ylim()
    axis.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5) if high < 100 * low else (1,)))
    axis.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
    axis.tick_params(axis="y", labelsize="small")
    axis.minorticks_off()
    axis.set_title("$b$ = " + ", ".join(f"{law.exponent[0]:.2f} ({name})" for name, law in laws.items()), fontsize="small")


def exponent_table(found: pd.DataFrame, things: dict[str, Thing]) -> pd.DataFrame:
    """`growth.exponents` for reading."""
    lines = {}
    for (what, over, name), row in found.iterrows():
        thing = things[what]
        lines[thing.title, over, name] = {
            "from … to": " … ".join(f"{size:,}" for size in row["sizes"]),
            "cost there": " … ".join(f"{cost:.3g}" for cost in row["costs"]) + f" {UNITS[thing.measure]}",
            "exponent": _number(row["exponent"], row["low"], row["high"], ".2f"),
            "theory": f"{row['least']:g}" if row["least"] == row["most"] else f"{row['least']:g} to {row['most']:g}",
            "largest: predicted / measured": _number(row["held_out"], row["held_out_low"], row["held_out_high"], ".2f"),
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
    return _number(values[0], *interval(values[1:]), ".3g")


def _number(value: float, low: float, high: float, form: str) -> str:
    """With its interval, where there is one: what was measured once has none."""
    return f"{value:{form}}" if low == high else f"{value:{form}} [{low:{form}}, {high:{form}}]"
