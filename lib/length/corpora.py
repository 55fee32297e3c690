"""What differs between the data sets of the length experiments."""

from dataclasses import dataclass, replace

import pandas as pd

from lib import corpora


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
    counted: str = "tokens"  # what lengths count; see lib.length.counting

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
