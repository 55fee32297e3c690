"""Where the rows of an experiment are: <experiment>.parquet with the arguments as columns; a .json
with a record of each combination of them; and new/, a file for each just computed.
"""

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
from filelock import FileLock

from lib.study import paths
from lib.study.keys import Keyed, digest, plain


class RowStore:
    """The rows of an experiment in one folder."""

    def __init__(self, folder: Path, function: Keyed):
        self.folder, self.function = folder, function
        self.table, self.index = (folder / f"{function.name}.{e}" for e in ("parquet", "json"))
        with self.lock():
            self.sources, self.records = self.read_index()
            if loose := sorted(folder.glob(f"new/{function.name}-*.parquet")):
                self.join(loose)

    def lock(self) -> FileLock:
        """Two notebooks may run at once."""
        locks = paths.CACHE / "locks"
        locks.mkdir(parents=True, exist_ok=True)
        return FileLock(locks / f"{self.function.name}-{digest(str(self.folder))}.lock")

    def read_index(self) -> tuple[dict, dict]:
        """Sources and records (by key) of what is joined; an old .json beside a new table heals."""
        if not self.index.exists() or not self.table.exists():
            return {}, {}
        index = readable(lambda file: json.loads(file.read_text()), self.index)
        return index["sources"], {record["key"]: record for record in index["combinations"]}

    def check_sources(self, accept: bool) -> None:
        """See Keyed.check_sources; accepted ones are written down."""
        if not accept:
            self.function.check_sources(self.sources, self.table)
        elif self.records and self.sources != self.function.sources():
            with self.lock():
                self.sources = self.function.sources()
                self.write_index()

    def rows(self, keys: list[str]) -> pd.DataFrame:
        """Joined rows of these keys, and the column `key`."""
        if not self.records.keys() & set(keys):
            return pd.DataFrame(columns=["key"])
        with self.lock():
            chosen = [("key", "in", keys)]
            table = readable(lambda file: pq.read_table(file, filters=chosen), self.table)
        absent = [n for n in table.column_names if table[n].null_count == len(table) > 0]
        return table.drop_columns(
            absent
        ).to_pandas()  # absent: NaN, an undefined value, is not null

    def write(
        self, arguments: dict, rows: pd.DataFrame, seconds: float, commit: str | None
    ) -> None:
        """The rows of one combination (all arguments by name) as a file of its own."""
        function, names = self.function, _columns(plain(arguments))
        if double := {"key", *names} & {*rows.columns}:
            name = min(double)
            raise ValueError(f"{function.name}: rows must not have a column {name!r} of their own")
        record = {"arguments": plain(arguments), "key": function.key(arguments), "rows": len(rows)}
        record |= {"seconds": round(seconds, 1), "commit": commit, "sources": function.sources()}
        columns = ["key", *names, *rows.columns]
        table = _compact(rows.assign(**names, key=record["key"])[columns])
        table = table.replace_schema_metadata({"record": json.dumps(record)})
        file = self.folder / "new" / f"{function.name}-{record['key']}.parquet"
        write_atomically(file, lambda partial: pq.write_table(table, partial, compression="zstd"))

    def join(self, loose: list[Path]) -> None:
        """Add new files to the table; one of the same arguments replaces what was there."""
        tables = [readable(pq.read_table, file) for file in loose]
        new = [json.loads(table.schema.metadata[b"record"]) for table in tables]
        replaced = [record["arguments"] for record in new]
        old = [r for r in self.records.values() if r["arguments"] not in replaced]
        if old:
            joined = readable(pq.read_table, self.table)
            keys = joined.column("key").to_pylist()
            stays = {record["key"] for record in old}
            tables.insert(0, joined.filter(pa.array([key in stays for key in keys])))
        for record in new:
            self.sources |= record.pop("sources")
        self.records = {record["key"]: record for record in [*old, *new]}
        plain_tables = [table.replace_schema_metadata(None) for table in tables]
        table = pa.concat_tables(plain_tables, promote_options="permissive")
        write_atomically(self.table, lambda partial: _write_small(table, partial))
        self.write_index()
        for file in loose:
            file.unlink()

    def write_index(self) -> None:
        """Sources and records, one combination a line."""
        lines = ",\n".join(json.dumps(record) for record in self.records.values())
        text = f'{{"sources": {json.dumps(self.sources)},\n"combinations": [\n{lines}\n]}}\n'
        write_atomically(self.index, lambda partial: partial.write_text(text))


def _compact(rows: pd.DataFrame) -> pa.Table:
    """Columns in the smallest types, floats to 16 significant bits (1 part in 65,000)."""

    def smallest(column: pd.Series) -> pa.Array:
        if column.dtype.kind == "i":
            return pa.array(pd.to_numeric(column, downcast="integer").to_numpy())
        if column.dtype.kind != "f":
            return pa.array(column, from_pandas=True)
        mantissa, exponent = np.frexp(column.to_numpy(np.float32))
        return pa.array(np.ldexp(np.round(mantissa * 2**16) / 2**16, exponent).astype(np.float32))

    return pa.table({name: smallest(rows[name]) for name in rows})


def _write_small(table: pa.Table, file: Path) -> None:
    """Parquet that takes little room: dictionaries where values repeat, float bytes split."""
    repeats = [
        n for n in table.column_names if len(table[n].unique()) * 4 < len(table) or n == "key"
    ]
    floats = [n for n in table.column_names if pa.types.is_floating(table[n].type)]
    options = {"use_dictionary": repeats, "write_statistics": False, "store_schema": False}
    split = [name for name in floats if name not in repeats]
    options |= {"compression": "zstd", "compression_level": 15, "use_byte_stream_split": split}
    pq.write_table(table, file, **options)


def _columns(arguments: dict) -> dict:
    """Arguments as columns: a dictionary's values one by one, a list as JSON."""
    columns = {}
    for name, value in arguments.items():
        inner = {f"{name}.{k}": v for k, v in value.items()} if isinstance(value, dict) else None
        columns |= {name: value} if inner is None else inner
    as_json = {k: json.dumps(v) for k, v in columns.items() if isinstance(v, (list, dict))}
    return columns | as_json


def write_atomically(file: Path, write: Callable[[Path], object]) -> None:
    """Call `write(partial file)`, then move it into place: a kill never leaves half a file."""
    file.parent.mkdir(parents=True, exist_ok=True)
    partial = file.with_name(f"{file.name}.partial")
    write(partial)
    partial.replace(file)


def readable(read: Callable, file: Path) -> object:
    try:
        return read(file)
    except Exception as error:
        reason = " ".join(str(error).split())[:200]
        raise ValueError(f"{file} cannot be read ({reason}): restore it or delete it") from None
