"""Sources and targets made of benchmarks: news, questions, translations, instructions; and how rows
are put in words, the same where a head learns and where outputs are judged. A prompt ends with a
new line and outputs begin without a space: the same text for plain, chat and translation models.
"""

import hashlib
import re
import unicodedata

import numpy as np
import pandas as pd

from lib.corpora import benchmarks
from lib.corpora.docstrings import in_shares, near_duplicate_groups

ROWS = {"cnn-dailymail": 500, "xsum": 1000}  # articles of a split, as many as the mirror has
SEPARATOR = " | "  # between answer and context
LEAD = (20, 150)  # words of a beginning, fewest and most: within what a model reads of an article
INSTRUCTED = ("gsm8k", "multi30k-en-de", "squad-sentences")  # what instructions are made of
HELD_OUT = 0.1  # share of their problems, captions and sentences that make the validation split
LANGUAGES = {"de": "German", "en": "English", "ro": "Romanian", "ru": "Russian"}
ANNOTATION = re.compile(r"<<[^<>]*>>")  # GSM8K: `3 * 4 = <<3*4=12>>12`
_NUMBER = r"-?[0-9][0-9,]*(?:\.[0-9]+)?"
_SOLUTION = re.compile(rf"^\s*(?P<steps>\S.*?)\s*\n#### (?P<number>{_NUMBER})\s*$", re.DOTALL)


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
    """`known` split in these shares by a hash of a group's first text, without what shares ten
    words with `test`, and `test` after it; columns: source, target, and text, which is grouped.
    """
    table = pd.concat([known.assign(split=""), test.assign(split="test")], ignore_index=True)
    table["group"] = near_duplicate_groups(table["text"].tolist())  # named by the group's first row
    drawn = table["split"] == ""
    hashes = [hashlib.sha256(text.encode()).digest() for text in table["text"]]
    place = np.array([int.from_bytes(one[:8], "big") / 2**64 for one in hashes])[table["group"]]
    table.loc[drawn, "split"] = in_shares(place[drawn], shares)
    leaked = drawn & table["group"].isin(table.loc[~drawn, "group"])
    table = table.loc[~leaked, ["source", "target", "group", "split"]].reset_index(drop=True)
    texts = table[["source", "target"]].map(lambda text: " ".join(text.split()))
    return table.assign(**texts)


def _with_continuations(table: pd.DataFrame, words: int) -> pd.DataFrame:
    """The table, and below it more to learn from: for each sentence end that is LEAD words into a
    training article, all before it -> whole sentences after it, as many as fit into a number of
    words drawn up to `words`; none where the first does not fit.
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


def without_overlap(train: pd.DataFrame, test: pd.DataFrame) -> pd.DataFrame:
    """The rows of `train` that share neither a question with `test`, nor a context that lies within
    one of its contexts; case, punctuation and Unicode variants do not count. (XQuAD is a part of
    SQuAD's dev set, of which `squad-sentences` is made.)
    """

    def normalised(text: str) -> str:
        words = re.findall(r"\w+", unicodedata.normalize("NFKC", text).casefold())
        return f" {' '.join(words)} "

    questions = set(test["question"].map(normalised))
    paragraphs = "\n".join(set(test["context"].map(normalised)))
    inside = train["context"].map(lambda context: normalised(context) in paragraphs)
    known = train["question"].map(normalised).isin(questions)
    return train[~(inside | known)].reset_index(drop=True)


def _instructed(name: str) -> pd.DataFrame:
    """One data set: `source`, `target`, `key` (what stays on one side of the split), `split`."""
    table = benchmarks.load(name, "train")
    if name == "gsm8k":
        table["key"] = table["question"]
        table["source"] = table["question"].map(word_problem)
        solutions = steps_and_numbers(table["answer"]).to_numpy()
        table["target"] = [conclusion(*row) for row in solutions]
    elif name == "multi30k-en-de":
        table["key"], table["target"] = table["en"].str.strip(), table["de"].str.strip()
        table["source"] = [translation(text, "en-de") for text in table["key"]]
    else:
        table["key"] = table["context"]
        table["source"] = [reading(*row) for row in table[["question", "context"]].to_numpy()]
        answers = table["answers"].map(lambda answers: answers["text"][0].strip())
        table["target"] = answers.str.replace(r"(?<=[^.!?])$", ".", regex=True)
    table = with_texts(table, ["key", "target"], name)
    keys = table["key"].drop_duplicates().sample(frac=1.0, random_state=0)
    held_out = table["key"].isin(keys.head(round(HELD_OUT * len(keys))))
    table["split"] = held_out.map({True: "validation", False: "train"})
    return table[["source", "target", "key", "split"]].assign(dataset=name)


# ---- in words ------------------------------------------------------------------------------------


def docstring(summary: str) -> str:
    """The summary line as a prompt: the description follows on a new line."""
    return f"{summary}\n"


def translation(source: str, pair: str) -> str:
    r"""Asks for a translation.

    >>> translation("Da.", "ro-en")
    'Translate from Romanian to English.\nRomanian: Da.\nEnglish:\n'
    """
    before, after = (LANGUAGES[code] for code in pair.split("-"))
    return f"Translate from {before} to {after}.\n{before}: {source}\n{after}:\n"


def paraphrase(sentence: str) -> str:
    """Asks for the same in other words."""
    return f"Say the same in other words.\nSentence: {sentence}\nParaphrase:\n"


def word_problem(question: str) -> str:
    """Asks for the solution of a word problem of GSM8K."""
    return f"Solve the problem step by step.\nProblem: {question}\nSolution:\n"


def reading(question: str, context: str) -> str:
    """Asks a question about a text that holds the answer."""
    return f"Answer the question from the text.\nText: {context}\nQuestion: {question}\nAnswer:\n"


def steps_and_numbers(answers: pd.Series) -> pd.DataFrame:
    """The field `answer` of GSM8K in two: `steps`, still with the annotations of a calculator, and
    `number`, the final one. Raises ValueError, naming the row (from 1), where one is not so.
    """
    table = answers.str.extract(_SOLUTION)
    if (wrong := table["number"].isna()).any():
        raise ValueError(f"gsm8k, row {wrong.idxmax() + 1}: no solution, #### and a number")
    return table


def conclusion(steps: str, number: str) -> str:
    """Steps without annotations, and the final number as a sentence on a line of its own."""
    return f"{ANNOTATION.sub('', steps)}\nThe answer is {number}."


def with_texts(table: pd.DataFrame, columns: list[str], name: str) -> pd.DataFrame:
    """The table of data set `name`. Raises ValueError, naming the row, where a column is empty."""
    for column in columns:
        if (empty := table[column].str.strip() == "").any():
            raise ValueError(f"{name}, row {empty.idxmax() + 1}: {column} is empty")
    return table
