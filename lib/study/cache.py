"""One cache. `cached` keeps what is not committed (models, hidden states); `kept` keeps the rows of
experiments, computed once for each combination of their arguments. A run killed at any moment loses
nothing, and half a result never looks whole.
"""

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import nullcontext
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
        arguments, calls = self.bind(*args, **kwargs), _running.get()
        base = paths.CACHE / self.name / self.key(arguments)
        if calls and self.name not in (caller := calls[-1][0]).closure:
            reason = f"calls {self.name}, but its key does not depend on it"
            raise ValueError(f"{caller.name} {reason}: add {self.name} to its built_on")
        checkpoint = base.with_suffix(".checkpoint")
        token = _running.set((*calls, (self, checkpoint)))
        base.parent.mkdir(parents=True, exist_ok=True)
        several = PartialState().num_processes > 1
        try:
            with nullcontext() if several else FileLock(base.with_suffix(".lock")):
                if not self.existing(base):
                    self.make(base, arguments)
                    if PartialState().is_main_process:
                        checkpoint.unlink(missing_ok=True)
                    PartialState().wait_for_everyone()
                return self.read(self.existing(base))
        finally:
            _running.reset(token)

    def existing(self, base: Path) -> Path | None:
        files = (base.with_suffix(ending) for ending in (".safetensors", ".parquet", ".json"))
        return next((file for file in files if file.exists()), None)

    def make(self, base: Path, arguments: dict) -> None:
        value = self.function(**arguments)
        if isinstance(value, pd.DataFrame):
            write = (".parquet", lambda partial: value.to_parquet(partial, index=False))
        elif isinstance(value, dict) and any(isinstance(v, torch.Tensor) for v in value.values()):
            tensors = {name: one.detach().cpu().contiguous() for name, one in value.items()}
            write = (".safetensors", lambda partial: save_file(tensors, partial))
        else:
            write = (".json", lambda partial: partial.write_text(json.dumps(value)))
        if PartialState().is_main_process:
            write_atomically(base.with_suffix(write[0]), write[1])

    def read(self, file: Path) -> object:
        read = {".parquet": pd.read_parquet, ".safetensors": load_file}
        return readable(read.get(file.suffix, lambda file: json.loads(file.read_text())), file)


class _CachedFolder(_Cached):
    supplied = ("folder",)

    def existing(self, base: Path) -> Path | None:
        return base if base.exists() else None

    def make(self, base: Path, arguments: dict) -> None:
        partial, first = base.with_suffix(".partial"), PartialState().is_main_process
        if first:
            shutil.rmtree(partial, ignore_errors=True)
            partial.mkdir()
        PartialState().wait_for_everyone()
        self.function(folder=partial, **arguments)
        if first:
            partial.replace(base)

    def read(self, file: Path) -> Path:
        return file


def checkpoint_file() -> Path | None:
    """Where the cached function that is running may keep its state, to go on after a kill."""
    return _running.get()[-1][1] if _running.get() else None


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

        kept(head_scores, over={"head": heads, "seed": seeds}, task="listing")

    What is missing is computed, `jobs` combinations at once (one a core, on a GPU one), and stored:
    in data/results with STUDY_KEEP=1, otherwise in the cache folder. Columns: the arguments (a
    dictionary's values as `options.lr`, a list as JSON), then those of the rows.
    `accept`: a source changed under an unchanged version moves no number.
    """
    over = {name: list(values) for name, values in (over or {}).items()}
    if empty := [name for name, values in over.items() if not values]:
        raise ValueError(f"{function.name}: {empty[0]} must name at least one value")
    combinations = (dict(zip(over, chosen)) for chosen in product(*over.values()))
    bound = [function.bind(**arguments, **chosen) for chosen in combinations]
    wanted = {function.key(one): one for one in bound}
    stores = [RowStore(folder, function) for folder in dict.fromkeys((paths.RESULTS, _target()))]
    for store_ in stores:
        store_.check_sources(accept or os.environ.get("STUDY_ACCEPT") == "1")
    records = {key: record for store_ in stores for key, record in store_.records.items()}
    if todo := [one for key, one in wanted.items() if key not in records]:
        jobs = min(len(todo), jobs or (1 if torch.cuda.is_available() else os.cpu_count() or 1))
        seconds = [record["seconds"] for record in records.values() if record["seconds"]]
        about = f", about {median(seconds) * len(todo) / jobs / 60:.1f} min" if seconds else ""
        print(f"{function.name}: {len(todo)} to compute, {jobs} at once{about}", file=sys.stderr)
        tasks = (joblib.delayed(_compute)(function, one, _target()) for one in todo)
        done = joblib.Parallel(n_jobs=jobs, return_as="generator_unordered")(tasks)
        for _ in progress(done, function.name, total=len(todo)):
            pass
        stores = [RowStore(store_.folder, function) for store_ in stores]  # joins what is new
    rows = [rows for store_ in stores if len(rows := store_.rows([*wanted]))]
    by_key = dict(tuple(pd.concat(rows).groupby("key", sort=False))) if rows else {}
    chosen = [by_key[key] for key in wanted if key in by_key]  # in the order asked for
    return pd.concat(chosen, ignore_index=True).drop(columns="key") if chosen else pd.DataFrame()


def _target() -> Path:
    return paths.RESULTS if os.environ.get("STUDY_KEEP") == "1" else paths.CACHE / "results"


def _compute(function: _Experiment, arguments: dict, target: Path) -> None:
    """One combination, with one thread, so that numbers do not depend on the number of cores."""
    threads, started = torch.get_num_threads(), time.perf_counter()
    torch.set_num_threads(1)
    try:
        rows = function(**arguments)
    finally:
        torch.set_num_threads(threads)
    seconds = time.perf_counter() - started
    git = lambda *words: subprocess.run(  # noqa: E731
        ["git", *words], cwd=paths.ROOT, check=False, capture_output=True, text=True
    ).stdout.strip()
    commit = git("rev-parse", "--short=12", "HEAD") or None
    if commit and git("status", "--porcelain", "lib"):
        commit += "-dirty"
    RowStore(target, function).write(arguments, rows, seconds, commit)
