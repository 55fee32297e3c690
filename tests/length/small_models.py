"""Tiny random encoder-decoders and data for the tests: built from configurations, no network."""

import itertools
import os
import signal as signals
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from transformers import BartConfig, MarianConfig, T5Config
from transformers.models.auto.modeling_auto import MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING

from lib.length.models import LengthControlled
from lib.study import training
from lib.study.models import seq2seq_batch

VOCABULARY, D_MODEL, POSITIONS = 50, 16, 64
_SIZES = {
    f"{part}_{what}": n
    for part in ("encoder", "decoder")
    for what, n in (("layers", 2), ("attention_heads", 2), ("ffn_dim", 32))
}
_SPECIAL = {
    "bos_token_id": 0,
    "pad_token_id": 1,
    "eos_token_id": 2,
    "decoder_start_token_id": 2,
    "forced_eos_token_id": None,
}
_BART = {  # embeddings untied, or a random model only repeats its last token
    "vocab_size": VOCABULARY,
    "d_model": D_MODEL,
    "max_position_embeddings": POSITIONS,
    "init_std": 0.1,
    "tie_word_embeddings": False,
    **_SIZES,
    **_SPECIAL,
}
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
        **{
            **_T5,
            "pad_token_id": 0,
            "eos_token_id": 1,
            "decoder_start_token_id": 0,
            "initializer_factor": 2.0,
            **options,
        }
    ),
}


def signal_options(name: str) -> dict:
    """Options a signal cannot do without."""
    return {"max_countdown": 10} if name.endswith("-clipped") else {}


def controlled(kind: str = "bart", signal: str = "pre", seed: int = 2, **options):
    """A tiny length-controlled model in eval mode; the same weights for the same seed, whatever
    the (parameter-free) signal.
    """
    torch.manual_seed(seed)
    return LengthControlled.from_config(
        CONFIGS[kind](**options), signal, signal_options(signal)
    ).eval()


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
    checkpoint: Path | None,
    *,
    signal="pre",
    dropout=0.1,
    updates=10,
    tokens_per_batch=80,
    kill_at: int | None = None,
    on_batch: Callable = lambda indices: None,
) -> tuple[dict[str, torch.Tensor], list[float]]:
    """Train a tiny BART on forty random pairs, with a checkpoint every 3 updates; return its
    parameters and losses.

    `kill_at`: this process ends itself by SIGKILL in that update (from 0). `on_batch(indices)`
    sees the examples of each.
    """
    training.CHECKPOINT_EVERY = 3
    model = controlled("bart", signal, dropout=dropout, tie_word_embeddings=True)
    lengths = np.random.default_rng(0).integers(4, 20, 40)
    sources, targets = pairs_of(lengths.tolist())
    updates_begun = itertools.count()

    def collate(indices: np.ndarray, rng: np.random.Generator) -> dict[str, torch.Tensor]:
        on_batch(indices)
        if next(updates_begun) == kill_at:
            os.kill(os.getpid(), signals.SIGKILL)
        batch = seq2seq_batch(model, [sources[i] for i in indices], [targets[i] for i in indices])
        return {**batch, "target_length": torch.as_tensor(lengths[indices])}

    options = {
        "updates": updates,
        "learning_rate": 1e-2,
        "tokens_per_batch": tokens_per_batch,
        "warmup": 2,
    }
    losses = training.train(model, lengths, collate, **options, seed=0, checkpoint=checkpoint)
    return {name: p.detach().clone() for name, p in model.named_parameters()}, losses
