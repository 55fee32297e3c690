"""Pretraining of the study's small model for length control: a BART of 1.3 M parameters (`lib.small_bart`), denoised once on training text.

It stands in for BART-large at laptop size: like it, it is pretrained on text of all lengths up to its last position, before any signal
is added.
"""

import itertools
from pathlib import Path

import numpy as np
from torch import Tensor
from transformers import BartForConditionalGeneration

from old.seq2seq import seq2seq_batch
from old.small_bart import EOS, MASK
from old.training import train

MASK_SHARE, MEAN_SPAN = 0.3, 3.0  # BART's text infilling: 30 % of the tokens in spans of Poisson(3), each replaced by one <mask>


def infill(tokens: np.ndarray, rng: np.random.Generator) -> list[int]:
    """BART's text infilling: spans of Poisson length replaced by one <mask> each until MASK_SHARE of the tokens is gone."""
    out, position, budget = [], 0, MASK_SHARE * len(tokens)
    start_probability = MASK_SHARE / MEAN_SPAN / (1 - MASK_SHARE)
    while position < len(tokens):
        if budget > 0 and rng.random() < start_probability:
            span = min(rng.poisson(MEAN_SPAN), len(tokens) - position)
            out.append(MASK)
            position += span
            budget -= span
        if position < len(tokens):
            out.append(int(tokens[position]))
            position += 1
    return out


def pretrain(
    model: BartForConditionalGeneration,
    token_ids: list[list[int]],
    *,
    updates: int,
    tokens_per_batch: int,
    seed: int,
    checkpoint: Path | None,
):
    """Denoise packed text in blocks of every length from 16 to the last position, so that all positions are trained. Returns the losses."""
    text = np.fromiter(itertools.chain.from_iterable(token_ids), np.int64)  # texts end with EOS
    rng = np.random.default_rng(seed)
    lengths = rng.integers(16, model.config.max_position_embeddings, size=len(text) // 100)  # tokens a block, before its EOS
    starts = rng.integers(0, len(text) - lengths)

    def collate(indices: np.ndarray, rng: np.random.Generator) -> dict[str, Tensor]:
        blocks = [text[starts[i] : starts[i] + lengths[i]] for i in indices]
        return seq2seq_batch(model, [[*infill(block, rng), EOS] for block in blocks], [[*block, EOS] for block in blocks])

    return train(
        model,
        lengths,
        collate,
        updates=updates,
        learning_rate=2e-3,
        tokens_per_batch=tokens_per_batch,
        seed=seed,
        checkpoint=checkpoint,
        description="denoising",
    )
