"""Every figure and table of quality estimation as a function of its results."""

from collections.abc import Iterable

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd

from old.figures import STYLE, in_order, with_interval
from old.quality import evaluation
from old.quality.agreement import PROBABILITIES, agreement, platt
from old.quality.tasks.corruption import HOME_GROUND, TYPES
from old.results import holm, interval, p_value

# what the tables show of each task: (task, slice, metric, label). Higher is better, except where an ideal is named.
DROP = [
    ("listing", "all", "p_high_above_low", "listing: P(many right > one right), ideal 0.5"),
    ("languages", "all", "p_high_above_low", "languages: P(two > one right), ideal 0.5"),
]
AMBIGUITY = [
    DROP[0],
    ("listing", "all", "gap_kept", "listing: share of the gap kept, ideal 1"),
    ("listing", "right-many-wrong-listed", "auroc", "listing: AUROC, many right against listed"),
    ("listing", "right-many-wrong-sibling", "auroc", "listing: AUROC, many right against other set"),
    DROP[1],
    ("languages", "k=1", "auroc", "languages: AUROC, one right"),
    ("languages", "k=2", "auroc", "languages: AUROC, two right"),
    ("languages", "right-many-wrong-few", "auroc", "languages: AUROC, right of two against wrong"),
    ("languages", "prior", "auroc", "languages: AUROC without territory (control)"),
]


def edit_measures(task: str, types: Iterable[str], label: str) -> list[tuple[str, str, str, str]]:
    """What the tables show of edited texts: Pearson with the share of intact words, and AUROC of every type of error."""
    shown = [(task, f"type={name}", "auroc", f"{label}: AUROC, {_in_words(name)}") for name in types]
    return [(task, "errors", "pearson", f"{label}: Pearson with the share of intact words"), *shown]


def paired_measures(task: str, types: Iterable[str]) -> list[tuple[str, str, str, str]]:
    """Each original against its own edit."""
    return [(task, f"type={name}", "p_right_above_wrong", f"{_in_words(name)}: original > its edit") for name in types]


def _in_words(name: str) -> str:
    return f"{name.replace('-', ' ')}{' (home ground)' if name == HOME_GROUND else ''}"


QUALITY = [
    *edit_measures("corruption", TYPES, "corruption"),
    ("corruption", "type=attested", "auroc", "attested against unattested ways to go on: AUROC"),
    ("self-generation", "all", "pearson", "self-generation: Pearson with chrF"),
    ("self-generation", "all", "spearman", "self-generation: Spearman with chrF"),
]
PAIRED = paired_measures("corruption", TYPES)
DESCRIBED = ("group", "package", "text", "slice", "order", "kind", "prior")  # columns of items that are no scores
IDEAL = {"p_high_above_low": 0.5, "gap_kept": 1.0}  # metrics for which more is not better
# no scores to choose from: an oracle, what the length of a text alone would be worth, and what was computed elsewhere or learnt from people
REFERENCES = ("right-mass", "length", "nmt-logprob", "supervised-probe", "comet-kiwi")
SAMPLER_PANELS = ["softmax", "uniform", "unigram", "softmax-sampled", "mixed", "sigmoid-lowrank"]  # the paper's figure 2


def compared(what: list[tuple[str, str, str, str]]) -> list[tuple[str, str, str, str]]:
    """The measures by which methods are compared: without controls, home ground, and those for which more is not better."""
    return [m for m in what if m[2] not in IDEAL and m[1] not in ("prior", f"type={HOME_GROUND}")]


def scores_among(methods) -> list[str]:
    """The scores among the methods of a table, in the study's order: without references and closed forms of other samplers."""
    return [m for m in in_order(methods) if ":" not in m and m not in REFERENCES]


def scored_items(outputs: pd.DataFrame, task: str) -> tuple[pd.DataFrame, list[str]]:
    """Items of a task with one column a method, heads averaged over their seeds; and the methods there are."""
    part = outputs[outputs["dataset"] == task].dropna(axis=1, how="all")
    described = [name for name in part if name in DESCRIBED or name.startswith("gold")]
    scores = part.drop(columns=["study", "dataset", "model", "method", "part", "seed", *described]).groupby("id").mean()
    items = part.drop_duplicates("id").set_index("id")[described].join(scores).reset_index()
    return items, list(scores.columns)


def all_statistics(outputs: pd.DataFrame, methods: list[str]) -> dict[str, dict[str, evaluation.Statistics]]:
    """{task: {method: statistics with replicates}} of seed-averaged scores; replicates of two methods are paired."""
    found = {}
    for task in outputs["dataset"].unique():
        items, there = scored_items(outputs, task)
        found[task] = {m: evaluation.statistics(task, items, items[m].to_numpy()) for m in methods if m in there}
    return found


def printed(found: evaluation.Statistic, digits: int = 2, sign: str = "") -> str:
    """Value with interval."""
    return with_interval(found.value, *map(float, interval(found.replicates)), digits, sign)


def score_table(
    found: dict[str, dict[str, evaluation.Statistics]], what: list[tuple[str, str, str, str]], level: float = 0.05
) -> pd.DataFrame:
    """Measures by methods, value with interval; * the best of each row, + those not clearly worse. No marks where an ideal is named, or for
    REFERENCES.

    Not clearly worse: the paired difference from the best is not significant after Holm's correction within the row.
    """
    lines = {}
    for task, name, metric, label in what:
        cells = {m: f[name, metric] for m, f in found.get(task, {}).items() if (name, metric) in f}
        if not cells:
            continue
        judged = {m: cell for m, cell in cells.items() if m not in REFERENCES and np.isfinite(cell.value)}
        marks = _marks(judged, level) if judged and metric not in IDEAL else {}
        lines[label] = {m: printed(cell) + marks.get(m, "") if np.isfinite(cell.value) else "–" for m, cell in cells.items()}
    table = pd.DataFrame(lines).T
    return table[in_order(table.columns)].rename_axis("measure").fillna("–")


def _marks(cells: dict[str, evaluation.Statistic], level: float) -> dict[str, str]:
    best = max(cells, key=lambda m: cells[m].value)
    others = [m for m in cells if m != best]
    p = [_p(evaluation.difference(cells[best], cells[m])) for m in others]
    corrected = dict(zip(others, holm(np.array(p)))) if others else {}
    return {m: " *" if m == best else " +" if corrected[m] >= level else "" for m in cells}


def _p(step: evaluation.Statistic) -> float:
    return p_value(step.value, step.replicates, step.clusters)


def differences(
    found: dict[str, dict[str, evaluation.Statistics]],
    rows: pd.DataFrame,
    what: list[tuple[str, str, str, str]],
    method: str,
    against: list[str],
) -> pd.DataFrame:
    """Paired differences of one method from others in every measure of `what` that both have.

    Columns: value, ci_low, ci_high (of seed-averaged scores, over test items), p (bootstrap), p_holm (corrected within this table), seeds
    (the difference of every seed by itself, from `rows`, the result table).
    """
    lines = []
    for task, name, metric, label in what:
        for other in against:
            if not all((name, metric) in found.get(task, {}).get(m, {}) for m in (method, other)):
                continue
            ours, theirs = (found[task][m][name, metric] for m in (method, other))
            step = evaluation.difference(ours, theirs)
            low, high = interval(step.replicates)
            left, right = (_by_seed(rows, task, m, name, metric) for m in (method, other))
            seeds = [round(v - right.get(seed, right.get("0", np.nan)), 4) for seed, v in left.items()]  # untrained scores: one seed, "0"
            lines.append((label, other, step.value, float(low), float(high), _p(step), seeds))
    table = pd.DataFrame(lines, columns=["measure", "against", "value", "ci_low", "ci_high", "p", "seeds"])
    return table.assign(p_holm=holm(table["p"].to_numpy())).set_index(["measure", "against"])


def _by_seed(rows: pd.DataFrame, task: str, method: str, name: str, metric: str) -> dict[str, float]:
    keys = (("dataset", task), ("method", method), ("slice", name), ("metric", metric), ("setting", ""))
    part = rows[np.logical_and.reduce([rows[column] == value for column, value in keys])].sort_values("seed")
    return dict(zip(part["seed"], part["value"]))


def over_seeds(rows: pd.DataFrame, by: str, methods: list[str], digits: int = 3) -> pd.DataFrame:
    """Methods by the values of one column of `rows`: the mean over seeds, with an interval that spans those of the seeds (an untrained
    score has one seed: its interval).
    """
    grouped = rows[rows["method"].isin(methods)].groupby([by, "method"], sort=False)
    cells = grouped.agg(value=("value", "mean"), low=("ci_low", "min"), high=("ci_high", "max"))
    cells = cells.apply(lambda c: with_interval(c["value"], c["low"], c["high"], digits), axis=1)
    return cells.unstack(by).loc[in_order(cells.index.get_level_values("method"))].fillna("–")


def aggregation_table(rows: pd.DataFrame, methods: list[str]) -> pd.DataFrame:
    """Pearson with graded gold by how the token scores of a text are joined: methods by (task, way)."""
    part = rows[(rows["metric"] == "pearson") & rows["slice"].isin(["errors", "all"])]
    ways = part["dataset"] + ": " + part["setting"].str.removeprefix("aggregate=").replace("", "mean")
    return over_seeds(part.assign(way=ways), "way", methods, 2).rename_axis(columns=None)


def calibration_table(items: pd.DataFrame, methods: list[str]) -> pd.DataFrame:
    """BCE, Brier and ECE of each score as it is (a dash where it is no number between 0 and 1), and after Platt scaling fitted on other
    groups: methods by metrics.
    """
    gold, groups, lines = items["gold"].to_numpy(), items["group"].to_numpy(), {}
    for method in in_order(methods):
        score, cells = items[method].to_numpy(), {}
        for name, probability in (("", score), (", scaled", platt(score, gold, groups))):
            inside = probability.min() >= 0 and probability.max() <= 1
            values, drawn = agreement(probability, gold, groups, PROBABILITIES) if inside else ({}, {})
            for metric in PROBABILITIES:
                cell = with_interval(values[metric], *map(float, interval(drawn[metric]))) if inside else "–"
                cells[f"{metric.upper() if metric != 'brier' else 'Brier'}{name}"] = cell
        lines[method] = cells
    return pd.DataFrame(lines).T.rename_axis("score")


def by_package(items: pd.DataFrame, methods: list[str], least: int = 8) -> pd.DataFrame:
    """Corruption: Pearson with graded gold, package by package; packages with fewer than `least` texts are taken together."""
    graded = evaluation.graded_errors(items)
    size = graded.groupby("package")["group"].nunique()
    name = graded["package"].where(graded["package"].map(size) >= least, "all smaller ones")
    lines = {}
    for package, part in graded.groupby(name):
        lines[package] = {"texts": part["group"].nunique()}
        for method in methods:
            values, drawn = agreement(part[method].to_numpy(), part["gold"].to_numpy(), part["group"].to_numpy(), ("pearson",))
            lines[package][method] = with_interval(values["pearson"], *map(float, interval(drawn["pearson"])))
    return pd.DataFrame(lines).T.rename_axis("package")


def difference_plot(table: pd.DataFrame, method: str, better: str = "right") -> plt.Figure:
    """Differences with intervals, one row a measure, one marker a method compared with; on which side of zero `method` is `better`."""
    measures = list(dict.fromkeys(table.index.get_level_values(0)))
    others = in_order(table.index.get_level_values(1))
    apart = min(0.16, 0.8 / max(1, len(others)))  # between two methods; a measure has 1
    figure, axis = plt.subplots(figsize=(9, 0.08 / apart * len(measures) + 1.6), layout="constrained")
    difference_rows(axis, {other: table.xs(other, level=1).reindex(measures) for other in others}, STYLE, apart)
    axis.set_xlabel(f"{method} minus the other ({better}: {method} is better)")
    axis.legend(fontsize="small", loc="center left", bbox_to_anchor=(1, 0.5), title="compared with")
    return figure


def difference_rows(axis: plt.Axes, parts: dict[str, pd.DataFrame], style: dict[str, tuple], apart: float) -> None:
    """Differences (value, ci_low, ci_high) against zero: a row a measure, the index that all parts have; a marker a part, `apart` from the
    next. style: colour, marker, ... by name.
    """
    for place, (name, part) in enumerate(parts.items()):
        colour, marker, *_ = style[name]
        y = np.arange(len(part)) + (place - (len(parts) - 1) / 2) * apart
        errors = np.clip([part["value"] - part["ci_low"], part["ci_high"] - part["value"]], 0, None)  # of few items one may lie outside
        axis.errorbar(part["value"], y, xerr=errors, color=colour, marker=marker, linestyle="", markersize=5, capsize=2, label=name)
    axis.axvline(0, color="black", linewidth=1)
    axis.set_yticks(range(len(part)), part.index, fontsize="small")
    axis.invert_yaxis()
    axis.xaxis.set_major_locator(plt.MaxNLocator(6))


def drop_by_k(items: pd.DataFrame, methods: list[str], most: int = 8) -> plt.Figure:
    """Listing: how often an answer scores higher with k right ones than where it is the only one, against k up to `most`; 0.5 is ideal.

    Every set that has k counts the same: fewer sets at higher k. The dashed line is the oracle `right-mass`, the probability of all right
    names together: where it is high, the model has no more doubt than where one name is left.
    """
    right = items[items["gold"] == 1].assign(k=lambda t: t["slice"].str.removeprefix("k=").astype(int))
    figure, axis = plt.subplots(figsize=(8, 4.6), layout="constrained")
    ks = [k for k in range(2, most + 1) if (right["k"] == k).any()]
    shown = in_order({*methods, "right-mass"} & set(items))
    for place, method in enumerate(shown):
        colour, marker, line = STYLE[method]
        scored = right.assign(score=right[method])
        points = []
        for k in ks:
            by_set, _ = evaluation.above(scored[scored["k"] == k], scored[scored["k"] == 1])
            found = evaluation.mean(by_set.to_numpy(), by_set.index.to_series())
            points.append((found.value, *map(float, interval(found.replicates))))
        value, low, high = np.array(points).T
        x = np.array(ks) + (place - (len(shown) - 1) / 2) * 0.07
        label = "right-mass (oracle)" if method == "right-mass" else method
        style = {"color": colour, "marker": marker, "linestyle": line, "markersize": 6, "capsize": 2}
        axis.errorbar(x, value, yerr=[value - low, high - value], label=label, **style)
    axis.axhline(0.5, color="black", linewidth=1)
    sets = [right[right["k"] == k]["group"].nunique() for k in ks]
    ticks = [f"{k}\n({n} sets)" for k, n in zip(ks, sets)]
    axis.set(xlabel="right answers left (k)", ylabel="P(score with k right > score as the only one)", ylim=(0, None))
    axis.set_xticks(ks, ticks)
    axis.legend(fontsize="small", loc="center left", bbox_to_anchor=(1, 0.5))
    return figure


def truth_scatter(items: pd.DataFrame, methods: list[str], label: str) -> plt.Figure:
    """Gold against predicted quality, one panel a score, with the diagonal where gold lies in [0, 1]; Pearson's r with its interval."""
    bounded = items["gold"].between(0, 1).all()
    columns = min(3, len(methods))
    lines = -(-len(methods) // columns)
    figure, axes = plt.subplots(
        lines, columns, figsize=(3.4 * columns, 3.3 * lines), sharex=True, sharey=bool(bounded), squeeze=False, layout="constrained"
    )
    for axis, method in zip(axes.flat, methods):
        values, drawn = agreement(items[method].to_numpy(), items["gold"].to_numpy(), items["group"].to_numpy(), ("pearson",))
        axis.scatter(items["gold"], items[method], s=6, alpha=0.3, color=STYLE[method][0], linewidths=0, rasterized=True)
        if bounded:
            axis.plot([0, 1], [0, 1], color="black", linewidth=1)
        shown = {"sigmoid-lowrank": "sigmoid-lowrank (mixed-excluded)"}.get(method, method)
        axis.set_title(f"{shown}\nr = {with_interval(values['pearson'], *map(float, interval(drawn['pearson'])))}")
    for axis in axes.flat[len(methods) :]:
        axis.axis("off")
    if bounded:
        axes[0, 0].set(xlim=(max(0.0, np.floor(10 * items["gold"].min()) / 10) - 0.02, 1.02), ylim=(0, 1.02))
    figure.supxlabel(label, fontsize="medium")
    figure.supylabel("predicted quality (mean token score)", fontsize="medium")
    return figure


def reliability(items: pd.DataFrame, methods: list[str], bins: int = 5, least: int = 10) -> plt.Figure:
    """Share of right answers against the score, in bins of equal width; on the diagonal a score is a probability. Size: number of items;
    bins of fewer than `least` are left out.
    """
    figure, axis = plt.subplots(figsize=(6.6, 4.8), layout="constrained")
    for method in in_order(methods):
        colour, marker, line = STYLE[method]
        bin_of = np.minimum((items[method] * bins).astype(int), bins - 1)
        table = items.assign(bin=bin_of).groupby("bin").agg(score=(method, "mean"), right=("gold", "mean"), n=("gold", "size"))
        table = table[table["n"] >= least]
        axis.plot(table["score"], table["right"], color=colour, linestyle=line, linewidth=1.2)
        axis.scatter(
            table["score"], table["right"], s=12 + 90 * np.sqrt(table["n"] / len(items)), color=colour, marker=marker, label=method
        )
    axis.plot([0, 1], [0, 1], color="black", linewidth=1)
    axis.set(xlabel="score (mean in the bin)", ylabel="share of right answers", xlim=(-0.02, 1.02), ylim=(-0.02, 1.02))
    axis.legend(fontsize="small", loc="center left", bbox_to_anchor=(1, 0.5))
    return figure


def learning_curves(curves: pd.DataFrame, pairs: list[tuple[str, str]]) -> plt.Figure:
    """Held-out loss against updates for heads from the raw and from the fitted start, every seed a line; and that of the closed form."""
    figure, axis = plt.subplots(figsize=(8, 4.2), layout="constrained")
    for method in [m for pair in pairs for m in pair]:
        colour, marker, line = STYLE[method]
        for number, (_, part) in enumerate(curves[curves["method"] == method].groupby("seed")):
            axis.plot(
                part["update"], part["bce_common"], color=colour, linestyle=line, marker=marker, markevery=4, markersize=5, linewidth=1.2,
                label=method if number == 0 else None,
            )  # fmt: skip
    closed = curves.loc[curves["method"] == "untrained", "bce_common"]
    if len(closed):
        axis.axhline(closed.iloc[0], color=STYLE["closed-form"][0], linestyle=STYLE["closed-form"][2], label="closed-form (untrained)")
    axis.set(xlabel="updates", ylabel="held-out loss (nats a position)", yscale="log")
    axis.legend(fontsize="small", loc="center left", bbox_to_anchor=(1, 0.5))
    return figure


def updates_to_reach(curves: pd.DataFrame, pairs: list[tuple[str, str]]) -> pd.DataFrame:
    """Updates until the raw start first reaches the held-out loss that its fitted partner has at the start and at the end; every seed."""
    lines = {}
    for raw, fitted in pairs:
        for seed, part in curves[curves["method"] == raw].groupby("seed"):
            partner = curves[(curves["method"] == fitted) & (curves["seed"] == seed)]
            for name, target in (("start", partner["bce_common"].iloc[0]), ("end", partner["bce_common"].iloc[-1])):
                reached = part.loc[part["bce_common"] <= target, "update"]
                lines[raw, seed, f"loss of {fitted} at its {name}"] = {
                    "loss": round(float(target), 3),
                    "updates of the raw start": str(reached.iloc[0]) if len(reached) else "not reached",
                    "loss of the raw start at the end": round(float(part["bce_common"].iloc[-1]), 3),
                }
    return pd.DataFrame(list(lines.values()), index=pd.MultiIndex.from_tuples(lines, names=["head", "seed", "target"]))
