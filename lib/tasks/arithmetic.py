"""Arithmetic (GSM8K): solutions of word problems with one number changed, and a model's own
answers. Problems are rows of `lib.corpora.benchmarks.load`. Group: the problem.
"""

import re
from decimal import Decimal

import numpy as np
import pandas as pd

from lib.corpora import pairs
from lib.quality.language_models import LanguageModel
from lib.study.models import as_turns
from lib.tasks import make_items, some_groups

MAX_TOKENS = 256  # of an answer; one that is cut off is judged as it is
_NUMBER = r"(?:(?:[0-9]{1,3}(?:,[0-9]{3})+(?![0-9])|[0-9]+)(?:\.[0-9]+)?|\.[0-9]+)"
# "6th" and "3/4" would give a change away
_RESULT = re.compile(rf"-?{_NUMBER}(?![0-9]|/[0-9]|st\b|nd\b|rd\b|th\b)")
_SIGNED = re.compile(rf"(?:(?<![\w)])[-−][$€£]?)?{_NUMBER}")  # in "20-5" there is no sign
_SIGNIFICANT = re.compile(r"[1-9](?:[0-9.,]*[1-9])?")


def changed_solutions(
    problems: pd.DataFrame, limit: int | None = None, seed: int = 0
) -> pd.DataFrame:
    """The reference solution of each problem (gold 1) and the same with one number replaced by
    another of as many digits and as round (gold 0): the result of a step (`changed` step), what
    follows from it staying as it was, or the final number (answer).

    `text` numbers the problems; `wrong_words` is the place of the changed number, words ending at
    spaces. Problems in which nothing can be changed are left out.
    """
    rows = []
    for line in _prepared(problems, limit).itertuples():
        rng = np.random.default_rng([seed, line.Index])  # the same whatever the limit
        original = pairs.conclusion(line.steps, line.number)
        edits = {"step": _change_step(line, rng), "answer": _change_answer(line, rng)}
        for name, edit in edits.items():
            common = {"group": line.group, "changed": name, "prompt": line.prompt}
            for output, gold, wrong in [(original, 1.0, []), edit] if edit else []:
                answer = {"output": output, "gold": gold, "wrong_words": wrong}
                rows.append({**common, "text": line.Index, **answer})
    return make_items(rows)


def own_answers(
    lm: LanguageModel, problems: pd.DataFrame, limit: int | None, samples: int = 3, seed: int = 0
) -> pd.DataFrame:
    """The model's answers to problems: the likeliest token at each step (`decoding` greedy),
    and `samples` drawn from its whole distribution (sample). Gold 1 where the last number is right,
    however the model got there. An answer without text is left out.
    """
    problems = _prepared(problems, limit).drop(columns="steps")
    repeated = problems.loc[np.repeat(problems.index, samples)]
    tables = []
    for name, table in (("greedy", problems), ("sample", repeated)):
        prompts = table["prompt"].tolist()
        prompts = as_turns(lm.tokenizer, prompts) if lm.has_turns else prompts
        outputs = lm.continuations(prompts, MAX_TOKENS, seed, greedy=name == "greedy")
        tables.append(table.assign(decoding=name, output=outputs))
    table = pd.concat(tables)
    table["gold"] = [float(correct(*row)) for row in zip(table["output"], table["number"])]
    return make_items(table[table["output"].str.strip() != ""].drop(columns="number"))


def correct(answer: str, reference: str) -> bool:
    """Whether the last numbers of both texts have the same value, however it is written.

    >>> correct("So she pays $1,200.00 in all.", "1200")
    True
    """
    values = [_SIGNED.findall(text)[-1:] for text in (answer, reference)]
    return bool(values[0]) and _value(values[0][0]) == _value(values[1][0])


def other_number(number: str, rng: np.random.Generator) -> str:
    """A number of another value that looks alike: as many digits, as round (zeros at both ends
    stay), the same sign, point and commas. Never 1: the noun behind it would be in the plural.
    """
    match, new = _SIGNIFICANT.search(number), number
    start, end = match.span()
    while _value(new) in (_value(number), 1):
        digits = list(match.group())
        for place, digit in enumerate(digits):
            if digit.isdigit():
                digits[place] = str(rng.integers(place in (0, len(digits) - 1), 10))
        new = number[:start] + "".join(digits) + number[end:]
    return new


def _prepared(table: pd.DataFrame, limit: int | None) -> pd.DataFrame:
    """Columns group, prompt, steps, number; the index numbers the problems."""
    table = pairs.with_texts(table, ["question"], "gsm8k")
    columns = pairs.steps_and_numbers(table["answer"])
    prompts = table["question"].map(pairs.word_problem)
    group = pd.factorize(table["question"])[0]
    return some_groups(columns.assign(group=group, prompt=prompts), limit)


def _change_step(line, rng: np.random.Generator) -> tuple | None:
    """Output, gold and place of the changed word; None where there is nothing to change: a result,
    which follows its annotation, that is not also the final number.
    """
    parts = pairs.ANNOTATION.split(line.steps)
    matches = {i: match for i, part in enumerate(parts) if i and (match := _RESULT.match(part))}
    final = (0, 1, _value(line.number))
    places = [i for i, match in matches.items() if _value(match.group()) not in final]
    if not places:
        return None
    i = places[rng.integers(len(places))]
    result, before = matches[i].group(), "".join(parts[:i])
    after = "".join([parts[i].removeprefix(result), *parts[i + 1 :]])
    steps = before + other_number(result, rng) + after
    return pairs.conclusion(steps, line.number), 0.0, [before.count(" ")]


def _change_answer(line, rng: np.random.Generator) -> tuple | None:
    """The final number, in the last word."""
    if _value(line.number) in (0, 1):
        return None
    output = pairs.conclusion(line.steps, other_number(line.number, rng))
    return output, 0.0, [output.count(" ")]


def _value(number: str) -> Decimal:
    return Decimal(re.sub("[,$€£]", "", number).replace("−", "-"))
