"""What the Sigmoid Head experiment works on: its settings, and from them the model, training positions and items, each made once.

Hidden states are kept in the cache, named by the hash of the token ids and of the unembedding: never stale.
"""

import dataclasses
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from old import paths
from old.quality import nmt, scores
from old.quality.distributions import CHUNK, MODES
from old.quality.language_models import SMOLLM2, LanguageModel, Text, unspaced
from old.quality.negatives import TokenFrequencies
from old.quality.tasks.catalogue import TASKS
from old.quality.training import Positions, collect, gold_tokens, hidden_states, labels_of
from old.quality.training_corpora import CORPORA, MAX_TOKENS, Mixture
from old.results import write_atomically

RECIPE = 2  # bump when a change in lib/quality moves the numbers


@dataclass(frozen=True)
class Settings:
    """Everything the numbers depend on, apart from heads, tasks and seeds."""

    model: str = SMOLLM2
    trained_on: str = "docstrings"  # the corpus that heads and fitted baselines learn from, see old.quality.training_corpora
    train_texts: int = 2000
    validation_texts: int = 300
    negatives: int = 10  # K
    rounds: int = 4  # sets of negatives drawn a position, used in turn
    dominant: str = "last"  # the dominant set's rule
    rank: int = 32
    updates: int = 400
    positions_per_batch: int = 1024
    texts: int = 150  # size of each task, see old.quality.tasks

    def of_heads(self) -> dict:
        """What a trained head depends on: all but the size of the tasks."""
        return {name: value for name, value in dataclasses.asdict(self).items() if name != "texts"}

    def __post_init__(self) -> None:
        for name in ("train_texts", "validation_texts", "negatives", "rounds", "rank", "updates", "positions_per_batch", "texts"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, not {getattr(self, name)}")
        if self.dominant not in MODES:
            raise ValueError(f"unknown dominant set {self.dominant!r}: choose from {', '.join(MODES)}")
        if self.trained_on not in CORPORA:
            raise ValueError(f"unknown training corpus {self.trained_on!r}: choose from {', '.join(CORPORA)}")
        if self.model not in (SMOLLM2, *nmt.MODELS) and not Path(self.model).is_dir() and self.model.count("/") != 1:
            known = f"{SMOLLM2!r}, {', '.join(map(repr, nmt.MODELS))}"
            raise ValueError(f"unknown model {self.model!r}: {known}, a folder, or a hub name such as 'allenai/OLMo-2-0425-1B-SFT'")

    def data(self, task: str | None = None) -> str:
        """Hash of what heads learn from, and of what a task's items are made of; needs no data at hand."""
        parts = [CORPORA[self.trained_on].fingerprint(), *([TASKS[task].data()] if task else [])]
        parts += [nmt.identity(self.model)] if self.model in nmt.MODELS else []
        return "-".join(dict.fromkeys(parts))


@dataclass
class Base:
    """The frozen model with what is fitted on the training and validation texts."""

    lm: LanguageModel
    unigram: TokenFrequencies
    baselines: scores.Baselines


@lru_cache(maxsize=1)
def language_model(name: str) -> LanguageModel:
    """Loaded once a process; a translation model of this study is trained first where the cache lacks it."""
    return nmt.trained_model(name) if name in nmt.MODELS else LanguageModel.load(name)


@lru_cache(maxsize=1)
def prepare(settings: Settings) -> Base:
    """The model, the unigram frequencies of the training labels, and the two fitted baselines."""
    lm = language_model(settings.model)
    held_out = positions(settings, "validation")
    return Base(lm, unigram(settings), _baselines(lm, held_out, settings.negatives))


@lru_cache(maxsize=8)
def training_texts(settings: Settings, split: str) -> tuple[Text, ...]:
    """Prompts and outputs of the training corpus; the first MAX_TOKENS of each output."""
    lm, corpus = language_model(settings.model), CORPORA[settings.trained_on]
    if isinstance(corpus, Mixture):
        return corpus.mixed([training_texts(dataclasses.replace(settings, trained_on=name), split) for name in corpus.of])
    pairs = corpus.pairs(lm, split, settings.train_texts if split == "train" else settings.validation_texts)
    outputs = [" ".join(output.split(" ")[:MAX_TOKENS]) for output in pairs["output"]]  # a word has at least one token
    texts = lm.encode(pairs["prompt"].tolist(), outputs, chat=corpus.chat and lm.has_turns)
    return tuple(dataclasses.replace(text, ids=text.ids[: text.start + MAX_TOKENS]) for text in texts)


@lru_cache(maxsize=1)
def unigram(settings: Settings) -> TokenFrequencies:
    """Frequencies of the training labels."""
    lm = language_model(settings.model)
    return TokenFrequencies.from_labels(gold_tokens(list(training_texts(settings, "train"))), len(lm.unembedding))


@lru_cache(maxsize=2)
def positions(settings: Settings, split: str) -> Positions:
    """Hidden states and negatives of the training or validation texts, from the cache or computed now."""
    lm, texts = language_model(settings.model), list(training_texts(settings, split))
    rounds, seed = (settings.rounds, 0) if split == "train" else (1, 1)
    options = {"count": settings.negatives, "rounds": rounds, "mode": settings.dominant, "seed": seed, "folder": states_folder()}
    return collect(lm, texts, unigram(settings), **options)


def states_folder() -> Path:
    """Where hidden states and negatives are kept."""
    return paths.CACHE / "states"


def _baselines(lm: LanguageModel, held_out: Positions, count: int, limit: int = 4096) -> scores.Baselines:
    """Fitted on validation positions and their negatives of the paper's sampler."""
    ids, present = held_out.candidates(scores.METHOD, slice(limit), count)
    logits, log_p = [], []
    for start in range(0, len(ids), CHUNK):
        all_logits = lm.logits(held_out.hidden_states[start : start + CHUNK].to(lm.device))[: len(ids) - start]
        logits.append(all_logits.gather(1, ids[start : start + CHUNK].to(lm.device)).cpu())
        log_p.append(logits[-1] - all_logits.logsumexp(1, keepdim=True).cpu())
    return scores.Baselines.fit(torch.cat(logits)[present], torch.cat(log_p)[present], labels_of(ids)[present])


def task_states(settings: Settings, task: str) -> tuple[pd.DataFrame, list[Text], Tensor]:
    """Items of a task, their token ids and hidden states (from the cache, or computed now)."""
    lm = language_model(settings.model)
    items = task_items(settings, task)
    texts = lm.encode(items["prompt"].tolist(), items["output"].tolist(), chat=TASKS[task].chat and lm.has_turns)
    return items, texts, hidden_states(lm, texts, states_folder())


@lru_cache(maxsize=len(TASKS))
def task_items(settings: Settings, task: str) -> pd.DataFrame:
    """Items of a task."""
    lm, about = language_model(settings.model), TASKS[task]
    if not about.kept:
        return about.items(lm, settings.texts)
    file = paths.CACHE / "items" / f"{task}-{lm.fingerprint()}-{about.data()}-{settings.texts}-r{RECIPE}.parquet"
    if not file.exists():
        made = about.items(lm, settings.texts)
        write_atomically(file, lambda partial: made.to_parquet(partial, index=False))
    return pd.read_parquet(file)


def wrong_tokens(tokenizer, items: pd.DataFrame, texts: list[Text]) -> np.ndarray:
    """Which output tokens belong to a wrong word; all items in a row. (N,) bool"""
    wrong = []
    for item, text in zip(items.itertuples(), texts):
        bare = unspaced(tokenizer, item.output)
        spans, place = [], len(bare) - len(item.output)
        for number, word in enumerate(item.output.split(" ")):
            if number in set(item.wrong_words):
                spans.append((place, place + len(word)))
            place += len(word) + 1
        offsets = tokenizer(bare, add_special_tokens=False, return_offsets_mapping=True)["offset_mapping"]
        assert len(offsets) == len(text.output)
        wrong += [any(low < end and high > start for low, high in spans) for start, end in offsets]
    return np.array(wrong)
