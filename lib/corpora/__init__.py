"""Text by name: what models learn from, and the benchmarks that outputs are judged on.

    table = load("docstrings")             # id, source, target, group, split
    fingerprint("docstrings")              # hash of its content, without the data at hand

The rows of a benchmark as they are published: `lib.corpora.benchmarks`.
"""

from collections.abc import Callable
from dataclasses import dataclass

import pandas as pd

from lib.corpora import benchmarks, docstrings, pairs
from lib.study.rows import digest


@dataclass(frozen=True)
class Corpus:
    """Sources and targets, a table: `id` (running number), `source`, `target`,
    `group` (near-duplicates, or one source; never in two splits) and `split` (train, validation,
    mostly test; news has `continuation` too, for training only).
    """

    load: Callable[[], pd.DataFrame]
    made_of: tuple[str, ...] = ()  # benchmarks; docstrings come from packages
    version: int = 1  # raised when a change of the code that makes it moves a text
    prompt: Callable[[str], str] = str  # what a language model reads before a target
    chat: bool = False  # the prompt is a user's turn where a model has a chat template


CORPORA = {
    "docstrings": Corpus(docstrings.load, prompt=pairs.docstring),
    "cnn-dailymail": Corpus(pairs.cnn_dailymail, ("cnn-dailymail",)),
    "xsum": Corpus(pairs.xsum, ("xsum",)),
    "squad-qg": Corpus(pairs.squad_qg, ("squad-sentences", "xquad-en")),
    "multi30k-en-de": Corpus(pairs.multi30k, ("multi30k-en-de",)),
    "instructions": Corpus(pairs.instructions, pairs.INSTRUCTED, chat=True),
}


def load(name: str) -> pd.DataFrame:
    """The table of a corpus. Raises ValueError for an unknown name; else as `benchmarks.load`."""
    table = corpus(name).load()
    return table.set_axis(pd.RangeIndex(len(table), name="id")).reset_index()


def fingerprint(*names: str) -> str:
    """Hash of the content of corpora or benchmarks, from what is declared about them, without the
    data. Raises ValueError for an unknown name.
    """
    declared = []
    for name in names:
        if name in benchmarks.BENCHMARKS and name not in CORPORA:
            declared.append(benchmarks.declared(name))
            continue
        sources = [benchmarks.declared(source) for source in corpus(name).made_of]
        packages = docstrings.fingerprint() if name == "docstrings" else None
        declared.append([name, CORPORA[name].version, sources, packages])
    return digest(declared)


def examples(name: str, split: str, count: int) -> pd.DataFrame:
    """`prompt` and `output` of up to `count` rows of a split, the same ones every time: what heads
    and fitted scores learn from.
    """
    table = load(name).query("split == @split")
    some = table.sample(min(count, len(table)), random_state=0).reset_index(drop=True)
    return pd.DataFrame(
        {"prompt": some["source"].map(CORPORA[name].prompt), "output": some["target"]}
    )


def corpus(name: str) -> Corpus:
    """One of CORPORA. Raises ValueError for an unknown name, naming the known ones."""
    if name not in CORPORA:
        raise ValueError(f"unknown data set {name!r}: choose one of {', '.join(CORPORA)}")
    return CORPORA[name]
