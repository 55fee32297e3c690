"""Every figure and table of length control as a function of its results."""

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import torch

from old.figures import STYLE, half_width, in_order, with_interval
from old.length import evaluation
from old.length.finetuning import CHOSEN
from old.length.signals import make_signal
from old.results import holm, interval, p_value


def signal_heat_maps(names: list[str], d_model: int = 32, lengths: tuple[int, int] = (24, 96)) -> plt.Figure:
    """Each signal's vectors, step by component, for a short and a long target: what the decoder sees."""
    figure, axes = plt.subplots(len(lengths), len(names), figsize=(2.1 * len(names) + 1, 5.2), squeeze=False, layout="constrained")
    for row, length in enumerate(lengths):
        for column, name in enumerate(names):
            axis = axes[row, column]
            image = axis.imshow(
                signal_vectors(name, d_model, length), aspect="auto", cmap="viridis", vmin=-1, vmax=1, interpolation="nearest"
            )
            axis.set(title=name if row == 0 else None, xlabel="component j" if row == len(lengths) - 1 else None)
            axis.set_ylabel(f"l = {length}\nstep t (tokens)" if column == 0 else None)
            axis.grid(False)
            axis.set_yticks([0, length // 2 - 1, length - 1], [1, length // 2, length] if column == 0 else [])
    figure.colorbar(image, ax=axes, label="value", shrink=0.7, extend="both")
    return figure


def signal_vectors(name: str, d_model: int, length: int, max_countdown: int = 32) -> np.ndarray:
    """The signal at steps 1...length for that target length, with its options in use, in eval mode. (length, d)"""
    options = {"max_countdown": max_countdown} if name.endswith("-clipped") else CHOSEN.get(name, {})
    torch.manual_seed(0)  # `linear` starts from a random vector
    signal = make_signal(name, d_model, **options).eval()
    return signal(torch.arange(1, length + 1), torch.tensor([length]))[0].detach().numpy()


def last_step_distance(names: list[str], d_model: int, lengths: np.ndarray) -> pd.DataFrame:
    """Distance of the signal at steps l - 1 and l, relative to its norm: how hard it is to tell "stop now" from "one more".

    Index l, columns names. For signals of constant norm it is sqrt(2 - 2 cosine similarity).
    """

    def distance(name: str, length: int) -> float:
        before, last = signal_vectors(name, d_model, int(length))[-2:]
        return float(np.linalg.norm(last - before) / np.linalg.norm(last))

    return pd.DataFrame(
        {name: [distance(name, n) for n in lengths] for name in names}, index=pd.Index(lengths, name="target length (tokens)")
    )


def distance_plot(distance: pd.DataFrame, train_length: int) -> plt.Figure:
    """Relative distance of the last two steps against the target length, log-log."""
    figure, axis = plt.subplots(figsize=(8, 4.2), layout="constrained")
    for name in distance:
        colour, marker, line = STYLE[name]
        axis.plot(distance.index, distance[name], color=colour, marker=marker, linestyle=line, markersize=5, label=name)
    _mark_training(axis, train_length)
    axis.set(xscale="log", yscale="log", xlabel=distance.index.name, ylabel="distance of steps l − 1 and l\n(relative to the norm)")
    axis.legend(fontsize="small", loc="center left", bbox_to_anchor=(1, 0.5))
    return figure


def _mark_training(axis: plt.Axes, train_length: float) -> None:
    axis.axvline(train_length, color="black", linewidth=1)
    axis.text(train_length, 1.005, " unseen →", transform=axis.get_xaxis_transform(), fontsize="small", va="bottom")


def targets_table(rows: pd.DataFrame) -> pd.DataFrame:
    """How long the natural targets are, from the rows of the part `targets`: data sets and splits by what is known."""
    index = ["dataset", "slice"]
    table = rows.pivot(index=index, columns="metric", values="value").assign(pairs=rows.groupby(index)["n"].first())
    names = {"pairs": "pairs", "median_length": "median (tokens)", "max_length": "longest (tokens)"}
    shares = (100 * table["share_below_cut"]).round(1).rename("below the cut (%)")
    return table[list(names)].rename(columns=names).astype(int).join(shares).rename_axis(["data set", "split"])


def control_items(items: pd.DataFrame) -> pd.DataFrame:
    """The outputs with random requested lengths (bucket slices) without a fault switched on."""
    return items[items["slice"].str.startswith("[") & (items["setting"] == "")]


def length_scatter(items: pd.DataFrame, train_length: int, limit: int | None = None, counted: str = "tokens") -> plt.Figure:
    """Requested against generated length, one panel a signal, all seeds; the diagonal is exact control. Both axes end at about `limit`
    (the longest request, unless given); longer outputs are drawn at the upper edge. `counted`: the unit of lengths."""
    limit = limit or evaluation.buckets(train_length)[-1][1]
    names = in_order(items["method"])
    columns = 2 if len(names) == 4 else min(3, len(names))
    rows = -(-len(names) // columns)
    figure, axes = plt.subplots(
        rows, columns, figsize=(3.3 * columns, 3.2 * rows), sharex=True, sharey=True, squeeze=False, layout="constrained"
    )
    right = min(limit, int(items["target_length"].max()) + 1)
    for axis, name in zip(axes.flat, names):
        part = items[items["method"] == name]
        shown = part["generated_length"].clip(upper=1.09 * limit)  # longer outputs lie on the upper edge
        alpha = float(np.clip(200 / len(part), 0.25, 0.7))  # few points are drawn stronger
        axis.scatter(part["target_length"], shown, s=5, alpha=alpha, color=STYLE[name][0], linewidths=0, rasterized=True)
        axis.plot([0, limit], [0, limit], color="black", linewidth=1)
        axis.axvline(train_length, color="black", linewidth=0.8, linestyle=":")
        axis.set_title(f"{name}  (MAE {(part['generated_length'] - part['target_length']).abs().mean():.1f})")
    for axis in axes.flat[len(names) :]:
        axis.axis("off")
    axes[0, 0].set(xlim=(0, right), ylim=(0, limit * 1.1))
    beyond = "; right of the dotted line: never trained on" if right > train_length else ""
    figure.supxlabel(f"requested length ({counted}{beyond})", fontsize="medium")
    figure.supylabel(f"generated length ({counted}; longer ones at the upper edge)", fontsize="medium")
    return figure


def aggregate(items: pd.DataFrame, first_unseen: int, **identity: str) -> pd.DataFrame:
    """Rows of the result table over all seeds of each method: value of the seed-averaged items with its cluster-bootstrap interval."""
    rows = [
        row
        for method, part in items.groupby("method", sort=False)
        for row in evaluation.summarise(part, {"study": "length", **identity, "method": method, "seed": "all"}, first_unseen)
    ]
    return pd.DataFrame(rows)


def by_bucket(
    table: pd.DataFrame,
    per_seed: pd.DataFrame,
    metric: str,
    label: str,
    train_length: int,
    *,
    scale: str = "linear",
    zoom: float | None = None,
    counted: str = "tokens",
) -> plt.Figure:
    """One metric against the bucket of requested length: mean over seeds with its interval, every seed as a small dot. With `zoom` a second
    panel shows the values up to there.
    """
    panels = 1 if zoom is None else 2
    figure, axes = plt.subplots(panels, 1, figsize=(9, 1 + 3.3 * panels), sharex=True, squeeze=False, layout="constrained")
    names, centres = in_order(table["method"]), {evaluation.bucket_name(*b): sum(b) / 2 for b in evaluation.buckets(train_length)}
    spread = 0.06875 * train_length / 2  # of neighbouring methods, in tokens: a fixed share of a bucket
    for axis in axes.flat:
        for position, name in enumerate(names):
            colour, marker, line = STYLE[name]
            offset = (position - (len(names) - 1) / 2) * spread
            part = table[(table["method"] == name) & (table["metric"] == metric) & table["slice"].isin(centres)]
            x = part["slice"].map(centres) + offset
            errors = [part["value"] - part["ci_low"], part["ci_high"] - part["value"]]
            style = {"color": colour, "marker": marker, "linestyle": line, "markersize": 6, "linewidth": 1.3, "capsize": 2}
            axis.errorbar(x, part["value"], yerr=errors, label=name, **style)
            seeds = per_seed[(per_seed["method"] == name) & (per_seed["metric"] == metric) & (per_seed["setting"] == "")]
            seeds = seeds[seeds["slice"].isin(centres)]
            axis.scatter(seeds["slice"].map(centres) + offset, seeds["value"], s=7, color=colour, alpha=0.6, zorder=3)
        _mark_training(axis, train_length)
        axis.set(ylabel=label)
        if scale == "symlog":  # an error of 0 has a place
            axis.set_yscale(scale, linthresh=0.1)
            axis.set_ylim(bottom=-0.02)
        else:
            axis.set_yscale(scale)
    if zoom is not None:
        axes[1, 0].set_ylim(-0.02 * zoom, zoom)
        axes[1, 0].set_ylabel(f"the same, up to {zoom:g}")
    axes[-1, 0].set_xticks(list(centres.values()), list(centres), fontsize="small")
    axes[-1, 0].set_xlabel(f"requested length ({counted})")
    axes[0, 0].legend(fontsize="small", loc="center left", bbox_to_anchor=(1, 0.5))
    return figure


def bucket_table(
    table: pd.DataFrame, metric: str, train_length: int, digits: int = 2, percent: bool = False, counted: str = "tokens"
) -> pd.DataFrame:
    """Buckets by methods, value with interval; a bucket without targets stays, as a dash. `counted`: the unit of lengths."""
    buckets = [evaluation.bucket_name(*b) for b in evaluation.buckets(train_length)]
    part = table[(table["metric"] == metric) & (table["setting"] == "")].set_index(["slice", "method"])
    factor = 100 if percent else 1

    def cell(bucket: str, method: str) -> str:
        if (bucket, method) not in part.index:
            return "–"
        return with_interval(*(factor * part.loc[(bucket, method), ["value", "ci_low", "ci_high"]].astype(float)), digits)

    cells = {method: [cell(b, method) for b in buckets] for method in in_order(table["method"])}
    return pd.DataFrame(cells, index=pd.Index(buckets, name=f"requested length ({counted})"))


def tried_table(rows: pd.DataFrame) -> pd.DataFrame:
    """What was tried of the study's own signals on validation text (`tuning.run_past_the_paper`): (signal, options) by measures."""
    wanted = {"mae": "unseen", "exact_rate": "unseen", "outlier_rate": "unseen", "ppl_content": "validation"}
    part = rows[rows["metric"].map(wanted) == rows["slice"]]
    table = part.pivot(index=["method", "setting"], columns="metric", values="value")[list(wanted)]
    return table.loc[in_order(table.index.get_level_values("method"))].rename_axis(["signal", "options"]).rename_axis(columns=None)


def chosen_options(tried: pd.DataFrame, slack: float = 0.01) -> dict[str, str]:
    """Of each signal the options with the least error of those whose content perplexity is at most `slack` above that of `pre`; where there
    are none such, the least error of all.
    """
    fluent = tried[tried["ppl_content"] <= (1 + slack) * tried.loc[("pre", ""), "ppl_content"]]
    best = fluent.groupby(level="signal", sort=False)["mae"].idxmin()
    best = best.combine_first(tried.groupby(level="signal", sort=False)["mae"].idxmin())
    return {signal: best[signal][1] for signal in tried.index.unique("signal") if signal != "pre"}


def bounds_table(items: pd.DataFrame, unseen: list[str], signals: list[str], against: str = "pre") -> pd.DataFrame:
    """The bounds of notebook 25 for each signal against another: paired over requests, with intervals. `unseen`: names of the buckets."""
    control, lines = control_items(items[items["part"] == "unseen"]), {}
    control = pd.concat([control, control[control["slice"].isin(unseen)].assign(slice="unseen")])
    natural = items[(items["slice"] == "in-distribution") & (items["setting"] == "")]

    def paired(part: pd.DataFrame, name: str, metric: str) -> tuple[np.ndarray, np.ndarray]:
        """Value, then replicates, of the signal and of the other. (1 + R,), (1 + R,)"""
        both = [evaluation.replicates(part[part["method"] == method]) for method in (name, against)]
        return tuple(np.r_[values[metric], drawn[metric]] for values, drawn in both)

    for name in signals:
        errors = [np.divide(*paired(control[control["slice"] == bucket], name, "mae")) for bucket in unseen]
        pooled = control[control["slice"] == "unseen"]
        measures = {
            "mean ratio of errors over unseen buckets": (np.mean(errors, axis=0), "≤ 0.5", lambda v, low: v <= 0.5),
            "largest ratio of errors in a bucket": (np.max(errors, axis=0), "≤ 0.7", lambda v, low: v <= 0.7),
            "outliers more (points)": (100 * np.subtract(*paired(pooled, name, "outlier_rate")), "≤ 0", lambda v, low: v <= 0),
            "ratio of exact outputs": (np.divide(*paired(pooled, name, "exact_rate")), "≥ 2", lambda v, low: v >= 2),
            "ratio of content perplexity": (
                np.divide(*paired(natural, name, "ppl_content")),
                "not clearly above 1",
                lambda v, low: low <= 1,
            ),
        }
        for measure, (drawn, bound, met) in measures.items():
            low, high = map(float, interval(drawn[1:]))
            cell = with_interval(float(drawn[0]), low, high, 3)
            lines[name, measure] = {"value": cell, "bound": bound, "met": "yes" if met(drawn[0], low) else "no"}
    return pd.DataFrame(lines).T.rename_axis(["signal", "measure"])


def fault_table(items: pd.DataFrame, first_unseen: int) -> pd.DataFrame:
    """What two faults of the official code cost at inference: control in the trained and in the unseen buckets, with and without each."""
    items = pd.concat([control_items(items[items["part"] == "unseen"]), items[items["part"] == "faults"]], ignore_index=True)
    items = items[items["method"].isin(set(items.loc[items["part"] == "faults", "method"]))]
    beyond = items["slice"].str.extract(r"\[(\d+),")[0].astype(int) >= first_unseen
    rows = {}
    for (method, setting, unseen), group in items.groupby(["method", "setting", beyond.rename("unseen")]):
        cells = {}
        values, drawn = evaluation.replicates(group.assign(slice="all"))
        for metric, digits in (("mae", 1), ("signed_error", 1), ("outlier_rate", 3), ("exact_rate", 3)):
            cells[metric] = with_interval(values[metric], *map(float, interval(drawn[metric])), digits)
        by_seed = group.groupby("seed")[["generated_length", "target_length"]].apply(lambda g: (g.iloc[:, 0] - g.iloc[:, 1]).abs().mean())
        cells["mae by seed"] = ", ".join(f"{value:.1f}" for value in by_seed)
        rows[method, setting.removeprefix("fault=") or "no fault", "unseen" if unseen else "trained"] = cells
    return pd.DataFrame(rows).T.rename_axis(["signal", "fault", "lengths"])


def miss_table(items: pd.DataFrame, first_unseen: int, bounds: tuple[int, ...] = (2, 5, 10, 20, 40)) -> pd.DataFrame:
    """Percent of unseen requests missed by more than so many tokens, by signal: an outlier rate depends on where the bound is."""
    lengths = items["slice"].str.extract(r"\[(\d+),")[0].astype(int)
    part = items[lengths >= first_unseen].assign(error=lambda t: (t["generated_length"] - t["target_length"]).abs())
    table = {f"> {bound}": 100 * (part["error"] > bound).groupby(part["method"]).mean() for bound in bounds}
    early = 100 * (part["generated_length"] < part["target_length"]).groupby(part["method"]).mean()
    table = pd.DataFrame(table | {"too short": early}).round(1)
    return table.loc[in_order(table.index)].rename_axis("percent of requests")


CONTROL_COLUMNS = {"exact_rate": 2, "outlier_rate": 2, "capped_rate": 2, "ppl_content": 1, "ppl_eos": 2}  # metric: digits
TEXT_COLUMNS = {"rouge1": 3, "rouge2": 3, "rougeL": 3, "rougeLsum": 3, "bleu": 2, "bertscore": 3, "repetition": 2, "sentence_end_rate": 2}


def control_table(table: pd.DataFrame, slice_name: str) -> pd.DataFrame:
    """How well free decoding keeps to the length in one slice, and the perplexity of the references: signals by metrics."""
    part = table[(table["slice"] == slice_name) & table["setting"].isin(["", "decoding=beams-4"])]
    return _metrics_table(part, {"mae": 2, **CONTROL_COLUMNS})


def text_table(table: pd.DataFrame, slice_name: str) -> pd.DataFrame:
    """What the text is worth in one slice: signals and decodings by metrics."""
    part = table[(table["slice"] == slice_name) & ~table["setting"].str.startswith("length=")]
    return _metrics_table(part, {metric: digits for metric, digits in TEXT_COLUMNS.items() if metric in set(part["metric"])})


def _metrics_table(part: pd.DataFrame, digits: dict[str, int]) -> pd.DataFrame:
    rows = {}
    for method in in_order(part["method"]):
        for setting, group in part[part["method"] == method].groupby("setting", sort=False):
            values = group.set_index("metric")
            cells = {m: half_width(values.loc[m], n) if m in values.index else "–" for m, n in digits.items()}
            if "mae" in cells:  # as the paper prints it
                cells = {"MAE": cells.pop("mae"), "SD of |error|": f"{values.loc['mae_sd', 'value']:.2f}", **cells}
            rows[method, setting.removeprefix("decoding=") or "free"] = cells
    return pd.DataFrame(rows).T.rename_axis(["signal", "decoding"])


def compare(
    items: pd.DataFrame, slice_name: str, metric: str, pairs: list[tuple[tuple[str, str], tuple[str, str]]], ratio: bool = False
) -> pd.DataFrame:
    """Paired differences (or ratios) of one metric in one slice over seed-averaged items; `pairs` of (method, setting).

    Columns: value, ci_low, ci_high (over test texts, for these trained models), p (bootstrap), p_holm (corrected within this table), seeds
    (the value of every seed by itself: what training adds).
    """
    part, rows, join = items[items["slice"] == slice_name], [], np.divide if ratio else np.subtract
    for left, right in pairs:
        chosen = [part[(part["method"] == m) & (part["setting"] == s)] for m, s in (left, right)]
        values, drawn = zip(*(evaluation.replicates(side) for side in chosen))
        low, high = interval(join(drawn[0][metric], drawn[1][metric]))
        p = p_value(values[0][metric] - values[1][metric], drawn[0][metric] - drawn[1][metric], chosen[0]["group"].nunique())
        seeds = []
        for seed in sorted(set(chosen[0]["seed"])):
            alone = [evaluation.replicates(side[side["seed"] == seed], 1)[0][metric] for side in chosen]
            seeds.append(round(float(join(*alone)), 4))
        rows.append((_label(left), _label(right), join(values[0][metric], values[1][metric]), low, high, p, seeds))
    table = pd.DataFrame(rows, columns=["method", "against", "value", "ci_low", "ci_high", "p", "seeds"])
    return table.assign(p_holm=holm(table["p"].to_numpy())).set_index(["method", "against"])


def _label(method: tuple[str, str]) -> str:
    name, setting = method
    return f"{name} ({setting.removeprefix('decoding=')})" if setting else name
