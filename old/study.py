"""Run notebooks under a profile: check the parameters, show the plan, execute with papermill, store the outputs.

    python -m old.study notebooks/21_length_control.ipynb --profile cpu -p signals '["pre"]'

The parameters cell of a notebook names its own profile (`cpu`, or `benchmarks` where it reads the papers' data) and holds the values of
that; notebooks/params/<notebook>.<profile>.yaml overrides them for another one, `-p` overrides both. A run with the notebook's own values
is written back into the notebook itself; every other goes to the cache folder, under runs/.
"""

import argparse
import difflib
import os
import statistics
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

import nbformat
import papermill
import yaml

from old import paths, storage, under_length
from old.device import processes
from old.length import costs as length_costs
from old.length import experiment as length
from old.length import tuning
from old.parameters import check_values, declared_parameters
from old.progress import DESTINATION
from old.quality import benchmark_experiment as benchmarks
from old.quality import costs as quality_costs
from old.quality import experiment as quality
from old.quality import nmt, rank_and_data, training_free
from old.units import FORCE, Unit, default_jobs, pending

# notebook: what it computes, from its parameters alone. Notebooks that only read or draw are not named here.
PLANS: dict[str, Callable[[dict], list[Unit]]] = {
    "10_ambiguity": partial(quality.plan, ["scores"]),
    "11_train_sigmoid_head": partial(quality.plan, ["training"]),
    "12_quality_estimation": partial(quality.plan, ["scores"]),
    "13_negative_sampling": partial(quality.plan, ["training", "ablation"]),
    "14_translation_model": lambda parameters: nmt.plan(parameters) + quality.plan(["training", "scores"], parameters),
    "15_benchmarks": benchmarks.plan,
    "16_scores_without_training": training_free.plan_notebook,
    "18_rank_and_data": rank_and_data.plan,
    "21_length_control": partial(length.plan, ["in-distribution"]),
    "22_unseen_lengths": partial(length.plan, ["unseen", "faults"]),
    "23_decoder_only": partial(length.plan_each, ["in-distribution", "unseen"]),
    "24_news_and_questions": partial(length.plan_each, ["targets", "in-distribution", "unseen"]),
    "25_better_signals": tuning.plan_better_signals,
    "26_words_and_characters": partial(length.plan_each, ["in-distribution", "unseen"]),
    "30_quality_under_length": under_length.plan,
    "31_costs": lambda parameters: [
        unit for costs in (length_costs, quality_costs) for unit in costs.plan(parameters) + costs.plan_growth(parameters)
    ],
}


# ---- parameters ----------------------------------------------------------------------------------------------------------------------


def chosen_parameters(notebook: Path, profile: str | None, overrides: dict) -> dict:
    """What a run changes in a notebook: the profile's file, then those `overrides` the notebook has; checked against its defaults.

    `profile` None: the notebook's own.
    """
    declared, given = declared_parameters(notebook), {}
    if profile not in (None, declared.get("profile")):
        file = paths.PARAMETERS / f"{notebook.stem}.{profile}.yaml"
        given = (yaml.safe_load(file.read_text()) or {}) if file.exists() else {}
        given |= {"profile": profile}
    given |= {name: value for name, value in overrides.items() if name in declared}
    check_values(notebook.stem, given, declared)
    return given


def check_request(notebooks: list[Path], profile: str | None, overrides: dict) -> None:
    """Raise ValueError for a notebook that is not there, a parameter none of them has, or a profile name that looks misspelt."""
    for notebook in notebooks:
        if not notebook.exists():
            raise ValueError(f"no notebook {notebook}: there are {', '.join(sorted(f.name for f in paths.NOTEBOOKS.glob('*.ipynb')))}")
    declared = {name: value for notebook in notebooks for name, value in declared_parameters(notebook).items()}
    check_values(" or ".join(notebook.stem for notebook in notebooks), overrides, declared)
    known = {"cpu"} | {file.name.split(".")[1] for file in paths.PARAMETERS.glob("*.yaml")} | {f.name for f in paths.RESULTS.glob("*/")}
    if profile not in (None, *known) and (close := difflib.get_close_matches(profile, known, 1)):
        raise ValueError(f"profile {profile!r} is new but looks like {close[0]!r}: correct it, or choose a name of your own that does not")


# ---- running -------------------------------------------------------------------------------------------------------------------------


def show_plan(notebook: Path, parameters: dict) -> None:
    """Print the units to compute and a rough time, from the recorded seconds of stored units of the same part."""
    units = PLANS[notebook.stem](parameters) if notebook.stem in PLANS else []
    todo = pending(units, parameters["profile"]) if units else []
    print(f"{notebook.name}: {len(units)} units, {len(todo)} to compute")
    if todo:
        print(f"  {', '.join(u.name for u in todo[:4])}{' ...' if len(todo) > 4 else ''}")
        known = [_recorded_seconds(unit.part, parameters["profile"]) for unit in todo]
        minutes = sum(seconds for seconds in known if seconds is not None) / default_jobs() / 60
        unknown = sorted({unit.part for unit, seconds in zip(todo, known) if seconds is None})
        if len(unknown) < len({unit.part for unit in todo}):
            print(f"  about {minutes:.0f} min, {default_jobs()} at once, apart from models shared by all units")
        if unknown:
            print(f"  no estimate for {', '.join(unknown)}: this profile holds none yet")


def _recorded_seconds(part: str, profile: str) -> float | None:
    records = [unit.record["seconds"] for unit in storage.index(profile).values() if unit.record["unit"]["part"] == part]
    return statistics.median(records) if records else None


def run(notebook: Path, profile: str | None, given: dict) -> Path:
    """Execute a notebook with the parameters `given`; return where its outputs are. A failed or killed run leaves none that look done.

    `profile` None: the notebook's own.
    """
    declared = declared_parameters(notebook)
    profile = profile or declared.get("profile", "cpu")
    own = all(declared[name] == value for name, value in given.items())  # the notebook's own values: its stored outputs
    output = notebook if own else paths.RUNS / profile / notebook.name
    partial_file = paths.RUNS / profile / f"{notebook.stem}.partial.ipynb"
    partial_file.parent.mkdir(parents=True, exist_ok=True)
    os.environ.setdefault(DESTINATION, os.ttyname(2) if sys.stderr.isatty() else "")
    papermill.execute_notebook(
        notebook,
        partial_file,
        given,
        kernel_name="python3",
        progress_bar=False,
        cwd=paths.NOTEBOOKS,
        extra_arguments=["--log-level=CRITICAL"],
    )
    executed = clean(nbformat.read(partial_file, as_version=4))
    partial_file.unlink()
    nbformat.write(executed, output.with_suffix(".writing"))
    output.with_suffix(".writing").replace(output)
    return output


def clean(notebook: nbformat.NotebookNode) -> nbformat.NotebookNode:
    """Drop what says nothing to a reader: papermill's metadata and banners, timings, stderr; write paths relative to the project."""
    notebook.metadata.pop("papermill", None)
    notebook.metadata["language_info"] = {"name": "python"}
    for cell in notebook.cells:
        for name in ("papermill", "execution"):
            cell.metadata.pop(name, None)
        if not cell.metadata.get("tags"):
            cell.metadata.pop("tags", None)
        if cell.cell_type == "code":
            cell.outputs = [o for o in cell.outputs if o.get("name") != "stderr"]
            for output in cell.outputs:
                for data in (output, output.get("data", {})):
                    for name in ("text", "text/plain", "text/html", "text/markdown"):
                        if isinstance(data.get(name), str):
                            data[name] = data[name].replace(f"{paths.ROOT}/", "")
    return notebook


def main(arguments: list[str] | None = None) -> int:
    """Command line; returns the exit status. Every foreseeable mistake ends in one line."""
    parser = argparse.ArgumentParser(prog="python -m old.study", description="Run notebooks of the study under a profile.")
    parser.add_argument("notebooks", nargs="+", type=Path)
    parser.add_argument("--profile", help="cpu, benchmarks (by default a notebook's own), smoke, ... or a name of your own")
    parser.add_argument("-p", nargs=2, action="append", default=[], metavar=("NAME", "VALUE"), help="override one parameter; VALUE is YAML")
    parser.add_argument("--force", action="store_true", help="compute again what is stored")
    parser.add_argument("--plan", action="store_true", help="check the parameters and show the plan only")
    options = parser.parse_args(arguments)
    os.environ[FORCE] = "1" if options.force else "0"
    try:
        if processes() > 1:
            raise ValueError("notebooks run in one process: train their models first, with `accelerate launch -m old.study_models`")
        overrides = {name: yaml.safe_load(value) for name, value in options.p}
        profile = overrides.pop("profile", options.profile)
        check_request(options.notebooks, profile, overrides)
        chosen = {notebook: chosen_parameters(notebook, profile, overrides) for notebook in options.notebooks}
        for notebook, given in chosen.items():  # all checks come before any work
            show_plan(notebook, {**declared_parameters(notebook), **given})
        for notebook, given in () if options.plan else chosen.items():
            print(f"done: {os.path.relpath(run(notebook, profile, given))}", flush=True)
    except (ValueError, yaml.YAMLError, papermill.PapermillExecutionError) as error:
        message = f"{error.ename}: {error.evalue}" if isinstance(error, papermill.PapermillExecutionError) else " ".join(str(error).split())
        print(f"error: {message}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
