"""What the tasks made from benchmarks share: some of the rows, and translations with and without their source before them."""

import numpy as np
import pandas as pd

from old.corpora import wording


def some_groups(table: pd.DataFrame, limit: int | None) -> pd.DataFrame:
    """The rows of `limit` groups (column `group`), always the same ones; all rows without a limit or where there are no more groups.

    ValueError for a limit below 1.
    """
    if limit is None:
        return table
    if limit < 1:
        raise ValueError(f"limit must be at least 1, not {limit}")
    groups = np.unique(table["group"])
    return table[table["group"].isin(np.random.default_rng(0).permutation(groups)[:limit])]


def judged_translations(table: pd.DataFrame, name: str, encoder: bool, limit: int | None) -> pd.DataFrame:
    """Translations as items, of `limit` sources: slice `prompt=none` (the translation alone) and again `prompt=source` (after a request
    to translate the source); with `encoder` the latter only, and the source is the whole prompt.

    table: columns pair, source, translation, and others that are handed on. Group: the number of the source, so that no item holds a text
    of the data set but in its prompt and output. ValueError for a translation without text (the row of data set `name` is named), and for
    a limit below 1.
    """
    table = wording.with_texts(table, ["translation"], name).assign(group=pd.factorize(table["source"])[0])
    table = some_groups(table.rename(columns={"translation": "output"}), limit)
    if encoder:
        return table.assign(slice="prompt=source", prompt=table["source"]).drop(columns=["pair", "source"])
    asked = [wording.translation(*row) for row in zip(table["source"], table["pair"])]
    both = [table.assign(slice="prompt=none", prompt=""), table.assign(slice="prompt=source", prompt=asked)]
    return pd.concat(both, ignore_index=True).drop(columns=["pair", "source"])
