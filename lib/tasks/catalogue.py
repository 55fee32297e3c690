"""Every task by its name: how its items, outputs to be judged with gold, are made for a model.

A task's items are a table, one row an output: `id` (from 0), `group` (the cluster of the bootstrap:
set, territory, near-duplicate text, source), `prompt`, `output`, `gold` (higher is better), and the
columns that tell the items of a task apart:

    listing                       k (right answers left), kind (right, listed, sibling), order
    languages                     k, kind (right, wrong), prior
    corruption, ...-errors        edit (original, word-swap, attested ...), text (number), package
    self-generation               package
    multi30k-en-de                decoding (beam, sample), gold_bleu, gold_similarity
    mlqe-pe-*, hjqe-*             with_source (True: the source is in the prompt)
    gsm8k                         changed (step, answer), text
    gsm8k-own                     decoding (greedy, sample)
"""

from collections.abc import Callable
from dataclasses import dataclass

import pandas as pd

from lib import corpora
from lib.corpora.benchmarks import load
from lib.quality.translator import sentence_pairs
from lib.tasks import benchmark_items, edited_texts, own_items


@dataclass(frozen=True)
class Task:
    """`items(lm, texts)` makes the items; each task uses what it needs of `texts`, its size in
    originals.
    """

    items: Callable[[object, int], pd.DataFrame]
    data: str = ""  # corpus or benchmark that the items are made of
    chat: bool = False  # the prompt is the user's turn of the chat template, where there is one

    def fingerprint(self) -> str:
        """Hash of the data, which need not be at hand."""
        return corpora.fingerprint(*([self.data] if self.data else []))


def _translations(items: Callable, name: str, split: str = "test20") -> Task:
    def make(lm, texts: int) -> pd.DataFrame:  # an encoder gets the source alone as prompt
        return items(load(name, split), lm.model.config.is_encoder_decoder, texts)

    return Task(make, name)


def _paraphrases(split: str, apart_from: str | None = None) -> Task:
    def make(_lm, texts: int) -> pd.DataFrame:
        other = load("paws-x-en", apart_from) if apart_from else None
        return benchmark_items.paraphrases(load("paws-x-en", split), texts, other)

    return Task(make, "paws-x-en", chat=True)


_RATED, _MARKED = benchmark_items.rated_translations, benchmark_items.marked_words
_SOLUTIONS, _ANSWERS = benchmark_items.changed_solutions, benchmark_items.own_answers
TASKS: dict[str, Task] = {
    "listing": Task(lambda lm, n: own_items.listing(lm.is_token, max(1, n // 15))),
    "languages": Task(lambda lm, n: own_items.languages(lm.is_token, each=max(1, n // 2))),
    "corruption": Task(
        lambda _, n: edited_texts.corruption(corpora.load("docstrings"), n), "docstrings"
    ),
    "self-generation": Task(
        lambda lm, n: own_items.self_generation(lm, corpora.load("docstrings"), n), "docstrings"
    ),
    "multi30k-en-de": Task(
        lambda lm, n: own_items.own_translations(lm, sentence_pairs("test"), n), "multi30k-en-de"
    ),
    "multi30k-en-de-errors": Task(
        lambda _, n: edited_texts.translation_errors(*map(sentence_pairs, ("test", "train")), n),
        "multi30k-en-de",
    ),
    **{f"mlqe-pe-{p}": _translations(_RATED, f"mlqe-pe-{p}") for p in ("en-de", "ro-en", "ru-en")},
    "hjqe-en-de": _translations(_MARKED, "hjqe-en-de", "dev"),
    **{name: _translations(_MARKED, name) for name in ("mlqe-pe-tags-en-de", "mlqe-pe-tags-ro-en")},
    "paws-x-en-validation": _paraphrases("validation", apart_from="test"),
    "paws-x-en": _paraphrases("test"),
    "gsm8k": Task(
        lambda _, n: _SOLUTIONS(load("gsm8k", "test"), max(1, n // 4)), "gsm8k", chat=True
    ),
    "gsm8k-own": Task(
        lambda lm, n: _ANSWERS(lm, load("gsm8k", "test"), max(1, n // 20)), "gsm8k", chat=True
    ),
    "cola": Task(lambda _, n: benchmark_items.acceptability(load("cola", "validation"), n), "cola"),
}
