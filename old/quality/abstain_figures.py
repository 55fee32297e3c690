"""Figures and tables of calibration and of selective answering, by task; where there is no task they say so."""

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd

from old.figures import STYLE, in_order, with_interval
from old.quality import calibration, selective
from old.quality.agreement import Draws
from old.quality.calibration import BASE_RATE
from old.quality.evaluation import Statistic, average, difference
from old.quality.figures import printed
from old.quality.labelled import Labelled
from old.results import holm, interval, p_value

TITLES = {
    "listing": "listing",
    "languages": "languages",
    "paws-x-en-validation": "PAWS-X validation",
    "paws-x-en": "PAWS-X test",
    "cola": "CoLA",
    "gsm8k-own": "GSM8K, own answers",
}
AXES = {"brier": "Brier score", "ece": "ECE"}
LEAST = 10  # answers from which on a risk is drawn

ByItems = dict[str, dict[str, dict[str, Statistic]]]  # {task: {score: {what: statistic}}}
BySeed = dict[str, dict[str, list[dict[str, Statistic]]]]  # {task: {score: [of each seed: {what: statistic}]}}


# ---- calibration ---------------------------------------------------------------------------------------------------------------------


def learning_curves(curves: dict[str, pd.DataFrame], metric: str, shown: list[str]) -> plt.Figure:
    """Brier score or ECE on held-out items against the number of labelled items, a panel a task; bars, which may leave the panel: 95 %
    range over draws.

    Hollow at 0: the score as it is. Black, in a grey band: always the base rate. `curves`: {task: `calibration.learning_curve`}
    """
    figure, axes = _panels([TITLES.get(task, task) for task in curves], 3, 3.4)
    for axis, curve in zip(axes, curves.values()):
        table = curve[curve["metric"] == metric].set_index(["score", "n"]).sort_index()
        sizes = sorted(n for n in curve["n"].unique() if n)
        there = [score for score in in_order(shown) if score in table.index.get_level_values("score")]
        base = table.loc[BASE_RATE].loc[sizes]
        axis.fill_between(range(1, len(sizes) + 1), base["low"], base["high"], color="0.88", linewidth=0)
        axis.plot(range(1, len(sizes) + 1), base["value"], color="black", linewidth=1.2, label=BASE_RATE)
        for place, score in enumerate(there):
            colour, marker, line = STYLE[score]
            shift = (place - (len(there) - 1) / 2) * 0.12
            part = table.loc[score]
            _errorbar(axis, part.loc[sizes], shift + 1, color=colour, marker=marker, linestyle=line, label=score)
            _errorbar(axis, part[part.index == 0], shift, color=colour, marker=marker, linestyle="", markerfacecolor="white")
        means = table.loc[[BASE_RATE, *there], "value"]
        margin = 0.15 * (means.max() - means.min())
        axis.set(ylim=(max(0, means.min() - margin), means.max() + margin), xlim=(-0.5, len(sizes) + 0.5))
        axis.set_xticks(range(len(sizes) + 1), [0, *sizes])
    _describe(figure, axes, "labelled items the curve was fitted on (0: the score as it is)", f"{AXES[metric]} (lower is better)")
    return figure


def _errorbar(axis: plt.Axes, points: pd.DataFrame, first: float, **style) -> None:
    """Means with the range of draws, one step after another from x = `first`."""
    errors = [points["value"] - points["low"], points["high"] - points["value"]]
    axis.errorbar(first + np.arange(len(points)), points["value"], yerr=errors, markersize=5, elinewidth=0.8, **style)


def enough_table(curves: dict[str, pd.DataFrame], within: float) -> pd.DataFrame:
    """Scores by tasks: the smallest sufficient n of `calibration.enough`, a dash where there is none; in brackets the largest n tried."""
    columns = {}
    for task, curve in curves.items():
        found = calibration.enough(curve, within)
        columns[f"{TITLES.get(task, task)} (of {curve['n'].max()})"] = {s: "–" if n is None else f"{n}" for s, n in found.items()}
    table = pd.DataFrame(columns)
    return table.reindex([s for s in (BASE_RATE, *in_order(table.index)) if s in table.index]).rename_axis("score").fillna("")


def below_base_rate(found: ByItems, level: float = 0.05) -> pd.DataFrame:
    """Brier score minus that of the base rate, with an interval over test items, one row a task and score; `p_holm` over this table."""
    rows = []
    for task, scores in found.items():
        for score, values in scores.items():
            if score != BASE_RATE:
                step = values["step"]
                low, high = map(float, interval(step.replicates))
                rows.append((task, score, step.value, low, high, p_value(step.value, step.replicates, step.clusters)))
    table = pd.DataFrame(rows, columns=["task", "score", "value", "ci_low", "ci_high", "p"]).set_index(["task", "score"])
    table["p_holm"] = holm(table["p"].to_numpy())
    return table.assign(clear=table["p_holm"] < level)


def step_table(steps: pd.DataFrame) -> pd.DataFrame:
    """`below_base_rate` for reading: scores by tasks; * clear after Holm's correction over the table."""
    cells = {key: with_interval(*row[["value", "ci_low", "ci_high"]], 3) + (" *" if row["clear"] else "") for key, row in steps.iterrows()}
    return _by_task(cells)


def item_table(found: ByItems, what: str, digits: int = 3) -> pd.DataFrame:
    """Scores by tasks: one number with its interval over test items."""
    return _by_task({(task, s): printed(v[what], digits) for task, scores in found.items() for s, v in scores.items()})


# ---- selective answering -------------------------------------------------------------------------------------------------------------


def selective_statistics(tasks: dict[str, Labelled], risks: list[float]) -> BySeed:
    """`selective.statistics` of every score and seed; resamples of a task are the same for all."""
    found = {}
    for name, task in tasks.items():
        draws = Draws(task.groups)
        found[name] = {s: [selective.statistics(x, task.gold, draws, tuple(risks)) for x in by_seed] for s, by_seed in task.scores.items()}
    return found


def over_seeds(found: BySeed) -> ByItems:
    """The results of seeds averaged."""
    return {
        task: {score: {what: average([seed[what] for seed in seeds]) for what in seeds[0]} for score, seeds in scores.items()}
        for task, scores in found.items()
    }


def risk_coverage(tasks: dict[str, Labelled], shown: dict[str, list[str]]) -> plt.Figure:
    """Risk against coverage from LEAST answers on, a column a task and a row for each group of scores in `shown`; heads: mean of the
    seeds' curves.

    Black: the ideal order (dashed), and the risk of an order that says nothing (solid).
    """
    panels = [(title, scores, name, task) for title, scores in shown.items() for name, task in tasks.items()]
    figure, axes = _panels([f"{TITLES.get(name, name)}: {title}" for title, _, name, _ in panels], max(1, len(tasks)), 3.4)
    for axis, (_, scores, _, task) in zip(axes, panels):
        seen = slice(min(LEAST, len(task.gold)) - 1, None)
        for score in in_order(set(scores) & set(task.scores)):
            colour, marker, line = STYLE[score]
            curves = [selective.risk_coverage(x, task.gold) for x in task.scores[score]]
            coverage, risk = np.mean(curves, 0)[:, seen]
            every = max(1, len(risk) // 9)
            axis.plot(coverage, risk, color=colour, marker=marker, linestyle=line, markevery=every, markersize=5, label=score)
        axis.plot(*selective.risk_coverage(task.gold, task.gold), color="black", linestyle="--", linewidth=1, label="ideal order")
        axis.axhline(1 - task.gold.mean(), color="black", linewidth=1, label="no order")
        axis.set(xlim=(0, 1.02), ylim=(0, None))
    _describe(figure, axes, "coverage (share answered, best-scored first)", "risk (share of wrong ones among answered)")
    return figure


def head_differences(found: BySeed, head: str, against: list[str], what: str = "aurc") -> pd.DataFrame:
    """Head minus other scores, paired; columns and index as those of `old.quality.figures.differences`, `p_holm` over this table."""
    rows, means = [], over_seeds(found)
    for task, scores in found.items():
        for other in [m for m in in_order(against) if m in scores and head in scores]:
            step = difference(means[task][head][what], means[task][other][what])
            low, high = map(float, interval(step.replicates))
            seeds = [round(seed[what].value - means[task][other][what].value, 4) for seed in scores[head]]
            p = p_value(step.value, step.replicates, step.clusters)
            rows.append((TITLES.get(task, task), other, step.value, low, high, p, seeds))
    table = pd.DataFrame(rows, columns=["measure", "against", "value", "ci_low", "ci_high", "p", "seeds"])
    return table.assign(p_holm=holm(table["p"].to_numpy())).set_index(["measure", "against"])


# ---- shared --------------------------------------------------------------------------------------------------------------------------


def _by_task(cells: dict[tuple[str, str], str]) -> pd.DataFrame:
    """{(task, score): text} -> scores by tasks"""
    tasks, scores = (list(dict.fromkeys(key[place] for key in cells)) for place in (0, 1))
    lines = {score: {TITLES.get(task, task): cells.get((task, score), "") for task in tasks} for score in scores}
    order = [s for s in (BASE_RATE, *in_order(scores)) if s in lines]
    return pd.DataFrame({score: lines[score] for score in order}).T.rename_axis("score")


def _panels(titles: list[str], columns: int, height: float) -> tuple[plt.Figure, list[plt.Axes]]:
    """One axis a title, up to `columns` a line; where there is none, a figure that says so."""
    columns = max(1, min(columns, len(titles)))
    lines = max(1, -(-len(titles) // columns))
    figure, axes = plt.subplots(lines, columns, figsize=(4.4 * columns, height * lines + 0.8), squeeze=False, layout="constrained")
    for axis in axes.flat[len(titles) :]:
        axis.axis("off")
    if not titles:
        axes[0, 0].text(0.5, 0.5, "none of these tasks is stored", ha="center", va="center")
    for axis, title in zip(axes.flat, titles):
        axis.set_title(title)
    return figure, list(axes.flat[: len(titles)])


def _describe(figure: plt.Figure, axes: list[plt.Axes], x: str, y: str) -> None:
    """One label an axis for all panels, and one legend above them."""
    if axes:
        labels = {label: handle for axis in axes for handle, label in zip(*axis.get_legend_handles_labels())}
        figure.supxlabel(x, fontsize="medium")
        figure.supylabel(y, fontsize="medium")
        figure.legend(labels.values(), labels.keys(), loc="outside upper center", ncols=6, fontsize="small")
