"""Tiny random models and data for the tests: built from configurations, no network, a fraction of a second each."""

import itertools
import os
import signal as signals
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from transformers import BartConfig, LlamaConfig, LlamaForCausalLM, MarianConfig, T5Config
from transformers.models.auto.modeling_auto import MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING

from old import training
from old.length.models import LengthControlled
from old.pretrained import save_whole
from old.quality.encoder_decoder import EncoderDecoder
from old.quality.language_models import LanguageModel
from old.seq2seq import seq2seq_batch
from old.small_bart import train_tokenizer

VOCABULARY, D_MODEL, POSITIONS = 50, 16, 64
_SIZES = {
    f"{part}_{what}": n
    for part in ("encoder", "decoder")
    for what, n in (("layers", 2), ("attention_heads", 2), ("ffn_dim", 32))
}  # fmt: skip
_SPECIAL = {"bos_token_id": 0, "pad_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 2, "forced_eos_token_id": None}
_BART = {  # embeddings untied, or a random model only repeats its last token
    "vocab_size": VOCABULARY, "d_model": D_MODEL, "max_position_embeddings": POSITIONS, "init_std": 0.1, "tie_word_embeddings": False,
    **_SIZES, **_SPECIAL,
}  # fmt: skip
_T5 = {
    "vocab_size": VOCABULARY,
    "d_model": D_MODEL,
    "d_kv": 8,
    "d_ff": 32,
    "num_layers": 2,
    "num_decoder_layers": 2,
    "num_heads": 2,
    "feed_forward_proj": "gated-gelu",
}
CONFIGS = {
    "bart": lambda **options: BartConfig(**{**_BART, **options}),
    "marian": lambda **options: MarianConfig(**{**_BART, "scale_embedding": True, **options}),
    "t5": lambda **options: T5Config(
        **{**_T5, "pad_token_id": 0, "eos_token_id": 1, "decoder_start_token_id": 0, "initializer_factor": 2.0, **options}
    ),
}


def signal_options(name: str) -> dict:
    """Options a signal cannot do without."""
    return {"max_countdown": 10} if name.endswith("-clipped") else {}


def controlled(kind: str = "bart", signal: str = "pre", seed: int = 2, **options):
    """A tiny length-controlled model in eval mode; the same weights for the same seed, whatever the (parameter-free) signal."""
    torch.manual_seed(seed)
    return LengthControlled.from_config(CONFIGS[kind](**options), signal, signal_options(signal)).eval()


def stock(kind: str, state: dict | None = None, **options):
    """The stock class of transformers with these weights (random without), in eval mode."""
    config = CONFIGS[kind](**options)
    model = MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING[type(config)](config)
    if state is not None:
        model.load_state_dict(state)
    return model.eval()


def random_rows(lengths: list[int], seed: int = 0, eos: int = 2) -> list[list[int]]:
    """Random token ids, EOS at the end of each row."""
    rng = np.random.default_rng(seed)
    return [[*rng.integers(5, VOCABULARY, n - 1).tolist(), eos] for n in lengths]


def pairs_of(lengths: list[int], eos: int = 2) -> tuple[list[list[int]], list[list[int]]]:
    """Random sources and targets of these lengths."""
    return random_rows(lengths, 1, eos), random_rows(lengths, 2, eos)


def train_tiny(
    checkpoint: Path | None, *, signal="pre", dropout=0.1, updates=10, tokens_per_batch=80, kill_at: int | None = None,
    on_batch: Callable = lambda indices: None,
) -> tuple[dict[str, torch.Tensor], list[float]]:  # fmt: skip
    """Train a tiny BART on forty random pairs, with a checkpoint every 3 updates; return its parameters and losses.

    `kill_at`: this process ends itself by SIGKILL in that pass (from 0; a pass is an update, where STUDY_TOKENS_PER_PASS is not set).
    `on_batch(indices)` sees the examples of every pass.
    """
    training.CHECKPOINT_EVERY = 3
    model = controlled("bart", signal, dropout=dropout, tie_word_embeddings=True)
    lengths = np.random.default_rng(0).integers(4, 20, 40)
    sources, targets = pairs_of(lengths.tolist())
    passes_begun = itertools.count()

    def collate(indices: np.ndarray, rng: np.random.Generator) -> dict[str, torch.Tensor]:
        on_batch(indices)
        if next(passes_begun) == kill_at:
            os.kill(os.getpid(), signals.SIGKILL)
        batch = seq2seq_batch(model, [sources[i] for i in indices], [targets[i] for i in indices])
        return {**batch, "target_length": torch.as_tensor(lengths[indices])}

    options = {"updates": updates, "learning_rate": 1e-2, "tokens_per_batch": tokens_per_batch, "warmup": 2}
    losses = training.train(model, lengths, collate, **options, seed=0, checkpoint=checkpoint)
    return {name: p.detach().clone() for name, p in model.named_parameters()}, losses


# ---- a causal language model, for the Sigmoid Head -----------------------------------------------------------------------------------

CAUSAL = {  # weights this large give a peaked, varied distribution
    "vocab_size": 300, "hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2,
    "max_position_embeddings": 64, "initializer_range": 0.5, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 2,
}  # fmt: skip


def causal_tokenizer():
    """A byte-level tokenizer of up to 300 entries."""
    texts = ["the cat is not on the mat", "return the value of my_name", "1 2 3 10 200 is a number"]
    return train_tokenizer(texts * 3, CAUSAL["vocab_size"])


def language_model(seed: int = 0, config=LlamaConfig, model=LlamaForCausalLM, **options) -> LanguageModel:
    """A tiny random language model with a tied unembedding (300 tokens, width 16)."""
    torch.manual_seed(seed)
    return LanguageModel("tiny-llama", model(config(**{**CAUSAL, "tie_word_embeddings": True, **options})), causal_tokenizer())


# ids of special tokens as in `causal_tokenizer`
ENCODER_DECODERS = {
    "bart": {"pad_token_id": 0, "bos_token_id": 1, "tie_word_embeddings": True},
    "marian": {"pad_token_id": 0, "bos_token_id": 1, "tie_word_embeddings": True},
    "t5": {"eos_token_id": 2, "initializer_factor": 0.7},
}


def saved_language_model(folder: Path) -> LanguageModel:
    """A language model with room for the tasks' prompts, saved in a folder."""
    lm = language_model(max_position_embeddings=512)
    save_whole(lm.model, lm.tokenizer, folder)
    return lm


def short_outputs() -> list[str]:
    """The first six words of each description of `docstring_corpus`."""
    return docstring_corpus()["target"].str.split().str[:6].str.join(" ").tolist()


def encoder_decoder(kind: str = "bart", seed: int = 0, **options) -> EncoderDecoder:
    """A tiny random encoder-decoder model with a bias of its logits, where its class has one (300 tokens, width 16)."""
    torch.manual_seed(seed)
    options = {"vocab_size": CAUSAL["vocab_size"], "tie_word_embeddings": False, **ENCODER_DECODERS[kind], **options}
    model = stock(kind, **options)
    if hasattr(model, "final_logits_bias"):
        model.final_logits_bias.normal_()
    return EncoderDecoder(f"tiny-{kind}", model, causal_tokenizer())


def docstring_corpus() -> pd.DataFrame:
    """36 test texts of 14 different words each: a third with numbers, identifiers and a verb, a third with "is not", some with a shared
    prefix. Six of them are training texts, two validation texts too; two test texts are too short and too long for the corruption task.
    """
    stems, rows = ["lorem", "ipsum", "dolor", "sit", "amet", "elit", "sed", "magna", "quis", "nisi", "aute", "velit"], []
    for i in range(36):
        words = [f"{stem}{'abcdefghijkl'[i // 3]}{'xyz'[i % 3]}" for stem in stems]
        if i % 3 == 0:
            words[4:8] = [f"my_name{i}", "is", f"({i + 100},", f"v{i}.50"]
        elif i % 3 == 1:
            words[4:6] = ["is", "not"]
        words += [f"end{i}", "done."]
        if i % 6 < 3:
            words[:3] = ["returns", "the", "cache" if i % 2 else "number"]
        rows.append({"source": f"Summary {i}.", "target": " ".join(words), "group": 1000 + i, "package": "p", "split": "test"})
    rows += [{**row, "source": f"Train {row['source']}", "group": row["group"] + 500, "split": "train"} for row in rows[:6]]
    rows[-1]["target"] += " seldom"
    rows += [{**row, "group": row["group"] + 700, "split": "validation"} for row in rows[6:8]]
    rows += [{"source": "short", "target": "too short", "group": 1, "package": "p", "split": "test"}]
    rows += [{"source": "long", "target": " ".join(map(str, range(61))), "group": 2, "package": "p", "split": "test"}]
    return pd.DataFrame(rows)
