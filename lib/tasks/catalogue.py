"""Every task by its name: how its items are made, and what experiments must know about it."""

from collections.abc import Callable
from dataclasses import dataclass

import pandas as pd

from lib import corpora
from lib.quality.translator import sentence_pairs
from lib.sampler import METHOD, SAMPLERS
from lib.tasks import arithmetic, benchmark_items, edited_texts, own_texts, single_tokens


@dataclass(frozen=True)
class Task:
    """`items(lm, texts)` makes the items; each task uses what it needs of `texts`, its size in
    originals.
    """

    items: Callable[[object, int], pd.DataFrame]
    data: tuple[str, ...]  # corpora and benchmarks that the items are made of
    chat: bool = False  # the prompt is the user's turn of the chat template, where there is one
    samplers: tuple[str, ...] = (METHOD, "unigram", "unigram-excluded")  # closed forms judged
    wrong: str = ""  # `wrong_words` marks errors of "tokens" (edits) or "words" (translations)

    def fingerprint(self) -> str:
        """Hash of the data, which need not be at hand."""
        return corpora.fingerprint(*self.data)


def _encodes(lm) -> bool:
    """Whether prompts go to an encoder."""
    return lm.model.config.is_encoder_decoder


def _docstrings() -> pd.DataFrame:
    return corpora.load("docstrings")


def _rated(pair: str) -> Task:
    def items(lm, texts: int) -> pd.DataFrame:
        return benchmark_items.rated_translations(pair, _encodes(lm), texts)

    return Task(items, (f"mlqe-pe-{pair}",))


def _marked(name: str) -> Task:
    def items(lm, texts: int) -> pd.DataFrame:
        return benchmark_items.marked_words(name, _encodes(lm), texts)

    return Task(items, (name,), wrong="words")


def _paraphrases(split: str) -> Task:
    def items(_lm, texts: int) -> pd.DataFrame:
        return benchmark_items.paraphrases(split, texts)

    return Task(items, ("paws-x-en",), chat=True)


def _own_translations(lm, texts: int) -> pd.DataFrame:
    return own_texts.own_translations(lm, sentence_pairs("test"), texts)


def _translation_errors(_lm, texts: int) -> pd.DataFrame:
    pairs, training = sentence_pairs("test"), sentence_pairs("train")
    return edited_texts.translation_errors(pairs, training, texts)


TASKS: dict[str, Task] = {
    "listing": Task(
        lambda lm, texts: single_tokens.listing(lm.is_token, max(1, texts // 15)),
        data=(),
        samplers=SAMPLERS,
    ),
    "languages": Task(
        lambda lm, texts: single_tokens.languages(lm.is_token, each=max(1, texts // 2)),
        data=(),
        samplers=SAMPLERS,
    ),
    "corruption": Task(
        lambda lm, texts: edited_texts.corruption(_docstrings(), texts),
        data=("docstrings",),
        samplers=SAMPLERS,
        wrong="tokens",
    ),
    "self-generation": Task(
        lambda lm, texts: own_texts.self_generation(lm, _docstrings(), texts),
        data=("docstrings",),
        samplers=SAMPLERS,
    ),
    "multi30k-en-de": Task(_own_translations, ("multi30k-en-de",)),
    "multi30k-en-de-errors": Task(_translation_errors, ("multi30k-en-de",), wrong="tokens"),
    **{f"mlqe-pe-{pair}": _rated(pair) for pair in ("en-de", "ro-en", "ru-en")},
    **{name: _marked(name) for name in ("hjqe-en-de", "mlqe-pe-tags-en-de", "mlqe-pe-tags-ro-en")},
    "paws-x-en-validation": _paraphrases("validation"),
    "paws-x-en": _paraphrases("test"),
    "gsm8k": Task(
        lambda lm, texts: arithmetic.changed_solutions(max(1, texts // 4)), ("gsm8k",), chat=True
    ),
    "gsm8k-own": Task(
        lambda lm, texts: arithmetic.own_answers(lm, max(1, texts // 20)), ("gsm8k",), chat=True
    ),
    "cola": Task(lambda lm, texts: benchmark_items.acceptability(texts), ("cola",)),
}
