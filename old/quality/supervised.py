"""The supervised rival: ridge regression on the frozen model's hidden states, trained on human judgements of one language pair and tested
on that pair (cross-fitted), on the others and on another data set. What it learns from people, no other score here is given.
"""

import dataclasses
from functools import lru_cache

import numpy as np
import pandas as pd

from old.parameters import check_names, model_label, settings_from
from old.quality import evaluation, probe
from old.quality.data import RECIPE, Settings, task_states
from old.quality.tasks.catalogue import TASKS
from old.quality.training import text_numbers
from old.results import make_table, setting_name
from old.units import Unit, default_jobs, pending
from old.units import run as run_units

METHOD = "supervised-probe"
PART = "probe-"  # and the task that it was trained on


def plan(train: list[str], test: list[str], parameters: dict) -> list[Unit]:
    """One unit for each task trained on and each task tested on; `parameters` of a notebook (fields of Settings)."""
    check_names("task", train, TASKS)
    check_names("task", test, TASKS)
    settings = settings_from(Settings, parameters)
    values, model = dataclasses.asdict(settings), model_label(settings.model)
    units = []
    for source in train:
        for task in test:
            data = "-".join(dict.fromkeys([settings.data(task), TASKS[source].data()]))
            units.append(Unit("quality", task, model, METHOD, f"{PART}{source}", 0, values, data, RECIPE))
    return units


def run(train: list[str], test: list[str], parameters: dict) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Result rows and items: read where they are stored, computed where not."""
    units = plan(train, test, parameters)
    if pending(units, parameters["profile"]):
        for task in dict.fromkeys([*train, *test]):  # hidden states, once, before units run side by side
            task_states(settings_from(Settings, parameters), task)
    return run_units(units, compute, parameters["profile"], default_jobs())


def compute(unit: Unit) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Rows and items of one unit. Every slice (with the source, without it) has a probe of its own."""
    settings, source = settings_from(Settings, unit.parameters), unit.part.removeprefix(PART)
    (items, features), (learnt, known) = _pooled(settings, unit.dataset), _pooled(settings, source)
    score = np.full(len(items), np.nan)
    for name in items["slice"].unique():
        here, there = (items["slice"] == name).to_numpy(), (learnt["slice"] == name).to_numpy()
        if unit.dataset == source:
            score[here] = probe.cross_fitted(features[here], items["gold"].to_numpy()[here], items["group"].to_numpy()[here])
        else:
            gold, groups = (learnt[column].to_numpy()[there] for column in ("gold", "group"))
            score[here] = probe.transferred(known[there], gold, groups, features[here])
    identity = {"study": "quality", "dataset": unit.dataset, "model": unit.model, "method": METHOD, "seed": unit.seed}
    rows = evaluation.rows(evaluation.statistics(unit.dataset, items, score), identity | {"setting": setting_name(trained_on=source)})
    return make_table(rows), items[["id", "group", "slice", "gold"]].assign(**{METHOD: score})


@lru_cache(maxsize=len(TASKS))
def _pooled(settings: Settings, task: str) -> tuple[pd.DataFrame, np.ndarray]:
    """Items of a task and the mean hidden state of each output (T, d); made once a process, which several units ask for."""
    items, texts, states = task_states(settings, task)
    return items, probe.pool(states, text_numbers(texts))
