"""Every task by its name: how its items are made for a model, and of what data."""

from collections.abc import Callable
from dataclasses import dataclass

import pandas as pd

from lib import corpora
from lib.corpora.benchmarks import load
from lib.quality.translator import sentence_pairs
from lib.tasks import arithmetic, benchmark_items, edited_texts, own_texts, single_tokens


@dataclass(frozen=True)
class Task:
    """`items(lm, texts)` makes the items; each task uses what it needs of `texts`, its size in
    originals.
    """

    items: Callable[[object, int], pd.DataFrame]
    data: tuple[str, ...] = ()  # corpora and benchmarks that the items are made of
    chat: bool = False  # the prompt is the user's turn of the chat template, where there is one

    def fingerprint(self) -> str:
        """Hash of the data, which need not be at hand."""
        return corpora.fingerprint(*self.data)


def _translations(items: Callable, name: str, split: str = "test20") -> Task:
    def make(lm, texts: int) -> pd.DataFrame:
        encoder = lm.model.config.is_encoder_decoder  # which prompts go to, if so
        return items(load(name, split), encoder, texts)

    return Task(make, (name,))


def _paraphrases(split: str, apart_from: str | None = None) -> Task:
    def make(_lm, texts: int) -> pd.DataFrame:
        other = load("paws-x-en", apart_from) if apart_from else None
        return benchmark_items.paraphrases(load("paws-x-en", split), texts, other)

    return Task(make, ("paws-x-en",), chat=True)


def _edited_references(_lm, texts: int) -> pd.DataFrame:
    return edited_texts.translation_errors(sentence_pairs("test"), sentence_pairs("train"), texts)


_RATED, _MARKED = benchmark_items.rated_translations, benchmark_items.marked_words
_DOCSTRINGS, _PAIRS = ("docstrings",), ("multi30k-en-de",)
TASKS: dict[str, Task] = {
    "listing": Task(lambda lm, n: single_tokens.listing(lm.is_token, max(1, n // 15))),
    "languages": Task(lambda lm, n: single_tokens.languages(lm.is_token, each=max(1, n // 2))),
    "corruption": Task(
        lambda _, n: edited_texts.corruption(corpora.load("docstrings"), n), _DOCSTRINGS
    ),
    "self-generation": Task(
        lambda lm, n: own_texts.self_generation(lm, corpora.load("docstrings"), n), _DOCSTRINGS
    ),
    "multi30k-en-de": Task(
        lambda lm, n: own_texts.own_translations(lm, sentence_pairs("test"), n), _PAIRS
    ),
    "multi30k-en-de-errors": Task(_edited_references, _PAIRS),
    **{f"mlqe-pe-{p}": _translations(_RATED, f"mlqe-pe-{p}") for p in ("en-de", "ro-en", "ru-en")},
    "hjqe-en-de": _translations(_MARKED, "hjqe-en-de", "dev"),
    "mlqe-pe-tags-en-de": _translations(_MARKED, "mlqe-pe-tags-en-de"),
    "mlqe-pe-tags-ro-en": _translations(_MARKED, "mlqe-pe-tags-ro-en"),
    "paws-x-en-validation": _paraphrases("validation", apart_from="test"),
    "paws-x-en": _paraphrases("test"),
    "gsm8k": Task(
        lambda _, n: arithmetic.changed_solutions(load("gsm8k", "test"), max(1, n // 4)),
        ("gsm8k",),
        chat=True,
    ),
    "gsm8k-own": Task(
        lambda lm, n: arithmetic.own_answers(lm, load("gsm8k", "test"), max(1, n // 20)),
        ("gsm8k",),
        chat=True,
    ),
    "cola": Task(
        lambda _, n: benchmark_items.acceptability(load("cola", "validation"), n), ("cola",)
    ),
}
