"""Where finished units are: three files hold the units of one part of an experiment - same study, dataset, model and part.

`data/results/<profile>/<study>.<dataset>.<model>.<part>` has the endings `.csv` (rows of the result table), `.items.parquet` (one row a
judged item or generated output, no third-party text) and `.json` (one record a unit: its key, parameters, provenance, and how many of the
rows and items are its own, in their order). A unit just computed lies alone in `<profile>/new/`, three files of the same form, until `pack`
adds it to its part. The record is always written last: only with it does a unit count as done.
"""

import io
import json
import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
from filelock import FileLock

from old import paths
from old.results import read_table, write_atomically, write_json, write_table

PART = ("study", "dataset", "model", "part")


class Stored(NamedTuple):
    """One finished unit: its record, and where its rows and items are."""

    record: dict
    base: Path  # of the three files, without ending
    rows: slice
    items: slice


class Content(NamedTuple):
    """One finished unit, read."""

    record: dict
    rows: pd.DataFrame
    items: pa.Table


def index(profile: str) -> dict[str, Stored]:
    """Every finished unit of a profile, by name; one just computed replaces the one its part still holds."""
    folder, found = paths.RESULTS / profile, {}
    for file in [*sorted(folder.glob("*.json")), *sorted(folder.glob("new/*.json"))]:
        row = item = 0
        for record in json.loads(file.read_text())["units"]:
            rows, items = slice(row, row + record["rows"]), slice(item, item + record["items"])
            found[unit_name(record["unit"])] = Stored(record, file.with_name(file.name.removesuffix(".json")), rows, items)
            row, item = rows.stop, items.stop
    return found


def unit_name(unit: dict) -> str:
    """`length.docstrings.tiny-bart.pre.unseen.0`, from the fields that name a unit."""
    return ".".join(str(unit[name]).replace("/", "--") for name in ("study", "dataset", "model", "method", "part", "seed"))


def load(units: Iterable[Stored]) -> list[Content]:
    """Read units; each file once."""
    tables: dict[Path, tuple[pd.DataFrame, pa.Table]] = {}
    found = []
    for unit in units:
        if unit.base not in tables:
            tables[unit.base] = read_table(_file(unit.base, "csv")), pq.read_table(_file(unit.base, "items.parquet"))
        rows, items = tables[unit.base]
        if max(unit.rows.stop - len(rows), unit.items.stop - len(items)) > 0:
            raise ValueError(f"{unit.base.name}.csv or .items.parquet is shorter than its .json says: take all three from one version")
        own = items.slice(unit.items.start, unit.items.stop - unit.items.start)
        absent = [name for name in own.column_names if len(own) and own[name].null_count == len(own)]  # columns of other units of the part
        found.append(Content(unit.record, rows.iloc[unit.rows], own.drop_columns(absent)))
    return found


def write(record: dict, rows: pd.DataFrame, items: pd.DataFrame, profile: str) -> None:
    """Store a unit just computed."""
    with lock(profile):
        _write(paths.RESULTS / profile / "new" / unit_name(record["unit"]), [Content(record, rows, compact(items))])


def pack(profile: str) -> None:
    """Add the units just computed to their parts. A kill at any moment leaves each unit whole in one place or the other."""
    new = paths.RESULTS / profile / "new"
    with lock(profile):
        stored = index(profile)
        for part in sorted({part_name(unit.record["unit"]) for unit in stored.values() if unit.base.parent == new}):
            units = load(unit for _, unit in sorted(stored.items()) if part_name(unit.record["unit"]) == part)
            for unit in units:
                if not _file(alone := new / unit_name(unit.record["unit"]), "json").exists():
                    _write(alone, [unit])
            _write(paths.RESULTS / profile / part, units)
        if new.exists():
            for file in new.glob("*.json"):
                file.unlink()
            shutil.rmtree(new)


def part_name(unit: dict) -> str:
    """Name of the files of a unit's part."""
    return ".".join(str(unit[name]).replace("/", "--") for name in PART)


def lock(profile: str) -> FileLock:
    """Held while files of a profile change place, and while they are read."""
    folder = paths.CACHE / "locks"
    folder.mkdir(parents=True, exist_ok=True)
    return FileLock(folder / f"{profile}.lock", is_singleton=True)


def _file(base: Path, ending: str) -> Path:
    return base.with_name(f"{base.name}.{ending}")


def _write(base: Path, units: list[Content]) -> None:
    _file(base, "json").unlink(missing_ok=True)  # from here until the end no unit of these files counts as done
    write_table(pd.concat([unit.rows for unit in units], ignore_index=True), _file(base, "csv"))
    items = pa.concat_tables([unit.items for unit in units], promote_options="permissive")
    write_atomically(_file(base, "items.parquet"), lambda partial: pq.write_table(items, partial, **_options(items)))
    records = [unit.record | {"rows": len(unit.rows), "items": len(unit.items)} for unit in units]
    write_json({"units": records}, _file(base, "json"))


def compact(items: pd.DataFrame) -> pa.Table:
    """Items in the smallest types, and floats to 16 significant bits (1 part in 65,000). NaN, an undefined value, is not null, no value."""

    def smallest(column: pd.Series) -> pa.Array:
        if column.dtype.kind == "i":
            return pa.array(pd.to_numeric(column, downcast="integer").to_numpy())
        if column.dtype.kind != "f":
            return pa.array(column, from_pandas=True)
        mantissa, exponent = np.frexp(column.to_numpy(np.float32))
        return pa.array(np.ldexp(np.round(mantissa * 2**16) / 2**16, exponent).astype(np.float32))

    return pa.table({name: smallest(items[name]) for name in items})


def _options(items: pa.Table) -> dict:
    """How to write each column so that it takes the least room. Statistics and a copy of the schema would be a fifth of a small file."""
    common = {"compression": "zstd", "compression_level": 15, "write_statistics": False, "store_schema": False}
    encodings, dictionary = {}, []
    for name in items.column_names:
        column = items.select([name])
        kind = column.schema.field(name).type
        tried: dict[str, dict] = {"dictionary": {"use_dictionary": [name]}, "PLAIN": {"use_dictionary": False}}
        if pa.types.is_floating(kind):
            tried["BYTE_STREAM_SPLIT"] = {"use_dictionary": False, "column_encoding": {name: "BYTE_STREAM_SPLIT"}}
        if pa.types.is_integer(kind):
            tried["DELTA_BINARY_PACKED"] = {"use_dictionary": False, "column_encoding": {name: "DELTA_BINARY_PACKED"}}
        best = min(tried, key=lambda encoding: _size(column, common | tried[encoding]))  # noqa: B023
        if best == "dictionary":
            dictionary.append(name)
        else:
            encodings[name] = best
    return common | {"use_dictionary": dictionary, "column_encoding": encodings or None}


def _size(table: pa.Table, options: dict) -> int:
    file = io.BytesIO()
    pq.write_table(table, file, **options)
    return file.tell()
