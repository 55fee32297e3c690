"""The models of the `gpu` profile, by tiny random ones of their architectures: both halves run."""

import numpy as np
import pytest
import standins
import torch

from lib.length.models import LengthControlled
from lib.quality.estimator import QualityEstimator
from lib.quality.language_models import LanguageModel
from lib.study.models import prompt_ids, seq2seq_loss

CAUSAL = {"OLMo-2": standins.olmo2, "Llama-3.2": standins.llama32}
PROMPTS, OUTPUTS = ["Return the", "the list"], ["number of items", "is not empty"]


@pytest.fixture(scope="module")
def models(tmp_path_factory) -> dict[str, str]:
    """Folders of the stand-ins, by name."""
    folder = tmp_path_factory.mktemp("models")
    makers = CAUSAL | {"bart-large": standins.bart_large}
    return {name: str(make(folder / name)) for name, make in makers.items()}


@pytest.mark.parametrize("name", CAUSAL)
def test_a_head_is_trained_and_scores(name, models, tmp_path):
    """On a base stored in bfloat16: the base stays as it is, head and states are float32; the saved
    head belongs to the base on a machine that loads it in float32, too.
    """
    half = QualityEstimator(LanguageModel.load(models[name], torch.bfloat16))
    before = {key: value.clone() for key, value in half.lm.model.state_dict().items()}
    assert {value.dtype for value in before.values()} == {torch.bfloat16}
    options = {"updates": 5, "positions_per_batch": 16}
    for rank in (4, None):
        losses = half.fit(PROMPTS * 4, OUTPUTS * 4, rank=rank, **options)
        assert len(losses) == 5 and np.isfinite(losses).all()
    after = half.lm.model.state_dict()
    assert all(torch.equal(before[key], after[key]) for key in before)  # tied or not
    assert {p.dtype for p in half.head.parameters()} == {torch.float32}
    states = half.lm.hidden_states(half.lm.encode(PROMPTS, OUTPUTS))
    logits = states @ half.lm.unembedding.float().T
    torch.testing.assert_close(half.lm.logits(states), logits, atol=1e-5, rtol=1e-5)
    half.head.save(tmp_path / "head.safetensors", name)
    exact = QualityEstimator.from_language_model(models[name], tmp_path / "head.safetensors")
    assert exact.lm.unembedding.dtype == torch.float32
    there, here = (e.score(PROMPTS, OUTPUTS)["sigmoid"] for e in (half, exact))
    assert np.corrcoef(there, here)[0, 1] > 0.95


@pytest.mark.parametrize("name", CAUSAL)
def test_start_tokens_and_turns(name, models):
    """What the tokenizer puts before a text stands before a prompt, once, in a turn too; an output
    has the tokens it has after a word.
    """
    lm = LanguageModel.load(models[name])
    start = lm.tokenizer.bos_token_id
    own = lm.tokenizer("the list")["input_ids"]
    assert prompt_ids(lm.tokenizer, ["the list", ""]) == [own, []]
    assert (own[0] == start) == (name != "OLMo-2")
    (turn,) = lm.encode(["the list"], ["is not"], chat=lm.has_turns)
    assert turn.ids[0] == start and turn.ids.count(start) == 1
    assert "the list" in lm.tokenizer.decode(turn.ids[: turn.start])
    assert lm.tokenizer.decode(turn.output).strip() == "is not"
    whole = tuple(lm.tokenizer("the list is not")["input_ids"])
    assert lm.encode(["the list is"], [" not"])[0].ids == whole


def test_bart_is_fine_tuned_in_float32(models):
    """One update of every parameter and one text, with the length signal; in half precision small
    updates would be lost.
    """
    model = LengthControlled.from_pretrained(models["bart-large"], signal="pre")
    assert {p.dtype for p in model.parameters()} == {torch.float32}
    rows, lengths = [[0, 5, 6, 2], [0, 7, 2]], torch.tensor([4, 3])
    loss, terms = seq2seq_loss(model, model.pair_batch(rows, rows, lengths))
    (loss / terms).backward()
    assert terms == 7 and all(p.grad is not None for p in model.parameters() if p.requires_grad)
    options = {"max_new_tokens": 5, "min_length": 0, "num_beams": 1}
    assert len(model.eval().generate(**model.source_batch(rows, lengths), **options)) == 2
