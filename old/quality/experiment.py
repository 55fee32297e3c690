"""The Sigmoid Head experiment: train heads on a frozen language model, score the items of every task, measure.

Units of three kinds:
- study `sampling`, part `training`, one a head and seed, data set the training corpus: learning curve on held-out text; the trained head is
  kept in the cache. And once, as seed 0, the losses of scores that need no training (method `untrained`);
- studies `ambiguity` and `quality`, one a task and seed: items with the scores of all heads (method `heads`; part `scores` for the main
  ones, part `ablation` for those of notebook 13), and once, as seed 0, with the scores that need no training (method `untrained`). Where
  the training corpus is not the usual one, the part names it (`scores-instructions`), and the rows have it as setting;
- part `probe`: the supervised rival, trained on one task with human judgements and tested on another.
"""

import dataclasses

import numpy as np
import pandas as pd
from torch import Tensor

from old.parameters import check_names, check_seeds, model_label, settings_from
from old.quality import evaluation, nmt, scores
from old.quality.data import RECIPE, Settings, language_model, positions, prepare, task_states, wrong_tokens
from old.quality.heads import HEADS, held_out, learning_rate, own_limit, train_head, trained_head
from old.quality.language_models import LanguageModel, Text
from old.quality.negatives import SAMPLERS
from old.quality.tasks.catalogue import TASKS
from old.quality.tasks.word_errors import word_numbers
from old.quality.training import gold_tokens, text_numbers
from old.results import make_table, setting_name
from old.units import Unit, default_jobs, pending
from old.units import run as run_units


def plan(parts: list[str], parameters: dict) -> list[Unit]:
    """Units of the parts `training`, `scores`, `ablation` for a notebook's parameters (`heads`, `seeds`, `tasks`, fields of Settings).

    Raises ValueError for anything unknown or out of range, naming the valid choices, before anything is computed.
    """
    heads, seeds, tasks = parameters["heads"], parameters["seeds"], parameters.get("tasks", [])
    check_names("head", heads, HEADS)
    check_names("task", tasks, TASKS)
    check_seeds(seeds)
    settings = settings_from(Settings, parameters)
    translates = settings.model in nmt.MODELS
    if wrong := [task for task in tasks if TASKS[task].translates and not translates]:
        raise ValueError(f"task {wrong[0]!r} judges a translation model's own outputs: choose one of {', '.join(nmt.MODELS)} as model")
    values, model = dataclasses.asdict(settings), model_label(settings.model)
    units = []
    if "training" in parts:
        common = (settings.of_heads(), settings.data(), RECIPE)
        for seed in seeds:
            units += [Unit("sampling", settings.trained_on, model, head, "training", seed, *common) for head in heads]
        units.append(Unit("sampling", settings.trained_on, model, "untrained", "training", 0, *common))
    where = "" if settings.trained_on == home(settings.model) else f"-{settings.trained_on}"
    for part in [part for part in parts if part != "training"]:
        for task in tasks:
            study, data = TASKS[task].study, settings.data(task)
            units.append(Unit(study, task, model, "untrained", f"scores{where}", 0, values, data, RECIPE))
            if heads:
                units += [
                    Unit(study, task, model, "heads", f"{part}{where}", seed, values | {"heads": heads}, data, RECIPE) for seed in seeds
                ]
    return units


def home(model: str) -> str:
    """The corpus that heads of a model usually learn from: results name any other one."""
    return nmt.DATASET if model in nmt.MODELS else "docstrings"


def run(parts: list[str], parameters: dict) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Result rows and items of a notebook's units: read where they are stored, computed where not (see old.units)."""
    units = plan(parts, parameters)
    todo = pending(units, parameters["profile"])
    if todo:
        settings = settings_from(Settings, parameters)
        for split in ("train", "validation"):  # once, before units run side by side
            positions(settings, split)
        for task in {unit.dataset for unit in todo if unit.part != "training"}:
            task_states(settings, task)
    return run_units(units, compute, parameters["profile"], default_jobs())


def compute(unit: Unit) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Rows and items of one unit."""
    settings = settings_from(Settings, unit.parameters)
    if unit.part == "training":
        return _training(unit, settings)
    items, texts, states = task_states(settings, unit.dataset)
    if unit.method == "untrained":
        base = prepare(settings)
        samplers = TASKS[unit.dataset].samplers if settings.trained_on == home(settings.model) else (scores.METHOD,)
        options = {"samplers": samplers, "count": settings.negatives, "mode": settings.dominant}
        tokens = scores.token_scores(base.lm, texts, base.unigram, base.baselines, states=states, **options).drop(columns="token_id")
        if unit.dataset == "listing":
            tokens["right-mass"] = _right_mass(base.lm, items, states)
        if unit.study == "quality":  # what a score would be worth that knows the length of a text only
            tokens["length"] = tokens.groupby("text")["text"].transform("size").astype(float)
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
    text, errors, tokenizer = tokens.pop("text").to_numpy(), TASKS[unit.dataset].wrong, language_model(settings.model).tokenizer
    wrong = wrong_tokens(tokenizer, items, texts) if errors == "tokens" else None
    words = evaluation.word_places([word_numbers(tokenizer, output) for output in items["output"]]) if errors == "words" else None
    given = {} if settings.trained_on == home(settings.model) else {"trained_on": settings.trained_on}
    found, columns = [], {}
    for method in tokens:
        columns[method] = scores.sequence_scores(tokens[method].to_numpy(), text)
        statistics = evaluation.statistics(unit.dataset, items, columns[method])
        if wrong is not None:
            statistics |= evaluation.token_statistics(items, wrong, text, tokens[method])
        if words is not None:
            statistics |= evaluation.word_statistics(items, words, tokens[method].to_numpy())
        identity = unit.identity | {"method": method}
        found += evaluation.rows(statistics, identity | {"setting": setting_name(**given)})
        if unit.study == "quality" and unit.part.startswith("scores") and ":" not in method:  # other ways to join a text's token scores
            inside = tokens[method].between(0, 1).all()
            for how in scores.AGGREGATES[1:] if inside else ("min",):
                joined = scores.sequence_scores(tokens[method].to_numpy(), text, how)
                found += evaluation.rows(
                    evaluation.joined(unit.dataset, items, joined), identity | {"setting": setting_name(aggregate=how, **given)}
                )
    once = unit.method == "untrained" and not given
    for method in items.attrs.get("scores", []) if once else []:  # scores of whole texts, computed elsewhere
        columns[method] = items[method].to_numpy(float)
        found += evaluation.rows(evaluation.statistics(unit.dataset, items, columns[method]), unit.identity | {"method": method})
    dropped = ["prompt", "output", "answer", "right", "wrong_words", *items.attrs.get("scores", [])]
    return make_table(found), items.drop(columns=dropped, errors="ignore").assign(**columns)


def _right_mass(lm: LanguageModel, items: pd.DataFrame, states: Tensor) -> np.ndarray:
    """Listing: the model's probability, summed over all right names (their first tokens), of every item. An oracle: it knows the names."""
    first = lm.output_ids([f" {name}" for names in items["right"] for name in names])
    ids, mass = iter(tokens[0] for tokens in first), np.empty(len(items))
    for number, names in enumerate(items["right"]):  # a listing item is one token: one position
        rows = sorted({next(ids) for _ in names})
        mass[number] = lm.logits(states[number : number + 1].to(lm.device)).softmax(-1)[0, rows].sum().item()
    return mass


def _training(unit: Unit, settings: Settings) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Held-out losses as rows: at the end of training, and of the scores that need none (method `untrained`). Items: the learning curve."""
    reported = held_out(settings, reported=True)
    if unit.method == "untrained":
        base, options = prepare(settings), {"count": settings.negatives, "mode": settings.dominant}
        losses = scores.untrained_losses(base.lm, reported, base.unigram, SAMPLERS, **options)
        common, found = unit.identity | {"n": len(reported.gold)}, []
        for (name, kind), value in losses.items():
            method = scores.closed_form_name(name) if name in SAMPLERS else name
            found.append({**common, "method": method, "slice": kind, "metric": _metric(kind), "value": value})
        return make_table(found), pd.DataFrame([{"update": 0, "bce_common": losses[scores.METHOD, "common"]}])
    curve = pd.DataFrame(train_head(settings, unit.method, unit.seed))
    common = unit.identity | {"setting": setting_name(learning_rate=f"{learning_rate(settings, unit.method):g}")}
    own = {"sampled": "own", "full": "full", "softmax": "cross-entropy"}[HEADS[unit.method].loss]
    lines = [(own, "bce_own", min(own_limit(unit.method), len(reported.gold))), ("common", "bce_common", len(reported.gold))]
    found = [{**common, "slice": kind, "metric": _metric(kind), "value": curve[name].iloc[-1], "n": n} for kind, name, n in lines]
    return make_table(found), curve


def _metric(kind: str) -> str:
    return "cross_entropy" if kind == "cross-entropy" else "bce"
