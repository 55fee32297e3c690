"""A tiny random causal language model with its tokenizer, in a fraction of a second."""

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from lib.quality.language_models import LanguageModel
from lib.study.models import train_tokenizer

PROMPTS = ["the cat is", "", "return the value of my_name", "10 200", "the mat is not on the cat"]
OUTPUTS = ["not on the mat", "return 1 2 3", "x", "is a number", "the value of the cat is 3 2 1"]
SIZES = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2}
SIZES |= {"num_attention_heads": 2, "max_position_embeddings": 64, "initializer_range": 0.5}


def language_model(vocabulary: int = 300) -> LanguageModel:
    """Embeddings are tied; weights this large give a peaked, varied distribution."""
    torch.manual_seed(0)
    ids = {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 2}
    config = LlamaConfig(**SIZES, vocab_size=vocabulary, tie_word_embeddings=True, **ids)
    tokenizer = train_tokenizer([*PROMPTS, *OUTPUTS], 300)
    return LanguageModel("tiny", LlamaForCausalLM(config), tokenizer)
