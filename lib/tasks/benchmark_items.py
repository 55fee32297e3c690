"""Outputs of the benchmarks, judged by people (translations, paraphrases, acceptability) or by what
is known (arithmetic, GSM8K: solutions with one number changed, and a model's own answers). Each
takes rows of `lib.corpora.benchmarks.load`; `limit` counts groups. ValueError for a missing text.
"""

import re
from decimal import Decimal

import numpy as np
import pandas as pd

from lib.corpora import pairs
from lib.corpora.docstrings import linked
from lib.quality.language_models import LanguageModel
from lib.study.models import as_turns
from lib.tasks.own_items import make_items

MAX_TOKENS = 256  # of an answer; one that is cut off is judged as it is
_NUMBER = r"(?:(?:[0-9]{1,3}(?:,[0-9]{3})+(?![0-9])|[0-9]+)(?:\.[0-9]+)?|\.[0-9]+)"
# "6th" and "3/4" would give a change away
_RESULT = re.compile(rf"-?{_NUMBER}(?![0-9]|/[0-9]|st\b|nd\b|rd\b|th\b)")
_SIGNED = re.compile(rf"(?:(?<![\w)])[-−][$€£]?)?{_NUMBER}")  # in "20-5" there is no sign
_SIGNIFICANT = re.compile(r"[1-9](?:[0-9.,]*[1-9])?")


def _some_groups(table: pd.DataFrame, group, limit: int | None) -> pd.DataFrame:
    """Rows of `limit` groups, always the same ones; all without a limit. group: any values (N,)"""
    table = table.assign(group=pd.factorize(group)[0])
    chosen = np.random.default_rng(0).permutation(table["group"].unique())[:limit]
    return table[table["group"].isin(chosen)]


def rated_translations(
    table: pd.DataFrame, encoder: bool, limit: int | None = None
) -> pd.DataFrame:
    """Whole sentences by one NMT model (MLQE-PE). Gold: the mean of the ratings, each rater's
    standardised. The file's own score is in the column `nmt-logprob`: the mean log-probability
    under the model that wrote the translation, which no judge can know.
    """
    table = table.rename(columns={"z_mean": "gold", "model_score": "nmt-logprob"})
    table = table.assign(translation=table["translation"].str.strip())
    columns = ["pair", "source", "translation", "gold", "nmt-logprob"]
    return _with_and_without_source(table[columns], encoder, limit)


def marked_words(table: pd.DataFrame, encoder: bool, limit: int | None = None) -> pd.DataFrame:
    """Translations in which people marked words (HJQE) or would have to change them (MLQE-PE's
    tags). Gold: the share of words tagged OK; `wrong_words`: the places of those tagged BAD; the
    words are what stands between single spaces.
    """
    wrong = table["tags"].map(lambda tags: [i for i, tag in enumerate(tags) if tag == "BAD"])
    gold = 1 - wrong.map(len) / table["tags"].map(len)
    table = table[["pair", "source", "translation"]].assign(gold=gold, wrong_words=wrong)
    return _with_and_without_source(table, encoder, limit)


def _with_and_without_source(table: pd.DataFrame, encoder: bool, limit: int | None):
    """Each translation alone (`with_source` False) and again after a request to translate the
    source (True); with `encoder` the latter only, and the source is the whole prompt. Group: the
    source.
    """
    table = pairs.with_texts(table, ["translation"], "translations")
    table = _some_groups(table, table["source"], limit).rename(columns={"translation": "output"})
    asked = [pairs.translation(*row) for row in zip(table["source"], table["pair"])]
    both = table.assign(with_source=True, prompt=table["source"] if encoder else asked)
    if not encoder:
        both = pd.concat([table.assign(with_source=False, prompt=""), both], ignore_index=True)
    return make_items(both.drop(columns=["pair", "source"]))


def paraphrases(
    table: pd.DataFrame, limit: int | None = None, apart_from: pd.DataFrame | None = None
) -> pd.DataFrame:
    """Pairs of English sentences with nearly the same words (PAWS-X): gold 1 where they mean the
    same. Group: pairs that share a sentence, directly or through other pairs. Those so linked with
    a pair of another split, `apart_from`, are left out.
    """
    sentences = ["sentence1", "sentence2"]
    table = pairs.with_texts(table, sentences[1:], "paws-x")
    if apart_from is not None:
        group = linked(pd.concat([table, apart_from])[sentences].to_numpy().tolist())
        table = table[~np.isin(group[: len(table)], group[len(table) :])]
    table = _some_groups(table, linked(table[sentences].to_numpy().tolist()), limit)
    prompt = table["sentence1"].str.strip().map(pairs.paraphrase)
    texts = {"prompt": prompt, "output": table["sentence2"].str.strip()}
    return make_items(table[["group"]].assign(**texts, gold=table["label"].astype(float)))


def acceptability(table: pd.DataFrame, limit: int | None = None) -> pd.DataFrame:
    """English sentences from the literature on syntax (CoLA), which linguists call acceptable (gold
    1) or not, with an empty prompt.
    """
    table = pairs.with_texts(table, ["sentence"], "cola")
    table = _some_groups(table, table["sentence"], limit)
    texts = {"prompt": "", "output": table["sentence"].str.strip()}
    return make_items(table[["group"]].assign(**texts, gold=table["label"].astype(float)))


# ---- arithmetic; group: the problem -----------------------------------------------------------


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
        edits = {"step": _change_step(line, rng)}
        if _value(line.number) not in (0, 1):
            output = pairs.conclusion(line.steps, other_number(line.number, rng))
            edits["answer"] = output, 0.0, [output.count(" ")]  # the number is the last word
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
    """Columns steps, number, prompt, group; the index numbers the problems."""
    table = pairs.with_texts(table, ["question"], "gsm8k")
    columns = pairs.steps_and_numbers(table["answer"])
    prompts = table["question"].map(pairs.word_problem)
    return _some_groups(columns.assign(prompt=prompts), table["question"], limit)


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


def _value(number: str) -> Decimal:
    return Decimal(re.sub("[,$€£]", "", number).replace("−", "-"))
