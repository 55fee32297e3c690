"""Tiny random models that stand in for those of the `gpu` profile: architecture, files, precision
and kind of tokenizer are the same. Folders as `hf download` leaves them.
"""

import json
from pathlib import Path

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from transformers import (
    BartConfig,
    BartForConditionalGeneration,
    LlamaConfig,
    LlamaForCausalLM,
    Olmo2Config,
    Olmo2ForCausalLM,
    PreTrainedTokenizerFast,
)

VOCABULARY = 800  # rows of the embeddings; tokenizers have fewer entries
TEXTS = 3 * [
    "Return the number of items in the cache. The days of the week in any order: Monday, Tuesday.",
    "They speak English, French, Spanish, Arabic, German, Dutch, Italian, Russian, Swahili there.",
    "def main(arguments): parse the names, 1 2 3 10 200; the list is not empty.",
]
_SIZES = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2}
_SIZES |= {"num_attention_heads": 4, "max_position_embeddings": 2048, "initializer_range": 0.5}
_SIZES |= {"vocab_size": VOCABULARY}


def olmo2(folder: Path) -> Path:
    """As OLMo-2-0425-1B-SFT: untied, more rows than tokens, a start token in its chat template
    only.
    """
    special = ["<|endoftext|>", "<|pad|>"]
    names = {"bos_token": special[0], "eos_token": special[0], "pad_token": special[1]}
    config = Olmo2Config(**_SIZES, tie_word_embeddings=False, bos_token_id=0, eos_token_id=0)
    return _save(folder, Olmo2ForCausalLM, config, _byte_level(special), names, "{{ bos_token }}")


def llama32(folder: Path) -> Path:
    """As Llama-3.2-1B-Instruct: tied, grouped queries, scaled rotary positions, several end tokens,
    a start token in text and template.
    """
    special = ["<|begin_of_text|>", "<|end_of_text|>", "<|eot_id|>"]
    tokenizer = _byte_level(special)
    tokenizer.post_processor = _around("<|begin_of_text|> $A", ("<|begin_of_text|>", 0))
    rope = {"rope_type": "llama3", "rope_theta": 500000.0, "factor": 32.0, "low_freq_factor": 1.0}
    rope |= {"high_freq_factor": 4.0, "original_max_position_embeddings": 512}
    options = {"num_key_value_heads": 2, "tie_word_embeddings": True, "rope_parameters": rope}
    config = LlamaConfig(**_SIZES, **options, bos_token_id=0, eos_token_id=[1, 2])
    names = {"bos_token": special[0], "eos_token": special[2]}
    return _save(folder, LlamaForCausalLM, config, tokenizer, names, "{{ bos_token }}")


def bart_large(folder: Path, dtype: torch.dtype = torch.float16) -> Path:
    """As facebook/bart-large: half precision, tied, <s> forced first, beams in its config."""
    special = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
    tokenizer = _byte_level(special)
    tokenizer.post_processor = _around("<s> $A </s>", ("<s>", 0), ("</s>", 2))
    names = dict(zip(("bos_token", "pad_token", "eos_token", "unk_token", "mask_token"), special))
    size = {"layers": 2, "attention_heads": 2, "ffn_dim": 32}
    sides = {f"{side}_{what}": n for side in ("encoder", "decoder") for what, n in size.items()}
    options = {"d_model": 16, "max_position_embeddings": 256, "init_std": 0.1}
    config = BartConfig(**sides, **options, vocab_size=VOCABULARY, decoder_start_token_id=2)
    _save(folder, BartForConditionalGeneration, config, tokenizer, names, None, dtype)
    (folder / "generation_config.json").unlink()  # older than such files: its habits are here
    file = folder / "config.json"
    habits = {"num_beams": 4, "early_stopping": True, "min_length": 56, "forced_bos_token_id": 0}
    file.write_text(json.dumps(json.loads(file.read_text()) | habits))
    return folder


def _byte_level(special: list[str]) -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    _train(tokenizer, special, initial_alphabet=pre_tokenizers.ByteLevel.alphabet())
    return tokenizer


def _train(tokenizer: Tokenizer, special: list[str], **options) -> None:
    trainer = trainers.BpeTrainer(vocab_size=780, special_tokens=special, **options)
    tokenizer.train_from_iterator(TEXTS, trainer)


def _around(single: str, *special: tuple[str, int]) -> processors.TemplateProcessing:
    return processors.TemplateProcessing(single=single, special_tokens=list(special))


def _save(folder, kind, config, tokenizer, names, start, dtype=torch.bfloat16) -> Path:
    """`start`: what a chat template begins with; None where there is no template."""
    torch.manual_seed(0)
    kind(config).to(dtype).save_pretrained(folder)
    turns = "{% for m in messages %}<|{{ m['role'] }}|>\n{{ m['content'] }}\n{% endfor %}<|answer|>"
    template = None if start is None else start + turns
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, chat_template=template, **names)
    fast.save_pretrained(folder)
    return folder
