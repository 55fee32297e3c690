"""Every figure and table of quality estimation as a function of its results."""

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd

from lib.figures import STYLE, in_order, with_interval
from lib.quality import evaluation
from lib.quality.agreement import agreement
from lib.quality.tasks.corruption import HOME_GROUND
from lib.results import holm, interval, p_value

# what the tables show of each task: (task, slice, metric, label). Higher is better, except where 0.5 is ideal.
AMBIGUITY = [
    ("listing", "all", "p_high_above_low", "listing: P(many right > one right), ideal 0.5"),
    ("listing", "right-many-wrong-few", "auroc", "listing: AUROC, right among many against wrong"),
    ("listing", "all", "gap_kept", "listing: share of the gap kept"),
    ("languages", "all", "p_high_above_low", "languages: P(two right > one right), ideal 0.5"),
    ("languages", "k=1", "auroc", "languages: AUROC, one right"),
    ("languages", "k=2", "auroc", "languages: AUROC, two right"),
    ("languages", "right-many-wrong-few", "auroc", "languages: AUROC, right of two against wrong"),
    ("languages", "prior", "auroc", "languages: AUROC without naming the territory"),
]
QUALITY = [
    ("corruption", "errors", "pearson", "corruption: Pearson with the share of intact words"),
    *(("corruption", f"type={name}", "auroc", f"corruption: AUROC, {name.replace('-', ' ')}") for name in evaluation.TYPES),
    ("corruption", "type=attested", "auroc", "attested alternatives: AUROC"),
    ("self-generation", "all", "pearson", "self-generation: Pearson with chrF"),
    ("self-generation", "all", "spearman", "self-generation: Spearman with chrF"),
]
IDEAL = {"p_high_above_low": 0.5}  # metrics for which more is not better
SAMPLER_PANELS = ["softmax", "uniform", "unigram", "softmax-sampled", "mixed", "sigmoid-lowrank"]  # the paper's figure 2


def scored_items(outputs: pd.DataFrame, task: str) -> tuple[pd.DataFrame, list[str]]:
    """Items of a task with one column a method, heads averaged over their seeds; and the methods there are."""
    part = outputs[outputs["dataset"] == task].dropna(axis=1, how="all")
    described = [name for name in ("group", "slice", "gold", "order", "kind", "prior") if name in part]
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


def score_table(
    found: dict[str, dict[str, evaluation.Statistics]], what: list[tuple[str, str, str, str]], level: float = 0.05
) -> pd.DataFrame:
    """Measures by methods, value with interval; the best of each row in bold with *, those not clearly worse with +.

    Not clearly worse: the paired difference from the best is not significant after Holm's correction within the row. Where 0.5 is ideal, +
    marks intervals that hold it.
    """
    lines = {}
    for task, name, metric, label in what:
        if task not in found:
            continue
        cells = {m: f[name, metric] for m, f in found[task].items() if (name, metric) in f}
        lines[label] = {
            m: with_interval(value, *map(float, interval(r)), 2) + mark
            for (m, (value, r, _)), mark in zip(cells.items(), _marks(cells, metric, level))
        }
    table = pd.DataFrame(lines).T
    return table[in_order(table.columns)].rename_axis("measure").fillna("–")


def _marks(cells: dict, metric: str, level: float) -> list[str]:
    if metric in IDEAL:
        bounds = [interval(r) for _, r, _ in cells.values()]
        return [" +" if low <= IDEAL[metric] <= high else "" for low, high in bounds]
    best = max(cells, key=lambda m: cells[m][0])
    others = [m for m in cells if m != best]
    p = [p_value(cells[best][0] - cells[m][0], cells[best][1] - cells[m][1]) for m in others]
    corrected = dict(zip(others, holm(np.array(p)))) if others else {}
    return [" *" if m == best else " +" if corrected[m] >= level else "" for m in cells]


def differences(
    found: dict[str, dict[str, evaluation.Statistics]], what: list[tuple[str, str, str, str]], method: str, against: list[str]
) -> pd.DataFrame:
    """Paired differences of one method from others in every measure: columns value, ci_low, ci_high, p, p_holm (over the whole table)."""
    lines = []
    for task, name, metric, label in what:
        for other in against:
            if (
                metric not in IDEAL
                and task in found
                and method in found[task]
                and other in found[task]
                and (name, metric) in found[task][method]
            ):
                (value, drawn, _), (base, base_drawn, _) = (found[task][m][name, metric] for m in (method, other))
                low, high = interval(drawn - base_drawn)
                lines.append((label, other, value - base, float(low), float(high), p_value(value - base, drawn - base_drawn)))
    table = pd.DataFrame(lines, columns=["measure", "against", "value", "ci_low", "ci_high", "p"])
    return table.assign(p_holm=holm(table["p"].to_numpy())).set_index(["measure", "against"])


def difference_plot(table: pd.DataFrame, method: str) -> plt.Figure:
    """Differences with intervals, one row a measure, one marker a method compared with; right of zero `method` is better."""
    measures = list(dict.fromkeys(table.index.get_level_values(0)))
    others = in_order(table.index.get_level_values(1))
    figure, axis = plt.subplots(figsize=(9, 0.5 * len(measures) + 1.6), layout="constrained")
    for place, other in enumerate(others):
        colour, marker, _ = STYLE[other]
        part = table.xs(other, level=1).reindex(measures)
        y = np.arange(len(measures)) + (place - (len(others) - 1) / 2) * 0.16
        errors = [part["value"] - part["ci_low"], part["ci_high"] - part["value"]]
        axis.errorbar(part["value"], y, xerr=errors, color=colour, marker=marker, linestyle="", markersize=5, capsize=2, label=other)
    axis.axvline(0, color="black", linewidth=1)
    axis.set_yticks(range(len(measures)), measures, fontsize="small")
    axis.invert_yaxis()
    axis.xaxis.set_major_locator(plt.MaxNLocator(6))
    axis.set_xlabel(f"{method} minus the other (right: {method} is better)")
    axis.legend(fontsize="small", loc="center left", bbox_to_anchor=(1, 0.5), title="compared with")
    return figure


def drop_by_k(items: pd.DataFrame, methods: list[str]) -> plt.Figure:
    """Listing: how often an answer scores higher with k right ones than where it is the only one, against k; 0.5 is ideal."""
    right = items[items["gold"] == 1].assign(k=lambda t: t["slice"].str.removeprefix("k=").astype(int))
    alone = right[right["k"] == 1].set_index(["group", "order"])
    figure, axis = plt.subplots(figsize=(8, 4.4), layout="constrained")
    ks = [k for k in range(2, 9) if (right["k"] == k).any()]
    for place, method in enumerate(in_order(methods)):
        colour, marker, line = STYLE[method]
        values, low, high = [], [], []
        for k in ks:
            part = right[right["k"] == k]
            before = alone[method].reindex(pd.MultiIndex.from_frame(part[["group", "order"]])).to_numpy()
            value, drawn, _ = evaluation.mean((part[method] > before) + 0.5 * (part[method].to_numpy() == before), part["group"])
            values.append(value), low.append(value - interval(drawn)[0]), high.append(interval(drawn)[1] - value)
        x = np.array(ks) + (place - (len(methods) - 1) / 2) * 0.07
        axis.errorbar(x, values, yerr=[low, high], color=colour, marker=marker, linestyle=line, markersize=6, capsize=2, label=method)
    axis.axhline(0.5, color="black", linewidth=1)
    axis.set(xlabel="right answers left (k)", ylabel="P(score with k right > score as the only one)", ylim=(0, None), xticks=ks)
    axis.legend(fontsize="small", loc="center left", bbox_to_anchor=(1, 0.5))
    return figure


def truth_scatter(items: pd.DataFrame, methods: list[str], label: str) -> plt.Figure:
    """Gold against predicted quality, one panel a score, with the diagonal; Pearson's r and its interval in the title."""
    columns = min(3, len(methods))
    lines = -(-len(methods) // columns)
    figure, axes = plt.subplots(
        lines, columns, figsize=(3.4 * columns, 3.3 * lines), sharex=True, sharey=True, squeeze=False, layout="constrained"
    )
    for axis, method in zip(axes.flat, methods):
        values, drawn = agreement(items[method].to_numpy(), items["gold"].to_numpy(), items["group"].to_numpy(), ("pearson",))
        axis.scatter(items["gold"], items[method], s=6, alpha=0.3, color=STYLE[method][0], linewidths=0, rasterized=True)
        axis.plot([0, 1], [0, 1], color="black", linewidth=1)
        shown = {"sigmoid-lowrank": "mixed-excluded"}.get(method, method)
        axis.set_title(f"{shown}\nr = {with_interval(values['pearson'], *map(float, interval(drawn['pearson'])))}")
    for axis in axes.flat[len(methods) :]:
        axis.axis("off")
    axes[0, 0].set(xlim=(0, 1.02), ylim=(0, 1.02))
    figure.supxlabel(label, fontsize="medium")
    figure.supylabel("predicted quality (mean token score)", fontsize="medium")
    return figure


def reliability(items: pd.DataFrame, methods: list[str], bins: int = 10) -> plt.Figure:
    """Share of right answers against the score, in bins of equal width; on the diagonal a score is a probability. Size: number of items."""
    figure, axis = plt.subplots(figsize=(6.6, 4.8), layout="constrained")
    for method in in_order(methods):
        colour, marker, line = STYLE[method]
        bin_of = np.minimum((items[method] * bins).astype(int), bins - 1)
        table = items.assign(bin=bin_of).groupby("bin").agg(score=(method, "mean"), right=("gold", "mean"), n=("gold", "size"))
        axis.plot(table["score"], table["right"], color=colour, linestyle=line, linewidth=1.2)
        axis.scatter(
            table["score"], table["right"], s=12 + 90 * np.sqrt(table["n"] / len(items)), color=colour, marker=marker, label=method
        )
    axis.plot([0, 1], [0, 1], color="black", linewidth=1)
    axis.set(xlabel="score (mean in the bin)", ylabel="share of right answers", xlim=(-0.02, 1.02), ylim=(-0.02, 1.02))
    axis.legend(fontsize="small", loc="center left", bbox_to_anchor=(1, 0.5))
    return figure


def learning_curves(curves: pd.DataFrame, pairs: list[tuple[str, str]]) -> plt.Figure:
    """Held-out loss against updates for heads from the raw and from the fitted start, every seed a line."""
    figure, axis = plt.subplots(figsize=(8, 4.2), layout="constrained")
    for method in [m for pair in pairs for m in pair]:
        colour, marker, line = STYLE[method]
        for number, (_, part) in enumerate(curves[curves["method"] == method].groupby("seed")):
            axis.plot(
                part["update"], part["bce_common"], color=colour, linestyle=line, marker=marker, markevery=4, markersize=5, linewidth=1.2,
                label=method if number == 0 else None,
            )  # fmt: skip
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
    return pd.DataFrame(lines).T.rename_axis(["head", "seed", "target"])


def graded_errors(items: pd.DataFrame) -> pd.DataFrame:
    """The corruption items with graded gold: originals and all errors but home ground and attested alternatives."""
    kind = items["slice"].str.removeprefix("type=")
    return items[~kind.isin(["attested", HOME_GROUND])]
