"""The translation model: it learns what it is shown, is trained once, and translates each sentence whatever its company."""

import datasets
import numpy as np
import pandas as pd
import pytest
import torch
from helpers import encoder_decoder

from old import paths
from old.quality import nmt
from old.quality.nmt import Settings, corpus_quality, model_folder, sample, trained_model, translate
from old.quality.training import hidden_states

PAIRS = pd.DataFrame(
    {
        "source": ["a man", "two dogs run", "a red hat", "the cat sleeps on the mat", "snow", "a woman reads", "no man", "two men"],
        "target": [
            "ein Mann",
            "zwei Hunde rennen",
            "ein roter Hut",
            "die Katze schläft",
            "Schnee",
            "eine Frau liest",
            "kein Mann",
            "zwei Männer",
        ],
    }
)
TINY = {"vocabulary": 300, "d_model": 32, "layers": 1, "ffn_dim": 64, "tokens_per_batch": 200, "warmup": 10}
LEARNER = Settings(**TINY, dropout=0.0, translation_updates=150, learning_rate=5e-3)
BRIEF = Settings(**TINY, translation_updates=2)


@pytest.fixture
def toy(tmp_path, monkeypatch):
    """Eight pairs to train on, two models, and a cache of this test alone."""
    monkeypatch.setattr(nmt, "MODELS", {"learner": LEARNER, "brief": BRIEF})
    monkeypatch.setattr(nmt, "pairs", lambda split: PAIRS)
    monkeypatch.setattr(paths, "CACHE", tmp_path)


def test_learns_its_pairs(toy):
    """By heart: each source gets its own translation, although several begin alike."""
    lm = trained_model("learner")
    assert translate(lm, PAIRS["source"].tolist()) == PAIRS["target"].tolist()


def test_trained_once(toy, monkeypatch):
    """And found again: the same weights and tokenizer, and no leftover beside them."""
    first = trained_model("brief")
    assert [path.name for path in model_folder(BRIEF).parent.iterdir()] == [model_folder(BRIEF).name]
    monkeypatch.setattr(nmt, "train", None)
    again = trained_model("brief")
    assert again.name == "brief" and again.fingerprint() == first.fingerprint()
    texts = first.encode(PAIRS["source"].tolist(), PAIRS["target"].tolist())
    assert again.encode(PAIRS["source"].tolist(), PAIRS["target"].tolist()) == texts
    assert torch.equal(hidden_states(again, texts), hidden_states(first, texts))


def test_another_run_has_the_same_weights(toy, tmp_path, monkeypatch):
    first = trained_model("brief")
    monkeypatch.setattr(paths, "CACHE", tmp_path / "other")
    again = trained_model("brief")
    assert all(torch.equal(p, q) for p, q in zip(first.model.parameters(), again.model.parameters()))


def test_settings_decide_the_shape(toy):
    lm = trained_model("brief")
    config = lm.model.config
    assert (len(lm.tokenizer), config.vocab_size) == (300, 300) and lm.unembedding.shape == (300, 32)
    assert (config.encoder_layers, config.decoder_layers, config.encoder_ffn_dim, config.decoder_ffn_dim) == (1, 1, 64, 64)
    assert config.dropout == BRIEF.dropout and config.tie_word_embeddings


def test_the_folder_depends_on_settings_and_data(toy, monkeypatch):
    folders = {model_folder(BRIEF), model_folder(LEARNER)}
    monkeypatch.setattr(nmt, "pairs", lambda split: PAIRS[::-1])
    folders.add(model_folder(BRIEF))
    monkeypatch.setattr(nmt, "RECIPE", nmt.RECIPE + 1)
    folders.add(model_folder(BRIEF))
    assert len(folders) == 4


@pytest.mark.parametrize(
    ("change", "message"),
    [
        *(({name: 0}, f"{name} must be at least 1, not 0") for name in ("vocabulary", "layers", "translation_updates")),
        *(({name: -1}, "dropout must lie in") for name in ("dropout", "learning_rate", "warmup")),
        ({"dropout": 1.0}, "dropout must lie in"),
    ],
    ids=str,
)
def test_refuses_settings(change, message):
    with pytest.raises(ValueError, match=message):
        Settings(**change)


def test_pairs_are_stripped_and_grouped(monkeypatch):
    """The same source is the same group."""
    rows = {"en": ["a man ", "b", "a man"], "de": ["ein Mann", " B\n", "der Mann"]}
    monkeypatch.setattr(nmt.benchmarks, "load", lambda name, split: datasets.Dataset.from_dict(rows))
    table = nmt.pairs.__wrapped__("test")
    assert table["source"].tolist() == ["a man", "b", "a man"] and table["target"].tolist() == ["ein Mann", "B", "der Mann"]
    assert table["group"].tolist() == [0, 1, 0]


# ---- translating -----------------------------------------------------------------------------------------------------------------------

SOURCES = ["the cat is on the mat and not on the value of 1 2 3", "x", "return the value of my_name", "10 200", "the mat"]


@pytest.fixture
def random_lm():
    return encoder_decoder(max_position_embeddings=nmt.MAX_TOKENS + 1, init_std=0.3)


def test_translations_do_not_depend_on_their_company(random_lm):
    """In the order given; more than a batch of them."""
    together = translate(random_lm, SOURCES * 14)
    assert together == [translate(random_lm, [source])[0] for source in SOURCES] * 14 and len(set(together)) == len(SOURCES)


def test_translations_are_those_of_beam_search(random_lm):
    inputs = random_lm.tokenizer(SOURCES[0], return_tensors="pt")
    out = random_lm.model.generate(inputs.input_ids, num_beams=3, max_new_tokens=nmt.MAX_TOKENS)
    assert translate(random_lm, SOURCES[:1], beams=3) == [random_lm.tokenizer.decode(out[0], skip_special_tokens=True).strip()]


def test_samples_follow_the_seed(random_lm):
    """And leave the global generator as it was; one source has different translations in one list."""
    before = torch.get_rng_state()
    first, again, other = (sample(random_lm, SOURCES[:1] * 6 + SOURCES[1:], seed) for seed in (0, 0, 1))
    assert torch.equal(torch.get_rng_state(), before)
    assert first == again != other and len(set(first[:6])) > 1


def test_samples_are_from_the_whole_distribution(random_lm, monkeypatch):
    """The first token as often as the model's own probability says, whatever its own generation settings say."""
    monkeypatch.setattr(nmt, "MAX_TOKENS", 1)
    random_lm.model.generation_config.update(top_k=1, temperature=0.01)
    (text,) = random_lm.encode(["the mat"], ["x"])
    (states,) = (states for _, states in random_lm.hidden_states([text]))
    p = random_lm.logits(states)[0].softmax(0)
    drawn = sample(random_lm, ["the mat"] * 3000, seed=0)
    shown = [random_lm.tokenizer.decode([token], skip_special_tokens=True).strip() for token in range(len(p))]
    for token in p.argsort(descending=True)[:5].tolist():
        expected = sum(float(p[i]) for i, text in enumerate(shown) if text == shown[token])
        share = np.mean([text == shown[token] for text in drawn])
        assert share == pytest.approx(expected, abs=5 * (expected * (1 - expected) / 3000) ** 0.5)


def test_nothing_to_translate(random_lm):
    assert translate(random_lm, []) == [] == sample(random_lm, [], 0)


def test_corpus_quality():
    references = PAIRS["target"].str.cat(PAIRS["target"][::-1].tolist(), sep=" und ").tolist()
    same = corpus_quality(references, references)
    assert same["bleu"] == pytest.approx((100, 100, 100)) and same["chrf"] == pytest.approx((100, 100, 100))
    worse = corpus_quality(references[1:] + references[:1], references)
    assert 0 <= worse["bleu"][0] < 50 and 0 < worse["chrf"][0] < 60
    assert worse["chrf"][1] <= worse["chrf"][0] <= worse["chrf"][2]
