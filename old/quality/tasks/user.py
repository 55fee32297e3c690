"""A user's own items: a JSONL file, one object a line.

    {"prompt": "Translate to German: Good morning", "output": "Guten Morgen", "gold": 0.9, "group": "doc-1", "comet-kiwi": 0.84}

`prompt` and `output` are required; `gold` (a number), `group` (the cluster of the bootstrap) and `slice` optional. Every other number is
taken as a score column computed elsewhere, such as COMET-Kiwi, and judged beside the scores of this study; it must be there in every line.
"""

import json
import math
from pathlib import Path

import pandas as pd

from old.quality.tasks import ITEM, make_items

RESERVED = {
    "id",
    "text",
    "token",
    "token_id",
    "softmax",
    "logprob",
    "entropy",
    "boostedprob",
    "closed-form",
    "rescale",
    "softmax-power",
    "sigmoid",
}


def items(file: Path | str) -> pd.DataFrame:
    """Items of a file, score columns in attrs["scores"]. FileNotFoundError; ValueError naming the line and what is wrong with it."""
    if not Path(file).is_file():
        raise FileNotFoundError(f"no file {file}: give a JSONL file with the keys prompt and output")
    try:
        lines = Path(file).read_text(encoding="utf-8-sig").split("\n")
    except UnicodeDecodeError as error:
        raise ValueError(f"{Path(file).name} is not UTF-8 text: {error}") from None
    rows, columns = [], None
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        rows.append(_row(line, f"{Path(file).name}, line {number}"))
        extra = sorted(rows[-1].keys() - {*ITEM})
        columns = extra if columns is None else columns
        if extra != columns:
            raise ValueError(f"{Path(file).name}, line {number}: score columns {extra}, but the lines above have {columns}")
    if not rows:
        raise ValueError(f"{Path(file).name} holds no items")
    table = make_items([{"group": str(number), **row} for number, row in enumerate(rows)])
    table.attrs["scores"] = columns
    return table


def _row(line: str, where: str) -> dict:
    try:
        row = json.loads(line)
    except json.JSONDecodeError as error:
        raise ValueError(f"{where}: not JSON ({error})") from None
    if not isinstance(row, dict):
        raise ValueError(f"{where}: expected an object with the keys prompt and output")
    for name in ("prompt", "output"):
        if not isinstance(row.get(name), str):
            raise ValueError(f"{where}: {name!r} is missing or not a text")
    if not row["output"].strip():
        raise ValueError(f"{where}: the output is empty, there is nothing to score")
    if row.get("group") is None:
        row.pop("group", None)
    if taken := row.keys() & RESERVED:
        raise ValueError(f"{where}: {min(taken)!r} is a name of this study: give your column another one")
    if not isinstance(row.get("slice", ""), str):
        raise ValueError(f"{where}: 'slice' must be a text")
    for name, value in row.items():
        is_number = isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) < math.inf
        if name not in ("prompt", "output", "group", "slice") and not is_number:
            raise ValueError(f"{where}: {name!r} must be a finite number, not {value!r}")
    return {"slice": "all", **row, "gold": row.get("gold", math.nan), **({"group": str(row["group"])} if "group" in row else {})}
