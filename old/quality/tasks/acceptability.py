"""Acceptability (CoLA): English sentences from the literature on syntax, which linguists call acceptable (gold 1) or not (gold 0)."""

import pandas as pd

from old.corpora import benchmarks, wording
from old.quality.tasks import make_items
from old.quality.tasks.benchmark_rows import some_groups


def items(limit: int | None = None) -> pd.DataFrame:
    """One item a sentence of the validation split (the test split has no labels), with an empty prompt; slice `all`.

    Group: the sentence. Raises as `benchmarks.load` does; ValueError for a sentence without text, or a limit below 1.
    """
    table = wording.with_texts(benchmarks.load("cola", "validation").to_pandas(), ["sentence"], "cola")
    table = some_groups(table.assign(group=pd.factorize(table["sentence"])[0]), limit)
    columns = {"group": table["group"], "slice": "all", "prompt": "", "output": table["sentence"].str.strip()}
    return make_items(pd.DataFrame(columns).assign(gold=table["label"].astype(float)))
