"""Paraphrases (PAWS-X, English): pairs of sentences with nearly the same words, of which some mean the same.

Gold: 1 where they do, 0 where not. The prompt asks to say the first sentence in other words, the second is the output. The data set's
sentences are tokenised (` ,` and ` .`), in prompt and output alike.
"""

import numpy as np
import pandas as pd
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components

from old.corpora import benchmarks, wording
from old.quality.tasks import make_items
from old.quality.tasks.benchmark_rows import some_groups


def items(split: str, limit: int | None = None) -> pd.DataFrame:
    """One item a pair of a split (validation, test), slice `all`; group: pairs that share a sentence, directly or through other pairs.
    `limit` counts groups. Of the validation split those pairs are left out that are in a chain with a pair of the test split.

    Raises as `benchmarks.load` does; ValueError for a second sentence without text, or a limit below 1.
    """
    table = wording.with_texts(benchmarks.load("paws-x-en", split).to_pandas(), ["sentence2"], f"paws-x-en {split}")
    if split == "validation":
        table = apart(table, benchmarks.load("paws-x-en", "test").to_pandas())
    table = some_groups(table.assign(group=chains(table["sentence1"], table["sentence2"])), limit)
    prompts = table["sentence1"].str.strip().map(wording.paraphrase)
    columns = {"group": table["group"], "slice": "all", "prompt": prompts, "output": table["sentence2"].str.strip()}
    return make_items(pd.DataFrame(columns).assign(gold=table["label"].astype(float)))


def apart(table: pd.DataFrame, other: pd.DataFrame) -> pd.DataFrame:
    """The pairs of a table that share no sentence with another one, directly or through other pairs of both."""
    both = pd.concat([table, other])
    group = chains(both["sentence1"], both["sentence2"])
    return table[~np.isin(group[: len(table)], group[len(table) :])].reset_index(drop=True)


def chains(first: pd.Series, second: pd.Series) -> np.ndarray:
    """Number of the chain of each pair: two pairs that share a text are in the same one. (N,), (N,) -> (N,)"""
    numbers, texts = pd.factorize(pd.concat([first, second]))
    links = coo_array((np.ones(len(first)), (numbers[: len(first)], numbers[len(first) :])), shape=(len(texts), len(texts)))
    return connected_components(links, directed=False)[1][numbers[: len(first)]]
