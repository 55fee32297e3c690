"""The data sets of the length experiments, and what differs with each of them."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

import datasets

from lib.corpora import docstrings, pairs


@dataclass(frozen=True)
class Corpus:
    """One data set. Lengths in tokens, EOS included, or in what it counts."""

    load: Callable[[], datasets.Dataset]  # id, source, target, group, split: see lib.corpora.pairs
    fingerprint: Callable[[], str]  # hash of its content; needs no data at hand
    max_source: int  # tokens; longer sources are cut
    vocabulary: int  # entries of tiny-bart's own tokenizer
    positions: int  # of tiny-bart
    max_train_length: int  # for notebooks that use several: training targets are shorter than this
    bertscore: bool = False  # whether outputs are also compared by BERTScore
    counted: str = "tokens"  # what lengths count; see lib.length.counting
    base: str = ""  # data set whose tiny BART is fine-tuned, if not its own
    labels: tuple[str, str] = ("Summary", "Description")  # of source and target, in a prompt


def _benchmark(
    load: Callable, *names: str, max_train_length: int, labels: tuple[str, str]
) -> Corpus:
    """The lead of an article, or an answer in its context; nine in ten training targets are shorter
    than the cut, in tokens of tiny-bart.
    """
    content = partial(pairs.fingerprint, *names)
    return Corpus(load, content, 256, 4096, 1024, max_train_length, True, labels=labels)


_DOCSTRINGS = Corpus(docstrings.load, docstrings.fingerprint, 64, 2048, 512, max_train_length=64)
# words and characters: cuts that leave as many training targets as 64 tokens do
_WORDS = replace(_DOCSTRINGS, counted="words", max_train_length=32, base="docstrings")
_CHARACTERS = replace(_DOCSTRINGS, counted="characters", max_train_length=208, base="docstrings")
CORPORA: dict[str, Corpus] = {
    "docstrings": _DOCSTRINGS,
    "docstrings-words": _WORDS,
    "docstrings-characters": _CHARACTERS,
    "cnn-dailymail": _benchmark(
        pairs.cnn_dailymail,
        "cnn-dailymail",
        max_train_length=76,
        labels=("Article", "Highlights"),
    ),
    "xsum": _benchmark(pairs.xsum, "xsum", max_train_length=46, labels=("Article", "Summary")),
    "squad-qg": _benchmark(
        pairs.squad_qg,
        "squad-sentences",
        "xquad-en",
        max_train_length=24,
        labels=("Answer | Context", "Question"),
    ),
}


def fingerprint(corpus: str) -> str:
    """Hash of what a data set is. Raises ValueError for an unknown one, naming those that exist."""
    if corpus not in CORPORA:
        raise ValueError(f"unknown data set {corpus!r}: choose one of {', '.join(CORPORA)}")
    return CORPORA[corpus].fingerprint()
