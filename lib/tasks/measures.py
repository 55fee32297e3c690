"""What each task asks of a score: criteria, each a measure of some of the task's rows.

Rows have the columns of the task's items (see `lib.tasks`) and `score`, higher = better. Listing
and languages judge single tokens: no monotone transform of a score changes their statistics, but
for the share of the gap.
"""

from collections.abc import Callable, Iterable
from typing import NamedTuple

import numpy as np
import pandas as pd

from lib.study.agreement import agreement
from lib.study.models import unspaced
from lib.study.statistics import Draws, Measure, interval, mean

HIGH, LOW = 4, 2  # right answers left: "many" from HIGH on; wrong answers to compare with up to LOW
HOME_GROUND = "random-words"  # edits by which heads trained on unigram negatives are at home
NO_ERRORS = ("original", "attested")  # kinds of edited texts that are no type of error
AUROC, PEARSON, SPEARMAN = (agreement(metric) for metric in ("auroc", "pearson", "spearman"))


class Criterion(NamedTuple):
    """One line of a table: its label, the task, what is measured, and of which rows: a query of
    pandas, or a function that makes them of the task's rows.
    """

    label: str
    task: str
    measure: Measure
    rows: str | Callable[[pd.DataFrame], pd.DataFrame] = ""
    ideal: float | None = None  # where more is not better
    compared: bool = True  # no control, and nobody's home ground
    chance: float = 0.5  # its value for a score that knows nothing

    def of(self, rows: pd.DataFrame) -> pd.DataFrame:
        """The rows that are measured; there may be none."""
        if callable(self.rows):
            return self.rows(rows)
        return rows.query(self.rows) if self.rows else rows


def compared(criteria: Iterable[Criterion]) -> list[Criterion]:
    """Those by which methods are compared, where more is better."""
    return [criterion for criterion in criteria if criterion.compared and criterion.ideal is None]


def main_metric(rows: pd.DataFrame) -> str:
    """AUROC where gold is right or wrong, Pearson where it is graded."""
    return "auroc" if rows["gold"].isin((0, 1)).all() else "pearson"


# ---- listing and languages --------------------------------------------------------------------


def above_alone(rows: pd.DataFrame, least: int = HIGH, most: float = np.inf) -> pd.DataFrame:
    """Listing, one row a set (`group`): how often an answer with `least` to `most` right ones left
    scores higher than the same answer as the only one, ties one half (`above`), and how often they
    tie (`tie`). Every order of a set counts the same.
    """
    right, order = rows[rows["gold"] == 1], ["group", "order"]
    many, alone = right[right["k"].between(least, most)], right[right["k"] == 1]
    score = many["score"].to_numpy()
    index = pd.MultiIndex.from_frame(many[order])
    before = alone.set_index(order)["score"].reindex(index).to_numpy()
    table = many[order].assign(
        above=(score > before) + 0.5 * (score == before), tie=score == before
    )
    return table.groupby(order).mean().groupby("group").mean().reset_index()


def scores_by_set(rows: pd.DataFrame) -> pd.DataFrame:
    """Listing, one row a set: mean score of right answers among many, of those alone, of wrong."""
    k, right = rows["k"], rows["gold"] == 1
    parts = {"many": right & (k >= HIGH), "alone": right & (k == 1), "wrong": ~right & (k <= LOW)}
    orders = {
        name: rows[chosen].groupby(["group", "order"])["score"] for name, chosen in parts.items()
    }
    sets = {name: scores.mean().groupby("group").mean() for name, scores in orders.items()}
    return pd.DataFrame(sets).dropna().reset_index()


def gap_kept(sets: pd.DataFrame, draws: Draws) -> np.ndarray:
    """Share of the gap between a right answer alone and wrong ones that is left among many right
    ones; undefined where there is no clear gap.
    """
    kept, whole = (draws.sum(sets[name] - sets["wrong"]) for name in ("many", "alone"))
    return kept / whole if interval(whole[1:])[0] > 0 else np.full(len(whole), np.nan)


def two_above_one(rows: pd.DataFrame, draws: Draws) -> np.ndarray:
    """P(a right answer of two scores above the right answer of one), of another territory."""
    return AUROC(rows.assign(gold=(rows["k"] == 2).astype(float)), draws)


_MANY = f"gold == 1 and k >= {HIGH} or k <= {LOW} and kind == "
_NAMED = "prior == False and "
LISTING = [
    Criterion(f"listing: {label}", "listing", *of)
    for label, *of in (
        ("P(many right > one right), ideal 0.5", mean("above"), above_alone, 0.5),
        ("share of the gap kept, ideal 1", gap_kept, scores_by_set, 1.0),
        ("AUROC, many right against listed", AUROC, f"{_MANY}'listed'"),
        ("AUROC, many right against other set", AUROC, f"{_MANY}'sibling'"),
    )
]
LANGUAGES = [
    Criterion(f"languages: {label}", "languages", *of)
    for label, *of in (
        ("P(two > one right), ideal 0.5", two_above_one, f"{_NAMED}gold == 1", 0.5),
        ("AUROC, one right", AUROC, f"{_NAMED}k == 1"),
        ("AUROC, two right", AUROC, f"{_NAMED}k == 2"),
        ("AUROC, right of two against wrong", AUROC, f"{_NAMED}k == 1 + gold"),  # those of one
        ("AUROC without territory (control)", AUROC, "prior == True", None, False),
    )
]
AMBIGUITY = LISTING + LANGUAGES


# ---- edited texts -----------------------------------------------------------------------------


def edits_of(rows: pd.DataFrame) -> list[str]:
    """Types of errors among edited texts, in the order of the task."""
    return [name for name in dict.fromkeys(rows["edit"]) if name not in NO_ERRORS]


def graded_errors(rows: pd.DataFrame) -> pd.DataFrame:
    """Of edited texts those with graded gold: originals and all errors but home ground."""
    return rows[~rows["edit"].isin((HOME_GROUND, "attested"))]


def with_originals(rows: pd.DataFrame, edit: str) -> pd.DataFrame:
    """Texts with one type of error, and their originals."""
    edited = rows[rows["edit"] == edit]
    originals = rows[(rows["edit"] == "original") & rows["text"].isin(edited["text"])]
    return pd.concat([originals, edited])


def intact(rows: pd.DataFrame, draws: Draws) -> np.ndarray:
    """AUROC that tells originals from edited texts, whichever they are."""
    return AUROC(rows.assign(gold=(rows["gold"] == 1).astype(float)), draws)


def above_own_edit(rows: pd.DataFrame) -> pd.DataFrame:
    """One row a changed text (gold below 1): whether its original, the text of that number with
    gold 1, scores higher (`above`), ties one half.
    """
    original = rows[rows["gold"] == 1].set_index("text")["score"]
    changed = rows[rows["gold"] < 1]
    step = changed["text"].map(original) - changed["score"]
    return changed.assign(above=(np.sign(step) + 1) / 2)


def edit_criteria(task: str, edits: Iterable[str], label: str) -> list[Criterion]:
    """Pearson with the share of intact words, and AUROC of every type of error."""
    text = f"{label}: Pearson with the share of intact words"
    whole = Criterion(text, task, PEARSON, graded_errors, chance=0.0)
    return [whole, *(_edit(f"{label}: AUROC, {{}}", task, intact, edit) for edit in edits)]


def paired_criteria(task: str, edits: Iterable[str]) -> list[Criterion]:
    """Each original against its own edit."""
    return [_edit("{}: original > its edit", task, mean("above"), edit, True) for edit in edits]


def _edit(label: str, task: str, measure: Measure, edit: str, paired: bool = False) -> Criterion:
    def rows(items: pd.DataFrame) -> pd.DataFrame:
        both = with_originals(items, edit)
        return above_own_edit(both) if paired else both

    home = edit == HOME_GROUND
    name = edit.replace("-", " ") + (" (home ground)" if home else "")
    return Criterion(label.format(name), task, measure, rows, compared=not home)


# ---- tokens and words that are wrong ----------------------------------------------------------


def token_items(tokenizer, items: pd.DataFrame) -> pd.DataFrame:
    """One row a token of edited texts: group, edit, and gold, 0 where it shares a character with a
    wrong word.
    """
    gold = []
    for output, wrong in zip(items["output"], items["wrong_words"]):
        first, last = _token_ends(tokenizer, output)
        ends = _word_ends(output)
        starts = np.r_[0, ends[:-1] + 1]
        overlaps = [(first < ends[i]) & (last > starts[i]) for i in wrong]
        gold.append(1.0 - np.any(overlaps, axis=0) if overlaps else np.ones(len(first)))
    rows = items.loc[np.repeat(items.index, [len(part) for part in gold]), ["group", "edit"]]
    return rows.assign(gold=np.concatenate(gold))


def word_items(tokenizer, items: pd.DataFrame) -> tuple[pd.DataFrame, np.ndarray]:
    """One row a word of translations: group, with_source, and gold, 0 where it is wrong (W rows);
    and the number of the word of every token of the outputs (N,).

    A token belongs to the word that it begins in; one that begins with the space before a word, or
    is that space, to the word behind it. Raises ValueError where a word is empty or has no token.
    """
    gold, of_token, count = [], [], 0
    for output, wrong in zip(items["output"], items["wrong_words"]):
        first, _ = _token_ends(tokenizer, output)
        words = np.arange(len(output.split(" ")))
        number = np.searchsorted(_word_ends(output), first, side="right")
        if "" in output.split(" ") or not np.array_equal(np.unique(number), words):
            raise ValueError(f"words cannot be told apart with this tokenizer: {output!r}")
        of_token.append(number + count)
        gold.append(1.0 - np.isin(words, wrong))
        count += len(words)
    rows = items.loc[np.repeat(items.index, [len(g) for g in gold]), ["group", "with_source"]]
    return rows.assign(gold=np.concatenate(gold)), np.concatenate(of_token)


def _word_ends(output: str) -> np.ndarray:
    """Place behind each word, where the spaces are."""
    return np.cumsum([len(word) + 1 for word in output.split(" ")]) - 1


def _token_ends(tokenizer, output: str) -> np.ndarray:
    """Where the tokens of an output, as `lib.study.models.token_ids` makes them, begin and end.
    (2, T)
    """
    (text,) = unspaced(tokenizer, [output])
    options = {"add_special_tokens": False, "return_offsets_mapping": True, "verbose": False}
    ends = tokenizer(text_target=text, **options)["offset_mapping"]
    return np.array(ends).T + len(output) - len(text)


def mcc(words: pd.DataFrame, draws: Draws) -> np.ndarray:
    """Matthews correlation of wrong words (gold 0) with "score below the threshold": the threshold
    that is best on one half of the groups decides in the other half, and the other way round.
    """
    score, wrong = words["score"].to_numpy(float), 1 - words["gold"].to_numpy(float)
    half = pd.factorize(words["group"])[0] % 2
    called = np.empty(len(words))
    for number in (0, 1):
        threshold = _best_threshold(score[half != number], wrong[half != number])
        called[half == number] = score[half == number] < threshold
    values = (called * wrong, wrong, called, np.ones(len(words)))
    return _matthews(*(draws.sum(value) for value in values))


def _best_threshold(score: np.ndarray, wrong: np.ndarray) -> float:
    """The score below which calling a word wrong has the highest MCC."""
    order = np.argsort(score, kind="stable")
    hits, called = np.cumsum(wrong[order])[:-1], np.arange(1, len(score))
    best = int(np.nanargmax(_matthews(hits, wrong.sum(), called, len(score))))
    return float(score[order[best : best + 2]].mean())


def _matthews(hits, wrong, called, n) -> np.ndarray:
    with np.errstate(invalid="ignore", divide="ignore"):
        return (n * hits - wrong * called) / np.sqrt(wrong * (n - wrong) * called * (n - called))
