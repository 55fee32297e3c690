"""Wrong words and their tokens."""

import numpy as np
import pandas as pd
import pytest
from sklearn.metrics import matthews_corrcoef

from lib.study.models import token_ids, train_tokenizer
from lib.study.statistics import Draws
from lib.tasks.measures import mcc, token_items, word_items

GERMAN = 'Die Bäume , größer als „ 3,5 Häuser “ , stürzten ( um ) : "ßü" € 中文 a\u2028b c\u00a0d .'


@pytest.fixture(scope="module")
def tokenizer():
    """Knows a few words: elsewhere a space is a token of its own, and an umlaut is two."""
    return train_tokenizer(["Die Bäume sind größer als Häuser .", "a , b"] * 3, 300)


def items(*outputs: str, wrong: list[list[int]] | None = None) -> pd.DataFrame:
    wrong = wrong or [[] for _ in outputs]
    table = pd.DataFrame(
        {"output": outputs, "wrong_words": wrong, "edit": "x", "with_source": True}
    )
    return table.assign(group=[f"g{i}" for i in range(len(outputs))])


class Spans:
    """In place of a tokenizer: these places of tokens, whatever the text."""

    def __init__(self, *given):
        self.given = given

    def __call__(self, *_texts, **_options):
        return {"offset_mapping": self.given, "input_ids": [0]}

    def convert_ids_to_tokens(self, _id):
        return "a"


@pytest.mark.parametrize("output", [GERMAN, "x", "ß", "Bäume " * 5 + "um", '" „ “ "'])
def test_words_are_their_tokens(output, tokenizer):
    """The tokens of a word spell it, and nothing else; every token belongs to one."""
    words, number = word_items(tokenizer, items(output))
    ids = np.array(token_ids(tokenizer, [output])[0])
    assert len(number) == len(ids) and (np.diff(number) >= 0).all()
    spelt = [tokenizer.decode(ids[number == i]).strip(" ") for i in range(len(words))]
    assert spelt == output.split(" ")


def test_words_are_counted_through_all_items(tokenizer):
    table = items("größer als um", "Häuser", "a , b", wrong=[[0, 2], [], [1]])
    words, number = word_items(tokenizer, table)
    assert words["gold"].tolist() == [0, 1, 0, 1, 1, 0, 1]
    assert words["group"].tolist() == ["g0"] * 3 + ["g1"] + ["g2"] * 3
    assert sorted(set(number)) == list(range(7))


PLACES = {
    "words": ([(0, 2), (2, 4), (4, 6)], [0, 1, 2]),  # "ab", " c", " d"
    "spaces alone": ([(0, 2), (2, 3), (3, 4), (4, 5), (5, 6)], [0, 1, 1, 2, 2]),
    "places cut off": ([(0, 0), (0, 1), (1, 2), (3, 3), (3, 4), (5, 6)], [0, 0, 0, 1, 1, 2]),
    "space behind its word": ([(0, 3), (3, 5), (5, 6)], [0, 1, 2]),
    "one character, three tokens": (
        [(0, 1), (1, 2), (1, 2), (1, 2), (2, 4), (4, 6)],
        [0, 0, 0, 0, 1, 2],
    ),
}


@pytest.mark.parametrize("name", PLACES)
def test_where_tokens_belong(name):
    given, numbers = PLACES[name]
    assert word_items(Spans(*given), items("ab c d"))[1].tolist() == numbers


WITHOUT = [[(0, 4), (4, 6)], [(0, 2), (2, 4)], [(2, 4), (4, 6)], [(0, 2), (2, 4), (4, 6), (6, 6)]]


@pytest.mark.parametrize("given", WITHOUT)
def test_words_without_tokens(given):
    with pytest.raises(ValueError, match="words cannot be told apart"):
        word_items(Spans(*given), items("ab c d"))


@pytest.mark.parametrize("output", [" a", "a ", "a  b"])
def test_empty_words(output, tokenizer):
    with pytest.raises(ValueError, match="words cannot be told apart"):
        word_items(tokenizer, items(output))


@pytest.mark.parametrize("wrong", [[], [0], [1], [2], [0, 2]])
def test_tokens_of_wrong_words(wrong, tokenizer):
    """Every token that shares a character with one, and no other."""
    text = "größer als Häuser"
    gold = token_items(tokenizer, items(text, wrong=[wrong]))["gold"].to_numpy()
    _, number = word_items(tokenizer, items(text))
    ids = np.array(token_ids(tokenizer, [text])[0])
    only_space = np.array([tokenizer.decode([i]) == " " for i in ids])  # belongs to no word
    expected = 1.0 - (np.isin(number, wrong) & ~only_space)
    assert gold.tolist() == expected.tolist()


def test_mcc_is_that_of_thresholds_of_the_other_half():
    """With the best threshold known in both halves: scikit-learn's value of that decision."""
    rng = np.random.default_rng(0)
    gold = rng.integers(0, 2, 400).astype(float)
    score = np.where(gold == 1, 2.0, -2.0) + 1.5 * rng.normal(size=400)
    words = pd.DataFrame({"gold": gold, "score": score, "group": np.arange(400)})
    values = mcc(words, Draws(words["group"], 20))
    called = np.empty(400)
    for half in (0, 1):
        there, here = np.arange(400) % 2 != half, np.arange(400) % 2 == half
        cuts = np.sort(score[there])
        middles = (cuts[1:] + cuts[:-1]) / 2
        best = max(middles, key=lambda t: matthews_corrcoef(1 - gold[there], score[there] < t))
        called[here] = score[here] < best
    assert values[0] == pytest.approx(matthews_corrcoef(1 - gold, called), abs=1e-12)
    assert values.shape == (21,) and np.ptp(values[1:]) > 0
