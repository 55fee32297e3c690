"""The study's small model for length control: a BART of 1.3 M parameters, denoised on training
text.

It stands in for BART-large at laptop size: like it, it is pretrained on text of all lengths up to
its last position, before any signal is added.
"""

import itertools
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from transformers import BartForConditionalGeneration

from lib.length.corpora import CORPORA, fingerprint
from lib.study.cache import cached, checkpoint_file
from lib.study.models import EOS, MASK, configuration, seq2seq_batch, train_tokenizer
from lib.study.training import train

MASK_SHARE, MEAN_SPAN = 0.3, 3.0  # BART's text infilling


@cached(version=1, folder=True, data=fingerprint)
def tiny_bart(folder: Path, corpus: str, pretrain_updates: int) -> None:
    """Pretrained tiny BART of a corpus, with its own tokenizer."""
    own = CORPORA[corpus]
    table = own.load().query("split == 'train'")
    texts = (table["source"] + "\n" + table["target"]).tolist()
    tokenizer = train_tokenizer(texts, own.vocabulary, own.positions)
    torch.manual_seed(0)
    model = BartForConditionalGeneration(configuration(own.vocabulary, positions=own.positions))
    token_ids = tokenizer((table["source"] + " " + table["target"]).tolist(), verbose=False)
    pretrain(model, token_ids["input_ids"], updates=pretrain_updates, checkpoint=checkpoint_file())
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def pretrain(
    model, token_ids: list[list[int]], *, updates: int, checkpoint: Path | None
) -> list[float]:
    """Denoise packed texts (ending with EOS) in blocks of every length from 16 to the last
    position, so that all positions are trained. Returns the losses.
    """
    text = np.fromiter(itertools.chain.from_iterable(token_ids), np.int64)
    rng = np.random.default_rng(0)
    positions = model.config.max_position_embeddings
    lengths = rng.integers(16, positions, size=len(text) // 100)  # tokens a block, before its EOS
    starts = rng.integers(0, len(text) - lengths)

    def collate(indices: np.ndarray, rng: np.random.Generator) -> dict[str, Tensor]:
        blocks = [text[starts[i] : starts[i] + lengths[i]] for i in indices]
        noisy = [[*infill(block, rng), EOS] for block in blocks]
        return seq2seq_batch(model, noisy, [[*block, EOS] for block in blocks])

    options = {"learning_rate": 2e-3, "tokens_per_batch": 4096, "seed": 0}
    options |= {"updates": updates, "checkpoint": checkpoint, "description": "denoising"}
    return train(model, lengths, collate, **options)


def infill(tokens: np.ndarray, rng: np.random.Generator) -> list[int]:
    """BART's text infilling: spans of Poisson(MEAN_SPAN) length, replaced by one <mask> each, until
    MASK_SHARE of the tokens is gone.
    """
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
