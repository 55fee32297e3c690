"""Items to be judged, with gold: what a score of quality is held against.

A task's items are a table, one row an output: `id` (from 0), `group` (the cluster of the bootstrap:
set, territory, near-duplicate text, source), `prompt`, `output`, `gold` (higher is better), and the
columns that tell the items of a task apart:

    listing                       k (right answers left), kind (right, listed, sibling), order
    languages                     k, kind (right, wrong), prior
    corruption, ...-errors        edit (original, word-swap, attested ...), text (number), package
    self-generation               package
    multi30k-en-de                decoding (beam, sample), gold_bleu, gold_similarity
    mlqe-pe-*, hjqe-*             with_source (True: the source is in the prompt)
    gsm8k                         changed (step, answer), text
    gsm8k-own                     decoding (greedy, sample)

Scored items keep these columns, but for texts, and have one column a score.
"""

import numpy as np
import pandas as pd

ITEM = ["id", "group", "prompt", "output", "gold"]


def make_items(rows: list[dict] | pd.DataFrame) -> pd.DataFrame:
    """A table of items numbered from 0; further columns are kept behind those of ITEM."""
    table = pd.DataFrame(rows).reset_index(drop=True)
    table.insert(0, "id", range(len(table)))
    table["group"] = table["group"].astype(str)
    return table[[*ITEM, *(name for name in table if name not in ITEM)]]


def some_groups(table: pd.DataFrame, limit: int | None) -> pd.DataFrame:
    """Rows of `limit` groups (column `group`), always the same ones; all without a limit."""
    chosen = np.random.default_rng(0).permutation(np.unique(table["group"]))[:limit]
    return table[table["group"].isin(chosen)]
