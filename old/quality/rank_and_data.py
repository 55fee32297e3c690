"""How large must a Sigmoid Head be, how much text does it need, and whose? Heads of several ranks on growing parts of a corpus, and on
several corpora at an equal number of positions (see `training_corpora`).

Units of two kinds, all of part PART:
- study `sampling`, one a trained head, data set the corpus it learnt from; and, as method `texts-<n>-untrained`, scores without training
  that depend on the corpus through its unigram frequencies and two fitted numbers. Judged by held-out positions with their negatives,
  which are the same for all heads. Rows: slices `seen` and `unseen` by whether the gold token is among the training labels. Items: sums
  by text.
- studies `ambiguity` and `quality`, one a task, corpus and seed: the items that the task's main measure is about, a column a rank.
"""

import dataclasses
from typing import NamedTuple

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from old.corpora import docstrings
from old.parameters import check_names, check_seeds, model_label, settings_from
from old.quality import evaluation, heads
from old.quality.data import RECIPE as QUALITY_RECIPE
from old.quality.data import Settings, language_model, positions, prepare, states_folder, task_states, training_texts
from old.quality.distributions import CHUNK, NextToken
from old.quality.scores import METHOD, closed_form, head_scores, sequence_scores
from old.quality.tasks.catalogue import TASKS
from old.quality.training import gold_tokens, share_states, text_numbers
from old.quality.training_corpora import CORPORA, Mixture
from old.quality.training_free import judged
from old.results import cluster_bootstrap, interval, make_table, setting_name
from old.units import Unit, default_jobs, pending
from old.units import run as run_units

RECIPE = 1  # bump when a change here moves the numbers
PART = "rank-and-data"
FULL = 0  # stands for the full head where ranks are listed
FINAL = (Settings.rank, FULL)  # compared on the smallest and the largest part with all seeds
BENCHMARK_TEXTS = 500  # size of the tasks made of benchmark files, as in notebook 15
UNTRAINED = ("softmax", "rescale", "closed-form")
MEASURES = {"bce": "bce", "above": "p_right_above_wrong", "score": "mean_score"}  # column of sums in the items: metric of their mean


class Trained(NamedTuple):
    """One head: what it learns from, its rank and its seed."""

    corpus: str
    texts: int
    rank: int
    seed: int


def corpora_of(parameters: dict) -> list[tuple[str, int]]:
    """Names and numbers of texts from `name:texts`. ValueError where one is not of this form, or unknown."""
    found = []
    for entry in parameters["corpora"]:
        name, _, texts = entry.partition(":")
        if not texts.isdecimal() or int(texts) < 1:
            raise ValueError(f"a training corpus is given as name:texts, such as docstrings:1000, not {entry!r}")
        found.append((name, int(texts)))
    check_names("training corpus", [name for name, _ in found], CORPORA)
    return found


def trained_heads(parameters: dict) -> list[Trained]:
    """Every head of a notebook's parameters, each once: all ranks on all sizes with the first seed, FINAL on the smallest and largest size
    and the usual rank on all corpora with all seeds.
    """
    sizes, ranks, seeds = sorted(parameters["sizes"]), parameters["ranks"], parameters["seeds"]
    found = [Trained("docstrings", texts, rank, seeds[0]) for texts in sizes for rank in ranks]
    found += [Trained("docstrings", t, rank, seed) for t in (sizes[0], sizes[-1]) for rank in FINAL if rank in ranks for seed in seeds]
    found += [Trained(name, texts, Settings.rank, seed) for name, texts in corpora_of(parameters) for seed in seeds]
    return list(dict.fromkeys(found))


def judges(parameters: dict) -> list[tuple[str, int]]:
    """Corpora whose held-out positions judge every head, and the number of texts whose frequencies draw the negatives there."""
    own = [(name, texts) for name, texts in corpora_of(parameters) if name != "docstrings" and not isinstance(CORPORA[name], Mixture)]
    return [("docstrings", Settings.train_texts), *own]


def plan(parameters: dict) -> list[Unit]:
    """All units for a notebook's parameters; ValueError for anything unknown or out of range, before anything is computed."""
    check_names("task", parameters["tasks"], TASKS)
    check_seeds(parameters["seeds"])
    if wrong := [number for number in (*parameters["ranks"], *parameters["sizes"]) if number < 0]:
        raise ValueError(f"a rank is positive, or {FULL} for the full head, and a size positive: not {wrong[0]}")
    every, label = trained_heads(parameters), model_label(settings_from(Settings, parameters).model)
    common = {"held_out": [list(judge) for judge in judges(parameters)]}
    units = []
    for name, texts in dict.fromkeys((head.corpus, head.texts) for head in every):
        here = [head for head in every if (head.corpus, head.texts) == (name, texts)]
        settings = _settings(parameters, name, texts)
        identity = (settings.data(), 100 * QUALITY_RECIPE + RECIPE)
        units.append(Unit("sampling", name, label, f"texts-{texts}-untrained", PART, 0, settings.of_heads() | common, *identity))
        for head in here:
            about = _settings(parameters, name, texts, head.rank).of_heads() | common | {"full": head.rank == FULL}
            units.append(Unit("sampling", name, label, f"texts-{texts}-{column(head.rank)}", PART, head.seed, about, *identity))
        for task in parameters["tasks"]:
            own = TASKS[task].data is docstrings.fingerprint
            about = dataclasses.asdict(settings) | {"texts": parameters["texts"] if own else BENCHMARK_TEXTS}
            for seed in dict.fromkeys(head.seed for head in here):
                ranks = {"ranks": [head.rank for head in here if head.seed == seed]}
                identity = (settings.data(task), 100 * QUALITY_RECIPE + RECIPE)
                units.append(Unit(TASKS[task].study, task, label, f"{name}-{texts}", PART, seed, about | ranks, *identity))
    return units


def run(parameters: dict) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Result rows and items of all units: read where they are stored, computed where not. Each hidden state is computed once, however many
    corpora its text is in.
    """
    units = plan(parameters)
    todo = pending(units, parameters["profile"])
    if todo:
        _collect(parameters)
        for unit in [unit for unit in todo if unit.study != "sampling"]:  # once, before units run side by side
            task_states(settings_from(Settings, unit.parameters), unit.dataset)
        training = [unit for unit in units if unit.study == "sampling"]
        first = [unit for unit in training if unit.seed == parameters["seeds"][0]]
        for some in (first, training):  # seeds share a learning rate, which the first one searches; tasks need all heads
            run_units(some, compute, parameters["profile"], default_jobs())
    return run_units(units, compute, parameters["profile"], default_jobs())


def _collect(parameters: dict) -> None:
    """Hidden states and negatives of every corpus and size."""
    wanted = [_settings(parameters, head.corpus, head.texts) for head in trained_heads(parameters)]
    wanted = sorted(set(wanted), key=lambda settings: (isinstance(CORPORA[settings.trained_on], Mixture), -settings.train_texts))
    for split in ("train", "validation"):
        known = [list(training_texts(_settings(parameters, "docstrings", Settings.train_texts), split))]  # notebook 11 has left them
        for settings in wanted:  # larger parts before smaller ones, mixtures after what they are made of
            texts = list(training_texts(settings, split))
            share_states(language_model(settings.model), texts, known, states_folder())
            known.append(texts)
    for settings in wanted:
        positions(settings, "train")
    for settings in (*wanted, *(_settings(parameters, *judge) for judge in judges(parameters))):
        positions(settings, "validation")


def compute(unit: Unit) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Rows and items of one unit."""
    settings = settings_from(Settings, unit.parameters)
    if unit.study == "sampling":
        return _untrained(unit, settings) if unit.method.endswith("-untrained") else _head(unit, settings)
    items, texts, states = task_states(settings, unit.dataset)
    part, found, columns = judged(unit.dataset, items.reset_index(drop=True)), [], {}
    metric = evaluation.metric_of(part)
    for rank in unit.parameters["ranks"]:
        of_rank = settings if rank == FULL else dataclasses.replace(settings, rank=rank)
        tokens = head_scores(heads.trained_head(of_rank, head_name(rank), unit.seed), states, gold_tokens(texts))
        columns[column(rank)] = sequence_scores(tokens, text_numbers(texts))[part.index]
        statistics = evaluation.agree(part.assign(score=columns[column(rank)]), "all", (metric,))
        found += evaluation.rows(statistics, _identity(unit, settings, rank))
    return make_table(found), part[["id", "group", "gold"]].assign(**columns)


def head_name(rank: int) -> str:
    """What `old.quality.heads` calls a head of this rank."""
    return "sigmoid-full" if rank == FULL else "sigmoid-lowrank"


def column(rank: int) -> str:
    """`rank-32` or `full`: a head in the items of a task."""
    return "full" if rank == FULL else f"rank-{rank}"


def _settings(parameters: dict, corpus: str, texts: int, rank: int = FULL) -> Settings:
    """The full head's settings have the usual rank, so that the files of notebook 11 serve."""
    return dataclasses.replace(settings_from(Settings, parameters), trained_on=corpus, train_texts=texts, rank=rank or Settings.rank)


def _identity(unit: Unit, settings: Settings, rank: int) -> dict:
    setting = setting_name(rank=rank or "full", trained_on=settings.trained_on, train_texts=settings.train_texts)
    return unit.identity | {"method": head_name(rank), "setting": setting}


# ---- held-out positions ----------------------------------------------------------------------------------------------------------------


def _head(unit: Unit, settings: Settings) -> tuple[pd.DataFrame, pd.DataFrame]:
    rank = FULL if unit.parameters["full"] else settings.rank
    name = head_name(rank)
    head = heads.trained_head(settings, name, unit.seed)

    def score(states: Tensor, ids: Tensor) -> Tensor:
        return head(states.to(head.bias.device), ids.to(head.bias.device)).double().sigmoid()

    table = _judge(unit, settings, {name: score})
    numbers = {
        "train_positions": len(gold_tokens(list(training_texts(settings, "train")))),
        "learning_rate": heads.learning_rate(settings, name),
        "bytes": heads.head_file(settings, name, unit.seed).stat().st_size,
    }
    common = _identity(unit, settings, rank)
    found = _rows(table, lambda _: common)
    found += [{**common, "slice": "all", "metric": metric, "value": value, "n": 1} for metric, value in numbers.items()]
    return make_table(found), table


def _untrained(unit: Unit, settings: Settings) -> tuple[pd.DataFrame, pd.DataFrame]:
    base = prepare(settings)

    def score(name: str):
        def of(states: Tensor, ids: Tensor) -> Tensor:
            logits, ids = base.lm.logits(states.to(base.lm.device)), ids.to(base.lm.device)
            if name == "rescale":
                return (base.baselines.scale * logits.gather(1, ids) + base.baselines.shift).double().sigmoid()
            next_token = NextToken(logits, settings.dominant)
            if name == "softmax":
                return next_token.probability(ids).double()
            return closed_form(next_token, ids, base.unigram, METHOD, settings.negatives).double()

        return of

    table = _judge(unit, settings, {name: score(name) for name in UNTRAINED})
    setting = setting_name(trained_on=settings.trained_on, train_texts=settings.train_texts)
    common = unit.identity | {"setting": setting}
    return make_table(_rows(table, lambda name: {**common, "method": name})), table


@torch.no_grad()
def _judge(unit: Unit, settings: Settings, scorers: dict) -> pd.DataFrame:
    """Sums over the reported half of each held-out corpus: one row a score, corpus, text and `seen` (the gold token is a training label).

    A scorer turns states (n, d) and candidates (n, 1 + K) into scores in [0, 1]. Columns: `n` positions and the sums of MEASURES.
    """
    labels = set(gold_tokens(list(training_texts(settings, "train"))).tolist())
    parts = []
    for corpus, size in unit.parameters["held_out"]:
        judge = dataclasses.replace(settings, trained_on=corpus, train_texts=size, rank=Settings.rank)
        everything, texts = positions(judge, "validation"), training_texts(judge, "validation")
        start = len(everything.gold) // 2  # the first half has chosen learning rates
        text = text_numbers(list(texts))[start:]
        seen = np.array([token in labels for token in everything.gold[start:].tolist()])
        for name, score in scorers.items():
            measured = []
            for first in range(start, len(everything.gold), CHUNK):
                part = slice(first, first + CHUNK)
                ids, present = everything.candidates(METHOD, part, settings.negatives)
                measured.append(position_measures(score(everything.hidden_states[part], ids).cpu(), present))
            table = pd.DataFrame({key: np.concatenate([found[key] for found in measured]) for key in measured[0]})
            sums = table.assign(text=text, seen=seen, n=1).groupby(["text", "seen"], as_index=False).sum()
            parts.append(sums.assign(held_out=corpus, score_name=name))
    return pd.concat(parts, ignore_index=True)


def position_measures(scores: Tensor, present: Tensor) -> dict[str, np.ndarray]:
    """By position: binary cross-entropy, the share of its negatives that the gold token is scored above (ties one half), gold's score.

    scores (n, 1 + K) in [0, 1], gold in column 0; present (n, 1 + K), False where there is no negative -> (n,) each
    """
    inside = scores.clamp(1e-12, 1 - 1e-12)
    there = present[:, 1:].double()
    loss = -inside[:, 0].log() - (torch.log1p(-inside[:, 1:]) * there).sum(1)
    above = (scores[:, :1] > scores[:, 1:]).double() + 0.5 * (scores[:, :1] == scores[:, 1:])
    share = (above * there).sum(1) / there.sum(1).clamp(min=1)
    return {"bce": loss.numpy(), "above": share.numpy(), "score": scores[:, 0].numpy()}


def held_out_statistic(items: pd.DataFrame, measure: str, texts: np.ndarray) -> evaluation.Statistic:
    """Mean over positions of one of MEASURES, from sums by text; replicates resample `texts`, those of the whole held-out corpus."""
    sums = items.groupby("text")[[measure, "n"]].sum().reindex(texts, fill_value=0.0)
    drawn = cluster_bootstrap(sums[[measure]].to_numpy(), sums[["n"]].to_numpy(), texts)[:, 0]
    size = int(sums["n"].sum())
    return evaluation.Statistic(float(sums[measure].sum() / size) if size else np.nan, drawn, size, len(texts))


def _rows(table: pd.DataFrame, identity) -> list[dict]:
    found = []
    for (corpus, name), part in table.groupby(["held_out", "score_name"], sort=False):
        texts = np.sort(part["text"].unique())
        for slice_name, some in (("all", part), ("seen", part[part["seen"]]), ("unseen", part[~part["seen"]])):
            for measure, metric in MEASURES.items():
                cell = held_out_statistic(some, measure, texts)
                low, high = interval(cell.replicates) if cell.n else (np.nan, np.nan)
                numbers = {"value": cell.value, "ci_low": low, "ci_high": high, "n": cell.n}
                found.append({**identity(name), "slice": f"{corpus}:{slice_name}", "metric": metric, **numbers})
    return found
