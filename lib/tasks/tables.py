"""Tables and figures of scores that several notebooks show, from scored items.

Items are those of `lib.tasks.experiments.scored_items`, with one column a score; by seed where
differences are to be shown seed by seed.
"""

from collections.abc import Iterable

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd

from lib.study.agreement import agreement
from lib.study.figures import STYLE, in_order, with_interval
from lib.study.statistics import Draws, Estimate, compare, sample
from lib.tasks.measures import Criterion, main_metric

# no scores to choose from: an oracle, what the length of a text alone would be worth, and what was
# computed elsewhere or learnt from people
REFERENCES = ("right-mass", "length", "nmt-logprob", "supervised-probe", "comet-kiwi")
SAMPLER_PANELS = ("softmax", "uniform", "unigram", "softmax-sampled", "mixed", "sigmoid-lowrank")
SIDE = {"loc": "center left", "bbox_to_anchor": (1, 0.5), "fontsize": "small"}  # of a legend

Judged = dict[str, dict[object, Estimate]]  # {label of a criterion: {method: estimate}}


def scores_among(methods: Iterable[str]) -> list[str]:
    """The scores among methods, in the study's order: no references, no closed forms of other
    samplers.
    """
    return [m for m in in_order(methods) if ":" not in m and m not in REFERENCES]


def averaged(items: pd.DataFrame) -> pd.DataFrame:
    """One row an item: scores averaged over seeds, where there are several."""
    if "seed" not in items:
        return items
    scores = [name for name in items if name in STYLE]
    means = items.groupby(["task", "id"], sort=False)[scores].mean().to_numpy()
    first = items.drop_duplicates(["task", "id"]).drop(columns="seed")
    return first.assign(**dict(zip(scores, means.T)))


def judge(items: pd.DataFrame, criteria: Iterable[Criterion], methods: Iterable[str]) -> Judged:
    """Every criterion of every method, of scores averaged over seeds; replicates of two methods are
    paired. `by_seed` has what the scores of each seed would give.
    """
    judged: Judged = {criterion.label: {} for criterion in criteria}
    for task, part in items.groupby("task", sort=False):
        there = [m for m in methods if m in part and part[m].notna().any()]
        trained = part.groupby("id")[there].nunique().max() > 1  # differs between seeds
        about = [name for name in part if name not in (*STYLE, "seed")]
        seeds = [own for _, own in part.groupby("seed")] if any(trained) else []
        mean, draws = averaged(part), {}  # by criterion: its rows do not depend on the score
        for method, varies in trained.items():
            tables = [t[about].assign(score=t[method]) for t in (mean, *(seeds if varies else ()))]
            for criterion in (c for c in criteria if c.task == task):
                rows, *own = (criterion.of(table) for table in tables)
                if len(rows):
                    if criterion.label not in draws:
                        draws[criterion.label] = Draws(rows["group"])
                    shared, measure = draws[criterion.label], criterion.measure
                    cell = sample(rows, measure, seed="", draws=shared)
                    each = tuple(sample(r, measure, seed="", resamples=0).value for r in own)
                    judged[criterion.label][method] = cell._replace(by_seed=each or cell.by_seed)
    return judged


def printed(cell: Estimate, digits: int = 2) -> str:
    """Value with interval."""
    return with_interval(cell.value, cell.low, cell.high, digits)


def score_table(judged: Judged, criteria: Iterable[Criterion], level: float = 0.05) -> pd.DataFrame:
    """Criteria by methods, value with interval; * the best of each row, + those not clearly worse:
    the paired difference is not significant after Holm's correction within the row. No marks where
    an ideal is named, or for REFERENCES.
    """
    lines = {}
    for criterion in criteria:
        cells, marks = judged[criterion.label], {}
        scores = [m for m in cells if m not in REFERENCES and np.isfinite(cells[m].value)]
        if scores and criterion.ideal is None:
            best = max(scores, key=lambda m: cells[m].value)
            steps = compare({m: (cells[best], cells[m]) for m in scores if m != best})
            marks = {best: " *"} | dict.fromkeys(steps.index[steps["p_holm"] >= level], " +")
        if cells:
            texts = {m: printed(cell) + marks.get(m, "") for m, cell in cells.items()}
            lines[criterion.label] = texts
    table = pd.DataFrame.from_dict(lines, orient="index")
    return table[in_order(table.columns)].rename_axis("measure").fillna("–")


def with_n(table: pd.DataFrame, judged: Judged) -> pd.DataFrame:
    """A score table with the number of items of each row as its first column."""
    sizes = {label: f"{next(iter(cells.values())).n:,}" for label, cells in judged.items() if cells}
    return pd.concat([pd.Series(sizes, name="n").reindex(table.index), table], axis=1)


def paired(measures: Judged, pairs: Iterable[tuple], less: str = " bce") -> pd.DataFrame:
    """`compare` of pairs of names in every measure that has both, Holm-corrected over the table;
    positive where the first is better: where a measure ends with `less`, less is. Index (score,
    against, measure).
    """
    sides = {
        (one, other, measure): (values[one], values[other])[:: -1 if measure.endswith(less) else 1]
        for one, other in pairs
        for measure, values in measures.items()
        if {one, other} <= values.keys()
    }
    return compare(sides).rename_axis(["score", "against", "measure"])


def differences(
    judged: Judged, criteria: Iterable[Criterion], method: str, against: Iterable[str]
) -> pd.DataFrame:
    """`paired` differences of one method from others by some criteria: index (measure, against)."""
    measures = {criterion.label: judged[criterion.label] for criterion in criteria}
    table = paired(measures, [(method, other) for other in against]).droplevel("score").swaplevel()
    return table.loc[[label for label in measures if label in table.index]]


def verdicts(differences: pd.DataFrame) -> pd.DataFrame:
    """Does the method outperform the others? By measure, from `differences`: `confirmed`, clearly
    better than all; `refuted`, clearly worse than one and better than none; `qualified` between.
    """
    lines = {}
    for measure, rows in differences.groupby(level="measure", sort=False):
        value = rows["value"].droplevel("measure") * rows["clear"].to_numpy()
        better, worse = value.index[value > 0], value.index[value < 0]
        word = "confirmed" if len(better) == len(rows) else "qualified"
        word = word if len(better) else "refuted" if len(worse) else "no clear difference"
        names = (", ".join(side) or "-" for side in (better, worse))
        lines[measure] = word, *names
    columns = ["outperforms?", "clearly better than", "clearly worse than"]
    table = pd.DataFrame.from_dict(lines, orient="index", columns=columns)
    return table.rename_axis("measure")


def agreements(rows: pd.DataFrame, by: str) -> Judged:
    """{task: {value of column `by`: agreement with gold by the task's main measure}}; seeds are
    averaged. Rows with the columns task, group, gold, score.
    """
    return {
        task: {
            key: sample(part, agreement(main_metric(items)))
            for key, part in items.groupby(by, sort=False)
        }
        for task, items in rows.groupby("task", sort=False)
    }


def marked(table: pd.DataFrame) -> pd.Series:
    """Differences with their sign, * where clear."""
    return table["value"].map("{:+.3f}".format) + table["clear"].map({True: " *", False: ""})


def over_seeds(rows: pd.DataFrame, by: str, digits: int = 3) -> pd.DataFrame:
    """Methods by the values of a column, of rows with stored statistics (value, low, high): the
    mean over seeds, with an interval that spans those of the seeds.
    """
    grouped = rows.groupby([by, "method"], sort=False)
    cells = grouped.agg(value=("value", "mean"), low=("low", "min"), high=("high", "max"))
    texts = cells.apply(lambda c: with_interval(*c, digits), axis=1).unstack(by)
    return texts.loc[in_order(texts.index)].fillna("–")


def difference_plot(table: pd.DataFrame, method: str) -> plt.Figure:
    """`differences` with their intervals, a row a measure, a marker a method compared with."""
    measures = list(dict.fromkeys(table.index.get_level_values(0)))
    others = in_order(table.index.get_level_values(1))
    apart = min(0.16, 0.8 / max(1, len(others)))  # between two methods; a measure has 1
    height = 0.08 / apart * len(measures) + 1.6
    figure, axis = plt.subplots(figsize=(9, height), layout="constrained")
    parts = {other: table.xs(other, level=1).reindex(measures) for other in others}
    difference_rows(axis, parts, STYLE, apart)
    axis.set_xlabel(f"{method} minus the other (right: {method} is better)")
    axis.legend(title="compared with", **SIDE)
    return figure


def difference_rows(axis: plt.Axes, parts: dict[str, pd.DataFrame], style: dict, apart: float):
    """Differences (value, low, high) against zero: a row a measure, the index that all parts have;
    a marker a part, `apart` from the next. style: colour, marker, ... by name.
    """
    for place, (name, part) in enumerate(parts.items()):
        colour, marker, *_ = style[name]
        y = np.arange(len(part)) + (place - (len(parts) - 1) / 2) * apart
        ends = [part["value"] - part["low"], part["high"] - part["value"]]
        look = {"color": colour, "marker": marker, "linestyle": "", "markersize": 5, "capsize": 2}
        errors = np.clip(ends, 0, None)  # of few items one may lie outside
        axis.errorbar(part["value"], y, xerr=errors, label=name, **look)
    axis.axvline(0, color="black", linewidth=1)
    axis.set_yticks(range(len(part)), part.index, fontsize="small")
    axis.invert_yaxis()
    axis.xaxis.set_major_locator(plt.MaxNLocator(6))


def truth_scatter(items: pd.DataFrame, methods: Iterable[str], label: str) -> plt.Figure:
    """Gold against predicted quality, one panel a method, with the diagonal where gold lies in
    [0, 1]; Pearson's r with its interval. Scores are averaged over seeds.
    """
    items = averaged(items)
    shown, low, high = [m for m in methods if m in items], *items["gold"].agg(["min", "max"])
    bounded = low >= 0 and high <= 1
    columns = min(3, len(shown))
    lines = -(-len(shown) // columns)
    size, grid = (3.4 * columns, 3.3 * lines), {"squeeze": False, "layout": "constrained"}
    figure, axes = plt.subplots(lines, columns, figsize=size, sharex=True, sharey=bounded, **grid)
    for axis, method in zip(axes.flat, shown):
        look = {"s": 6, "alpha": 0.3, "linewidths": 0, "rasterized": True}
        axis.scatter(items["gold"], items[method], color=STYLE[method][0], **look)
        name = method.replace("sigmoid-lowrank", "sigmoid-lowrank (mixed-excluded)")
        axis.set_title(f"{name}\nr = {printed(sample(items, agreement('pearson', method)))}")
        if bounded:
            axis.plot([0, 1], [0, 1], color="black", linewidth=1)
            axis.set(xlim=(np.floor(10 * low) / 10 - 0.02, 1.02), ylim=(0, 1.02))
    for axis in axes.flat[len(shown) :]:
        axis.axis("off")
    figure.supxlabel(label, fontsize="medium")
    figure.supylabel("predicted quality (mean token score)", fontsize="medium")
    return figure
