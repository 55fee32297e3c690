"""What all figures and tables of the study share: one style, one colour, marker and line a method,
how they are written, how numbers print.
"""

from collections.abc import Iterable

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import seaborn as sns

from lib.study import paths

_COLOURS = sns.color_palette("colorblind")
_BLUE, _ORANGE, _GREEN, _RED, _PURPLE, _BROWN, _PINK, _GREY, _, _CYAN = _COLOURS
_YELLOW = (0.66, 0.6, 0.0)  # the palette's own is too pale for small dots on white
# method: (colour, marker, line). Lines and markers carry the difference where colour does not.
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
    # scores of quality: without training, fitted numbers, trained heads, heads by sampler
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
    # references: closed forms of each sampler, an oracle, a text's length
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
    own = {"figure.dpi": DPI, "savefig.dpi": DPI, "savefig.bbox": "tight"}
    own |= {"axes.titlesize": "medium", "legend.frameon": False}
    sns.set_theme(context="notebook", style="whitegrid", palette="colorblind", rc=own)


def save(figure: plt.Figure, name: str) -> plt.Figure:
    """Write figures/<name>.png; return the figure for display."""
    paths.FIGURES.mkdir(parents=True, exist_ok=True)
    figure.savefig(paths.FIGURES / f"{name}.png", metadata={"Software": None})
    return figure


def save_table(table: pd.DataFrame, name: str) -> pd.DataFrame:
    """Write figures/<name>.csv and .md, index included; return the table for display."""
    paths.FIGURES.mkdir(parents=True, exist_ok=True)
    table.to_csv(paths.FIGURES / f"{name}.csv")
    frame = table.reset_index()
    lines = [frame.columns.map(str), ["---"] * len(frame.columns), *frame.astype(str).to_numpy()]
    escaped = ([cell.replace("|", r"\|") for cell in line] for line in lines)
    text = "".join("| " + " | ".join(line) + " |\n" for line in escaped)
    (paths.FIGURES / f"{name}.md").write_text(text)
    return table


def in_order(methods: Iterable[str]) -> list[str]:
    """The given methods in the study's order."""
    return [method for method in STYLE if method in set(methods)]


def with_interval(value: float, low: float, high: float, digits: int = 2, sign: str = "") -> str:
    """`0.50 [0.45, 0.55]`; a dash where undefined. `sign`: "+" for differences, which show theirs.

    >>> with_interval(0.5, 0.45, 0.55, sign="+")
    '+0.50 [+0.45, +0.55]'
    """
    form = f"{sign}.{digits}f"
    return "–" if np.isnan(value) else f"{value:{form}} [{low:{form}}, {high:{form}}]"


def half_width(value: float, low: float, high: float, digits: int = 2) -> str:
    """`0.145 ±0.007`: the value and half its interval; a dash where undefined."""
    return "–" if np.isnan(value) else f"{value:.{digits}f} ±{(high - low) / 2:.{digits}f}"
