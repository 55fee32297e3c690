"""Tables and figures of quality under length control (notebook 30), from the items of `lib.under_length`."""

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd

from old.figures import STYLE, clear, in_order, with_interval
from old.quality.evaluation import Statistic, agree, difference, mean
from old.quality.figures import printed
from old.results import holm, interval, p_value
from old.under_length import FORCED, MEASURES, REFERENCE, SCORES, SWEEP, WRITER, above, cut_references, paired, score_names

JUDGES = {"SmolLM2": "", "tiny BART": WRITER}  # what the names of their scores begin with
LABELS = {"rougeL": "ROUGE-L", "sentence_end_rate": "finished"}  # finished: the last character ends a sentence
CHANCE = {  # what a score that sees nothing has
    "whole above cut reference": 0.5,
    "above forced, cut short": 0.5,
    "above forced, stretched": 0.5,
    "prefers the finished text": 0.5,
    "Pearson with ROUGE-L": 0.0,
}


def _style(name: str) -> dict:
    colour, marker, line = STYLE[name.removeprefix(WRITER)]
    return {"color": colour, "marker": marker, "linestyle": line, "markersize": 5, "linewidth": 1.3}


def _ordered(names) -> list[str]:
    """Scores in the study's order, those of the language model first."""
    return [prefix + name for prefix in JUDGES.values() for name in in_order(SCORES) if prefix + name in set(names)]


def _bars(axis: plt.Axes, x: np.ndarray, found: list[Statistic], name: str, label: str | None = None) -> None:
    """Values with intervals, as one line."""
    values = np.array([one.value for one in found])
    low, high = np.array([interval(one.replicates) for one in found]).T
    axis.errorbar(x, values, yerr=[values - low, high - values], label=label or name.removeprefix(WRITER), capsize=2, **_style(name))


def _shifts(count: int, spread: float = 0.02) -> np.ndarray:
    return (np.arange(count) - (count - 1) / 2) * spread


# ---- what happens to the text --------------------------------------------------------------------------------------------------------


def by_fraction(items: pd.DataFrame, names: list[str], columns: int) -> plt.Figure:
    """Measures or scores of the texts against the requested fraction of the natural length: one panel each, one line a method."""
    part = items[(items["part"] == SWEEP) & ((items["method"] == FORCED) | (items["text"] != FORCED))]
    height = -(-len(names) // columns)
    figure, axes = plt.subplots(
        height, columns, figsize=(1 + 3.4 * columns, 0.6 + 2.9 * height), sharex=True, squeeze=False, layout="constrained"
    )
    methods = in_order(part["method"])
    for axis, name in zip(axes.flat, names):
        for shift, method in zip(_shifts(len(methods)), methods):
            if (name, method) == ("rougeL", REFERENCE):  # it is compared with itself
                continue
            by = part[part["method"] == method].groupby("fraction")
            _bars(axis, np.array(list(by.groups)) + shift, [mean(p[name], p["group"]) for _, p in by], method)
        axis.set_title(LABELS.get(name, name.removeprefix(WRITER)))
        _mark_fractions(axis, part)
    for axis in axes.flat[len(names) :]:
        axis.axis("off")
    for axis in axes.flat[len(names) - columns : len(names)]:  # the lowest of each column
        axis.tick_params(labelbottom=True)
    figure.supxlabel("requested length, as a fraction of the reference's", fontsize="medium")
    _legend(figure, axes.flat[len(names) - 1])
    return figure


def _mark_fractions(axis: plt.Axes, items: pd.DataFrame) -> None:
    fractions = sorted(items["fraction"].unique())
    axis.set_xticks(fractions, [f"{fraction:g}" for fraction in fractions])


def _legend(figure: plt.Figure, axis: plt.Axes) -> None:
    handles, labels = axis.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside right center", fontsize="small")


def damage_table(items: pd.DataFrame) -> pd.DataFrame:
    """By signal and fraction: MEASURES of controlled text, and its difference from the uncontrolled text forced to as many tokens."""
    pairs, lines = paired(items), {}
    own = items[(items["part"] == SWEEP) & (items["text"] == "controlled")]
    for method in in_order(pairs["method"]):
        for fraction, part in pairs[pairs["method"] == method].groupby("fraction"):
            texts = own[(own["method"] == method) & (own["fraction"] == fraction)]
            cells = {"tokens off": f"{(texts['generated_length'] - texts['target_length']).abs().mean():.1f}"}
            cells["forced text cut short"] = f"{(part['kind'] == 'cut').mean():.0%}"
            for name in MEASURES:
                cells[LABELS[name]] = f"{texts[name].mean():.3f}"
                cells[f"{LABELS[name]} minus forced"] = printed(mean(part[name], part["group"]), 3, "+")
            lines[method, fraction] = cells
    return pd.DataFrame(lines).T.rename_axis(["signal", "fraction"])


# ---- do scores see it? ---------------------------------------------------------------------------------------------------------------


def above_forced(items: pd.DataFrame) -> plt.Figure:
    """How often each score prefers controlled text to the uncontrolled one forced to as many tokens; ROUGE-L as a thick line."""
    pairs = paired(items)
    signals, fractions = in_order(pairs["method"]), sorted(pairs["fraction"].unique())
    figure, axes = plt.subplots(
        len(JUDGES), len(signals), figsize=(2 + 3.6 * len(signals), 7), sharex=True, sharey=True, squeeze=False, layout="constrained"
    )
    for row, (judge, prefix) in zip(axes, JUDGES.items()):
        names = [prefix + name for name in in_order(SCORES)]
        for axis, signal in zip(row, signals):
            parts = [pairs[(pairs["method"] == signal) & (pairs["fraction"] == f)] for f in fractions]
            axis.axhline(0.5, color="black", linewidth=0.8)
            values = [above(part["rougeL"], part["group"]).value for part in parts]
            axis.plot(fractions, values, color="black", linewidth=3, alpha=0.35, label="ROUGE-L")
            for shift, name in zip(_shifts(len(names)), names):
                _bars(axis, np.array(fractions) + shift, [above(part[name], part["group"]) for part in parts], name)
            axis.set_title(f"{signal}, judged by {judge}")
            axis.set_ylim(-0.03, 1.03)
            _mark_fractions(axis, pairs)
    figure.supxlabel("requested length, as a fraction of the reference's", fontsize="medium")
    figure.supylabel("share of pairs with the controlled text above the forced one", fontsize="medium")
    _legend(figure, axes[0, 0])
    return figure


def seen(items: pd.DataFrame) -> pd.DataFrame:
    """What each score sees, by (measure, score): value, ci_low, ci_high, p and seeds (of its distance from CHANCE), p_holm over the table.

    All signals together. `prefers the finished text`: of pairs in which exactly one text ends as a sentence does. ROUGE-L and the end of a
    sentence themselves stand below the scores, where they are not what is asked.
    """
    pairs, references, lines = paired(items), cut_references(items), []
    finished = pairs[pairs["sentence_end_rate"] != 0]
    for measure, part in (
        ("whole above cut reference", references),
        ("above forced, cut short", pairs[pairs["kind"] == "cut"]),
        ("above forced, stretched", pairs[pairs["kind"] == "stretched"]),
        ("prefers the finished text", finished),
        ("Pearson with ROUGE-L", pairs),
    ):
        names = [name for name in score_names(items) if name != "own-logprob"]
        names += [] if measure in ("whole above cut reference", "Pearson with ROUGE-L") else ["rougeL"]
        names += ["sentence_end_rate"] if measure.startswith("above") else []
        for name in names if len(part) else ():
            found = _seen(part, name, measure)
            seeds = [round(_seen(own, name, measure).value - CHANCE[measure], 4) for _, own in part.groupby("seed")]
            low, high = interval(found.replicates)
            p = p_value(found.value - CHANCE[measure], found.replicates, found.clusters)
            lines.append((measure, name, found.value, low, high, p, seeds))
    table = pd.DataFrame(lines, columns=["measure", "method", "value", "ci_low", "ci_high", "p", "seeds"])
    return table.assign(p_holm=holm(table["p"].to_numpy())).set_index(["measure", "method"])


def _seen(part: pd.DataFrame, name: str, measure: str) -> Statistic:
    if measure == "Pearson with ROUGE-L":
        return agree(part.assign(score=part[name], gold=part["rougeL"]), "all", ("pearson",))["all", "pearson"]
    sign = part["sentence_end_rate"] if measure == "prefers the finished text" else 1.0
    return above(part[name] * sign, part["group"])


def verdicts(found: pd.DataFrame, measure: str) -> tuple[list[str], list[str]]:
    """Scores that are clearly above chance in one measure, and clearly below it (Holm over the table, one sign in all seeds)."""
    distance = found.assign(value=found["value"] - found.index.get_level_values("measure").map(CHANCE).to_numpy())
    part = clear(distance).loc[lambda table: table.index.get_level_values("measure") == measure, "value"].droplevel("measure")
    return [name for name in part.index if part[name] > 0], [name for name in part.index if part[name] < 0]


def told(found: pd.DataFrame, measure: str, names: list[str], side: int) -> list[str]:
    """Those of the names that are clearly above chance (side 0) or below it (1) in a measure, with their values."""
    clearly = verdicts(found, measure)[side]
    return [f"`{name}` {found.loc[(measure, name), 'value']:.2f}" for name in names if name in clearly]


def seen_table(found: pd.DataFrame) -> pd.DataFrame:
    """Judges and scores by what they see, value with interval; * clearly not chance."""
    measures = [name for name in CHANCE if name in found.index.unique("measure")]
    sure = {(measure, name) for measure in measures for side in verdicts(found, measure) for name in side}
    cells = {key: with_interval(row["value"], row["ci_low"], row["ci_high"]) + " *" * (key in sure) for key, row in found.iterrows()}
    table = pd.Series(cells).unstack(0)[measures].fillna("–")
    return _by_judge(table.loc[[*_ordered(table.index), *(name for name in LABELS if name in table.index)]])


def _by_judge(table: pd.DataFrame) -> pd.DataFrame:
    """The names of scores in the index as judge and score."""

    def place(name: str) -> tuple[str, str]:
        if name.removeprefix(WRITER) in SCORES:
            return "tiny BART" if name.startswith(WRITER) else "SmolLM2", name.removeprefix(WRITER)
        return {"own-logprob": "the writer itself", "oracle": "the reference"}.get(name, "text"), LABELS.get(name, name)

    return table.set_axis(pd.MultiIndex.from_tuples([place(name) for name in table.index], names=["judge", "score"]))


# ---- best of n -----------------------------------------------------------------------------------------------------------------------


def gains(chosen: pd.DataFrame, n: int, against: str) -> pd.DataFrame:
    """ROUGE-L of each score's choice among n minus that of `against` (`random`, `softmax`): paired over sources, Holm over the table.

    Columns as those of `seen`; `oracle` is no score and has no part in the correction.
    """
    part, lines = chosen[chosen["n"] == n], []
    names = [name for name in part if name not in ("method", "seed", "id", "group", "n", "random", against)]
    for name in names:
        found = difference(mean(part[name], part["group"]), mean(part[against], part["group"]))
        low, high = interval(found.replicates)
        seeds = [round(float((own[name] - own[against]).mean()), 4) for _, own in part.groupby("seed")]
        lines.append((name, found.value, low, high, p_value(found.value, found.replicates, found.clusters), seeds))
    table = pd.DataFrame(lines, columns=["method", "value", "ci_low", "ci_high", "p", "seeds"]).set_index("method")
    judged = table.index != "oracle"
    table.loc[judged, "p_holm"] = holm(table.loc[judged, "p"].to_numpy())
    return table


def gain_table(chosen: pd.DataFrame, n: int) -> pd.DataFrame:
    """Judges and scores by ROUGE-L of their choice among n, and its gain over a random choice and over the softmax choice; * clear."""
    over = {against: gains(chosen, n, against) for against in ("random", "softmax")}
    part, lines = chosen[chosen["n"] == n], {}
    most = over["random"].loc["oracle", "value"]
    names = [*_ordered(over["random"].index), *(name for name in ("own-logprob", "oracle") if name in over["random"].index)]
    for name in names:
        cells = {"ROUGE-L": f"{part[name].mean():.3f}", "share of the oracle's gain": f"{over['random'].loc[name, 'value'] / most:.0%}"}
        for against, table in over.items():
            sure = name in clear(table).index
            gain = [float(table.loc[name, column]) if name in table.index else np.nan for column in ("value", "ci_low", "ci_high")]
            cells[f"over {against}"] = with_interval(*gain, 3, "+") + " *" * sure
        lines[name] = cells
    return _by_judge(pd.DataFrame(lines).T)


def gain_figure(chosen: pd.DataFrame) -> plt.Figure:
    """Gain over a random choice by the number of candidates, one panel a judge."""
    numbers = sorted(chosen["n"].unique())
    figure, axes = plt.subplots(1, len(JUDGES), figsize=(11, 4.2), sharey=True, layout="constrained")
    for axis, (judge, prefix) in zip(axes, JUDGES.items()):
        names = [*(prefix + name for name in in_order(SCORES)), *(["own-logprob"] if prefix else [])]
        axis.axhline(0, color="black", linewidth=0.8)
        for shift, name in zip(_shifts(len(names), 0.06), names):
            parts = [chosen[chosen["n"] == n] for n in numbers]
            x = np.log2(numbers) + shift
            _bars(axis, x, [mean(part[name] - part["random"], part["group"]) for part in parts], name)
        axis.set_xticks(np.log2(numbers), [str(n) for n in numbers])
        axis.set(title=f"judged by {judge}", xlabel="candidates")
    axes[0].set_ylabel("ROUGE-L above a random choice")
    _legend(figure, axes[1])
    return figure
