"""What all figures and tables of the study share: one style, one colour (and marker) a method, how they are written, how numbers print."""

from pathlib import Path

import matplotlib
import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import seaborn as sns

from old import paths

_BLUE, _ORANGE, _GREEN, _RED, _PURPLE, _BROWN, _PINK, _GREY, _, _CYAN = sns.color_palette("colorblind")
_YELLOW = (0.66, 0.6, 0.0)  # the palette's own is too pale for small dots on white
# method: (colour, marker, line style). Line styles and markers carry the difference where colour does not.
STYLE = {
    "none": (_GREY, "X", ":"),
    "number-in-prompt": (_GREEN, "s", "--"),
    "pre": (_BLUE, "o", "-"),
    "pre-official": (_CYAN, "s", "-"),
    "pre-nyquist": (_PURPLE, "d", "-"),
    "pre-countdown": ("black", "*", "-"),
    "countdown": (_BROWN, "x", ":"),
    "linear": (_GREEN, "D", "-"),
    "bucket": (_YELLOW, "h", "-"),
    "lrpe": (_PURPLE, "v", "-."),
    "rpe": (_RED, "^", "--"),
    "rpe-clipped": (_ORANGE, "<", "--"),
    "rpe-random": (_BROWN, "P", "-."),
    "rpe-random-clipped": (_PINK, ">", "-."),
    # scores of quality: without training, with two fitted numbers, trained heads, heads by sampler of negatives
    "softmax": (_GREY, "X", ":"),
    "logprob": ("black", "P", ":"),
    "entropy": (_YELLOW, "d", ":"),
    "boostedprob": (_ORANGE, "<", "-."),
    "closed-form": (_GREEN, "D", "--"),
    "softmax-power": (_BROWN, ">", "--"),
    "rescale": (_CYAN, "s", "--"),
    "sigmoid-lowrank": (_BLUE, "o", "-"),
    "sigmoid-full": (_PURPLE, "v", "-"),
    "softmax-ce": (_RED, "^", "-."),
    "softmax-ce-logprob": (_RED, "v", ":"),
    "full-bce": (_RED, "h", ":"),
    "uniform": (_CYAN, "H", "-"),
    "unigram": (_YELLOW, "p", "-"),
    "softmax-sampled": (_PINK, "*", "-"),
    "mixed": (_GREEN, "8", "-"),
    "uniform-excluded": (_CYAN, "H", "--"),
    "unigram-excluded": (_YELLOW, "p", "--"),
    "softmax-sampled-excluded": (_PINK, "*", "--"),
    "sigmoid-lowrank-raw": (_BLUE, "o", ":"),
    "sigmoid-full-raw": (_PURPLE, "v", ":"),
    # references: what a sampler predicts without training, an oracle, a score that knows a text's length only
    "closed-form:uniform": (_CYAN, "D", ":"),
    "closed-form:unigram": (_YELLOW, "^", ":"),
    "closed-form:softmax-sampled": (_PINK, "D", ":"),
    "closed-form:mixed": (_GREEN, "d", ":"),
    "closed-form:uniform-excluded": (_CYAN, "d", "-."),
    "closed-form:unigram-excluded": (_YELLOW, "d", "-."),
    "closed-form:softmax-sampled-excluded": (_PINK, "d", "-."),
    "right-mass": ("black", "_", "--"),
    "length": (_GREY, "|", "-."),
    # texts and scores of notebook 30
    "forced": (_GREY, "s", ":"),
    "reference": (_GREEN, "P", "-."),
    "closed-form:chosen": (_CYAN, "d", "--"),
    "own-logprob": (_PINK, "X", "-."),
    "logprob-with-end": (_RED, "v", "-"),
    "end": (_RED, "^", "--"),
    "oracle": (_GREY, "_", "-"),
    # computed elsewhere: the translating model's own log-probability; and the supervised rivals
    "nmt-logprob": ("black", "X", "--"),
    "supervised-probe": ("black", "P", "-"),
    "comet-kiwi": ("black", "^", "-."),
}
DPI = 130


def use_style() -> None:
    """The study's look; call once a notebook."""
    sns.set_theme(context="notebook", style="whitegrid", palette="colorblind")
    matplotlib.rcParams.update(
        {"figure.dpi": DPI, "savefig.dpi": DPI, "savefig.bbox": "tight", "axes.titlesize": "medium", "legend.frameon": False}
    )


def save(figure: plt.Figure, name: str, profile: str) -> Path:
    """Write figures/<profile>/<name>.png (byte-identical from run to run) and return its path."""
    path = paths.FIGURES / profile / f"{name}.png"
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, metadata={"Software": None})
    return path


def save_table(table: pd.DataFrame, name: str, profile: str) -> pd.DataFrame:
    """Write figures/<profile>/<name>.csv and .md; return the table for display."""
    folder = paths.FIGURES / profile
    folder.mkdir(parents=True, exist_ok=True)
    table.to_csv(folder / f"{name}.csv")
    (folder / f"{name}.md").write_text(markdown(table))
    return table


def markdown(table: pd.DataFrame) -> str:
    """A GitHub table of the index and the columns, as they print."""
    frame = table.reset_index()
    lines = [frame.columns.map(str), ["---"] * len(frame.columns), *frame.astype(str).to_numpy()]
    return "".join("| " + " | ".join(cell.replace("|", r"\|") for cell in line) + " |\n" for line in lines)


def with_interval(value: float, low: float, high: float, digits: int = 2, sign: str = "") -> str:
    """`0.50 [0.45, 0.55]`; a dash where undefined. `sign`: "+" for differences, which show theirs."""
    form = f"{sign}.{digits}f"
    return "–" if np.isnan(value) else f"{value:{form}} [{low:{form}}, {high:{form}}]"


def in_order(methods) -> list[str]:
    """The given methods in the study's order."""
    return [m for m in STYLE if m in set(methods)]


def lookup(table: pd.DataFrame, default_slice: str = "unseen"):
    """A function (method, metric, setting="", slice_name=default_slice) -> value, for prose that is computed from its table."""
    values = table.set_index(["method", "metric", "setting", "slice"])["value"]

    def value(method: str, metric: str, setting: str = "", slice_name: str = default_slice) -> float:
        return float(values[method, metric, setting, slice_name])

    return value


def clear(comparison: pd.DataFrame, level: float = 0.05, neutral: float = 0.0) -> pd.DataFrame:
    """The differences that are clear: significant over test texts after Holm's correction, and of the same sign in every seed. Ratios, with
    `neutral` 1: on the same side of it.
    """
    agree = comparison["seeds"].map(lambda seeds: len({value > neutral for value in seeds}) == 1).astype(bool)
    return comparison[(comparison["p_holm"] < level) & agree]


def significant(comparison: pd.DataFrame, neutral: float = 0.0) -> tuple[str, str]:
    """Names of the methods that are clearly above, and clearly below, `neutral` (1 of ratios); "none" where there is none."""
    found = clear(comparison, neutral=neutral)
    chosen = (found[found["value"] > neutral], found[found["value"] < neutral])
    return tuple(", ".join(f"`{name}`" for name in part.index.get_level_values("method")) or "none" for part in chosen)


def half_width(row: pd.Series, digits: int) -> str:
    """`0.145 ±0.007`: the value and half its interval."""
    return f"{row['value']:.{digits}f} ±{(row['ci_high'] - row['ci_low']) / 2:.{digits}f}"


def cost_table(rows: pd.DataFrame, bounds: dict[str, tuple[str, str, float]]) -> pd.DataFrame:
    """Median seconds of what is judged and of its baseline, their ratio with its interval, and the bound set beforehand.

    `bounds`: what is measured -> (description, description of the baseline, largest ratio allowed).
    """
    table = {}
    for part, (what, against, bound) in bounds.items():
        values = rows[rows["setting"] == f"what={part}"].pivot(index="method", columns="metric", values=["value", "ci_low", "ci_high"])
        is_baseline = (values["value", "ratio"] == 1) & (values["ci_low", "ratio"] == 1)  # compared with itself
        judged, baseline = values[~is_baseline].iloc[0], values[is_baseline].iloc[0]
        measure = "seconds" if ("value", "seconds") in values else "peak_mb"
        table[what] = {
            "against": against,
            measure: f"{judged['value', measure]:.3g}",
            f"{measure}, baseline": f"{baseline['value', measure]:.3g}",
            "ratio": with_interval(*(float(judged[name, "ratio"]) for name in ("value", "ci_low", "ci_high")), 3),
            "bound": bound,
            "met": "yes" if judged["value", "ratio"] <= bound else "no",
        }
    return pd.DataFrame(table).T.rename_axis("what").fillna("")
