"""Outputs of the benchmarks, judged by people: translations, paraphrases, acceptability.

Each takes rows of `lib.corpora.benchmarks.load`. `limit` counts groups; without one, all rows are
items. ValueError for a row without text.
"""

import numpy as np
import pandas as pd

from lib.corpora import pairs
from lib.corpora.docstrings import linked
from lib.tasks import make_items, some_groups


def rated_translations(
    table: pd.DataFrame, encoder: bool, limit: int | None = None
) -> pd.DataFrame:
    """Whole sentences by one NMT model (MLQE-PE). Gold: the mean of the
    ratings, each rater's standardised. The file's own score is in the column `nmt-logprob`: the
    mean log-probability under the model that wrote the translation, which no judge can know.
    """
    table = table.rename(columns={"z_mean": "gold", "model_score": "nmt-logprob"})
    table = table.assign(translation=table["translation"].str.strip())
    columns = ["pair", "source", "translation", "gold", "nmt-logprob"]
    return make_items(_with_and_without_source(table[columns], encoder, limit))


def marked_words(table: pd.DataFrame, encoder: bool, limit: int | None = None) -> pd.DataFrame:
    """Translations in which people marked words (HJQE) or would have to change them (MLQE-PE's
    tags). Gold: the share of words tagged OK; `wrong_words`: the places of those
    tagged BAD; the words are what stands between single spaces.
    """
    wrong = table["tags"].map(lambda tags: [i for i, tag in enumerate(tags) if tag == "BAD"])
    gold = 1 - wrong.map(len) / table["tags"].map(len)
    table = table[["pair", "source", "translation"]].assign(gold=gold, wrong_words=wrong)
    return make_items(_with_and_without_source(table, encoder, limit))


def _with_and_without_source(table: pd.DataFrame, encoder: bool, limit: int | None):
    """Each translation alone (`with_source` False) and again after a request to translate the
    source (True); with `encoder` the latter only, and the source is the whole prompt. Group: the
    source.
    """
    table = pairs.with_texts(table, ["translation"], "translations")
    table = some_groups(table.assign(group=pd.factorize(table["source"])[0]), limit)
    table = table.rename(columns={"translation": "output"})
    if encoder:
        both = table.assign(with_source=True, prompt=table["source"])
    else:
        asked = [pairs.translation(*row) for row in zip(table["source"], table["pair"])]
        alone = table.assign(with_source=False, prompt="")
        both = pd.concat([alone, table.assign(with_source=True, prompt=asked)], ignore_index=True)
    return both.drop(columns=["pair", "source"])


def paraphrases(
    table: pd.DataFrame, limit: int | None = None, apart_from: pd.DataFrame | None = None
) -> pd.DataFrame:
    """Pairs of English sentences with nearly the same words (PAWS-X): gold 1 where they mean the
    same. Group: pairs that share a sentence, directly or through other pairs. Those so linked with
    a pair of another split, `apart_from`, are left out.
    """
    table, sentences = (
        pairs.with_texts(table, ["sentence2"], "paws-x"),
        ["sentence1", "sentence2"],
    )
    if apart_from is not None:
        group = linked(pd.concat([table, apart_from])[sentences].to_numpy().tolist())
        table = table[~np.isin(group[: len(table)], group[len(table) :])]
    group = linked(table[sentences].to_numpy().tolist())
    table = some_groups(table.assign(group=pd.factorize(group)[0]), limit)
    prompt = table["sentence1"].str.strip().map(pairs.paraphrase)
    texts = {"prompt": prompt, "output": table["sentence2"].str.strip()}
    return make_items(table[["group"]].assign(**texts, gold=table["label"].astype(float)))


def acceptability(table: pd.DataFrame, limit: int | None = None) -> pd.DataFrame:
    """English sentences from the literature on syntax (CoLA), which linguists call acceptable (gold
    1) or not, with an empty prompt.
    """
    table = pairs.with_texts(table, ["sentence"], "cola")
    table = some_groups(table.assign(group=pd.factorize(table["sentence"])[0]), limit)
    texts = {"prompt": "", "output": table["sentence"].str.strip()}
    return make_items(table[["group"]].assign(**texts, gold=table["label"].astype(float)))
