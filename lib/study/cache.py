"""One cache. `cached` keeps what is not committed (models, hidden states); `kept` keeps the rows of
experiments, computed once for each combination of their arguments.

    @experiment(version=2, built_on=[trained_head])
    def head_scores(head, seed, task): ...  # -> DataFrame

    rows = kept(head_scores, over={"head": heads, "seed": seeds}, task="listing")

Rows are in data/results/<experiment>.parquet, with the arguments as columns; the .json beside it
has a record of each combination. A combination just computed is one file in new/, written
atomically, until all are joined: a run killed at any moment loses nothing, and half a result never
looks whole.
"""

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from contextvars import ContextVar
from itertools import product
from pathlib import Path
from statistics import median

import joblib
import pandas as pd
import torch
from accelerate import PartialState
from filelock import FileLock
from safetensors.torch import load_file, save_file

from lib.study import paths
from lib.study.paths import progress
from lib.study.rows import Keyed, RowStore, readable, write_atomically

_running: ContextVar[tuple[tuple[Keyed, Path | None], ...]] = ContextVar("running", default=())


# ---- what is not committed ---------------------------------------------------------------------


def cached(*, version: int, built_on: Sequence[Keyed] = (), data=None, folder: bool = False):
    """Decorator: keep what the function returns in the cache folder, by its key.

    It returns tensors by name (safetensors), a DataFrame (parquet) or a JSON value; or, with
    `folder`, writes files into the folder that it gets as its argument of that name.
    Under several processes all compute, the first writes.
    """
    kind = _CachedFolder if folder else _Cached
    return lambda function: kind(function, version, built_on, data)


class _Cached(Keyed):
    def __call__(self, *args, **kwargs):
        arguments = self.bind(*args, **kwargs)
        base = paths.CACHE / self.name / self.key(arguments)
        calls = _running.get()
        if calls:
            calls[-1][0].check_built_on(self)
        token = _running.set((*calls, (self, base.with_suffix(".checkpoint"))))
        try:
            base.parent.mkdir(parents=True, exist_ok=True)
            if PartialState().num_processes > 1:
                return self.made(base, arguments)
            with FileLock(base.with_suffix(".lock")):
                return self.made(base, arguments)
        finally:
            _running.reset(token)

    def made(self, base: Path, arguments: dict) -> object:
        """The value, read from its file; computed first where there is none."""
        if (file := _existing(base)) is None:
            value = self.function(**arguments)
            if PartialState().is_main_process:
                _write_value(base, value)
                base.with_suffix(".checkpoint").unlink(missing_ok=True)
            PartialState().wait_for_everyone()
            file = _existing(base)
        return _read_value(file)


class _CachedFolder(_Cached):
    supplied = ("folder",)

    def made(self, base: Path, arguments: dict) -> Path:
        if not base.exists():
            partial = base.with_suffix(".partial")
            if PartialState().is_main_process:
                shutil.rmtree(partial, ignore_errors=True)
                partial.mkdir()
            PartialState().wait_for_everyone()
            self.function(folder=partial, **arguments)
            if PartialState().is_main_process:
                partial.replace(base)
                base.with_suffix(".checkpoint").unlink(missing_ok=True)
            PartialState().wait_for_everyone()
        return base


def checkpoint_file() -> Path | None:
    """Where the cached function that is running may keep its state, to go on after a kill."""
    return _running.get()[-1][1] if _running.get() else None


def _existing(base: Path) -> Path | None:
    files = (base.with_suffix(ending) for ending in (".safetensors", ".parquet", ".json"))
    return next((file for file in files if file.exists()), None)


def _write_value(base: Path, value: object) -> None:
    if isinstance(value, pd.DataFrame):
        write = (".parquet", lambda partial: value.to_parquet(partial, index=False))
    elif isinstance(value, dict) and any(isinstance(one, torch.Tensor) for one in value.values()):
        tensors = {name: one.detach().cpu().contiguous() for name, one in value.items()}
        write = (".safetensors", lambda partial: save_file(tensors, partial))
    else:
        write = (".json", lambda partial: partial.write_text(json.dumps(value)))
    write_atomically(base.with_suffix(write[0]), write[1])


def _read_value(file: Path) -> object:
    read = {".parquet": pd.read_parquet, ".safetensors": load_file}
    return readable(read.get(file.suffix, lambda file: json.loads(file.read_text())), file)


# ---- rows of experiments -----------------------------------------------------------------------


def experiment(*, version: int, built_on: Sequence[Keyed] = (), data=None):
    """Decorator of a function that returns rows (a DataFrame): called, it computes them; `kept`
    keeps them. Its arguments are JSON values.
    """
    return lambda function: _Experiment(function, version, built_on, data)


class _Experiment(Keyed):
    def __call__(self, *args, **kwargs) -> pd.DataFrame:
        arguments = self.bind(*args, **kwargs)
        token = _running.set((*_running.get(), (self, None)))
        try:
            return self.function(**arguments)
        finally:
            _running.reset(token)


def kept(
    function: _Experiment,
    over: dict[str, Sequence] | None = None,
    *,
    accept: bool = False,
    jobs: int | None = None,
    **arguments,
) -> pd.DataFrame:
    """Rows of an experiment for the product of the lists in `over`; other arguments are values.

    What is missing is computed, `jobs` combinations at once (one a core, on a GPU one), and stored:
    in data/results with STUDY_KEEP=1, otherwise in the cache folder. Columns: the arguments (a
    dictionary's values as `options.lr`, a list as JSON), then those of the rows.
    `accept`: a source changed under an unchanged version moves no number.
    """
    values = [list(values) for values in (over or {}).values()]
    if empty := [name for name, one in zip(over or {}, values) if not one]:
        raise ValueError(f"{function.name}: {empty[0]} must name at least one value")
    combinations = [dict(zip(over or {}, chosen)) for chosen in product(*values)]
    wanted = [function.bind(**arguments, **chosen) for chosen in combinations]
    keys = [function.key(one) for one in wanted]
    stores = [RowStore(folder, function) for folder in dict.fromkeys((paths.RESULTS, _target()))]
    for store_ in stores:
        store_.check_sources(accept or os.environ.get("STUDY_ACCEPT") == "1")
    known = {key for store_ in stores for key in store_.records}
    todo = [(key, one) for key, one in dict(zip(keys, wanted)).items() if key not in known]
    if todo:
        _compute(function, todo, stores, jobs)
        stores = [RowStore(store_.folder, function) for store_ in stores]  # joins what is new
    rows = [rows for store_ in stores if len(rows := store_.rows(keys))]
    by_key = dict(tuple(pd.concat(rows).groupby("key", sort=False))) if rows else {}
    chosen = [by_key[key] for key in dict.fromkeys(keys) if key in by_key]  # in the order asked for
    return pd.concat(chosen, ignore_index=True).drop(columns="key") if chosen else pd.DataFrame()


def store(
    function: _Experiment,
    arguments: dict,
    rows: pd.DataFrame,
    *,
    seconds: float,
    commit: str | None,
    folder: Path | None = None,
) -> None:
    """Write the rows of one combination; the next `kept` joins them with the others."""
    RowStore(folder or _target(), function).write(function.bind(**arguments), rows, seconds, commit)


def _target() -> Path:
    return paths.RESULTS if os.environ.get("STUDY_KEEP") == "1" else paths.CACHE / "results"


def _compute(function: _Experiment, todo: list, stores: list[RowStore], jobs: int | None) -> None:
    jobs = min(len(todo), jobs or (1 if torch.cuda.is_available() else os.cpu_count() or 1))
    seconds = [r["seconds"] for store_ in stores for r in store_.records.values() if r["seconds"]]
    about = f", about {median(seconds) * len(todo) / jobs / 60:.1f} min" if seconds else ""
    print(f"{function.name}: {len(todo)} to compute, {jobs} at once{about}", file=sys.stderr)
    target = _target()
    tasks = (joblib.delayed(_compute_one)(function, arguments, target) for _, arguments in todo)
    parallel = joblib.Parallel(n_jobs=jobs, return_as="generator_unordered")
    for _ in progress(parallel(tasks), function.name, total=len(todo)):
        pass


def _compute_one(function: _Experiment, arguments: dict, target: Path) -> None:
    """One combination, with one thread, so that numbers do not depend on the number of cores."""
    threads, started = torch.get_num_threads(), time.perf_counter()
    torch.set_num_threads(1)
    try:
        rows = function(**arguments)
    finally:
        torch.set_num_threads(threads)
    seconds = time.perf_counter() - started
    store(function, arguments, rows, seconds=seconds, commit=_commit(), folder=target)


def _commit() -> str | None:
    """The commit that computes, with `-dirty` where lib differs from it."""

    def git(*words: str) -> str:
        command = ["git", "-C", str(paths.ROOT), *words]
        return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()

    commit = git("rev-parse", "--short=12", "HEAD")
    return f"{commit}-dirty" if commit and git("status", "--porcelain", "lib") else commit or None
