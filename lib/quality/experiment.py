"""The Sigmoid Head experiment: train heads on a frozen language model, score the items of every task, measure.

Units of two kinds:
- study `sampling`, part `training`, one a head and seed: learning curve on held-out text; the trained head is kept in the cache;
- studies `ambiguity` and `quality`, one a task and seed: items with the scores of all heads (method `heads`; part `scores` for the main
  ones, part `ablation` for those of notebook 13), and once, as seed 0, with the scores that need no training (method `untrained`).
"""

import dataclasses
from pathlib import Path

import numpy as np
import pandas as pd

from lib.corpora import docstrings
from lib.quality import evaluation, scores
from lib.quality.data import RECIPE, TASKS, Settings, positions, prepare, task_states, wrong_tokens
from lib.quality.heads import HEADS, HELD_OUT, learning_rate, own_limit, train_head, trained_head
from lib.quality.language_models import Text
from lib.quality.negatives import SAMPLERS
from lib.quality.training import gold_tokens, text_numbers
from lib.results import make_table, setting_name
from lib.units import Unit, default_jobs, pending
from lib.units import run as run_units


def plan(parts: list[str], parameters: dict) -> list[Unit]:
    """Units of the parts `training`, `scores`, `ablation` for a notebook's parameters (`heads`, `seeds`, `tasks`, fields of Settings).

    Raises ValueError for anything unknown or out of range, naming the valid choices, before anything is computed.
    """
    heads, seeds, tasks = parameters["heads"], parameters["seeds"], parameters.get("tasks", [])
    for what, chosen, known in (("head", heads, HEADS), ("task", tasks, TASKS)):
        if unknown := [name for name in chosen if name not in known]:
            raise ValueError(f"unknown {what} {unknown[0]!r}: choose from {', '.join(known)}")
        if len(set(chosen)) < len(chosen):
            raise ValueError(f"{what}s must not be named twice: {chosen}")
    if not seeds or min(seeds) < 0 or len(set(seeds)) < len(seeds):
        raise ValueError(f"seeds must name at least one, none twice and none negative, not {seeds}")
    settings = settings_of(parameters)
    values, data = dataclasses.asdict(settings), docstrings.fingerprint()
    model = Path(settings.model).name if Path(settings.model).is_dir() else settings.model
    units = []
    if "training" in parts:
        for seed in seeds:
            units += [Unit("sampling", "docstrings", model, head, "training", seed, settings.of_heads(), data, RECIPE) for head in heads]
        units.append(Unit("sampling", "docstrings", model, "closed-form", "training", 0, settings.of_heads(), data, RECIPE))
    for part in [part for part in parts if part != "training"]:
        for task in tasks:
            study = evaluation.STUDY[task]
            units.append(Unit(study, task, model, "untrained", "scores", 0, values, data, RECIPE))
            if heads:
                units += [Unit(study, task, model, "heads", part, seed, values | {"heads": heads}, data, RECIPE) for seed in seeds]
    return units


def settings_of(parameters: dict) -> Settings:
    """The settings among the parameters of a notebook or a unit."""
    return Settings(**{f.name: parameters[f.name] for f in dataclasses.fields(Settings) if f.name in parameters})


def run(parts: list[str], parameters: dict) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Result rows and items of a notebook's units: read where they are stored, computed where not (see lib.units)."""
    units = plan(parts, parameters)
    todo = pending(units, parameters["profile"])
    if todo:
        settings = settings_of(parameters)
        for split in ("train", "validation"):  # once, before units run side by side
            positions(settings, split)
        for task in {unit.dataset for unit in todo if unit.part != "training"}:
            task_states(settings, task)
    return run_units(units, compute, parameters["profile"], default_jobs())


def compute(unit: Unit) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Rows and items of one unit."""
    settings = settings_of(unit.parameters)
    if unit.part == "training":
        return _training(unit, settings)
    items, texts, states = task_states(settings, unit.dataset)
    if unit.method == "untrained":
        base = prepare(settings)
        options = {"samplers": SAMPLERS, "count": settings.negatives, "mode": settings.dominant}
        tokens = scores.token_scores(base.lm, texts, base.unigram, base.baselines, states=states, **options).drop(columns="token_id")
    else:
        columns = {"text": text_numbers(texts)}
        gold = gold_tokens(texts)
        for name in unit.parameters["heads"]:
            head = trained_head(settings, name, unit.seed)
            if HEADS[name].loss == "softmax":  # its sigmoid means nothing: it is judged as a language model's softmax is
                columns[f"{name}-logprob"] = scores.softmax_head_scores(head, states, gold)
                columns[name] = np.exp(columns[f"{name}-logprob"])
            else:
                columns[name] = scores.head_scores(head, states, gold)
        tokens = pd.DataFrame(columns)
    return _judge(unit, settings, items, texts, tokens)


def _judge(
    unit: Unit, settings: Settings, items: pd.DataFrame, texts: list[Text], tokens: pd.DataFrame
) -> tuple[pd.DataFrame, pd.DataFrame]:
    """From token scores (column `text` and one a method) to rows, and to items with one column a method."""
    text = tokens.pop("text").to_numpy()
    wrong = wrong_tokens(settings, items, texts) if unit.dataset == "corruption" else None
    found, columns = [], {}
    for method in tokens:
        columns[method] = scores.sequence_scores(tokens[method].to_numpy(), text)
        statistics = evaluation.statistics(unit.dataset, items, columns[method])
        if wrong is not None:
            statistics |= evaluation.token_statistics(items, wrong, text, tokens[method])
        identity = {"study": unit.study, "dataset": unit.dataset, "model": unit.model, "method": method, "seed": unit.seed}
        found += evaluation.rows(statistics, identity)
    kept = items.drop(columns=["prompt", "output", "answer", "wrong_words", "package"], errors="ignore")
    return make_table(found), kept.assign(**columns)


def _training(unit: Unit, settings: Settings) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Held-out losses at the end of training as rows, the learning curve as items. The closed form is not trained: its curve is a point."""
    if unit.method == "closed-form":
        base, held_out = prepare(settings), positions(settings, "validation")
        loss = scores.closed_form_loss(base.lm, held_out, base.unigram, count=settings.negatives, mode=settings.dominant, limit=HELD_OUT)
        curve, rate = pd.DataFrame([{"update": 0, "bce_own": loss, "bce_common": loss}]), 0
    else:
        curve = pd.DataFrame(train_head(settings, unit.method, unit.seed))
        rate = learning_rate(settings, unit.method)
    identity = {"study": unit.study, "dataset": unit.dataset, "model": unit.model, "method": unit.method, "seed": unit.seed}
    size = len(positions(settings, "validation").gold)
    common = {**identity, "setting": setting_name(learning_rate=f"{rate:g}"), "metric": "bce"}
    limits = {"own": own_limit(unit.method), "common": HELD_OUT}
    found = [{**common, "slice": name, "value": curve[f"bce_{name}"].iloc[-1], "n": min(limit, size)} for name, limit in limits.items()]
    return make_table(found), curve
