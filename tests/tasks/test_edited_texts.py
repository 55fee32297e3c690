"""Edited texts: what counts as wrong is what differs from the original, and nothing else."""

import re
from collections import Counter

import numpy as np
import pandas as pd
import pytest

from lib.tasks.edited_texts import (
    COLOURS,
    DOCSTRING_EDITS,
    NUMBERS,
    SHARE,
    TRANSLATION_EDITS,
    attribute,
    attribute_counts,
    corruption,
    translation_errors,
)

REPLACING = ("word-swap", "other-text", "number", "identifier", "random-words")
STEMS = [
    "lorem",
    "ipsum",
    "dolor",
    "sit",
    "amet",
    "elit",
    "sed",
    "magna",
    "quis",
    "nisi",
    "aute",
    "velit",
]


def docstrings() -> pd.DataFrame:
    """36 test texts of 14 different words each: a third with numbers, identifiers and a verb, a
    third with "is not", some with a shared prefix. Six are training texts, too; two test texts are
    too short and too long.
    """
    rows = []
    for i in range(36):
        words = [f"{stem}{'abcdefghijkl'[i // 3]}{'xyz'[i % 3]}" for stem in STEMS]
        if i % 3 == 0:
            words[4:8] = [f"my_name{i}", "is", f"({i + 100},", f"v{i}.50"]
        elif i % 3 == 1:
            words[4:6] = ["is", "not"]
        words += [f"end{i}", "done."]
        if i % 6 < 3:
            words[:3] = ["returns", "the", "cache" if i % 2 else "number"]
        rows.append({"source": f"Summary {i}.", "target": " ".join(words), "group": 1000 + i})
    table = pd.DataFrame(rows).assign(split="test")
    train = table[:6].assign(group=table["group"] + 500, split="train")
    train.loc[5, "target"] += " seldom"
    unfit = pd.DataFrame({"source": "unfit", "target": ["too short", " ".join("x" * 61)]})
    unfit = unfit.assign(group=[1, 2], split="test")
    return pd.concat([table, train, unfit], ignore_index=True).assign(package="p")


CORPUS = docstrings()


@pytest.fixture(scope="module")
def corrupted() -> pd.DataFrame:
    """Edited items with the words of their original (`before`) and their own (`after`)."""
    items = corruption(CORPUS, texts=20, seed=3)
    items = items[items["edit"] != "attested"]
    original = items[items["edit"] == "original"].set_index("group")["output"]
    assert original.index.is_unique
    before = items["group"].map(original).str.split(" ")
    return items.assign(before=before, after=items["output"].str.split(" "))


def of_type(items: pd.DataFrame, name: str):
    part = items[items["edit"] == name]
    assert len(part) > 5, f"the corpus of this test has too few texts for {name}"
    return part.itertuples()


def test_every_edited_item_has_its_original(corrupted):
    """In the same group, with the same prompt; gold 1, nothing wrong, the text of the corpus."""
    texts = CORPUS.set_index(CORPUS["group"].astype(str))
    for item in of_type(corrupted, "original"):
        assert item.gold == 1 and item.wrong_words == []
        assert item.output == texts.loc[item.group, "target"]
    assert (corrupted["prompt"] == corrupted["group"].map(texts["source"]) + "\n").all()
    assert (corrupted["group"].map(texts["split"]) == "test").all()
    assert corrupted["before"].str.len().between(12, 60).all()


def test_gold_is_the_share_of_words_left(corrupted):
    for item in corrupted.itertuples():
        assert item.gold == pytest.approx(1 - len(item.wrong_words) / len(item.after))
        assert (item.gold < 1) == (item.edit != "original")
        assert sorted(set(item.wrong_words)) == item.wrong_words


@pytest.mark.parametrize("name", REPLACING)
def test_words_that_are_not_wrong_are_untouched(name, corrupted):
    """A word differs exactly where it counts as wrong; as many as SHARE allows, a swap has two."""
    for item in of_type(corrupted, name):
        pairs = list(zip(item.after, item.before, strict=True))
        assert [i for i, (a, b) in enumerate(pairs) if a != b] == item.wrong_words
        most = max(1, round(SHARE[1] * len(item.before)))
        assert 1 <= len(item.wrong_words) <= most * (2 if name == "word-swap" else 1)
    assert len({len(item.wrong_words) for item in of_type(corrupted, name)}) > 1


def test_word_swap_exchanges_neighbours(corrupted):
    for item in of_type(corrupted, "word-swap"):
        for i, j in zip(item.wrong_words[::2], item.wrong_words[1::2]):
            assert j == i + 1 and item.after[i : j + 1] == item.before[i : j + 1][::-1]


def test_deletion_leaves_the_other_words_in_order(corrupted):
    """The word behind each gap is wrong (words of a text differ here, so a gap can be seen)."""
    for item in of_type(corrupted, "deletion"):
        left = [item.before.index(word) for word in item.after]
        gap = [n for n, i in enumerate(left) if i - 1 != (left[n - 1] if n else -1)]
        assert left == sorted(left) and item.wrong_words == gap and len(left) < len(item.before)


def test_numbers_change_in_their_digits_only(corrupted):
    for item in of_type(corrupted, "number"):
        for i in item.wrong_words:
            assert re.sub(r"\d", "#", item.after[i]) == re.sub(r"\d", "#", item.before[i])
            pairs = zip(item.after[i], item.before[i])
            assert all(new != old for new, old in pairs if old.isdigit())


def test_identifiers_are_replaced_by_identifiers(corrupted):
    words = {word for text in CORPUS["target"] for word in text.split()}
    names = {word for word in words if "_" in word or re.fullmatch(r"v\d+\.50", word)}
    for item in of_type(corrupted, "identifier"):
        for i in item.wrong_words:
            assert {item.after[i], item.before[i]} <= names


def test_identifiers_change_within_their_punctuation():
    """Else quotes and full stops would give an edit away."""
    edit, pool = DOCSTRING_EDITS["identifier"], {"identifiers": ["os.path"]}
    words, wrong = edit(["call", "`my_name`,", "now"], 1, np.random.default_rng(0), pool)
    assert words == ["call", "`os.path`,", "now"] and wrong == [1]


NAMES = ["my_name", "`my_name`,", "os.path", "camelCase", "CamelCase", "ValueError.", "e.gold"]
NO_NAMES = ["word", "Word", "end.", "NASA", "3.5", "(see", "e.g.", "(i.e.,"]


@pytest.mark.parametrize("word", NAMES + NO_NAMES)
def test_what_counts_as_an_identifier(word):
    pool, rng = {"identifiers": ["x"]}, np.random.default_rng(0)
    assert bool(DOCSTRING_EDITS["identifier"]([word], 1, rng, pool)[1]) == (word in NAMES)


def test_negation_is_one_word(corrupted):
    """ "not" more behind a verb, which is wrong, or less, and the next word is wrong."""
    changes = set()
    for item in of_type(corrupted, "negation"):
        (i,) = item.wrong_words
        changes.add(len(item.after) - len(item.before))
        if len(item.after) > len(item.before):
            assert item.after[i - 1 : i + 1] == ["is", "not"]
            assert item.after[:i] + item.after[i + 1 :] == item.before
        else:
            assert item.before[i] == "not" and item.before[:i] + item.before[i + 1 :] == item.after
    assert changes == {1, -1}


@pytest.mark.parametrize(("name", "split"), [("other-text", "test"), ("random-words", "train")])
def test_where_new_words_come_from(name, split, corrupted):
    texts = CORPUS[CORPUS["split"] == split]["target"]
    known = {word for text in texts for word in text.split()}
    for item in of_type(corrupted, name):
        assert {item.after[i] for i in item.wrong_words} <= known


@pytest.mark.parametrize("texts", [1, 5])
def test_corruption_size(texts):
    """`texts` items a type where there is room; an original for each of them."""
    counts = corruption(CORPUS, texts)["edit"].value_counts()
    assert all(counts[name] == texts for name in DOCSTRING_EDITS) and counts["original"] >= texts


def test_the_seed_decides():
    first, again, other = (corruption(CORPUS, 8, seed=seed) for seed in (0, 0, 1))
    pd.testing.assert_frame_equal(first, again)
    assert not first["output"].equals(other["output"])


# ---- attested alternatives --------------------------------------------------------------------


def test_attested_pairs():
    """For each prefix two right and two wrong continuations of four words; right ones occur in
    texts of two groups of the split.
    """
    items = corruption(CORPUS, texts=20).query("edit == 'attested'")
    assert items["group"].nunique() == 2  # the two shared prefixes of the corpus
    texts = CORPUS[CORPUS["split"] == "test"]
    for prefix, part in items.groupby("prompt"):
        assert sorted(part["gold"]) == [0, 0, 1, 1] and set(part["group"]) == {f"prefix {prefix}"}
        assert (part["output"].str.split(" ").str.len() == 5).all()
        right = part[part["gold"] == 1]["output"]
        groups = [set(texts[texts["target"].str.startswith(prefix + o)]["group"]) for o in right]
        assert all(groups) and not groups[0] & groups[1]


@pytest.mark.parametrize("seed", range(4))
def test_attested_with_near_duplicates(seed):
    """Two texts of one group are no two right ways; no text goes on like a wrong way."""
    ways = {"a b c one x x x": 0, "a b c two x x x": 0, "a b c six x x x": 1}
    ways |= {"k l m two x x x": 2, "k l m ten x x x": 3}
    table = pd.DataFrame({"target": list(ways), "group": list(ways.values()), "source": "s"})
    table = table.assign(package="p", split="test")
    items = corruption(pd.concat([table, table.assign(split="train")]), seed=seed)
    items = items[items["edit"] == "attested"]
    texts = items["prompt"] + items["output"]
    assert sorted(texts[items["gold"] == 1].map(ways)) == [0, 1, 2, 3]
    starts = {" ".join(text.split()[:4]) for text in texts[items["gold"] == 0]}
    assert starts and not any(table["target"].str.startswith(start).any() for start in starts)


# ---- translations -----------------------------------------------------------------------------

TRANSLATED = {
    "the cat is on the mat": "die schwarze Katze liegt auf der Matte",
    "two men": "Zwei Männer mit roten Hüten stehen im Schnee.",
    "my name is x": "ein Kind in einem blauen Hemd spielt Ball",
    "value": "vier Hunde rennen über eine grüne Wiese",
    "the number 10": "kurz",
}
PAIRS = pd.DataFrame(
    {"source": TRANSLATED.keys(), "target": TRANSLATED.values(), "group": range(5)}
)


@pytest.fixture(scope="module")
def translations() -> pd.DataFrame:
    pairs = pd.concat([PAIRS] * 6, ignore_index=True).assign(group=range(30))
    all_common = pd.DataFrame({"target": [" ".join((*NUMBERS, *COLOURS))] * 3})
    return translation_errors(pairs, pd.concat([PAIRS, all_common]), texts=15)


def test_errors_of_every_type(translations):
    """The original beside them, its source as prompt; too short references are left out."""
    counts = translations["edit"].value_counts()
    assert all(counts[name] == 15 for name in TRANSLATION_EDITS)
    assert set(counts.index) == {"original", *TRANSLATION_EDITS}
    originals = translations[translations["edit"] == "original"]
    assert (originals["output"] == originals["prompt"].map(TRANSLATED)).all()
    assert set(translations["group"]) <= set(originals["group"])
    assert "kurz" not in originals["output"].tolist()


def test_attributes_stay_good_german(translations):
    """Another colour or number in the same form; nothing else changes."""
    stem = rf"{'|'.join(COLOURS)}|{'|'.join(NUMBERS)}"
    for item in of_type(translations, "attribute"):
        pairs = list(zip(TRANSLATED[item.prompt].split(), item.output.split(), strict=True))
        assert [i for i, (a, b) in enumerate(pairs) if a != b] == item.wrong_words
        for i in item.wrong_words:
            old, new = (re.sub(stem, "#", word.lower()) for word in pairs[i])
            assert old == new and "#" in old


@pytest.mark.parametrize(
    ("word", "pattern"),
    [
        ("roten", "(?!rot)[a-zß-ü]+en"),
        ("Blauer,", "(?!Blau)[A-Z][a-zß-ü]+er,"),
        ("(weiß)", r"\((?!weiß)[a-zß-ü]+\)"),
        ("Zwei", "(?!Zwei)[A-Z][a-zü]+"),
        *((word, None) for word in ("rote-weiße", "Rotwein", "vierten", "zweier", "weißt")),
    ],
)
def test_what_counts_as_an_attribute(word, pattern):
    """Also where the same one is drawn, nothing is wrong."""
    pool = {"attributes": dict.fromkeys((*NUMBERS, *COLOURS), 1)}
    rngs = [np.random.default_rng(seed) for seed in range(40)]
    results = [attribute(["im", word], 2, rng, pool) for rng in rngs]
    assert {words[1] for words, wrong in results if not wrong} == {word}
    changed = [words[1] for words, wrong in results if wrong == [1]]
    assert bool(changed) == (pattern is not None)
    assert all(re.fullmatch(pattern, new) for new in changed)


def test_frequency_does_not_tell_the_original():
    """From a common to a rare attribute as often as back."""
    training = pd.Series(["zwei rote"] * 60 + ["drei rote"] * 30 + ["sieben blaue"] * 10)
    counts = attribute_counts(training)
    assert (counts["zwei"], counts["drei"], counts["rot"], counts["neun"]) == (60, 30, 90, 0)
    rng, old, new = np.random.default_rng(0), Counter(), Counter()
    for text in training.sample(20_000, replace=True, random_state=0):
        words, wrong = attribute(text.split(), 2, rng, {"attributes": counts})
        old.update(text.split()[i] for i in wrong)
        new.update(words[i] for i in wrong)
    for word in ("zwei", "drei", "rote", "blaue"):
        assert new[word] == pytest.approx(old[word], rel=0.05)
    none = {"attributes": dict.fromkeys((*NUMBERS, *COLOURS), 0)}
    assert attribute(["neun"], 1, rng, none) == (["neun"], [])
