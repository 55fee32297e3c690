"""Items to be judged, with gold: each task returns a table with the columns of ITEM, one row an output.

A task's `items(...)` is a function of its seed alone; `group` is the cluster of its bootstrap (set, territory, near-duplicate text).
"""

import pandas as pd

ITEM = ["id", "group", "slice", "prompt", "output", "gold"]


def make_items(rows: list[dict] | pd.DataFrame) -> pd.DataFrame:
    """A table of items numbered from 0; further columns are kept behind those of ITEM."""
    table = pd.DataFrame(rows).reset_index(drop=True)
    table.insert(0, "id", range(len(table)))
    table["group"] = table["group"].astype(str)
    return table[[*ITEM, *(name for name in table if name not in ITEM)]]
