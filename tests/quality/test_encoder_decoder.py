"""Encoder-decoder models behind the interface of language models, by three tiny architectures."""

import pytest
import torch
from tiny import OUTPUTS, PROMPTS
from transformers import (
    BartConfig,
    BartForConditionalGeneration,
    MarianConfig,
    MarianMTModel,
    T5Config,
    T5ForConditionalGeneration,
)

from lib.quality.scores import token_scores
from lib.quality.training import gold_tokens
from lib.quality.translator import EncoderDecoder
from lib.study.models import train_tokenizer

SIDES = {"encoder_layers": 2, "encoder_attention_heads": 2, "encoder_ffn_dim": 32}
SIDES |= {name.replace("encoder", "decoder"): value for name, value in SIDES.items()}
BART = {"vocab_size": 300, "d_model": 16, "max_position_embeddings": 64, "init_std": 0.3, **SIDES}
BART |= {"bos_token_id": 1, "pad_token_id": 0, "eos_token_id": 2, "decoder_start_token_id": 2}
T5 = {"vocab_size": 300, "d_model": 16, "d_kv": 8, "d_ff": 32, "num_layers": 2, "num_heads": 2}
T5 |= {"feed_forward_proj": "gated-gelu", "tie_word_embeddings": False}
KINDS = {
    "bart": lambda: BartForConditionalGeneration(BartConfig(**BART)),
    "marian": lambda: MarianMTModel(MarianConfig(**BART)),
    "t5": lambda: T5ForConditionalGeneration(T5Config(**T5, decoder_start_token_id=0)),
}
SOURCES = [prompt or "the mat" for prompt in PROMPTS]


@pytest.fixture(params=KINDS)
def lm(request) -> EncoderDecoder:
    torch.manual_seed(0)
    tokenizer = train_tokenizer([*PROMPTS, *OUTPUTS], 300, 64)
    model = KINDS[request.param]()
    if request.param == "bart":
        model.generation_config.forced_bos_token_id = 1
    for name, buffer in model.named_buffers():
        if name == "final_logits_bias":  # a constant of BART and Marian, mostly 0
            buffer.normal_()
    return EncoderDecoder(request.param, model, tokenizer)


@torch.no_grad()
def test_scores_are_those_of_the_model_itself(lm):
    """Each text alone, decoded behind its start tokens: the same log-probabilities; EOS is not
    scored.
    """
    texts = lm.encode(SOURCES, OUTPUTS)
    table, expected = token_scores(lm, texts), []
    first = {"bart": 2}.get(lm.name, 1)  # the start token; BART has a forced first token, too
    for text, source in zip(texts, SOURCES):
        assert text.start == first and list(text.source) == lm.tokenizer(source)["input_ids"]
        assert lm.tokenizer.eos_token_id not in text.output
        inputs = {"input_ids": [text.source], "decoder_input_ids": [text.ids]}
        logits = lm.model(**{name: torch.tensor(ids) for name, ids in inputs.items()}).logits[0]
        log_p = logits[first - 1 : -1].log_softmax(-1)
        expected.append(log_p.gather(1, gold_tokens([text])[:, None])[:, 0])
    own = torch.tensor(table["logprob"].to_numpy())
    torch.testing.assert_close(own, torch.cat(expected), atol=1e-4, rtol=1e-4)


def test_refuses_texts(lm):
    with pytest.raises(ValueError, match="no chat template"):
        lm.encode(["a"], ["b"], chat=True)
    with pytest.raises(ValueError, match="output 1 is empty"):
        lm.encode(["a", "b"], ["c", ""])
    if lm.context:
        with pytest.raises(ValueError, match="prompt 0 has .* holds 1 to 64"):
            lm.encode(["1 " * 70], ["b"])
