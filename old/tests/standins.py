"""Tiny random models that stand in for the models of the `gpu` profile: architecture, files, precision and kind of tokenizer are the same.

Folders as `hf download` leaves them (config, generation config, safetensors, tokenizer, chat template); weights are random, so their
numbers mean nothing.
"""

import json
from pathlib import Path

import torch
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
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
    "Return the number of items in the cache. The days of the week in any order: Monday, Tuesday, Wednesday, Thursday, Friday.",
    "They speak English, French, Spanish, Arabic, Portuguese, German, Dutch, Italian, Russian, Swahili there.",
    "def main(arguments): parse the names, 1 2 3 10 200; the list is not empty.",
]
_SIZES = {
    "hidden_size": 32,  # at least the rank of the small head
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 2048,
    "initializer_range": 0.5,
}


def olmo2(folder: Path) -> Path:
    """As OLMo-2-0425-1B-SFT: untied, more rows than tokens, no start token before a text, a chat template that begins with one."""
    special = ["<|endoftext|>", "<|pad|>"]
    tokenizer = _byte_level(special)
    names = {"bos_token": special[0], "eos_token": special[0], "unk_token": special[0], "pad_token": special[1]}
    template = (
        "{{ bos_token }}{% for message in messages %}<|{{ message['role'] }}|>\n{{ message['content'] }}\n{% endfor %}"
        "{% if add_generation_prompt %}<|assistant|>\n{% endif %}"
    )
    config = Olmo2Config(
        **_SIZES, vocab_size=VOCABULARY, num_key_value_heads=4, tie_word_embeddings=False, bos_token_id=0, eos_token_id=0, pad_token_id=1
    )
    return _save(folder, Olmo2ForCausalLM, config, tokenizer, names, template)


def tower(folder: Path) -> Path:
    """As TowerInstruct-7B-v0.2: Llama 2, untied, pieces with a leading ▁ and bytes as fallback, a start token before a text, ChatML."""
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>", byte_fallback=True, fuse_unk=True))
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Split("▁", "merged_with_next"), pre_tokenizers.Punctuation()])
    special = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    tokenizer.train_from_iterator(TEXTS, trainers.BpeTrainer(vocab_size=780, special_tokens=special, show_progress=False))
    tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    tokenizer.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)])
    names = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}  # no padding token
    template = (
        "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n{% endfor %}"
        "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
    )
    config = LlamaConfig(
        **_SIZES, vocab_size=VOCABULARY, num_key_value_heads=4, tie_word_embeddings=False, bos_token_id=1, eos_token_id=2, pad_token_id=0
    )
    return _save(folder, LlamaForCausalLM, config, tokenizer, names, template)


def llama32(folder: Path) -> Path:
    """As Llama-3.2-1B-Instruct: tied, grouped queries, scaled rotary positions, several end tokens, a start token in text and template."""
    special = ["<|begin_of_text|>", "<|end_of_text|>", "<|eot_id|>"]
    tokenizer = _byte_level(special)
    tokenizer.post_processor = processors.TemplateProcessing(single="<|begin_of_text|> $A", special_tokens=[("<|begin_of_text|>", 0)])
    names = {"bos_token": special[0], "eos_token": special[2]}
    template = (
        "{{ bos_token }}{% for message in messages %}<|{{ message['role'] }}|>\n\n{{ message['content'] }}<|eot_id|>{% endfor %}"
        "{% if add_generation_prompt %}<|assistant|>\n\n{% endif %}"
    )
    rope = {
        "rope_type": "llama3",
        "rope_theta": 500000.0,
        "factor": 32.0,
        "high_freq_factor": 4.0,
        "low_freq_factor": 1.0,
        "original_max_position_embeddings": 512,
    }
    config = LlamaConfig(
        **_SIZES,
        vocab_size=VOCABULARY,
        num_key_value_heads=2,
        tie_word_embeddings=True,
        rope_parameters=rope,
        bos_token_id=0,
        eos_token_id=[1, 2],
    )
    return _save(folder, LlamaForCausalLM, config, tokenizer, names, template)


def bart_large(folder: Path, *, dropout: float = 0.1, dtype: torch.dtype = torch.float16) -> Path:
    """As facebook/bart-large: half precision, tied, long enough for the requested lengths, <s> forced first, beams in its configuration."""
    tokenizer = _byte_level(["<s>", "<pad>", "</s>", "<unk>", "<mask>"])
    tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A </s>", special_tokens=[("<s>", 0), ("</s>", 2)])
    names = dict(zip(("bos_token", "pad_token", "eos_token", "unk_token", "mask_token"), ("<s>", "<pad>", "</s>", "<unk>", "<mask>")))
    sizes = {
        f"{part}_{what}": n
        for part in ("encoder", "decoder")
        for what, n in (("layers", 2), ("attention_heads", 2), ("ffn_dim", 32))
    }  # fmt: skip
    config = BartConfig(
        **sizes, vocab_size=VOCABULARY, d_model=16, max_position_embeddings=256, init_std=0.1, dropout=dropout,
        pad_token_id=1, bos_token_id=0, eos_token_id=2, decoder_start_token_id=2,
    )  # fmt: skip
    _save(folder, BartForConditionalGeneration, config, tokenizer, names, None, dtype)
    (folder / "generation_config.json").unlink()  # older than such files: the configuration itself has its habits
    habits = {"num_beams": 4, "no_repeat_ngram_size": 3, "early_stopping": True, "forced_bos_token_id": 0, "forced_eos_token_id": 2}
    tasks = {"task_specific_params": {"summarization": {"length_penalty": 1.0, "max_length": 128, "min_length": 12, "num_beams": 4}}}
    file = folder / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | habits | tasks))
    return folder


def _byte_level(special: list[str]) -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=780, special_tokens=special, initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator(TEXTS, trainer)
    tokenizer.add_special_tokens([AddedToken(token, special=True) for token in special])
    return tokenizer


def _save(folder: Path, kind: type, config, tokenizer: Tokenizer, names: dict, template: str | None, dtype=torch.bfloat16) -> Path:
    torch.manual_seed(0)
    kind(config).to(dtype).save_pretrained(folder)
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, chat_template=template, **names).save_pretrained(folder)
    return folder
