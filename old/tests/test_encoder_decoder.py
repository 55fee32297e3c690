"""Encoder-decoder models through the scoring code of causal ones: states of each text alone, the model's own logits, heads that fit."""

import hashlib
from dataclasses import replace

import numpy as np
import pytest
import torch
from helpers import CAUSAL, ENCODER_DECODERS, encoder_decoder, language_model

from old.pretrained import save_whole
from old.quality.encoder_decoder import EncoderDecoder
from old.quality.estimator import QualityEstimator
from old.quality.head import SigmoidHead
from old.quality.language_models import Text, texts_hash
from old.quality.negatives import TokenFrequencies
from old.quality.scores import head_scores, token_scores
from old.quality.training import collect, fit, gold_tokens, hidden_states

SOURCES = ["the cat is on the mat and not on the value of 1 2 3", "x", "return the value of my_name", "10 200", "the mat"]
OUTPUTS = ["not on the mat", "return 1 2 3 the cat is", "x", "is a number", "the value of the cat is 3 2 1"]


@pytest.fixture(scope="module", params=ENCODER_DECODERS)
def lm(request) -> EncoderDecoder:
    return encoder_decoder(request.param)


@pytest.fixture(scope="module")
def texts(lm) -> list[Text]:
    return lm.encode(SOURCES, OUTPUTS)


@torch.no_grad()
def alone(lm: EncoderDecoder, text: Text):
    """What the whole model says of one text without padding."""
    ids, source = torch.tensor([text.ids]), torch.tensor([text.source])
    return lm.model(input_ids=source, decoder_input_ids=ids, output_hidden_states=True, use_cache=False)


# ---- hidden states and scores --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("tokens_per_batch", [1, 25, 60, 4096])
def test_hidden_states_are_those_of_each_text_alone(tokens_per_batch, lm, texts):
    """Every text once, only the positions that predict its output; padding and company of either side change nothing."""
    found = dict(lm.hidden_states(texts, tokens_per_batch))
    assert sorted(found) == list(range(len(texts)))
    for number, states in found.items():
        assert states.shape == (len(texts[number].output), 16)
        expected = alone(lm, texts[number]).decoder_hidden_states[-1][0, :-1]
        torch.testing.assert_close(states, expected, atol=1e-5, rtol=1e-5)


def test_a_text_token_used_as_padding_changes_nothing(lm):
    """The padding token inside and at the end of sources and outputs is read like any other."""
    pad = lm.model.config.pad_token_id
    texts = [Text((2, pad, 7, pad, 8), 1, (5, pad, pad)), Text((2, 4), 1, (pad,)), Text((2, *range(20, 45)), 1, tuple(range(30, 60)))]
    for number, states in lm.hidden_states(texts):
        torch.testing.assert_close(states, alone(lm, texts[number]).decoder_hidden_states[-1][0, :-1], atol=1e-5, rtol=1e-5)


def test_scores_are_those_of_the_models_own_logits(lm, texts):
    table = token_scores(lm, texts)
    log_p = torch.cat([alone(lm, text).logits[0, :-1].log_softmax(1) for text in texts])
    gold = log_p.gather(1, gold_tokens(texts)[:, None])[:, 0]
    np.testing.assert_allclose(table["logprob"], gold, atol=1e-5)
    np.testing.assert_allclose(table["softmax"], gold.exp(), atol=1e-6)
    np.testing.assert_allclose(table["entropy"], (log_p.exp() * log_p).sum(1), atol=1e-4)
    assert table.groupby("text").size().tolist() == [len(text.output) for text in texts]


def test_the_source_matters(lm):
    """To every token, the first one too."""
    first, other = (token_scores(lm, lm.encode([source], ["the cat is"]))["logprob"] for source in SOURCES[:2])
    assert (abs(first - other) > 1e-4).all()


@pytest.mark.parametrize("tokens_per_batch", [1, 25, 60, 4096])
def test_batches_stay_within_their_budget(tokens_per_batch, monkeypatch):
    """On both sides, padding included; a single longer text is a batch of its own."""
    lm, shapes = encoder_decoder(), []
    texts, batch = lm.encode(SOURCES, OUTPUTS), lm._batch

    def watched(part):
        shapes.extend((len(part), inputs.shape[1]) for name, inputs in batch(part).items() if name.endswith("input_ids"))
        return batch(part)

    monkeypatch.setattr(lm, "_batch", watched)
    list(lm.hidden_states(texts, tokens_per_batch))
    assert sum(rows for rows, _ in shapes) == 2 * len(texts)
    assert all(rows == 1 or rows * width <= tokens_per_batch for rows, width in shapes)


def test_the_base_is_frozen(lm, texts):
    assert not any(p.requires_grad for p in lm.model.parameters()) and not lm.model.training
    assert not hidden_states(lm, texts).requires_grad


def test_refuses_a_model_that_scales_its_logits():
    """T5 with tied embeddings."""
    with pytest.raises(ValueError, match="transforms its logits after the unembedding"):
        encoder_decoder("t5", tie_word_embeddings=True)


# ---- encoding ------------------------------------------------------------------------------------------------------------------------


def test_what_is_read_and_what_is_scored(lm, texts):
    """The encoder reads the source with its EOS; the decoder starts with its start token; neither that nor an EOS is scored."""
    for source, output, text in zip(SOURCES, OUTPUTS, texts):
        assert text.source == tuple(lm.tokenizer(source).input_ids) and text.source[-1] == lm.tokenizer.eos_token_id
        assert text.ids[: text.start] == (lm.model.config.decoder_start_token_id,)
        assert text.output == tuple(lm.tokenizer(output, add_special_tokens=False).input_ids)


def test_a_forced_first_token_is_read_not_scored():
    """As by BART-large, which always begins with <s>."""
    lm = encoder_decoder()
    plain = lm.encode(["the cat"], ["the mat"])[0]
    lm.model.generation_config.forced_bos_token_id = 1
    assert lm.encode(["the cat"], ["the mat"]) == [Text((2, 1, *plain.output), 2, plain.source)]


@pytest.mark.parametrize(
    ("sources", "outputs", "options", "message"),
    [
        (["a", "b"], ["c"], {}, "2 prompts but 1 outputs"),
        (["a", "b"], ["c", ""], {}, "output 1 is empty"),
        (["a", "b"], ["c", "2 " * 80], {}, r"output 1 has \d+ tokens .*holds 64"),
        (["a", "1 " * 80], ["c", "d"], {}, r"prompt 1 has \d+ tokens; the encoder holds 64"),
        (["a"], ["b"], {"chat": True}, "no chat template"),
    ],
)
def test_refuses_texts(sources, outputs, options, message):
    with pytest.raises(ValueError, match=message):
        encoder_decoder().encode(sources, outputs, **options)


def test_refuses_a_source_without_tokens():
    """Where the tokenizer adds no EOS, nothing would be left to read."""
    lm = encoder_decoder()
    lm.tokenizer.backend_tokenizer.post_processor = None
    with pytest.raises(ValueError, match="prompt 1 is empty"):
        lm.encode(["a", ""], ["b", "c"])


def test_nothing_to_encode(lm):
    assert lm.encode([], []) == []


def test_hash_covers_the_source():
    """Another source, or another border between source and text, is another hash; without sources it is what it always was."""
    text = Text((4, 5, 6), 1, (7, 8))
    others = [replace(text, source=(7, 9)), replace(text, source=(7,)), replace(text, source=()), Text((4, 5, 6), 1, (7, 8, 3))]
    assert len({texts_hash([t]) for t in (text, *others)}) == 5
    assert texts_hash([text, text]) != texts_hash([text, replace(text, source=())])
    causal = [Text((4, 5, 6), 1), Text((9,), 0)]
    before = np.array([3, 1, 4, 5, 6, 1, 0, 9], dtype=np.int64)
    assert texts_hash(causal) == hashlib.sha256(before.tobytes()).hexdigest()[:16]


# ---- heads ---------------------------------------------------------------------------------------------------------------------------


def test_a_head_learns_and_scores(lm):
    """Through the estimator, which knows nothing of encoders."""
    estimator = QualityEstimator(lm)
    losses = estimator.fit(SOURCES * 4, OUTPUTS * 4, rank=2, updates=30, positions_per_batch=32, learning_rate=1e-2)
    assert np.mean(losses[-5:]) < np.mean(losses[:5])
    table = estimator.score(SOURCES, OUTPUTS)
    assert table["sigmoid"].between(0, 1).all() and table.groupby("text").size().tolist() == [
        len(t.output) for t in lm.encode(SOURCES, OUTPUTS)
    ]


def test_head_at_its_start_is_the_models_own_logit(lm, texts):
    """With scale 1 and shift 0, the bias of BART and Marian included; and training leaves the base as it is."""
    states, gold = hidden_states(lm, texts), gold_tokens(texts)
    logits = torch.cat([alone(lm, text).logits[0, :-1] for text in texts]).gather(1, gold[:, None])[:, 0]
    head, before = SigmoidHead(lm.unembedding, lm.bias), {name: p.clone() for name, p in lm.model.state_dict().items()}
    np.testing.assert_allclose(head_scores(head, states, gold), logits.sigmoid(), atol=1e-5)
    positions = collect(lm, texts, TokenFrequencies(torch.ones(CAUSAL["vocab_size"])), count=4)
    fit(head, positions, "mixed", updates=3, learning_rate=0.1, positions_per_batch=8, count=4)
    assert all(torch.equal(p, before[name]) for name, p in lm.model.state_dict().items())


def test_saved_and_loaded(lm, texts, tmp_path):
    """The model as transformers saves it, and a head on it; a head of another base is refused."""
    save_whole(lm.model, lm.tokenizer, tmp_path / "mine")
    loaded = EncoderDecoder.load(str(tmp_path / "mine"))
    assert loaded.name == "mine" and loaded.encode(SOURCES, OUTPUTS) == texts and loaded.fingerprint() == lm.fingerprint()
    states, gold = hidden_states(lm, texts), gold_tokens(texts)
    assert torch.equal(hidden_states(loaded, texts), states)
    head = SigmoidHead(lm.unembedding, lm.bias, rank=2)
    head.save(tmp_path / "head.safetensors", lm.name)
    again = SigmoidHead.load(tmp_path / "head.safetensors", loaded.unembedding)
    np.testing.assert_allclose(head_scores(again, states, gold), head_scores(head, states, gold), atol=1e-3)  # kept in half precision
    for other in (encoder_decoder(seed=1), language_model()):
        with pytest.raises(ValueError, match=f"trained on the unembedding of '{lm.name}'"):
            SigmoidHead.load(tmp_path / "head.safetensors", other.unembedding)


def test_refuses_a_causal_model(tmp_path):
    lm = language_model()
    save_whole(lm.model, lm.tokenizer, tmp_path)
    with pytest.raises(ValueError, match="cannot load the language model"):
        EncoderDecoder.load(str(tmp_path))
