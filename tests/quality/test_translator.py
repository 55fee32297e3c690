"""The translation model: it learns what it is shown, and translates each sentence whatever its
company.
"""

import numpy as np
import pandas as pd
import pytest
import torch
from transformers import BartForConditionalGeneration

from lib.quality import translator
from lib.quality.language_models import SAMPLING
from lib.quality.translator import EncoderDecoder, fit_translator, sample_translations, translate
from lib.study.models import configuration, train_tokenizer

PAIRS = pd.DataFrame(
    [
        ("a man", "ein Mann"),
        ("two dogs run", "zwei Hunde rennen"),
        ("the cat sleeps on the mat", "die Katze schläft"),
        ("snow", "Schnee"),
        ("no man", "kein Mann"),
        ("two men", "zwei Männer"),
    ],
    columns=["source", "target"],
)
TINY = {"vocabulary": 300, "tokens_per_batch": 200, "warmup": 10}
SIZE = {"d_model": 32, "layers": 1, "ffn_dim": 64}
SOURCES = ["the cat is on the mat and not on the value of 1 2", "x", "my name", "10 200", "the mat"]


def test_learns_its_pairs():
    """By heart: each source gets its own translation, although several begin alike."""
    options = {"size": SIZE | {"dropout": 0.0}, "updates": 150, "learning_rate": 5e-3}
    lm = EncoderDecoder("learner", *fit_translator(PAIRS, **TINY, **options))
    assert translate(lm, PAIRS["source"].tolist()) == PAIRS["target"].tolist()


def test_another_run_has_the_same_weights():
    """And the shape that the options say, whatever else was drawn before."""
    options = {"size": SIZE | {"dropout": 0.2}, "updates": 2, "learning_rate": 1e-3}
    first, tokenizer = fit_translator(PAIRS, **TINY, **options)
    torch.rand(3)
    again, _ = fit_translator(PAIRS, **TINY, **options)
    assert all(torch.equal(p, q) for p, q in zip(first.parameters(), again.parameters()))
    config = first.config
    assert (len(tokenizer), config.vocab_size, config.d_model, config.dropout) == (
        300,
        300,
        32,
        0.2,
    )
    assert (config.encoder_layers, config.decoder_layers, config.encoder_ffn_dim) == (1, 1, 64)


# ---- translating -----------------------------------------------------------------------------


@pytest.fixture(scope="module")
def lm() -> EncoderDecoder:
    """A random model."""
    tokenizer = train_tokenizer(SOURCES, 300)
    torch.manual_seed(0)
    config = configuration(300, **SIZE, positions=translator.MAX_TOKENS + 1, init_std=0.3)
    return EncoderDecoder("random", BartForConditionalGeneration(config), tokenizer)


def test_translations_do_not_depend_on_their_company(lm):
    """In the order given; more than a batch of them."""
    together = translate(lm, SOURCES * 14)
    alone = [translate(lm, [source])[0] for source in SOURCES]
    assert together == alone * 14 and len(set(together)) == len(SOURCES)


def test_translations_are_those_of_beam_search(lm):
    ids = lm.tokenizer(SOURCES[0], return_tensors="pt").input_ids
    out = lm.model.generate(ids, num_beams=3, max_new_tokens=translator.MAX_TOKENS)
    expected = lm.tokenizer.decode(out[0], skip_special_tokens=True).strip()
    assert translate(lm, SOURCES[:1], beams=3) == [expected]


def test_samples_follow_the_seed(lm):
    """And leave the global generator as it was; one source has different translations in one
    list.
    """
    before, sources = torch.get_rng_state(), SOURCES[:1] * 6 + SOURCES[1:]
    first, again, other = (sample_translations(lm, sources, seed) for seed in (0, 0, 1))
    assert torch.equal(torch.get_rng_state(), before)
    assert first == again != other and len(set(first[:6])) > 1


def test_samples_are_from_the_whole_distribution(lm):
    """The first token as often as the model's own probability says, whatever its own generation
    settings say.
    """
    lm.model.generation_config.update(top_k=1, temperature=0.01)
    p = lm.logits(lm.hidden_states(lm.encode(["the mat"], ["x"])))[0].softmax(0)
    torch.manual_seed(0)
    drawn = translator._generate(lm, ["the mat"] * 3000, max_new_tokens=1, **SAMPLING)
    texts = [
        lm.tokenizer.decode([token], skip_special_tokens=True).strip() for token in range(len(p))
    ]
    for token in p.argsort(descending=True)[:5].tolist():
        expected = sum(float(p[i]) for i, text in enumerate(texts) if text == texts[token])
        share = np.mean([text == texts[token] for text in drawn])
        error = (expected * (1 - expected) / 3000) ** 0.5
        assert share == pytest.approx(expected, abs=5 * error)
