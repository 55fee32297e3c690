"""Tables and figures of outputs at requested lengths, for the notebooks that share them.

Outputs are rows of `lib.length.experiments` with `errors` added; intervals are over groups.
"""

from collections.abc import Sequence

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd

from lib.length.experiments import OUTLIER
from lib.length.generation import BLEU_SUMS, ROUGE, corpus_bleu
from lib.study.figures import STYLE, half_width, in_order, with_interval
from lib.study.statistics import Draws, Measure, estimate, mean, ratio, sample

# column, digits
CONTROL = {"exact_rate": 2, "outlier_rate": 2, "capped_rate": 2}
TEXT = {**dict.fromkeys(ROUGE, 3), "bleu": 2, "bertscore": 3}
TEXT |= {"repetition": 2, "sentence_end_rate": 2}


def errors(outputs: pd.DataFrame) -> pd.DataFrame:
    """Outputs with columns of what went wrong: mae (of one output, its |error|), signed_error,
    exact_rate, outlier_rate, capped_rate.
    """
    error = (outputs["generated_length"] - outputs["target_length"]).astype(float)
    rates = {"exact_rate": error == 0, "outlier_rate": error.abs() > OUTLIER}
    rates = pd.DataFrame(rates | {"capped_rate": outputs["capped"]}).astype(float)
    return outputs.assign(mae=error.abs(), signed_error=error, **rates)


def unseen(outputs: pd.DataFrame) -> pd.DataFrame:
    """Outputs at requested lengths beyond the training cut."""
    return outputs[outputs["bucket_start"] >= outputs["max_train_length"]]


def bleu(rows: pd.DataFrame, draws: Draws) -> np.ndarray:
    """Measure: corpus BLEU (0...100), of sums that are averaged over seeds."""
    items = len(rows) / rows["seed"].nunique()
    return corpus_bleu(items * np.stack([draws.mean(rows[name]) for name in BLEU_SUMS], -1))


bleu.pools_seeds = True  # see lib.study.statistics


def bucket_table(
    outputs: pd.DataFrame, column: str, digits: int = 2, factor: float = 1, unit: str = "tokens"
) -> pd.DataFrame:
    """A mean with its interval: requested lengths by signals. `factor`: 100 for percent."""
    ends = outputs[["bucket_start", "bucket_end"]].drop_duplicates().sort_values("bucket_start")
    buckets = [f"[{low},{high})" for low, high in ends.to_numpy()]
    table = estimate(outputs, mean(column), by=["bucket_start", "signal"])
    numbers = factor * table[["value", "low", "high"]].to_numpy()
    table["cell"] = [with_interval(*row, digits) for row in numbers]
    cells = table.pivot(index="bucket_start", columns="signal", values="cell")
    cells = cells[in_order(cells)].set_axis(pd.Index(buckets, name=f"requested length ({unit})"))
    return cells.rename_axis(columns=None)


def miss_table(outputs: pd.DataFrame, bounds: Sequence[int]) -> pd.DataFrame:
    """Percent of outputs that miss by more than so many, and that are too short, by signal."""
    columns = {f"> {bound}": outputs["mae"] > bound for bound in bounds}
    columns["too short"] = outputs["signed_error"] < 0
    table = 100 * pd.DataFrame(columns).groupby(outputs["signal"]).mean()
    return table.round(1).loc[in_order(table.index)].rename_axis("percent of requests")


def control_table(outputs: pd.DataFrame, nats: pd.DataFrame) -> pd.DataFrame:
    """How well free decoding keeps to the length of references, and their perplexity (`nats`: rows
    of `reference_likelihoods`): signals and decodings by measures, ± half an interval.
    """
    nats, lines = nats[nats["requested"].isin(["own", "none"])].assign(one=1.0), {}
    for signal, decoding, rows in _methods(outputs[outputs["decoding"].isin(["free", "beams-4"])]):
        told = nats[(nats["signal"] == signal) & (decoding == "free")]
        lines[signal, decoding] = {
            "MAE": cell(rows, mean("mae"), 2),
            "SD of |error|": f"{rows['mae'].std(ddof=0):.2f}",
            **{column: cell(rows, mean(column), digits) for column, digits in CONTROL.items()},
            "ppl_content": cell(told, ratio("nll_content", "content_tokens", np.exp), 1),
            "ppl_eos": cell(told, ratio("nll_eos", "one", np.exp), 2),
        }
    return pd.DataFrame(lines).T.rename_axis(["signal", "decoding"])


def text_table(outputs: pd.DataFrame) -> pd.DataFrame:
    """What the text is worth: signals and decodings by measures, ± half an interval."""
    lines, measures = {}, {name: bleu if name == "bleu" else mean(name) for name in TEXT}
    for signal, decoding, rows in _methods(outputs):
        has = [name for name in TEXT if name == "bleu" or rows.get(name, pd.Series()).notna().any()]
        lines[signal, decoding] = {name: cell(rows, measures[name], TEXT[name]) for name in has}
    return pd.DataFrame(lines).T.rename_axis(["signal", "decoding"])


def cell(rows: pd.DataFrame, measure: Measure, digits: int) -> str:
    """`0.50 ±0.02`, a dash where there are no rows."""
    if rows.empty:
        return "–"
    drawn = sample(rows, measure)
    return half_width(drawn.value, drawn.low, drawn.high, digits)


def _methods(outputs: pd.DataFrame) -> list[tuple[str, str, pd.DataFrame]]:
    """(signal, decoding, rows), signals in order, decodings as they come."""
    rows = dict(list(outputs.groupby(["signal", "decoding"], sort=False)))
    names = in_order(outputs["signal"])
    return [(*key, rows[key]) for name in names for key in rows if key[0] == name]


def length_scatter(
    outputs: pd.DataFrame, unit: str = "tokens", limit: int | None = None
) -> plt.Figure:
    """Requested against generated length, a panel a signal, all seeds; on the diagonal control is
    exact. Outputs longer than `limit`, the longest request unless given, lie on the upper edge.
    """
    names, limit = in_order(outputs["signal"]), limit or outputs["bucket_end"].max()
    cut, columns = outputs["max_train_length"].iloc[0], 2 if len(names) == 4 else min(3, len(names))
    rows = -(-len(names) // columns)
    size = {"figsize": (3.3 * columns, 3.2 * rows), "squeeze": False, "layout": "constrained"}
    figure, axes = plt.subplots(rows, columns, sharex=True, sharey=True, **size)
    for axis, name in zip(axes.flat, names):
        own = outputs[outputs["signal"] == name]
        style = {"alpha": float(np.clip(200 / len(own), 0.25, 0.7)), "color": STYLE[name][0]}
        shown = own["generated_length"].clip(upper=1.09 * limit)
        axis.scatter(own["target_length"], shown, s=5, linewidths=0, rasterized=True, **style)
        axis.plot([0, limit], [0, limit], color="black", linewidth=1)
        axis.axvline(cut, color="black", linewidth=0.8, linestyle=":")
        axis.set_title(f"{name}  (MAE {own['mae'].mean():.1f})")
    for axis in axes.flat[len(names) :]:
        axis.axis("off")
    right = min(limit, outputs["target_length"].max() + 1)
    axes[0, 0].set(xlim=(0, right), ylim=(0, limit * 1.1))
    beyond = "; right of the dotted line: never trained on" if right > cut else ""
    figure.supxlabel(f"requested length ({unit}{beyond})", fontsize="medium")
    figure.supylabel(f"generated length ({unit}; longer ones at the upper edge)", fontsize="medium")
    return figure


def by_bucket(
    outputs: pd.DataFrame, column: str, label: str, *, scale="linear", zoom=None, unit="tokens"
) -> plt.Figure:
    """A mean against the requested length, with its interval; every seed is a small dot. `zoom`: a
    second panel shows the values up to there. `scale`: linear, log, or symlog (0 has a place).
    """
    panels, cut = 1 if zoom is None else 2, outputs["max_train_length"].iloc[0]
    size = {"figsize": (9, 1 + 3.3 * panels), "squeeze": False, "layout": "constrained"}
    figure, axes = plt.subplots(panels, 1, sharex=True, **size)
    names = in_order(outputs["signal"])
    ends = outputs[["bucket_start", "bucket_end"]].drop_duplicates().sort_values("bucket_start")
    pooled = estimate(outputs, mean(column), by=["signal", "bucket_start"])
    seeds = outputs.groupby(["signal", "bucket_start", "seed"])[column].mean().reset_index()
    for axis in axes.flat:
        for place, name in enumerate(names):
            colour, marker, line = STYLE[name]
            shift = cut / 4 + (place - (len(names) - 1) / 2) * 0.034375 * cut  # within a bucket
            own, dots = pooled[pooled["signal"] == name], seeds[seeds["signal"] == name]
            bars = [own["value"] - own["low"], own["high"] - own["value"]]
            style = {"color": colour, "marker": marker, "linestyle": line, "markersize": 6}
            style |= {"linewidth": 1.3, "capsize": 2, "label": name}
            axis.errorbar(own["bucket_start"] + shift, own["value"], yerr=bars, **style)
            style = {"s": 7, "color": colour, "alpha": 0.6, "zorder": 3}
            axis.scatter(dots["bucket_start"] + shift, dots[column], **style)
        mark_training(axis, cut)
        axis.set_ylabel(label)
        axis.set_yscale(scale, **({"linthresh": 0.1} if scale == "symlog" else {}))
    if scale == "symlog":
        axes[0, 0].set_ylim(bottom=-0.02)
    if zoom is not None:
        axes[1, 0].set(ylim=(-0.02 * zoom, zoom), ylabel=f"the same, up to {zoom:g}")
    ticks = [f"[{low},{high})" for low, high in ends.to_numpy()]
    axes[-1, 0].set_xticks(ends.mean(axis=1), ticks, fontsize="small")
    axes[-1, 0].set_xlabel(f"requested length ({unit})")
    axes[0, 0].legend(fontsize="small", loc="center left", bbox_to_anchor=(1, 0.5))
    return figure


def mark_training(axis: plt.Axes, cut: float) -> None:
    """A line where unseen lengths begin."""
    axis.axvline(cut, color="black", linewidth=1)
    place = {"transform": axis.get_xaxis_transform(), "fontsize": "small", "va": "bottom"}
    axis.text(cut, 1.005, " unseen →", **place)
