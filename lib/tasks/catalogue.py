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


def _translations(items: Callable, name: str, split: str) -> Task:
    def make(lm, texts: int) -> pd.DataFrame:
        encoder = lm.model.config.is_encoder_decoder  # which prompts go to, if so
        return items(load(name, split), encoder, texts)

    return Task(make, (name,))


def _paraphrases(split: str, apart_from: str | None = None) -> Task:
    def make(_lm, texts: int) -> pd.DataFrame:
        other = load("paws-x-en", apart_from) if apart_from else None
        return benchmark_items.paraphrases(load("paws-x-en", split), texts, other)

    return Task(make, ("paws-x-en",), chat=True)


def _listing(lm, texts: int) -> pd.DataFrame:
    return single_tokens.listing(lm.is_token, orders=max(1, texts // 15))


def _languages(lm, texts: int) -> pd.DataFrame:
    return single_tokens.languages(lm.is_token, each=max(1, texts // 2))


def _corruption(_lm, texts: int) -> pd.DataFrame:
    return edited_texts.corruption(corpora.load("docstrings"), texts)


def _self_generation(lm, texts: int) -> pd.DataFrame:
    return own_texts.self_generation(lm, corpora.load("docstrings"), texts)


def _own_translations(lm, texts: int) -> pd.DataFrame:
    return own_texts.own_translations(lm, sentence_pairs("test"), texts)


def _translation_errors(_lm, texts: int) -> pd.DataFrame:
    return edited_texts.translation_errors(sentence_pairs("test"), sentence_pairs("train"), texts)


def _changed_solutions(_lm, texts: int) -> pd.DataFrame:
    return arithmetic.changed_solutions(load("gsm8k", "test"), max(1, texts // 4))


def _own_answers(lm, texts: int) -> pd.DataFrame:
    return arithmetic.own_answers(lm, load("gsm8k", "test"), max(1, texts // 20))


def _acceptability(_lm, texts: int) -> pd.DataFrame:
    return benchmark_items.acceptability(load("cola", "validation"), texts)


_RATED, _MARKED = benchmark_items.rated_translations, benchmark_items.marked_words
TASKS: dict[str, Task] = {
    "listing": Task(_listing),
    "languages": Task(_languages),
    "corruption": Task(_corruption, ("docstrings",)),
    "self-generation": Task(_self_generation, ("docstrings",)),
    "multi30k-en-de": Task(_own_translations, ("multi30k-en-de",)),
    "multi30k-en-de-errors": Task(_translation_errors, ("multi30k-en-de",)),
    "mlqe-pe-en-de": _translations(_RATED, "mlqe-pe-en-de", "test20"),
    "mlqe-pe-ro-en": _translations(_RATED, "mlqe-pe-ro-en", "test20"),
    "mlqe-pe-ru-en": _translations(_RATED, "mlqe-pe-ru-en", "test20"),
    "hjqe-en-de": _translations(_MARKED, "hjqe-en-de", "dev"),
    "mlqe-pe-tags-en-de": _translations(_MARKED, "mlqe-pe-tags-en-de", "test20"),
    "mlqe-pe-tags-ro-en": _translations(_MARKED, "mlqe-pe-tags-ro-en", "test20"),
    "paws-x-en-validation": _paraphrases("validation", apart_from="test"),
    "paws-x-en": _paraphrases("test"),
    "gsm8k": Task(_changed_solutions, ("gsm8k",), chat=True),
    "gsm8k-own": Task(_own_answers, ("gsm8k",), chat=True),
    "cola": Task(_acceptability, ("cola",)),
}
