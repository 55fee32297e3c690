"""One experiment unit - (study, dataset, model, method, part, seed) with its parameters - computed once, stored, and read ever after.

Where its rows and items are: `old.storage`.
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

import pandas as pd
import torch

from old import paths, storage
from old.progress import progress
from old.results import validate

FORCE = "STUDY_FORCE"  # set by `old.study --force`: compute again what is stored


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
        """`length.docstrings.tiny-bart.pre.unseen.0`."""
        return storage.unit_name(self.fields)

    @property
    def fields(self) -> dict:
        """The fields that name it."""
        return {name: getattr(self, name) for name in ("study", "dataset", "model", "method", "part", "seed")}

    @property
    def identity(self) -> dict:
        """The columns of the result table that name it: what its rows have in common, or start from."""
        return {name: value for name, value in self.fields.items() if name != "part"}

    @property
    def key(self) -> str:
        """Hash of everything the numbers depend on."""
        return hashlib.sha256(json.dumps([self.name, self.parameters, self.data, self.recipe], sort_keys=True).encode()).hexdigest()[:16]


def state(unit: Unit, profile: str) -> str:
    """`done`, `missing`, `outdated` (data or recipe moved on: computed again) - or ValueError where stored rows have other parameters."""
    return _state(unit, profile, storage.index(profile))


def _state(unit: Unit, profile: str, stored: dict[str, storage.Stored]) -> str:
    if unit.name not in stored:
        return "missing"
    record = stored[unit.name].record
    if record["key"] == unit.key:
        return "done"
    if record["parameters"] != unit.parameters:
        changed = [
            f"{n}: {record['parameters'].get(n)!r} -> {unit.parameters.get(n)!r}"
            for n in sorted(record["parameters"].keys() | unit.parameters.keys())
            if record["parameters"].get(n) != unit.parameters.get(n)
        ]
        raise ValueError(
            f"profile {profile!r} already holds {unit.name} with other parameters ({'; '.join(changed)}). "
            "Give your run its own profile name (-p profile my-run), or replace the stored rows with --force."
        )
    return "outdated"


def pending(units: list[Unit], profile: str) -> list[Unit]:
    """Those that must be computed; with STUDY_FORCE=1 all of them."""
    if os.environ.get(FORCE) == "1":
        return list(units)
    stored = storage.index(profile)
    return [unit for unit in units if _state(unit, profile, stored) != "done"]


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
    storage.pack(profile)
    return read(units, profile)


def read(units: list[Unit], profile: str) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Stored rows and items of these units, merged; items carry the fields that name their unit."""
    with storage.lock(profile):
        stored = storage.index(profile)
        return _merge([stored[unit.name] for unit in units])


def read_stored(study: str, profile: str) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Rows and items of every finished unit of a study in a profile, whichever machine or run computed it."""
    with storage.lock(profile):
        found = [unit for _, unit in sorted(storage.index(profile).items()) if unit.record["unit"]["study"] == study]
        if not found:
            raise FileNotFoundError(f"profile {profile!r} holds no results of study {study!r}: run `make study PROFILE={profile}` first")
        return _merge(found)


def _merge(stored: list[storage.Stored]) -> tuple[pd.DataFrame, pd.DataFrame]:
    units = storage.load(stored)
    rows = pd.concat([unit.rows for unit in units], ignore_index=True).drop_duplicates()  # the same head may be scored in two units
    items = pd.concat([unit.items.to_pandas().assign(**unit.record["unit"]) for unit in units], ignore_index=True)
    return validate(rows.reset_index(drop=True)), items


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
    record = {"unit": unit.fields, "key": unit.key, "parameters": unit.parameters, "data": unit.data, "recipe": unit.recipe}
    seconds = round(time.perf_counter() - started, 1)
    storage.write(record | {"seconds": seconds} | provenance(), rows, items, profile)


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
