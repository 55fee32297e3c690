"""What each task asks of a score: criteria, each a measure of some of the task's rows.

Rows have the columns of the task's items (see `lib.tasks.catalogue`) and `score`, higher = better.
Listing and languages judge single tokens: no monotone transform of a score changes their
statistics, but for the share of the gap.
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


def _auroc_of(positive: Callable[[pd.DataFrame], pd.Series]) -> Measure:
    """AUROC that tells rows for which `positive` holds from the others."""
    return lambda rows, draws: AUROC(rows.assign(gold=positive(rows).astype(float)), draws)


# ---- listing and languages --------------------------------------------------------------------


def above_alone(rows: pd.DataFrame, least: int = HIGH, most: float = np.inf) -> pd.DataFrame:
    """Listing, one row a set (`group`): how often an answer with `least` to `most` right ones left
    scores higher than the same answer as the only one, ties one half (`above`), and how often they
    tie (`tie`). Every order of a set counts the same.
    """
    right, order = rows[rows["gold"] == 1], ["group", "order"]
    alone = right[right["k"] == 1].set_index(order)["score"]
    many = right[right["k"].between(least, most)].join(alone.rename("alone"), on=order)
    step = np.sign(many["score"] - many["alone"])
    table = many[order].assign(above=(step + 1) / 2, tie=step == 0)
    return table.groupby(order).mean().groupby("group").mean().reset_index()


def scores_by_set(rows: pd.DataFrame) -> pd.DataFrame:
    """Listing, one row a set: mean score of right answers among many, of those alone, of wrong."""
    k, right = rows["k"], rows["gold"] == 1
    parts = {"many": right & (k >= HIGH), "alone": right & (k == 1), "wrong": ~right & (k <= LOW)}
    orders = {name: rows[part].groupby(["group", "order"])["score"] for name, part in parts.items()}
    sets = {name: scores.mean().groupby("group").mean() for name, scores in orders.items()}
    return pd.DataFrame(sets).dropna().reset_index()


def gap_kept(sets: pd.DataFrame, draws: Draws) -> np.ndarray:
    """Share of the gap between a right answer alone and wrong ones that is left among many right
    ones; undefined where there is no clear gap.
    """
    kept, whole = (draws.sum(sets[name] - sets["wrong"]) for name in ("many", "alone"))
    return kept / whole if interval(whole[1:])[0] > 0 else np.full(len(whole), np.nan)


# P(a right answer of two scores above the right answer of one), of another territory
_TWO_ABOVE_ONE = _auroc_of(lambda rows: rows["k"] == 2)
_MANY = f"gold == 1 and k >= {HIGH} or k <= {LOW} and kind == "
_NAMED = "prior == False and "
_LINES = (
    ("listing: P(many right > one right), ideal 0.5", mean("above"), above_alone, 0.5),
    ("listing: share of the gap kept, ideal 1", gap_kept, scores_by_set, 1.0),
    ("listing: AUROC, many right against listed", AUROC, f"{_MANY}'listed'"),
    ("listing: AUROC, many right against other set", AUROC, f"{_MANY}'sibling'"),
    ("languages: P(two > one right), ideal 0.5", _TWO_ABOVE_ONE, f"{_NAMED}gold == 1", 0.5),
    ("languages: AUROC, one right", AUROC, f"{_NAMED}k == 1"),
    ("languages: AUROC, two right", AUROC, f"{_NAMED}k == 2"),
    ("languages: AUROC, right of two against wrong", AUROC, f"{_NAMED}k == 1 + gold"),  # of one
    ("languages: AUROC without territory (control)", AUROC, "prior == True", None, False),
)
AMBIGUITY = [Criterion(label, label.split(":")[0], *of) for label, *of in _LINES]
LISTING = AMBIGUITY[:4]


# ---- edited texts -----------------------------------------------------------------------------


def graded_errors(rows: pd.DataFrame) -> pd.DataFrame:
    """Of edited texts those with graded gold: originals and all errors but home ground."""
    return rows[~rows["edit"].isin((HOME_GROUND, "attested"))]


def above_own_edit(rows: pd.DataFrame) -> pd.DataFrame:
    """One row a changed text (gold below 1): whether its original, the text of that number with
    gold 1, scores higher (`above`), ties one half.
    """
    original = rows[rows["gold"] == 1].set_index("text")["score"]
    changed = rows[rows["gold"] < 1]
    step = changed["text"].map(original) - changed["score"]
    return changed.assign(above=(np.sign(step) + 1) / 2)


def edit_criteria(task: str, edits: Iterable[str], label: str) -> list[Criterion]:
    """Pearson with the share of intact words; AUROC of originals against every type of error."""
    text = f"{label}: Pearson with the share of intact words"
    intact = _auroc_of(lambda rows: rows["gold"] == 1)
    whole = Criterion(text, task, PEARSON, graded_errors, chance=0.0)
    return [whole, *(_edit(f"{label}: AUROC, {{}}", task, intact, edit) for edit in edits)]


def paired_criteria(task: str, edits: Iterable[str]) -> list[Criterion]:
    """Each original against its own edit."""
    label = "{}: original > its edit"
    return [_edit(label, task, mean("above"), edit, above_own_edit) for edit in edits]


def _edit(label: str, task: str, measure: Measure, edit: str, then=lambda rows: rows) -> Criterion:
    """Of texts with one type of error, and their originals."""

    def rows(items: pd.DataFrame) -> pd.DataFrame:
        edited, original = items[items["edit"] == edit], items["edit"] == "original"
        return then(pd.concat([items[original & items["text"].isin(edited["text"])], edited]))

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
        (first, last), ends = _token_ends(tokenizer, output), _word_ends(output)
        places = np.array(wrong, int)[:, None]
        overlaps = (first < ends[places]) & (last > np.r_[0, ends + 1][places])
        gold.append(1.0 - overlaps.any(0))
    return _repeated(items[["group", "edit"]], gold)


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
    return _repeated(items[["group", "with_source"]], gold), np.concatenate(of_token)


def _repeated(items: pd.DataFrame, gold: list[np.ndarray]) -> pd.DataFrame:
    rows = items.loc[np.repeat(items.index, [len(part) for part in gold])]
    return rows.assign(gold=np.concatenate(gold))


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
        there = half != number
        order = np.argsort(score[there], kind="stable")
        cuts, hits = score[there][order], np.cumsum(wrong[there][order])
        values = _matthews(hits[:-1], hits[-1], np.arange(1, len(hits)), len(hits))
        best = int(np.nanargmax(values))
        called[~there] = score[~there] < cuts[best : best + 2].mean()
    counts = (called * wrong, wrong, called, np.ones(len(words)))
    return _matthews(*(draws.sum(values) for values in counts))


def _matthews(hits, wrong, called, n) -> np.ndarray:
    with np.errstate(invalid="ignore", divide="ignore"):
        return (n * hits - wrong * called) / np.sqrt(wrong * (n - wrong) * called * (n - called))
