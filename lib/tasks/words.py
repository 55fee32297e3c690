"""Which tokens and words of the outputs are wrong, and how well a score finds them."""

import numpy as np
import pandas as pd

from lib.study.pretrained import unspaced
from lib.study.statistics import Draws


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
    """Where the tokens of an output, as `lib.study.pretrained.token_ids` makes them, begin and end.
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
