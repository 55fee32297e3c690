"""One experiment unit - (study, dataset, model, method, part, seed) with its parameters - computed once, stored, and read ever after.

A unit owns three files in data/results/<profile>/: `<name>.csv` (rows of the result table), `<name>.items.parquet` (one row a judged item
or generated output, no third-party text) and `<name>.json` (its key, parameters and provenance), written last: only with it does a unit
count as done.
"""

import hashlib
import json
import multiprocessing
import os
import platform
import subprocess
import threading
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import torch

from lib import paths
from lib.progress import progress
from lib.results import read_table, validate, write_atomically, write_json, write_table

FORCE = "STUDY_FORCE"  # set by `lib.study --force`: compute again what is stored


@dataclass(frozen=True)
class Unit:
    """What is computed (the first six fields name it) and everything its numbers depend on."""

    study: str
    dataset: str
    model: str
    method: str
    part: str
    seed: int
    parameters: dict = field(hash=False)  # plain JSON values
    data: str  # content hash of the input data
    recipe: int  # hand-bumped number of the study's code: a change that moves numbers bumps it

    @property
    def name(self) -> str:
        """File name without ending: `length.docstrings.tiny-bart.pre.unseen.0`."""
        return ".".join([self.study, self.dataset, self.model.replace("/", "--"), self.method, self.part, str(self.seed)])

    @property
    def key(self) -> str:
        """Hash of everything the numbers depend on."""
        return hashlib.sha256(json.dumps([self.name, self.parameters, self.data, self.recipe], sort_keys=True).encode()).hexdigest()[:16]

    def path(self, profile: str, ending: str) -> Path:
        """One of the unit's files: ending `csv`, `json` or `items.parquet`."""
        return paths.RESULTS / profile / f"{self.name}.{ending}"


def state(unit: Unit, profile: str) -> str:
    """`done`, `missing`, `outdated` (data or recipe moved on: computed again) - or ValueError where stored rows have other parameters."""
    record = unit.path(profile, "json")
    if not record.exists():
        return "missing"
    stored = json.loads(record.read_text())
    if stored["key"] == unit.key:
        return "done"
    if stored["parameters"] != unit.parameters:
        names = sorted(stored["parameters"].keys() | unit.parameters.keys())
        changed = [
            f"{n}: {stored['parameters'].get(n)!r} -> {unit.parameters.get(n)!r}"
            for n in names
            if stored["parameters"].get(n) != unit.parameters.get(n)
        ]
        raise ValueError(
            f"profile {profile!r} already holds {unit.name} with other parameters ({'; '.join(changed)}). "
            "Give your run its own profile name (-p profile my-run), or replace the stored rows with --force."
        )
    return "outdated"


def pending(units: list[Unit], profile: str) -> list[Unit]:
    """Those that must be computed; with STUDY_FORCE=1 all of them."""
    return list(units) if os.environ.get(FORCE) == "1" else [u for u in units if state(u, profile) != "done"]


def run(
    units: list[Unit], compute: Callable[[Unit], tuple[pd.DataFrame, pd.DataFrame]], profile: str, jobs: int = 1
) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Rows and items of all units, computing those not stored. `compute(unit)` returns (result rows, items).

    `jobs` units run at once, each in a process of its own with one thread, so that numbers do not depend on the number of cores.
    """
    todo = pending(units, profile)
    if jobs > 1 and len(todo) > 1:
        with ProcessPoolExecutor(jobs, multiprocessing.get_context("spawn"), initializer=_start_worker) as pool:
            running = {pool.submit(_compute_and_store, unit, compute, profile) for unit in todo}
            try:
                for done in progress(as_completed(running), "units", total=len(running)):
                    done.result()
            except BaseException:
                pool.shutdown(wait=False, cancel_futures=True)
                raise
    else:
        for unit in progress(todo, "units"):
            one_threaded(_compute_and_store, unit, compute, profile)
    return read(units, profile)


def read(units: list[Unit], profile: str) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Stored rows and items of these units, merged; items carry the fields that name their unit."""
    return _merge([unit.path(profile, "json") for unit in units])


def read_stored(study: str, profile: str) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Rows and items of every finished unit of a study in a profile, whichever machine or run computed it."""
    records = sorted((paths.RESULTS / profile).glob(f"{study}.*.json"))
    if not records:
        raise FileNotFoundError(f"profile {profile!r} holds no results of study {study!r}: run `make study PROFILE={profile}` first")
    return _merge(records)


def _merge(records: list[Path]) -> tuple[pd.DataFrame, pd.DataFrame]:
    rows, items = [], []
    for record in records:
        unit = json.loads(record.read_text())["unit"]
        base = str(record).removesuffix(".json")
        rows.append(read_table(Path(f"{base}.csv")))
        items.append(pd.read_parquet(f"{base}.items.parquet").assign(**unit))
    rows = pd.concat(rows, ignore_index=True).drop_duplicates()  # the same head may be scored in two units
    return validate(rows.reset_index(drop=True)), pd.concat(items, ignore_index=True)


def default_jobs() -> int:
    """Units at once: one a core on a CPU, one where a GPU does the work."""
    return 1 if torch.cuda.is_available() else max(1, os.cpu_count() or 1)


def one_threaded(function: Callable, *arguments):
    """Call a function with torch in one thread, as every unit is computed."""
    threads = torch.get_num_threads()
    _one_thread()
    try:
        return function(*arguments)
    finally:
        torch.set_num_threads(threads)


def _start_worker() -> None:
    """A worker has one thread, and ends with the process that started it: a killed run must not go on in the background."""
    _one_thread()
    threading.Thread(target=lambda: (multiprocessing.parent_process().join(), os._exit(1)), daemon=True).start()


def _one_thread() -> None:
    torch.set_num_threads(1)
    os.environ["TOKENIZERS_PARALLELISM"] = "false"


def _compute_and_store(unit: Unit, compute: Callable, profile: str) -> None:
    started = time.perf_counter()
    rows, items = compute(unit)
    unit.path(profile, "json").unlink(missing_ok=True)  # from here until the end the unit does not count as done
    write_table(rows, unit.path(profile, "csv"))
    write_items(items, unit.path(profile, "items.parquet"))
    write_json(
        {
            "unit": {name: getattr(unit, name) for name in ("study", "dataset", "model", "method", "part", "seed")},
            "key": unit.key,
            "parameters": unit.parameters,
            "data": unit.data,
            "recipe": unit.recipe,
            "seconds": round(time.perf_counter() - started, 1),
            **provenance(),
        },
        unit.path(profile, "json"),
    )


def write_items(items: pd.DataFrame, path: Path) -> None:
    """Write items as parquet, small: the smallest types, and floats to 16 significant bits (1 part in 65,000). Atomic."""

    def smallest(column: pd.Series) -> pd.Series:
        if column.dtype.kind == "i":
            return pd.to_numeric(column, downcast="integer")
        if column.dtype.kind != "f":
            return column
        values = column.to_numpy(np.float32)
        mantissa, exponent = np.frexp(values)
        return pd.Series(np.ldexp(np.round(mantissa * 2**16) / 2**16, exponent).astype(np.float32), column.index)

    items = items.apply(smallest)
    floats = [name for name in items if items[name].dtype.kind == "f"]
    others = [name for name in items if name not in floats]
    options = {"compression": "zstd", "compression_level": 15, "use_byte_stream_split": floats, "use_dictionary": others}
    # hundreds of small files: statistics and copies of the schema would be a fifth of their size
    table = pa.Table.from_pandas(items, preserve_index=False).replace_schema_metadata(None)
    write_atomically(path, lambda partial: pq.write_table(table, partial, write_statistics=False, store_schema=False, **options))


def provenance() -> dict:
    """For information, not part of the key: commit (`-dirty` where lib/ differs from it), versions, processor family."""

    def git(*arguments: str) -> str:
        return subprocess.run(["git", *arguments], cwd=paths.ROOT, capture_output=True, text=True, check=False).stdout.strip()

    commit = git("rev-parse", "--short=12", "HEAD") + ("-dirty" if git("status", "--porcelain", "lib") else "")
    device = torch.cuda.get_device_name(0) if torch.cuda.is_available() else platform.machine()
    return {
        "commit": commit or None,
        "device": device,
        "versions": {name: version(name) for name in ("torch", "transformers", "numpy", "pandas")},
    }
