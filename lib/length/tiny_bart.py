"""The study's small pretrained model: a byte-level BPE tokenizer and a BART of 1.3 M parameters, denoised once on training text.

It stands in for BART-large at laptop size: like it, it is pretrained on text of all lengths up to its last position, before any signal
is added.
"""

import itertools
from pathlib import Path

import numpy as np
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from torch import Tensor
from transformers import BartConfig, BartForConditionalGeneration, PreTrainedTokenizerFast

from lib.seq2seq import seq2seq_batch
from lib.training import train

PAD, BOS, EOS, UNK, MASK = range(5)
SPECIAL = ["<pad>", "<s>", "</s>", "<unk>", "<mask>"]
POSITIONS = 512
MASK_SHARE, MEAN_SPAN = 0.3, 3.0  # BART's text infilling: 30 % of the tokens in spans of Poisson(3), each replaced by one <mask>


def train_tokenizer(texts: list[str], vocabulary: int) -> PreTrainedTokenizerFast:
    """Byte-level BPE of `vocabulary` entries, learned from `texts`. Encoding appends </s>, nothing else."""
    tokenizer = Tokenizer(models.BPE(unk_token=SPECIAL[UNK]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary, special_tokens=SPECIAL, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False
    )
    tokenizer.train_from_iterator(texts, trainer)
    tokenizer.post_processor = processors.TemplateProcessing(single="$A </s>", special_tokens=[("</s>", EOS)])
    names = dict(zip(("pad_token", "bos_token", "eos_token", "unk_token", "mask_token"), SPECIAL))
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, model_max_length=POSITIONS, **names)


def configuration(vocabulary: int, d_model: int = 128, layers: int = 2) -> BartConfig:
    """BART at laptop size. `scale_embedding`: without it a signal of norm sqrt(d/2) would swamp small embeddings."""
    sizes = {
        f"{part}_{what}": n
        for part in ("encoder", "decoder")
        for what, n in (("layers", layers), ("attention_heads", 4), ("ffn_dim", 4 * d_model))
    }
    return BartConfig(
        vocab_size=vocabulary,
        d_model=d_model,
        max_position_embeddings=POSITIONS,
        **sizes,
        pad_token_id=PAD,
        bos_token_id=BOS,
        eos_token_id=EOS,
        decoder_start_token_id=EOS,
        forced_bos_token_id=None,
        forced_eos_token_id=None,
        scale_embedding=True,
        init_std=0.08,
        dropout=0.1,
    )


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
    lengths = rng.integers(16, POSITIONS, size=len(text) // 100)  # tokens a block, before its EOS
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
