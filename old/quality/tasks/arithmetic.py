"""Arithmetic (GSM8K): solutions of word problems with one number changed, and the model's own answers.

Changed numbers: gold 1 for the reference solution, 0 for the same with one number replaced by another of as many digits and as round.
In slice `changed=step` it is the result of a step, and what follows from it stays as it was; in `changed=answer` it is the final number.
Own answers: gold 1 where the last number is the right one; how the model got there is not judged.
"""

import re
from decimal import Decimal

import numpy as np
import pandas as pd

from old.corpora import benchmarks, wording
from old.quality.language_models import LanguageModel
from old.quality.tasks import make_items
from old.quality.tasks.benchmark_rows import some_groups
from old.quality.tasks.self_generation import sample

SLICES = ("changed=step", "changed=answer")

_NUMBER = r"(?:(?:[0-9]{1,3}(?:,[0-9]{3})+(?![0-9])|[0-9]+)(?:\.[0-9]+)?|\.[0-9]+)"
_RESULT = re.compile(rf"-?{_NUMBER}(?![0-9]|/[0-9]|st\b|nd\b|rd\b|th\b)")  # "6th" and "3/4" would give a change away
_SIGNED = re.compile(rf"(?:(?<![\w)])[-−][$€£]?)?{_NUMBER}")  # in "20-5" there is no sign
_SIGNIFICANT = re.compile(r"[1-9](?:[0-9.,]*[1-9])?")


def items(split: str = "test", limit: int | None = None, seed: int = 0) -> pd.DataFrame:
    """Of every problem of a split (train, test), or of `limit`, in both slices the reference solution and the changed one (so an original
    appears twice). `text` numbers the problems and pairs the two; `wrong_words` has the place of the changed number.

    Words end at spaces only: the last of a line and the first of the next are one. Where no number can be changed, the problem is left out
    of the slice and counted (attrs["unchangeable"], by slice). Group: the problem. Raises as `benchmarks.load` does; ValueError for a row
    without a question or a final number, which is named, for a limit below 1, and where nothing can be changed in any problem.
    """
    rows, unchangeable = [], dict.fromkeys(SLICES, 0)
    for line in _problems(split, limit).itertuples():
        rng = np.random.default_rng([seed, line.Index])  # whatever the limit, a problem's numbers are the same
        original = wording.conclusion(line.steps, line.number)
        for name, changed in zip(SLICES, (_change_step(line.steps, line.number, rng), _change_answer(line.steps, line.number, rng))):
            if changed is None:
                unchangeable[name] += 1
                continue
            common = {"group": line.group, "slice": name, "prompt": line.prompt, "text": line.Index}
            rows.append({**common, "output": original, "gold": 1.0, "wrong_words": []})
            rows.append({**common, "output": changed[0], "gold": 0.0, "wrong_words": [changed[1]]})
    if not rows:
        raise ValueError("no number can be changed in any of these problems")
    found = make_items(rows)
    found.attrs["unchangeable"] = unchangeable
    return found


def own_items(lm: LanguageModel, limit: int | None = 50, samples: int = 3, max_tokens: int = 256, seed: int = 0) -> pd.DataFrame:
    """The model's answers to the problems of the test split, or to `limit`: the likeliest token at each step (slice `decoding=greedy`), and
    `samples` drawn from its whole distribution (`decoding=sample`). It saw the prompt as the user's turn where it has a chat template.

    Group: the problem. An answer without text is left out and counted (attrs["empty"]); one cut off at `max_tokens` is judged as it is.
    Raises as `items` does.
    """
    problems = _problems("test", limit)
    turns = lm.as_turns(problems["prompt"].tolist()) if lm.has_turns else problems["prompt"].tolist()
    greedy = sample(lm, turns, max_tokens, seed, greedy=True)
    sampled = sample(lm, [turn for turn in turns for _ in range(samples)], max_tokens, seed)
    repeated = problems.loc[np.repeat(problems.index, samples)]
    table = pd.concat([problems.assign(slice="decoding=greedy"), repeated.assign(slice="decoding=sample")])
    table = table.assign(output=[*greedy, *sampled])
    table["gold"] = [float(correct(*row)) for row in zip(table["output"], table["number"])]
    found = make_items(table[table["output"].str.strip() != ""].drop(columns=["steps", "number"]))
    found.attrs["empty"] = len(table) - len(found)
    return found


def correct(answer: str, reference: str) -> bool:
    """Whether the last numbers of both texts have the same value, however it is written. ValueError for a reference without any.

    >>> correct("So she pays $1,200.00 in all.", "1200")
    True
    """
    right = _last_number(reference)
    if right is None:
        raise ValueError(f"no number in the reference answer {reference!r}")
    return _last_number(answer) == right


def other_number(number: str, rng: np.random.Generator) -> str:
    """A number of another value that looks alike: as many digits, as round (zeros at both ends stay), the same sign, point and commas.

    Never 1: the noun behind it would be in the plural. ValueError for zero.
    """
    found = _SIGNIFICANT.search(number)
    if found is None:
        raise ValueError(f"{number!r} has no digit that could be changed")
    new = number
    while _value(new) in (_value(number), 1):
        digits = list(found.group())
        for place, digit in enumerate(digits):
            if digit.isdigit():
                digits[place] = str(rng.integers(1 if place in (0, len(digits) - 1) else 0, 10))
        new = number[: found.start()] + "".join(digits) + number[found.end() :]
    return new


def _problems(split: str, limit: int | None) -> pd.DataFrame:
    """Columns group, prompt, steps, number; the index numbers the problems of the split."""
    name, table = f"gsm8k {split}", benchmarks.load("gsm8k", split).to_pandas()
    group, prompts = pd.factorize(table["question"])[0], wording.with_texts(table, ["question"], name)["question"].map(wording.word_problem)
    return some_groups(wording.steps_and_numbers(table["answer"], name).assign(group=group, prompt=prompts), limit)


Changed = tuple[str, int] | None  # the output and the place of the changed word; None where there is nothing to change


def _change_step(steps: str, number: str, rng: np.random.Generator) -> Changed:
    """A result, which follows its annotation, that is not also the final number."""
    parts = wording.ANNOTATION.split(steps)
    results = {i: found.group() for i, part in enumerate(parts) if i and (found := _RESULT.match(part))}
    places = [i for i, result in results.items() if _value(result) not in (0, 1, _value(number))]
    if not places:
        return None
    i = places[rng.integers(len(places))]
    before, after = "".join(parts[:i]), "".join([parts[i].removeprefix(results[i]), *parts[i + 1 :]])
    return wording.conclusion(before + other_number(results[i], rng) + after, number), before.count(" ")


def _change_answer(steps: str, number: str, rng: np.random.Generator) -> Changed:
    """The final number, in the last word."""
    if _value(number) in (0, 1):
        return None
    output = wording.conclusion(steps, other_number(number, rng))
    return output, output.count(" ")


def _last_number(text: str) -> Decimal | None:
    numbers = _SIGNED.findall(text)
    return _value(numbers[-1]) if numbers else None


def _value(number: str) -> Decimal:
    return Decimal(re.sub("[,$€£]", "", number).replace("−", "-"))
