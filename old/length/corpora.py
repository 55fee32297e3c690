"""The data sets of the length-control experiment, and what differs with each of them."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

import datasets

from old.corpora import docstrings, pairs


@dataclass(frozen=True)
class Corpus:
    """One data set. Keys of results do not hold these numbers: whoever changes one bumps the RECIPE that enters `fingerprint`."""

    load: Callable[[], datasets.Dataset]  # columns id, source, target, group, split (train, validation, test; see old.corpora.pairs)
    fingerprint: Callable[[], str]  # hash of its content; needs no data at hand
    max_source: int  # tokens; longer sources are cut
    vocabulary: int  # entries of tiny-bart's own tokenizer
    positions: int  # of tiny-bart
    max_train_length: int  # for notebooks that use several data sets: training targets are shorter than this
    bertscore: bool = False  # whether outputs are also compared by BERTScore
    counted: str = "tokens"  # what lengths count; see old.length.counting
    base: str = ""  # data set whose tiny BART is fine-tuned, if not its own
    labels: tuple[str, str] = ("Summary", "Description")  # what the prompt of a decoder-only model calls source and target


def _benchmark(load: Callable[[], datasets.Dataset], *names: str, max_train_length: int, labels: tuple[str, str]) -> Corpus:
    """The lead of an article, or the answer and its context; nine in ten training targets are below the cut, in tokens of tiny-bart."""
    return Corpus(load, partial(pairs.fingerprint, *names), 256, 4096, 1024, max_train_length, bertscore=True, labels=labels)


_DOCSTRINGS = Corpus(docstrings.load, docstrings.fingerprint, max_source=64, vocabulary=2048, positions=512, max_train_length=64)

# words and characters: cuts that leave as many training targets as 64 tokens do
DATASETS: dict[str, Corpus] = {
    "docstrings": _DOCSTRINGS,
    "docstrings-words": replace(_DOCSTRINGS, counted="words", max_train_length=32, base="docstrings"),
    "docstrings-characters": replace(_DOCSTRINGS, counted="characters", max_train_length=208, base="docstrings"),
    "cnn-dailymail": _benchmark(pairs.cnn_dailymail, "cnn-dailymail", max_train_length=76, labels=("Article", "Highlights")),
    "xsum": _benchmark(pairs.xsum, "xsum", max_train_length=46, labels=("Article", "Summary")),
    "squad-qg": _benchmark(pairs.squad_qg, "squad-sentences", "xquad-en", max_train_length=24, labels=("Answer | Context", "Question")),
}
