"""Every task by its name: how its items are made for a model, and what the experiment must know about it."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import pandas as pd

from old.corpora import benchmarks, docstrings
from old.quality import nmt
from old.quality.language_models import LanguageModel
from old.quality.negatives import SAMPLERS
from old.quality.scores import METHOD
from old.quality.tasks import (
    acceptability,
    arithmetic,
    corruption,
    human_judgements,
    languages,
    listing,
    paraphrase,
    self_generation,
    translation,
    word_errors,
)
from old.quality.training_corpora import docstring_table


@dataclass(frozen=True)
class Task:
    """`items(lm, texts)` makes the items; `texts` is the size in originals, each task uses what it needs of it."""

    items: Callable[[LanguageModel, int], pd.DataFrame]
    data: Callable[[], str] = docstrings.fingerprint  # hash of what the items are made of; needs no data at hand
    study: str = "quality"
    chat: bool = False  # the prompt is the user's turn of the model's chat template, where it has one
    kept: bool = False  # items are the model's own outputs, kept in the cache
    samplers: tuple[str, ...] = (METHOD, "unigram", "unigram-excluded")  # whose closed forms are judged
    translates: bool = False  # only a translation model of this study has such items
    wrong: Literal["", "tokens", "words"] = ""  # column `wrong_words` marks errors: of edits, token by token; of translations, word by word


def _benchmark(items: Callable[[LanguageModel, int], pd.DataFrame], *names: str, version: int = 1, **options) -> Task:
    """A task made of benchmark files; bump `version` when its items change and the files do not."""
    return Task(items, lambda: benchmarks.fingerprint(*names) + (f"-v{version}" if version > 1 else ""), **options)


def _judged(pair: str) -> Task:
    return _benchmark(lambda lm, texts: human_judgements.items(pair, _encodes(lm), texts), f"mlqe-pe-{pair}")


def _word_errors(name: str) -> Task:
    return _benchmark(lambda lm, texts: word_errors.items(name, _encodes(lm), texts), name, wrong="words")


def _encodes(lm: LanguageModel) -> bool:
    """Whether prompts go to an encoder."""
    return lm.model.config.is_encoder_decoder


TASKS: dict[str, Task] = {
    "listing": Task(lambda lm, texts: listing.items(lm.is_token, max(1, texts // 15)), study="ambiguity", samplers=SAMPLERS),
    "languages": Task(lambda lm, texts: languages.items(lm.is_token, each=max(1, texts // 2)), study="ambiguity", samplers=SAMPLERS),
    "corruption": Task(lambda lm, texts: corruption.items(docstring_table(), texts), wrong="tokens", samplers=SAMPLERS),
    "self-generation": Task(lambda lm, texts: self_generation.items(lm, docstring_table(), texts), kept=True, samplers=SAMPLERS),
    "multi30k-en-de": _benchmark(
        lambda lm, texts: translation.own_items(lm, nmt.pairs("test"), texts), nmt.DATASET, kept=True, translates=True
    ),
    "multi30k-en-de-errors": _benchmark(
        lambda lm, texts: translation.error_items(nmt.pairs("test"), nmt.pairs("train"), texts), nmt.DATASET, wrong="tokens", version=2
    ),
    **{f"mlqe-pe-{pair}": _judged(pair) for pair in ("en-de", "ro-en", "ru-en")},
    **{name: _word_errors(name) for name in ("hjqe-en-de", "mlqe-pe-tags-en-de", "mlqe-pe-tags-ro-en")},
    "paws-x-en-validation": _benchmark(lambda lm, texts: paraphrase.items("validation", texts), "paws-x-en", chat=True, version=2),
    "paws-x-en": _benchmark(lambda lm, texts: paraphrase.items("test", texts), "paws-x-en", chat=True),
    "gsm8k": _benchmark(lambda lm, texts: arithmetic.items("test", max(1, texts // 4)), "gsm8k", chat=True),
    "gsm8k-own": _benchmark(lambda lm, texts: arithmetic.own_items(lm, max(1, texts // 20)), "gsm8k", chat=True, kept=True),
    "cola": _benchmark(lambda lm, texts: acceptability.items(texts), "cola"),
}
