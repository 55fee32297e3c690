"""What the rows of an experiment depend on (`Keyed`), and where they are (`RowStore`):
<experiment>.parquet with the arguments as columns; a .json with a record of each combination of
them; and new/, a file for each just computed.
"""

import ast
import dataclasses
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
    """A function whose results are kept; called like the function itself, with keywords or without.

    version: raised by hand when a change moves the numbers. built_on: the keyed functions it
    calls. data: a function of some of the arguments (by name) to the content hash of the input
    data. A parameter `**others` stands for those of the first function in built_on, to be handed
    on to it.
    """

    supplied: tuple[str, ...] = ()  # parameters that the cache itself fills in

    def __init__(self, function: Callable, version: int, built_on: Sequence["Keyed"], data):
        functools.update_wrapper(self, function)
        self.function, self.name, self.version = function, function.__name__, version
        self.built_on, self.data, self.source = tuple(built_on), data, _source(function)
        signature = inspect.signature(function)
        known = [p for p in signature.parameters.values() if p.name not in self.supplied]
        if known and known[-1].kind is inspect.Parameter.VAR_KEYWORD:
            names = [p.name for p in known[:-1]]
            others = self.built_on[0].signature.parameters.values()
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

    def closure(self) -> dict[str, "Keyed"]:
        """This function and all it is built on, by name."""
        everything = {self.name: self}
        for other in self.built_on:
            everything |= other.closure()
        return everything

    def key(self, arguments: dict) -> str:
        """Hash of everything that the result depends on."""
        data = None
        if self.data is not None:
            wanted = inspect.signature(self.data).parameters
            data = self.data(**{name: arguments[name] for name in wanted})
        versions = {name: keyed.version for name, keyed in self.closure().items()}
        return digest([self.name, plain(arguments), versions, data])

    def sources(self) -> dict[str, list]:
        """Version and hash of the source of this function and of all it is built on."""
        return {name: [k.version, k.source] for name, k in self.closure().items()}

    def check_built_on(self, called: "Keyed") -> None:
        """Raise ValueError unless `called` is among what this function says it is built on."""
        if called.name not in self.closure():
            raise ValueError(
                f"{self.name} calls {called.name}, but its key does not depend on it: "
                f"add {called.name} to its built_on"
            )

    def check_sources(self, stored: dict[str, list], where: Path) -> None:
        """Raise ValueError where a source has changed under an unchanged version."""
        now = self.sources()
        for name, (version, source) in stored.items():
            if name in now and now[name][0] == version and now[name][1] != source:
                raise ValueError(
                    f"{name} is not as it was when {where.name} was computed, under the same "
                    "version. Does the change move numbers? Then raise its version; if it cannot, "
                    "say kept(..., accept=True) or run once with STUDY_ACCEPT=1"
                )


def digest(value: object) -> str:
    """16 hexadecimal digits for a JSON value."""
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:16]


def plain(value: object) -> object:
    """An argument as JSON knows it. A folder becomes its name and a hash of its files, so that no
    path of a machine is in results, and a changed model is another one.

    Raises TypeError for what JSON does not know.
    """
    if dataclasses.is_dataclass(value):
        value = dataclasses.asdict(value)
    if isinstance(value, dict):
        return {str(name): plain(one) for name, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(one) for one in value]
    if isinstance(value, Path) or (isinstance(value, str) and "/" in value):
        return f"{Path(value).name}@{_folder(Path(value))}" if Path(value).is_dir() else str(value)
    if value is None or isinstance(value, (str, bool, int, float)):
        return value
    raise TypeError(f"an argument must be a plain JSON value, not {value!r}")


def _folder(folder: Path) -> str:
    """Hash of the files of a folder, by name and content."""
    total = hashlib.sha256()
    for file in sorted(file for file in folder.rglob("*") if file.is_file()):
        with file.open("rb") as stream:
            total.update(f"{file.relative_to(folder)}".encode())
            total.update(hashlib.file_digest(stream, "sha256").digest())
    return total.hexdigest()[:8]


def _source(function: Callable) -> str:
    """Hash of a function's syntax tree without decorators, docstring and comments."""
    node = ast.parse(textwrap.dedent(inspect.getsource(function))).body[0]
    node.decorator_list = []
    first = node.body[0]
    if isinstance(first, ast.Expr) and isinstance(getattr(first, "value", None), ast.Constant):
        node.body = node.body[1:] or [ast.Pass()]
    return digest(ast.dump(node))


# ---- where rows are ----------------------------------------------------------------------------


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
