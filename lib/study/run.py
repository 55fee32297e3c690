"""Run notebooks, each in a process of its own: check their parameters, execute them with papermill,
store clean outputs: with its own values in the notebook itself, else under runs/ in the cache
folder. A failed or killed one leaves nothing that looks done. Notebooks are read and written as
JSON, so that a mistake is answered before anything heavy loads.
"""

import argparse
import difflib
import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import NamedTuple

import yaml

from lib.study import paths
from lib.study.parameters import check_values, declared_parameters

PROFILES = paths.NOTEBOOKS / "profiles.yaml"
WIDGET = "application/vnd.jupyter.widget-view+json"  # shows nothing without a running kernel
UNNAMED = "changed"  # folder of runs with other values, without a profile


class Run(NamedTuple):
    """One notebook, the values it is given, and the folder of its outputs (None: the notebook)."""

    notebook: Path
    given: dict
    folder: str | None

    def file(self, kind: str) -> Path:
        """Of a run under way: `staged` (what papermill reads) or `partial` (what it writes)."""
        return paths.RUNS / (self.folder or "own") / f"{self.notebook.stem}.{kind}.ipynb"

    @property
    def output(self) -> Path:
        """Where a finished run is."""
        return paths.RUNS / self.folder / self.notebook.name if self.folder else self.notebook


# ---- what is asked for ---------------------------------------------------------------------------


def requested(notebooks: list[Path], profile: str | None, overrides: dict) -> list[Run]:
    """The runs that were asked for, of notebooks that the profile names; ValueError for whatever
    does not exist or does not fit.
    """
    for notebook in notebooks:
        if not (notebook.is_file() and notebook.suffix == ".ipynb"):
            known = ", ".join(sorted(file.name for file in paths.NOTEBOOKS.glob("*.ipynb")))
            raise ValueError(f"no notebook {notebook}: there are {known}")
    declared = {notebook: declared_parameters(notebook) for notebook in notebooks}
    every = {name: value for values in declared.values() for name, value in values.items()}
    check_values(" or ".join(n.stem for n in notebooks), overrides, every)
    section = profile_values(profile) if profile is not None else {n.stem: {} for n in notebooks}
    if not (known := [notebook for notebook in notebooks if notebook.stem in section]):
        raise ValueError(f"profile {profile!r} says nothing of {notebooks[0].stem}")
    runs = []
    for notebook in known:
        values, given = declared[notebook], section[notebook.stem] or {}
        given = given | {name: value for name, value in overrides.items() if name in values}
        check_values(notebook.stem, given, values)
        own = profile is None and all(values[name] == value for name, value in given.items())
        runs.append(Run(notebook, {} if own else given, None if own else profile or UNNAMED))
    return runs


def profile_values(profile: str) -> dict[str, dict]:
    """A profile's section: {notebook: {parameter: value}}. ValueError where there is none."""
    profiles = yaml.safe_load(PROFILES.read_text(encoding="utf8")) or {}
    if profile not in profiles:
        close = difflib.get_close_matches(profile, profiles, 1)
        hint = f" (did you mean {close[0]!r}?)" if close else ""
        raise ValueError(f"no profile {profile!r}{hint}: there are {', '.join(profiles)}")
    return profiles[profile] or {}


# ---- executing -----------------------------------------------------------------------------------


def execute(runs: list[Run], jobs: int, skip_live: bool) -> int:
    """Execute runs, `jobs` at a time, each in a process of its own; return how many failed."""
    waiting, active, failed = list(runs), {}, 0
    try:
        while waiting or active:
            while waiting and len(active) < jobs:
                run = waiting.pop(0)
                before, started = run.notebook.read_text(encoding="utf8"), time.monotonic()
                active[_start(run, json.loads(before), skip_live)] = run, before, started
            time.sleep(0.1)
            for process in [process for process in active if process.poll() is not None]:
                run, before, started = active.pop(process)
                try:
                    _finish(run, process.returncode, before, skip_live)
                    seconds = time.monotonic() - started
                    print(f"done: {os.path.relpath(run.output)} ({seconds:.0f} s)", flush=True)
                except ValueError as error:
                    failed += 1
                    print(f"error: {error}", file=sys.stderr, flush=True)
    finally:
        for process in active:
            process.terminate()
        for process in active:
            process.wait()
    return failed


def _start(run: Run, document: dict, skip_live: bool) -> subprocess.Popen:
    """Start papermill on a copy of the notebook."""
    staged, partial = run.file("staged"), run.file("partial")
    staged.parent.mkdir(parents=True, exist_ok=True)
    if run.folder:
        run.output.unlink(missing_ok=True)
    for cell in _live_cells(document) if skip_live else ():
        cell["cell_type"] = "raw"
        cell.pop("outputs", None)
        cell.pop("execution_count", None)
    staged.write_text(json.dumps(document), encoding="utf8")
    options = ["--cwd", paths.NOTEBOOKS, "--kernel", "python3", "--no-progress-bar"]
    options += ["--parameters_yaml", yaml.safe_dump(run.given)] if run.given else []
    terminal = os.ttyname(2) if sys.stderr.isatty() else ""  # where progress bars show
    environment = {"STUDY_PROGRESS": terminal, "PYTHONPATH": str(paths.ROOT)} | os.environ
    if run.folder:  # the committed figures and tables are those of a notebook's own values
        environment = {"STUDY_FIGURES": str(run.output.parent / "figures")} | environment
    command = [sys.executable, "-m", "papermill", staged, partial, *options]
    with partial.with_suffix(".log").open("w") as log:
        return subprocess.Popen(command, env=environment, stdout=log, stderr=log)


def _finish(run: Run, status: int, before: str, skip_live: bool) -> None:
    """Store the outputs of an ended process; ValueError, with the reason, where it failed."""
    partial, log = run.file("partial"), run.file("partial").with_suffix(".log")
    run.file("staged").unlink()
    if status:
        raise ValueError(f"{run.notebook.name}: {_reason(partial, log)}")
    document = json.loads(partial.read_text(encoding="utf8"))
    if skip_live:
        for executed, stored in zip(_live_cells(document), _live_cells(json.loads(before))):
            executed.clear()
            executed.update(stored)
    if not run.folder and run.notebook.read_text(encoding="utf8") != before:
        raise ValueError(f"{run.notebook.name} was edited meanwhile: its outputs are in {partial}")
    clean(document)
    writing = run.output.with_suffix(".writing")
    text = json.dumps(document, indent=1, sort_keys=True, ensure_ascii=False)
    writing.write_text(text + "\n", encoding="utf8")
    writing.replace(run.output)
    partial.unlink()
    log.unlink()


def _reason(partial: Path, log: Path) -> str:
    """Why a run failed, in one line: the error of a cell, or else the last line of the log."""
    cells = json.loads(partial.read_text(encoding="utf8"))["cells"] if partial.exists() else []
    for output in (output for cell in cells for output in cell.get("outputs", [])):
        if output["output_type"] == "error":
            return " ".join(f"{output['ename']}: {output['evalue']}".split())
    return (log.read_text(encoding="utf8").strip().splitlines() or ["killed"])[-1]


def _live_cells(document: dict) -> list[dict]:
    return [cell for cell in document["cells"] if "live" in cell["metadata"].get("tags", [])]


def clean(document: dict) -> None:
    """Drop what says nothing to a reader: papermill's metadata, timings, stderr, machine paths."""
    document["metadata"]["language_info"] = {"name": "python"}
    for part in (document, *document["cells"]):
        for name in ("papermill", "widgets", "execution"):
            part["metadata"].pop(name, None)
        if not part["metadata"].get("tags", True):
            del part["metadata"]["tags"]
    code = (cell for cell in document["cells"] if cell["cell_type"] == "code")
    for number, cell in enumerate(code, 1):
        cell["execution_count"] = number
        outputs = [output for output in cell["outputs"] if output.get("name") != "stderr"]
        outputs = [output for output in outputs if WIDGET not in output.get("data", {})]
        for output in outputs:
            if "execution_count" in output:
                output["execution_count"] = number
        text = re.sub(r" at 0x[0-9a-f]+", "", json.dumps(outputs))  # differs from run to run
        text = text.replace(f"{paths.CACHE}/", ".cache/")
        cell["outputs"] = json.loads(text.replace(f"{paths.ROOT}/", ""))


# ---- command line --------------------------------------------------------------------------------


def main(arguments: list[str] | None = None) -> int:
    """Command line; returns the exit status. Every foreseeable mistake ends in one line."""
    parser = argparse.ArgumentParser(prog="python -m lib.study", description="Run notebooks.")
    parser.add_argument("notebooks", nargs="+", type=Path)
    parser.add_argument("--profile", help="a section of notebooks/profiles.yaml: smoke, gpu")
    option = {"nargs": 2, "action": "append", "default": [], "metavar": ("NAME", "VALUE")}
    parser.add_argument("-p", **option, help="change one parameter; VALUE is YAML")
    parser.add_argument("-j", "--jobs", type=int, default=2, help="notebooks at a time (2)")
    parser.add_argument("--skip-live", action="store_true", help="keep outputs of `live` cells")
    parser.add_argument("--plan", action="store_true", help="check and show the parameters only")
    options = parser.parse_args(arguments)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that what runs is ended, too
    try:
        overrides = {name: yaml.safe_load(value) for name, value in options.p}
        runs = requested(options.notebooks, options.profile, overrides)
    except (ValueError, yaml.YAMLError) as error:
        print("error: " + " ".join(str(error).split()), file=sys.stderr)
        return 1
    for run in runs:
        print(f"{run.notebook.name}: {run.given or 'its own values'}", flush=True)
    return 0 if options.plan else min(1, execute(runs, max(1, options.jobs), options.skip_live))
