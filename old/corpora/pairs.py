"""The papers' data for length control as pairs of source and target: CNN/DailyMail, XSum, and questions from SQuAD.

Columns as of `docstrings.load`: `id` (running number), `source`, `target`, `group` (texts sharing ten consecutive words), `split`. Wherever
the data come from (see `benchmarks`), the same amount is used: the first ROWS articles of a split of the hub. Splits are drawn by a hash of
the group's first text, and training texts that share ten words with a test text are left out, so no group lies in two splits.

A few hundred summaries are too few to learn from how far a text has to go, so news has one more split, `continuation`: beginnings of the
training articles and the sentences that follow, for training only.
"""

import hashlib
import re

import datasets
import numpy as np
import pandas as pd

from old.corpora import benchmarks
from old.corpora.docstrings import near_duplicate_groups

RECIPE = 1  # bump when a change here moves the pairs
ROWS = {"cnn-dailymail": 500, "xsum": 1000}  # articles of a split, as many as the mirror has
SEPARATOR = " | "  # between answer and context
LEAD = (20, 150)  # words of a beginning, fewest and most: within the part of an article that a model is shown


def cnn_dailymail() -> datasets.Dataset:
    """Article -> highlights. Test: articles of the hub's test split; training (90 %) and validation: articles of its validation split."""
    parts = [_articles("cnn-dailymail", split, "article", "highlights") for split in ("validation", "test")]
    return _dataset(_with_continuations(_pairs(*parts, shares={"train": 0.90, "validation": 0.10}), words=50))


def xsum() -> datasets.Dataset:
    """Article -> its one-sentence summary. The mirror has test articles only: 80 % of them train here, 5 % validate, 15 % test."""
    articles = _articles("xsum", "test", "document", "summary")
    return _dataset(_with_continuations(_pairs(articles, articles[:0], shares={"train": 0.80, "validation": 0.05, "test": 0.15}), words=30))


def squad_qg() -> datasets.Dataset:
    """Answer, separator, context -> question about the context that has this answer (the first one, where several are given).

    Training (95 %) and validation: the sentence with the answer as context; test: XQuAD, whole paragraphs, none of them a training text.
    """
    test = benchmarks.load("xquad-en", "validation")
    train = benchmarks.without_overlap(benchmarks.load("squad-sentences", "train"), test)
    return _dataset(_pairs(_questions(train), _questions(test), shares={"train": 0.95, "validation": 0.05}))


def fingerprint(*names: str) -> str:
    """Hash of the declared data sets (`benchmarks.fingerprint`) and of how pairs are made of them; needs no data at hand."""
    return f"{benchmarks.fingerprint(*names)}-r{RECIPE}"


def _articles(name: str, split: str, source: str, target: str) -> pd.DataFrame:
    table = benchmarks.load(name, split).to_pandas()[: ROWS[name]]
    return pd.DataFrame({"source": table[source], "target": table[target], "text": table[source]})


def _questions(rows: datasets.Dataset) -> pd.DataFrame:
    answers = [answer["text"][0] for answer in rows["answers"]]
    sources = [answer + SEPARATOR + context for answer, context in zip(answers, rows["context"])]
    return pd.DataFrame({"source": sources, "target": list(rows["question"]), "text": list(rows["context"])})


def _pairs(known: pd.DataFrame, test: pd.DataFrame, shares: dict[str, float]) -> pd.DataFrame:
    """`known` split in these shares, with `test` after it. Columns of both: source, target, and text, which near-duplicates share."""
    table = pd.concat([known.assign(split=""), test.assign(split="test")], ignore_index=True)
    table["group"] = near_duplicate_groups(table["text"].tolist())  # named by the group's first row
    drawn = table["split"] == ""
    place = table["text"].iloc[table["group"]].map(_fraction).to_numpy()
    bounds = pd.Series(shares).cumsum()
    table.loc[drawn, "split"] = bounds.index[bounds.searchsorted(place[drawn], side="right").clip(max=len(bounds) - 1)]
    leaked = drawn & table["group"].isin(table.loc[~drawn, "group"])
    table = table.loc[~leaked, ["source", "target", "group", "split"]].reset_index(drop=True)
    for column in ("source", "target"):
        table[column] = table[column].str.split().str.join(" ")  # one line, single spaces
    return table


def _with_continuations(table: pd.DataFrame, words: int) -> pd.DataFrame:
    """The table, and below it one pair for each sentence end that is LEAD words into a training article: all before it -> whole sentences
    after it, as many as fit into a number of words drawn up to `words`. None where the first does not fit."""
    rng, rows = np.random.default_rng(0), []
    for article in table[table["split"] == "train"].itertuples():
        sentences = re.split(r"(?<=[.!?]) ", article.source)
        ends = np.cumsum([len(sentence.split()) for sentence in sentences])
        for number, end in enumerate(ends[:-1], 1):
            last = np.searchsorted(ends, end + rng.integers(1, words + 1), side="right")
            if LEAD[0] <= end <= LEAD[1] and last > number:
                rows.append((" ".join(sentences[:number]), " ".join(sentences[number:last]), article.group, "continuation"))
    return pd.concat([table, pd.DataFrame(rows, columns=table.columns)], ignore_index=True)


def _dataset(table: pd.DataFrame) -> datasets.Dataset:
    return datasets.Dataset.from_pandas(table.assign(id=range(len(table)))[["id", *table]], preserve_index=False)


def _fraction(text: str) -> float:
    """A number in [0, 1) that is a fixed function of the text."""
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") / 2**64
