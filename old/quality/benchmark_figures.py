"""Tables of the benchmarks: what is shown of each task, what others reported, and what follows for the paper's two claims."""

import numpy as np
import pandas as pd

from old.figures import clear, in_order, with_interval
from old.quality import figures
from old.quality.evaluation import Statistic, Statistics, difference
from old.quality.figures import over_seeds, printed, score_table
from old.quality.tasks.translation import TYPES
from old.results import holm, interval, p_value

Measure = tuple[str, str, str, str]  # task, slice, metric, label

OWN = "multi30k-en-de"
TRANSLATION: list[Measure] = [
    (OWN, "all", "pearson", "own translations: Pearson with chrF"),
    (OWN, "decoding=beam", "pearson", "by beam search: Pearson with chrF"),
    (OWN, "decoding=sample", "pearson", "sampled: Pearson with chrF"),
    (OWN, "gold=bleu", "pearson", "own translations: Pearson with sentence BLEU"),
    (OWN, "gold=similarity", "pearson", "own translations: Pearson with similarity"),
    *figures.edit_measures("multi30k-en-de-errors", TYPES, "errors"),
]
TRANSLATION_PAIRED: list[Measure] = figures.paired_measures("multi30k-en-de-errors", TYPES)
_PAIRS = ("en-de", "ro-en", "ru-en")
HUMAN: list[Measure] = [
    *((f"mlqe-pe-{pair}", "prompt=source", "pearson", f"MLQE-PE {pair}, with source: Pearson") for pair in _PAIRS),
    *((f"mlqe-pe-{pair}", "prompt=none", "pearson", f"MLQE-PE {pair}, target alone: Pearson") for pair in _PAIRS),
    ("hjqe-en-de", "prompt=source", "pearson", "HJQE en-de, share of OK words: Pearson"),
]
ANSWERS: list[Measure] = [
    ("paws-x-en", "all", "auroc", "PAWS-X en test: AUROC"),
    ("gsm8k", "changed=step", "p_right_above_wrong", "GSM8K, a step changed: right > wrong"),
    ("gsm8k", "changed=answer", "p_right_above_wrong", "GSM8K, answer changed: right > wrong"),
    ("gsm8k", "changed=step", "auroc", "GSM8K, a step changed: AUROC"),
    ("gsm8k", "changed=answer", "auroc", "GSM8K, answer changed: AUROC"),
    ("gsm8k-own", "decoding=sample", "auroc", "GSM8K, own sampled answers: AUROC"),
    ("cola", "all", "auroc", "CoLA, in-domain dev: AUROC"),
]
BENCHMARKS = HUMAN + ANSWERS
FURTHER = ("closed-form:unigram", "closed-form:unigram-excluded")  # training-free scores of other samplers, here in every table
UNSUPERVISED = ("softmax", "logprob", "entropy", "boostedprob", "closed-form", "closed-form:unigram", "softmax-power", "rescale")

# what others reported, and how far it can be compared
REPORTED = {
    "MLQE-PE en-de, with source: Pearson": ("0.208", "mean log-probability of the translating NMT model (Fomicheva et al. 2020)"),
    "MLQE-PE ro-en, with source: Pearson": ("0.647", "mean log-probability of the translating NMT model (Fomicheva et al. 2020)"),
    "HJQE en-de, share of OK words: Pearson": ("-", "the paper reports word level only (a leaderboard: BCE 0.329); see the table of words"),
    "PAWS-X en test: AUROC": ("-", "a leaderboard names BCE 0.883 for the paper's head: a loss, no ranking; not comparable"),
    "GSM8K, answer changed: AUROC": ("-", "a leaderboard names BCE 0.642 for the paper's head on a 1B model's own answers; not comparable"),
}


def with_n(table: pd.DataFrame, found: dict[str, dict[str, Statistics]], what: list[Measure]) -> pd.DataFrame:
    """A score table with the number of items of each measure as its first column."""
    sizes = {}
    for task, name, metric, label in what:
        cells = [statistics[name, metric] for statistics in found.get(task, {}).values() if (name, metric) in statistics]
        if cells:
            sizes[label] = f"{cells[0].n:,}"
    table = table.copy()
    table.insert(0, "n", pd.Series(sizes))
    return table


def benchmark_table(found: dict[str, dict[str, Statistics]], what: list[Measure] = BENCHMARKS) -> pd.DataFrame:
    """Task x score with intervals and n, and what others reported."""
    table = with_n(score_table(found, what), found, what)
    table["reported elsewhere"] = [REPORTED.get(label, ("-",))[0] for label in table.index]
    return table


def informative(found: dict[str, dict[str, Statistics]], what: list[Measure]) -> list[Measure]:
    """The measures by which a score can be judged: at least one score is clearly better than chance (0 of a correlation, one half else)."""

    def clearly_above(cell: Statistic, metric: str) -> bool:
        return bool(interval(cell.replicates)[0] > (0.0 if metric in ("pearson", "spearman") else 0.5))

    def scores(task: str) -> list[Statistics]:
        return [statistics for method, statistics in found.get(task, {}).items() if method not in figures.REFERENCES]

    return [
        (task, name, metric, label)
        for task, name, metric, label in what
        if any(clearly_above(s[name, metric], metric) for s in scores(task) if (name, metric) in s and np.isfinite(s[name, metric].value))
    ]


def word_table(rows: pd.DataFrame, methods: list[str]) -> pd.DataFrame:
    """Finding wrong words: methods by (task, with or without the source, metric)."""
    part = rows[rows["slice"].str.startswith("words:") & rows["metric"].isin(["auroc", "ap_bad", "mcc"]) & (rows["setting"] == "")]
    names = {"auroc": "AUROC", "ap_bad": "AP of BAD", "mcc": "MCC"}
    seen = part["slice"].str.removeprefix("words:prompt=").map({"source": "with source", "none": "target alone"})
    part = part.assign(measure=part["dataset"] + ", " + seen + ": " + part["metric"].map(names))
    return over_seeds(part, "measure", methods, 3).T.rename_axis("measure")


def chosen_on_validation(rows: pd.DataFrame, validation: str, test: str, methods: list[str], metric: str = "auroc") -> pd.DataFrame:
    """For each score the way to join token scores that is best on validation, and its value there and on test."""
    usual = ~rows["setting"].str.contains("trained_on")
    part = rows[usual & (rows["metric"] == metric) & (rows["slice"] == "all") & rows["method"].isin(methods)]
    part = part.assign(way=part["setting"].str.extract(r"aggregate=([^;]+)")[0].fillna("mean"))
    cells = part.groupby(["dataset", "method", "way"]).agg(value=("value", "mean"), low=("ci_low", "min"), high=("ci_high", "max"))
    lines = {}
    for method in in_order(methods):
        tried = cells.loc[validation, method]
        best = tried["value"].idxmax()
        lines[method] = {
            "chosen": best,
            "validation": with_interval(*tried.loc[best], 3),
            "test, chosen way": with_interval(*cells.loc[test, method, best], 3),
            "test, mean": with_interval(*cells.loc[test, method, "mean"], 3),
        }
    return pd.DataFrame(lines).T.rename_axis("score")


def verdicts(differences: pd.DataFrame) -> pd.DataFrame:
    """Does the head outperform scores without training? By measure: against which it is clearly better and clearly worse.

    `confirmed`: clearly better than all; `refuted`: clearly worse than one and better than none; `qualified`: anything between.
    """
    decided, lines = clear(differences), {}
    for measure, part in differences.groupby(level="measure", sort=False):
        here = decided[decided.index.get_level_values("measure") == measure]
        sides = (here[here["value"] > 0], here[here["value"] < 0])
        better, worse = (side.index.get_level_values("against").tolist() for side in sides)
        word = "confirmed" if len(better) == len(part) else "refuted" if worse and not better else "qualified"
        if not better and not worse:
            word = "no clear difference"
        lines[measure] = {
            "outperforms?": word,
            "clearly better than": ", ".join(better) or "-",
            "clearly worse than": ", ".join(worse) or "-",
        }
    return pd.DataFrame(lines).T.rename_axis("measure")


def robustness(
    found: dict[str, dict[str, Statistics]], probes: dict[str, dict[str, dict[str, Statistics]]], method: str, slice_name: str
) -> pd.DataFrame:
    """The supervised probe on its own pair and on others beside an unsupervised score, and the paired difference (score minus probe), with
    its p-value after Holm's correction over the table.

    found: {task: {method: statistics}}; probes: {task trained on: {task: {"supervised-probe": statistics}}}.
    """
    lines, p = {}, []
    for source, tested in probes.items():
        for task, cells in tested.items():
            ours, theirs = (c[slice_name, "pearson"] for c in (found[task][method], cells["supervised-probe"]))
            step = difference(ours, theirs)
            pair = source.removeprefix("mlqe-pe-")
            lines[source, task] = {
                "domain": "same (cross-fitted)" if source == task else "same pair, other gold" if task.endswith(pair) else "other pair",
                "probe": printed(theirs),
                method: printed(ours),
                "difference": printed(step),
                "value": step.value,
            }
            p.append(p_value(step.value, step.replicates, step.clusters))
    return pd.DataFrame(lines).T.rename_axis(["probe trained on", "tested on"]).assign(p_holm=holm(np.array(p)).round(4))


def by_corpus(found: dict[str, dict[str, dict[str, Statistics]]], what: list[Measure], methods: list[str]) -> pd.DataFrame:
    """The same scores, learnt from one corpus after another. found: {corpus: {task: {method: statistics}}}"""
    lines = {}
    for task, name, metric, label in what:
        for method in methods:
            cells = {c: f[task][method][name, metric] for c, f in found.items() if (name, metric) in f.get(task, {}).get(method, {})}
            defined = {c: printed(cell) for c, cell in cells.items() if np.isfinite(cell.value)}
            if len(defined) > 1:
                lines[label, method] = defined
    return pd.DataFrame(lines).T.rename_axis(["measure", "score"]).fillna("–")


def corpus_steps(found: dict[str, dict[str, dict[str, Statistics]]], what: list[Measure], method: str, corpus: str) -> pd.DataFrame:
    """What learning from another corpus than docstrings changes for one method: paired differences, one row a measure."""
    lines = {}
    for task, name, metric, label in what:
        cells = [found[c].get(task, {}).get(method, {}).get((name, metric)) for c in (corpus, "docstrings")]
        if all(cell is not None and np.isfinite(cell.value) for cell in cells):
            step = difference(*cells)
            low, high = interval(step.replicates)
            lines[label] = {"value": step.value, "ci_low": float(low), "ci_high": float(high)}
    return pd.DataFrame(lines).T.rename_axis("measure")


def difference_of(a: Statistic, b: Statistic) -> str:
    """Paired difference of two statistics of the same items, with its interval."""
    return printed(difference(a, b), 3)
