"""What the rows of an experiment depend on (`Keyed`), and where they are (`RowStore`):
<experiment>.parquet with the arguments as columns; a .json with a record of each combination of
them; and new/, a file for each just computed.
"""

import ast
import functools
import hashlib
import inspect
import json
import textwrap
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
from filelock import FileLock

from lib.study import paths


class Keyed:
    """A function whose results are kept; called like the function itself.

    version: raised by hand when a change moves the numbers. built_on: the keyed functions it
    calls. data: a function of some of the arguments (by name) to the content hash of the input
    data. A parameter `**others` stands for those of the first function in built_on.
    """

    supplied: tuple[str, ...] = ()  # parameters that the cache itself fills in

    def __init__(self, function: Callable, version: int, built_on: Sequence["Keyed"], data):
        functools.update_wrapper(self, function)
        self.function, self.name, self.data = function, function.__name__, data
        self.version, self.source = version, _source(function)
        self.closure = {self.name: self}  # this and all it is built on, however far down
        for other in built_on:
            self.closure |= other.closure
        signature = inspect.signature(function)
        known = [p for p in signature.parameters.values() if p.name not in self.supplied]
        if known and known[-1].kind is inspect.Parameter.VAR_KEYWORD:
            names = [p.name for p in known[:-1]]
            others = built_on[0].signature.parameters.values()
            others = [p for p in others if p.name not in names]
            known[-1:] = [p.replace(kind=inspect.Parameter.KEYWORD_ONLY) for p in others]
        self.signature = signature.replace(parameters=known)

    def __reduce_ex__(self, protocol: int):  # by reference, but by value from a notebook
        return super().__reduce_ex__(protocol) if self.__module__ == "__main__" else self.name

    def bind(self, *args, **kwargs) -> dict:
        """All arguments by name, defaults included. TypeError, naming the known ones, if wrong."""
        try:
            bound = self.signature.bind(*args, **kwargs)
        except TypeError as error:
            raise TypeError(f"{self.name}: {error}; it takes {self.signature}") from None
        bound.apply_defaults()
        return dict(bound.arguments)

    def key(self, arguments: dict) -> str:
        """Hash of everything that the result depends on."""
        data = None
        if self.data is not None:
            wanted = inspect.signature(self.data).parameters
            data = self.data(**{name: arguments[name] for name in wanted})
        versions = {name: keyed.version for name, keyed in self.closure.items()}
        return digest([self.name, plain(arguments), versions, data])

    def sources(self) -> dict[str, list]:
        """Version and hash of the source of this function and of all it is built on."""
        return {name: [k.version, k.source] for name, k in self.closure.items()}


def digest(value: object) -> str:
    """16 hexadecimal digits for a JSON value."""
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:16]


def plain(value: object) -> object:
    """An argument as JSON knows it, or TypeError. A folder becomes its name and a hash of its files
    (names and contents): no path of a machine is in results, and a changed model is another one.
    """
    if isinstance(value, dict):
        return {str(name): plain(one) for name, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(one) for one in value]
    if isinstance(value, Path) or (isinstance(value, str) and "/" in value):
        if not (folder := Path(value)).is_dir():
            return str(value)
        total = hashlib.sha256()
        for file in sorted(file for file in folder.rglob("*") if file.is_file()):
            with file.open("rb") as stream:
                total.update(f"{file.relative_to(folder)}".encode())
                total.update(hashlib.file_digest(stream, "sha256").digest())
        return f"{folder.name}@{total.hexdigest()[:8]}"
    if value is None or isinstance(value, (str, bool, int, float)):
        return value
    raise TypeError(f"an argument must be a plain JSON value, not {value!r}")


def _source(function: Callable) -> str:
    """Hash of a function's syntax tree without decorators, docstring and comments."""
    node = ast.parse(textwrap.dedent(inspect.getsource(function))).body[0]
    node.decorator_list = []
    if ast.get_docstring(node, clean=False) is not None:
        node.body = node.body[1:] or [ast.Pass()]
    return digest(ast.dump(node))


# ---- where rows are ------------------------------------------------------------------------------


class RowStore:
    """The rows of an experiment in one folder: sources, and records by key, of what is joined."""

    def __init__(self, folder: Path, function: Keyed):
        self.folder, self.function = folder, function
        self.table, self.index = (folder / f"{function.name}.{e}" for e in ("parquet", "json"))
        self.sources, self.records = {}, {}
        with self.lock():
            if self.index.exists() and self.table.exists():
                index = readable(lambda file: json.loads(file.read_text()), self.index)
                self.sources = index["sources"]
                self.records = {record["key"]: record for record in index["combinations"]}
            if loose := sorted(folder.glob(f"new/{function.name}-*.parquet")):
                self.join(loose)

    def lock(self) -> FileLock:
        """Two notebooks may run at once."""
        locks = paths.CACHE / "locks"
        locks.mkdir(parents=True, exist_ok=True)
        return FileLock(locks / f"{self.function.name}-{digest(str(self.folder))}.lock")

    def check_sources(self, accept: bool) -> None:
        """Raise ValueError where a source has changed under an unchanged version; or, accepted,
        write it down.
        """
        now = self.function.sources()
        if accept and self.records and self.sources != now:
            with self.lock():
                self.sources = now
                self.write_index()
        for name, (version, source) in {} if accept else self.sources.items():
            if name in now and now[name][0] == version and now[name][1] != source:
                raise ValueError(
                    f"{name} is not as it was when {self.table.name} was computed, under the same "
                    "version. Does the change move numbers? Then raise its version; if it cannot, "
                    "say kept(..., accept=True) or run once with STUDY_ACCEPT=1"
                )

    def rows(self, keys: list[str]) -> pd.DataFrame:
        """Joined rows of these keys, and the column `key`."""
        if not self.records.keys() & set(keys):
            return pd.DataFrame(columns=["key"])
        with self.lock():
            chosen = [("key", "in", keys)]
            table = readable(lambda file: pq.read_table(file, filters=chosen), self.table)
        # a column of another combination; NaN, an undefined value, is not null
        absent = [n for n in table.column_names if table[n].null_count == len(table) > 0]
        return table.drop_columns(absent).to_pandas()

    def write(
        self, arguments: dict, rows: pd.DataFrame, seconds: float, commit: str | None
    ) -> None:
        """The rows of one combination (all arguments by name) as a file of its own."""
        function, values = self.function, plain(arguments)
        record = {"arguments": values, "key": function.key(arguments), "rows": len(rows)}
        record |= {"seconds": round(seconds, 1), "commit": commit, "sources": function.sources()}
        columns = {"key": record["key"]}  # a dictionary's values one by one, a list as JSON
        for name, value in values.items():
            several = isinstance(value, dict)
            columns |= {f"{name}.{k}": v for k, v in value.items()} if several else {name: value}
        as_json = {k: json.dumps(v) for k, v in columns.items() if isinstance(v, (list, dict))}
        if double := {*columns} & {*rows.columns}:
            name = min(double)
            raise ValueError(f"{function.name}: rows must not have a column {name!r} of their own")
        table = _compact(rows.assign(**columns | as_json)[[*columns, *rows.columns]])
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
            stays = [("key", "in", [record["key"] for record in old])]
            joined = readable(lambda file: pq.read_table(file, filters=stays), self.table)
            tables.insert(0, joined)
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
    names = table.column_names
    repeats = [n for n in names if len(table[n].unique()) * 4 < len(table) or n == "key"]
    split = [n for n in names if pa.types.is_floating(table[n].type) and n not in repeats]
    options = {"use_dictionary": repeats, "write_statistics": False, "store_schema": False}
    options |= {"compression": "zstd", "compression_level": 15, "use_byte_stream_split": split}
    pq.write_table(table, file, **options)


def write_atomically(file: Path, write: Callable[[Path], object]) -> None:
    """Call `write(partial file)`, then move it into place: a kill never leaves half a file."""
    file.parent.mkdir(parents=True, exist_ok=True)
    partial = file.with_name(f"{file.name}.partial")
    write(partial)
    partial.replace(file)


def readable(read: Callable, file: Path) -> object:
    """What `read(file)` returns; ValueError, naming the file, where it fails."""
    try:
        return read(file)
    except Exception as error:
        reason = " ".join(str(error).split())[:200]
        raise ValueError(f"{file} cannot be read ({reason}): restore it or delete it") from None
