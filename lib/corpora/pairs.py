"""Sources and targets made of benchmarks: the papers' news and questions, captions and their
translations, instructions and good responses.

Wherever the news come from (see `benchmarks`), the same amount is used: the first ROWS articles of
a split of the hub. Splits are drawn by a hash of the group's first text, and training texts that
share ten words with a test text are left out, so no group lies in two splits. A few hundred
summaries are too few to learn from how far a text has to go, so news has one more split,
`continuation`, for training only: beginnings of training articles and the sentences that follow.
"""

import hashlib
import re

import numpy as np
import pandas as pd

from lib.corpora import benchmarks, wording
from lib.corpora.duplicates import in_shares, near_duplicate_groups, without_overlap

ROWS = {"cnn-dailymail": 500, "xsum": 1000}  # articles of a split, as many as the mirror has
SEPARATOR = " | "  # between answer and context
LEAD = (20, 150)  # words of a beginning, fewest and most: within what a model reads of an article
INSTRUCTED = ("gsm8k", "multi30k-en-de", "squad-sentences")  # what instructions are made of
HELD_OUT = 0.1  # share of their problems, captions and sentences that make the validation split


def cnn_dailymail() -> pd.DataFrame:
    """Article -> highlights. Test: articles of the hub's test split; training (90 %) and
    validation: articles of its validation split.
    """
    known = _articles("cnn-dailymail", "validation", "article", "highlights")
    test = _articles("cnn-dailymail", "test", "article", "highlights")
    table = _split(known, {"train": 0.90, "validation": 0.10}, test)
    return _with_continuations(table, words=50)


def xsum() -> pd.DataFrame:
    """Article -> its one-sentence summary. The mirror has test articles only: 80 % of them train
    here, 5 % validate, 15 % test.
    """
    articles = _articles("xsum", "test", "document", "summary")
    table = _split(articles, {"train": 0.80, "validation": 0.05, "test": 0.15}, articles[:0])
    return _with_continuations(table, words=30)


def squad_qg() -> pd.DataFrame:
    """Answer, separator, context -> the question that has this answer (the first, where there are
    several). Training (95 %) and validation: the sentence with the answer as context; test: XQuAD,
    whole paragraphs, none of them a training text.
    """
    test = benchmarks.load("xquad-en", "validation")
    train = without_overlap(benchmarks.load("squad-sentences", "train"), test)
    shares = {"train": 0.95, "validation": 0.05}
    return _split(_questions(train), shares, _questions(test))


def multi30k() -> pd.DataFrame:
    """English caption -> German, in the splits of the data set; group: one number a source."""
    splits = ("train", "validation", "test")
    table = pd.concat([benchmarks.load("multi30k-en-de", s).assign(split=s) for s in splits])
    table["source"], table["target"] = table["en"].str.strip(), table["de"].str.strip()
    table["group"] = pd.factorize(table["source"])[0]
    return table[["source", "target", "group", "split"]].reset_index(drop=True)


def instructions() -> pd.DataFrame:
    """Prompt -> response, nearer to the tasks of the benchmarks than docstrings are: a word problem
    and its solution, a caption and its German translation, a sentence with a question and the
    answer. No test text is among them.

    Further columns: `dataset`, one of INSTRUCTED. Within a split they take turns, so that the first
    rows have equal shares too. Raises ValueError where a row has no text.
    """
    read = {name: _instructed(name) for name in INSTRUCTED}
    turns = []
    for split in ("train", "validation"):
        own = [t[t["split"] == split].sample(frac=1.0, random_state=0) for t in read.values()]
        size = min(map(len, own))
        one = pd.concat([table.head(size).assign(turn=range(size)) for table in own])
        turns.append(one.sort_values("turn", kind="stable").drop(columns="turn"))
    table = pd.concat(turns, ignore_index=True)
    return table.assign(group=pd.factorize(table["key"])[0]).drop(columns="key")


def _articles(name: str, split: str, source: str, target: str) -> pd.DataFrame:
    table = benchmarks.load(name, split)[: ROWS[name]]
    return pd.DataFrame({"source": table[source], "target": table[target], "text": table[source]})


def _questions(rows: pd.DataFrame) -> pd.DataFrame:
    answers = [answer["text"][0] for answer in rows["answers"]]
    sources = [answer + SEPARATOR + context for answer, context in zip(answers, rows["context"])]
    return pd.DataFrame({"source": sources, "target": rows["question"], "text": rows["context"]})


def _split(known: pd.DataFrame, shares: dict[str, float], test: pd.DataFrame) -> pd.DataFrame:
    """`known` split in these shares, `test` after it; columns of both: source, target, and text,
    which near-duplicates share.
    """
    table = pd.concat([known.assign(split=""), test.assign(split="test")], ignore_index=True)
    table["group"] = near_duplicate_groups(table["text"].tolist())  # named by the group's first row
    drawn = table["split"] == ""
    place = table["text"].iloc[table["group"]].map(_fraction).to_numpy()
    table.loc[drawn, "split"] = in_shares(place[drawn], shares)
    leaked = drawn & table["group"].isin(table.loc[~drawn, "group"])
    table = table.loc[~leaked, ["source", "target", "group", "split"]].reset_index(drop=True)
    for column in ("source", "target"):
        table[column] = [" ".join(text.split()) for text in table[column]]
    return table


def _with_continuations(table: pd.DataFrame, words: int) -> pd.DataFrame:
    """The table, and below it a pair for each sentence end that is LEAD words into a training
    article: all before it -> whole sentences after it, as many as fit into a number of words drawn
    up to `words`; none where the first does not fit.
    """
    rng, rows = np.random.default_rng(0), []
    for article in table[table["split"] == "train"].itertuples():
        sentences = re.split(r"(?<=[.!?]) ", article.source)
        ends = np.cumsum([len(sentence.split()) for sentence in sentences])
        for number, end in enumerate(ends[:-1], 1):
            last = np.searchsorted(ends, end + rng.integers(1, words + 1), side="right")
            if LEAD[0] <= end <= LEAD[1] and last > number:
                texts = (" ".join(sentences[:number]), " ".join(sentences[number:last]))
                rows.append((*texts, article.group, "continuation"))
    return pd.concat([table, pd.DataFrame(rows, columns=table.columns)], ignore_index=True)


def _fraction(text: str) -> float:
    """A number in [0, 1) that is a fixed function of the text."""
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") / 2**64


def _instructed(name: str) -> pd.DataFrame:
    """One data set: `source`, `target`, `key` (what stays on one side of the split), `split`."""
    table = benchmarks.load(name, "train")
    if name == "gsm8k":
        table["key"], table["source"] = (
            table["question"],
            table["question"].map(wording.word_problem),
        )
        solutions = wording.steps_and_numbers(table["answer"], name)
        table["target"] = [wording.conclusion(*row) for row in solutions.to_numpy()]
    elif name == "multi30k-en-de":
        table["key"], table["target"] = table["en"].str.strip(), table["de"].str.strip()
        table["source"] = [wording.translation(text, "en-de") for text in table["key"]]
    else:
        answers = [answers["text"][0].strip() for answers in table["answers"]]
        closed = ("", ".", "!", "?")
        table["key"] = table["context"]
        table["source"] = [
            wording.reading(*row) for row in zip(table["question"], table["context"])
        ]
        table["target"] = [text if text[-1:] in closed else f"{text}." for text in answers]
    table = wording.with_texts(table, ["key", "target"], name)
    keys = table["key"].drop_duplicates().sample(frac=1.0, random_state=0)
    held_out = table["key"].isin(keys.head(round(HELD_OUT * len(keys))))
    table["split"] = held_out.map({True: "validation", False: "train"})
    return table[["source", "target", "key", "split"]].assign(dataset=name)
