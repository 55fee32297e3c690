"""From the names of a corpus and a model to a length-controlled model, trained on short targets.

The small model is a BART of 1.3 M parameters, denoised on training text of all lengths, before any
signal is added: it stands in for BART-large at laptop size.
"""

import itertools
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from torch import Tensor, nn
from transformers import AutoConfig, AutoTokenizer, BartForConditionalGeneration

from lib import corpora
from lib.length.control import ALLOWANCE, Counting, plain_generation
from lib.length.decoder_only import add_lora, labelled_prompts, responses
from lib.length.models import LengthControlled, is_decoder_only
from lib.study.cache import cached, checkpoint_file
from lib.study.models import (
    EOS,
    MASK,
    best_device,
    configuration,
    pretrained_name,
    seq2seq_batch,
    smollm2_folder,
    train_tokenizer,
)
from lib.study.training import train

LEARNED = ("train", "continuation")  # splits to fine-tune on; the second where a corpus has it
LONGEST_REQUEST = 4  # times the training cut
# of the study's own signals, chosen on validation text: see notebook 23
CHOSEN = {
    "pre-nyquist": {"share": 0.5, "noise": 0.0},
    "pre-countdown": {"window": 8, "combine": "split", "noise": 0.0},
    "countdown": {"window": 32},
    "bucket": {"buckets": 256},
}
MASK_SHARE, MEAN_SPAN = 0.3, 3.0  # BART's text infilling


@dataclass(frozen=True)
class Corpus:
    """How a text of `lib.corpora` is used. Lengths: tokens, EOS included, or what it counts."""

    text: str  # its name there; its tiny BART is the one to fine-tune
    max_source: int  # tokens; longer sources are cut
    vocabulary: int  # entries of tiny-bart's own tokenizer
    positions: int  # of tiny-bart
    max_train_length: int  # for notebooks that use several: training targets are shorter than this
    labels: tuple[str, str] = ("Summary", "Description")  # of source and target, in a prompt
    bertscore: bool = False  # whether outputs are also compared by BERTScore
    counted: str = "tokens"  # what lengths count; see lib.length.control

    def load(self) -> pd.DataFrame:
        """Columns id, source, target, group, split."""
        return corpora.load(self.text)


# words and characters: cuts that leave as many training targets as 64 tokens do. Benchmarks: nine
# in ten training targets are below the cut; a source is an article, or answer and context.
_DOCSTRINGS = Corpus("docstrings", 64, 2048, 512, 64)
_NEWS = Corpus("cnn-dailymail", 256, 4096, 1024, 76, ("Article", "Highlights"), bertscore=True)
_ONE_SENTENCE = {"max_train_length": 46, "labels": ("Article", "Summary")}
_QUESTION = {"max_train_length": 24, "labels": ("Answer | Context", "Question")}
CORPORA = {
    "docstrings": _DOCSTRINGS,
    "docstrings-words": replace(_DOCSTRINGS, counted="words", max_train_length=32),
    "docstrings-characters": replace(_DOCSTRINGS, counted="characters", max_train_length=208),
    "cnn-dailymail": _NEWS,
    "xsum": replace(_NEWS, text="xsum", **_ONE_SENTENCE),
    "squad-qg": replace(_NEWS, text="squad-qg", **_QUESTION),
}


def fingerprint(corpus: str) -> str:
    """Hash of what a data set is. Raises ValueError for an unknown one, naming those that exist."""
    if corpus not in CORPORA:
        raise ValueError(f"unknown data set {corpus!r}: choose one of {', '.join(CORPORA)}")
    return corpora.fingerprint(CORPORA[corpus].text)


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
    """Denoise packed texts in blocks of every length from 16 to the last position; the losses."""
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
    """Spans of Poisson(MEAN_SPAN) length become one <mask> each until MASK_SHARE is gone."""
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


def signal_options(signal: str, max_train_length: int) -> dict:
    """What a signal needs beside its width. A clipped countdown stops at half the training cut:
    "this many or more" is then itself met in training, for long stretches.
    """
    if signal.endswith("-clipped"):
        return {"max_countdown": max_train_length // 2}
    return CHOSEN.get(signal, {})


@dataclass
class Data:
    """Pairs of a corpus: source_ids, target_ids, length (of the target, in what the corpus counts),
    source, target, id, group, split.
    """

    pairs: pd.DataFrame
    tokenizer: object
    base: str  # folder or hub name of the model to fine-tune
    corpus: Corpus

    def split(self, *names: str, low: int = 1, high: int | None = None) -> pd.DataFrame:
        """Pairs of one or more splits whose target has low <= length < high."""
        length = self.pairs["length"]
        chosen = self.pairs["split"].isin(names) & (length >= low) & (length < (high or np.inf))
        return self.pairs[chosen].reset_index(drop=True)


def tokenised(corpus: str, model: str, pretrain_updates: int) -> Data:
    """Load a corpus, make (or find) the base model, tokenise."""
    own = CORPORA[corpus]
    if model == "tiny-bart":
        base = str(tiny_bart(own.text, pretrain_updates))
    else:
        base = pretrained_name(model)
    tokenizer, table = AutoTokenizer.from_pretrained(base), own.load()
    sources, targets = table["source"].tolist(), table["target"].tolist()
    if not all(source.strip() for source in sources):
        raise ValueError("empty source: every example needs at least one input token")
    if is_decoder_only(AutoConfig.from_pretrained(base)):
        source_ids = labelled_prompts(tokenizer, sources, own.labels, own.max_source)
        target_ids = responses(tokenizer, targets)
    else:
        cut, rows = own.max_source, tokenizer(sources, verbose=False)["input_ids"]
        source_ids = [row if len(row) <= cut else [*row[: cut - 1], row[-1]] for row in rows]
        target_ids = tokenizer(targets, verbose=False)["input_ids"]
    length = len if own.counted == "tokens" else Counting(tokenizer, own.counted).length
    lengths = [length(row) for row in target_ids]
    pairs = table.assign(source_ids=source_ids, target_ids=target_ids, length=lengths)
    return Data(pairs, tokenizer, base, own)


@cached(version=1, built_on=[tiny_bart, smollm2_folder], data=fingerprint)
def fine_tuned(
    signal: str,
    seed: int,
    corpus: str,
    model: str,
    max_train_length: int,  # training targets are shorter than this
    pretrain_updates: int,  # of tiny-bart
    finetune_updates: int,
    learning_rate: float,
    tokens_per_batch: int,  # padded target tokens an update
    options: dict,  # of the signal
    gate: str | None = None,  # of a decoder-only model
) -> dict[str, Tensor]:
    """Weights of the base model fine-tuned with a signal: all of an encoder-decoder; LoRA, gate and
    signal of a decoder-only model. Raises ValueError where no training pair is short enough.
    """
    if max_train_length < 6:  # requests start at 2
        raise ValueError(f"max_train_length must be at least 6, not {max_train_length}")
    data = tokenised(corpus, model, pretrain_updates)
    controlled = untrained(data, signal, seed, max_train_length, options, gate)
    pairs = data.split(*LEARNED, high=max_train_length)
    if pairs.empty:
        raise ValueError(f"no training target of {corpus} is shorter than {max_train_length}")
    how = {"updates": finetune_updates, "learning_rate": learning_rate, "seed": seed}
    how |= {"tokens_per_batch": tokens_per_batch, "checkpoint": checkpoint_file()}
    fine_tune(controlled, pairs, **how)
    return {name: p for name, p in controlled.named_parameters() if p.requires_grad}


def trained(**training) -> tuple[nn.Module, Data]:
    """The model of `fine_tuned`, in eval mode, and its data; `training`: the arguments of that."""
    weights = fine_tuned(**training)
    data = tokenised(*(training[name] for name in ("corpus", "model", "pretrain_updates")))
    names = {"signal", "seed", "max_train_length", "options", "gate"} & training.keys()
    model = untrained(data, **{name: training[name] for name in names})
    model.load_state_dict(weights, strict=False)
    return model.eval().to(best_device()), data


def untrained(
    data: Data, signal: str, seed: int, max_train_length: int, options: dict, gate=None
) -> nn.Module:
    """The base model with a signal (a learned one starts from the seed, and so does LoRA)."""
    torch.manual_seed(seed)
    model = LengthControlled.from_pretrained(data.base, signal, options, data.corpus.counted, gate)
    eos = data.tokenizer.eos_token_id  # chat models have several that may end a turn
    model.config.eos_token_id = eos
    model.generation_config = plain_generation(model.generation_config, eos)
    if model.counting is None:  # what the longest request may run to
        check_room(model, data.pairs["source_ids"], LONGEST_REQUEST * max_train_length + ALLOWANCE)
    if is_decoder_only(model.config):
        add_lora(model)
    return model


def check_room(model: nn.Module, sources: Iterable[list[int]], tokens: int) -> None:
    """Raise ValueError unless an output of that many tokens fits behind the longest source."""
    batch = model.source_batch([max(sources, key=len)], torch.tensor([tokens]))
    width = batch["input_ids"].shape[1]  # with the number asked for, where prompts have it
    room = model.most_target_tokens(width)
    if room is not None and room < tokens:
        raise ValueError(f"requests need {tokens} positions behind {width}, but there are {room}")


def fine_tune(model: nn.Module, pairs: pd.DataFrame, **options) -> list[float]:
    """Train a LengthControlled model on pairs (source_ids, target_ids, length), each target's own
    length as l; return the losses. `options`: of `train` (updates, learning_rate, ...).
    """
    sources, targets = pairs["source_ids"].tolist(), pairs["target_ids"].tolist()
    requested = torch.tensor(pairs["length"].to_numpy())
    tokens = np.array([len(row) for row in targets])
    check_room(model, sources, int(tokens.max()))

    def collate(indices: np.ndarray, rng: np.random.Generator) -> dict[str, Tensor]:
        chosen = [[rows[i] for i in indices] for rows in (sources, targets)]
        return model.pair_batch(*chosen, requested[indices])

    read = model.widest_input(np.array([len(row) for row in sources]), tokens)
    options = {"description": "fine-tuning", **options}
    return train(model, np.stack([tokens, read], 1), collate, **options)
