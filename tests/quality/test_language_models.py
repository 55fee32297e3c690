"""The frozen language model: hidden states are those of each text alone, whatever the batch."""

import pytest
import torch
from tiny import OUTPUTS, PROMPTS, language_model
from transformers import Gemma2Config, Gemma2ForCausalLM, GraniteConfig, GraniteForCausalLM

from lib.quality.language_models import LanguageModel, Text


@pytest.fixture(scope="module")
def lm() -> LanguageModel:
    return language_model()


@pytest.fixture(scope="module")
def texts(lm) -> list[Text]:
    return lm.encode(PROMPTS, OUTPUTS)


@torch.no_grad()
def alone(lm: LanguageModel, text: Text) -> torch.Tensor:
    """The model's own states where the output is predicted, of one text without padding."""
    states = lm.model.base_model(input_ids=torch.tensor([text.ids])).last_hidden_state[0]
    return states[text.start - 1 : len(text.ids) - 1]


@pytest.mark.parametrize("tokens_per_batch", [1, 25, 60, 4096])
def test_hidden_states_are_those_of_each_text_alone(tokens_per_batch, lm, texts):
    """In the order of the texts; padding and company change nothing, not even where the token that
    fills up rows is text: at the end of a prompt, or the last but one of an output.
    """
    texts = [*texts, Text((9, 0, 0, 7, 0, 8), 3), Text((0, 4), 1), Text(tuple(range(20, 45)), 5)]
    expected = torch.cat([alone(lm, text) for text in texts])
    states = lm.hidden_states(texts, tokens_per_batch)
    torch.testing.assert_close(states, expected, atol=1e-5, rtol=1e-5)
    assert not states.requires_grad


@pytest.mark.parametrize("tokens_per_batch", [1, 25, 60, 4096])
def test_batches_stay_within_their_budget(tokens_per_batch, lm, texts):
    """Padded tokens count; a single longer text is a batch of its own. No text is run twice."""
    shapes = []
    note = lm.model.base_model.register_forward_pre_hook(
        lambda _module, _args, options: shapes.append(options["input_ids"].shape), with_kwargs=True
    )
    lm.hidden_states(texts, tokens_per_batch)
    note.remove()
    assert sum(rows for rows, _ in shapes) == len(texts)
    assert all(rows == 1 or rows * width <= tokens_per_batch for rows, width in shapes)


def test_logits_are_the_models_own(lm, texts):
    for text in texts:
        theirs = lm.model(input_ids=torch.tensor([text.ids])).logits[0]
        theirs = theirs[text.start - 1 : len(text.ids) - 1]
        torch.testing.assert_close(lm.logits(alone(lm, text)), theirs, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(
    ("config", "model", "option"),
    [
        (GraniteConfig, GraniteForCausalLM, {"logits_scaling": 3.0}),
        (Gemma2Config, Gemma2ForCausalLM, {"final_logit_softcapping": 0.5, "head_dim": 8}),
    ],
)
def test_refuses_models_that_transform_their_logits(config, model, option):
    sizes = {"vocab_size": 60, "hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1}
    sizes |= {"num_attention_heads": 2, "num_key_value_heads": 2, "initializer_range": 0.5}
    with pytest.raises(ValueError, match="transforms its logits"):
        LanguageModel("odd", model(config(**sizes, **option)), None)


def test_prompts_and_outputs_are_tokenised_apart(lm):
    """An output's tokens do not depend on the prompt; an empty prompt gets one start token."""
    one, other = lm.encode(["the cat is", ""], ["not on the mat"] * 2)
    assert one.output == other.output and other.ids[:1] == (lm.tokenizer.bos_token_id,)
    assert other.start == 1 and lm.encode([], []) == []


def test_refuses_texts(lm):
    for prompts, outputs, message in (
        (["a", "b"], ["c"], "2 prompts but 1 outputs"),
        (["a", "b"], ["c", ""], "output 1 is empty"),
        (["a", "1 " * 40], ["c", "2 " * 40], r"output 1 has \d+ tokens .*context holds 64"),
    ):
        with pytest.raises(ValueError, match=message):
            lm.encode(prompts, outputs)
    with pytest.raises(ValueError, match="no texts"):
        lm.hidden_states([])
    with pytest.raises(ValueError, match="unknown model 'nothing'"):
        LanguageModel.load("nothing")


def test_continuations(lm):
    """Greedy ones are those of the model alone, whatever else is in the batch; samples are decided
    by the seed, and leave the random numbers of others as they are.
    """
    greedy = lm.continuations(PROMPTS[:1] + PROMPTS[2:], 5, seed=0, greedy=True)
    assert greedy[0] == lm.continuations(PROMPTS[:1], 5, seed=1, greedy=True)[0]
    torch.manual_seed(4)
    before = torch.random.get_rng_state()
    first, again, other = (lm.continuations(PROMPTS[2:], 8, seed=s) for s in (0, 0, 1))
    assert first == again != other and torch.equal(before, torch.random.get_rng_state())
