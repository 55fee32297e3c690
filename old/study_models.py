"""Train the length-controlled models that notebooks need, on several GPUs: the notebooks then find them in the cache.

    accelerate launch --num_processes 4 -m old.study_models notebooks/21_length_control.ipynb --profile gpu
    python -m old.study notebooks/21_length_control.ipynb --profile gpu

A notebook runs in one process; fine-tuning is what several are good for. Models that are in the cache are not trained again; a run that was
stopped goes on at its last checkpoint. All processes see the same cache folder (STUDY_CACHE), and the first one alone writes to it.
"""

import argparse
import sys
from datetime import timedelta
from pathlib import Path

import yaml
from accelerate import PartialState

from old.length.finetuning import Settings, model_file, prepare, trained_model
from old.parameters import declared_parameters, settings_from
from old.study import PLANS, check_request, chosen_parameters
from old.units import Unit


def train_missing(units: list[Unit], state: PartialState) -> None:
    """Train the models of these units that the cache lacks, all processes together on one after the other."""
    wanted = {model_file(unit): unit for unit in units}
    missing = [unit for file, unit in wanted.items() if not file.exists()]
    state.print(f"{len(wanted)} models, {len(missing)} to train", flush=True)
    for unit in missing:
        settings = settings_from(Settings, unit.parameters)
        if settings.model == "tiny-bart" and state.num_processes > 1:
            raise ValueError("tiny-bart is small enough for one process: start it without `accelerate launch`")
        with state.main_process_first():  # it fetches the data, the others find them in the cache
            data = prepare(settings)
        trained_model(unit, settings, data)
        state.print(f"trained: {unit.model} {unit.method} seed {unit.seed}", flush=True)


def main(arguments: list[str] | None = None) -> int:
    """Command line; returns the exit status. Every foreseeable mistake ends in one line."""
    parser = argparse.ArgumentParser(prog="python -m old.study_models", description="Train the models that notebooks need.")
    parser.add_argument("notebooks", nargs="+", type=Path)
    parser.add_argument("--profile", help="by default a notebook's own")
    parser.add_argument("-p", nargs=2, action="append", default=[], metavar=("NAME", "VALUE"), help="override one parameter; VALUE is YAML")
    options = parser.parse_args(arguments)
    state = PartialState(timeout=timedelta(hours=2))  # others wait that long for the first process to fetch what is needed
    try:
        overrides = {name: yaml.safe_load(value) for name, value in options.p}
        check_request(options.notebooks, options.profile, overrides)
        chosen = {n: declared_parameters(n) | chosen_parameters(n, options.profile, overrides) for n in options.notebooks}
        planned = [unit for n, parameters in chosen.items() if n.stem in PLANS for unit in PLANS[n.stem](parameters)]
        train_missing([unit for unit in planned if unit.study in ("length", "decoder-only")], state)
    except (ValueError, yaml.YAMLError) as error:
        state.print(f"error: {' '.join(str(error).split())}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
