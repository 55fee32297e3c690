"""How rows are put in words: the same prompts where a head learns and where outputs are judged.

Every prompt ends with a new line, and outputs begin without a space: what is judged is then the
same text for a plain model, for one with a chat template and for a decoder, and its words are what
stands between its spaces.
"""

import re

import pandas as pd

LANGUAGES = {"de": "German", "en": "English", "ro": "Romanian", "ru": "Russian"}
ANNOTATION = re.compile(r"<<[^<>]*>>")  # GSM8K: `3 * 4 = <<3*4=12>>12`
_NUMBER = r"-?[0-9][0-9,]*(?:\.[0-9]+)?"
_SOLUTION = re.compile(rf"^\s*(?P<steps>\S.*?)\s*\n#### (?P<number>{_NUMBER})\s*$", re.DOTALL)


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


def steps_and_numbers(answers: pd.Series, name: str) -> pd.DataFrame:
    """The field `answer` of GSM8K in two: `steps`, still with the annotations of a calculator, and
    `number`, the final one.

    Raises ValueError, naming the row of data set `name` (from 1), where an answer does not end in a
    line with #### and a number, behind some step.
    """
    table = answers.str.extract(_SOLUTION)
    for row, (answer, number) in enumerate(zip(answers, table["number"]), 1):
        if pd.isna(number):
            raise ValueError(f"{name}, row {row}: no solution, #### and a number: {answer!r}")
    return table


def conclusion(steps: str, number: str) -> str:
    """Steps without annotations, and the final number as a sentence on a line of its own."""
    return f"{ANNOTATION.sub('', steps)}\nThe answer is {number}."


def with_texts(table: pd.DataFrame, columns: list[str], name: str) -> pd.DataFrame:
    """The table. Raises ValueError, naming the row of data set `name` (from 1), where one of the
    columns has no text.
    """
    for column in columns:
        for row, text in enumerate(table[column], 1):
            if not text.strip():
                raise ValueError(f"{name}, row {row}: {column} is empty")
    return table
