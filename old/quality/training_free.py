"""Scores without training, taken further: every closed form of a grid and every way to join token scores, on the judged items of a task.

A Sigmoid Head trained with K_u negatives from u and K_q from q can at best learn p(v) / (p(v) + (1 - p(v)) (K_u u(v) + K_q q(v))), see
`scores.closed_form`. Put the frozen model's own p for the true one, and K_u, K_q and the exclusion of dominant tokens are free choices:
nothing is trained. All are functions of a few numbers about each gold token, collected in one pass over the vocabulary.

Half of the groups of each task (dev) is for choosing; the other half (test) says what the choice is worth.
"""

import dataclasses
from dataclasses import dataclass
from itertools import product

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from old.parameters import check_names, settings_from
from old.progress import progress
from old.quality import evaluation
from old.quality.agreement import agreement
from old.quality.data import Settings, prepare, task_states
from old.quality.distributions import CHUNK, NextToken
from old.quality.heads import trained_head
from old.quality.language_models import LanguageModel, Text
from old.quality.negatives import TokenFrequencies
from old.quality.scores import AGGREGATES, WORST, head_scores, optimum, sequence_scores
from old.quality.tasks.catalogue import TASKS
from old.quality.training import gold_tokens, text_numbers
from old.results import make_table, setting_name
from old.units import Unit, default_jobs, pending
from old.units import run as run_units

RECIPE = 1  # bump when a change here moves the numbers
PART = "training-free"
CHOSEN = "closed-form:chosen"  # the one form and way for all tasks, as a score
UNIGRAM = (0, 1, 3, 10, 30, 100)  # K_u
FLATTENED = (0, 1, 3, 10, 30)  # K_q
WAYS = (*AGGREGATES, WORST)
SINGLE = ("listing", "languages")  # tasks whose outputs are one token: nothing to join


@dataclass(frozen=True)
class Form:
    """One closed form: `unigram` draws from the unigram frequencies, `flattened` ones from softmax(log p / 2), dominant tokens excluded
    or not.
    """

    unigram: int
    flattened: int
    excluded: bool

    @property
    def name(self) -> str:
        """`u10-q0`, `u5-q5-excluded`"""
        return f"u{self.unigram}-q{self.flattened}" + "-excluded" * self.excluded


PAPER = Form(5, 5, excluded=True)
FORMS = [PAPER] + [Form(*choice) for choice in product(UNIGRAM, FLATTENED, (False, True)) if choice[0] + choice[1] > 0]


@torch.no_grad()
def gold_statistics(lm: LanguageModel, states: Tensor, token_ids: Tensor, unigram: TokenFrequencies, mode: str) -> dict[str, np.ndarray]:
    """What every closed form is a function of, for one token a position; states (N, d), token_ids (N,) -> arrays (N,), float64.

    `logprob` log p; `unigram` u and `left` 1 - u(dominant tokens); `flattened` q and `flattened_rest` q without the dominant tokens,
    renormalised; `dominant` whether the token is one (0, 1); `boostedprob`.
    """
    frequencies, parts = unigram.probabilities.to(lm.device), []
    for start in progress(range(0, len(token_ids), CHUNK), "gold tokens"):
        ids = token_ids[start : start + CHUNK, None].to(lm.device)
        next_token = NextToken(lm.logits(states[start : start + CHUNK].to(lm.device)), mode)
        dominant = next_token.dominant
        part = {
            "logprob": next_token.log_probability(ids),
            "unigram": frequencies[ids],
            "left": 1 - (frequencies[dominant.clamp(min=0)] * (dominant >= 0)).sum(1, keepdim=True),
            "flattened": next_token.flattened_probability(ids, exclude_dominant=False),
            "flattened_rest": next_token.flattened_probability(ids),
            "dominant": next_token.is_dominant(ids),
            "boostedprob": next_token.boosted_probability(ids),
        }
        parts.append({name: value[:, 0].double().cpu() for name, value in part.items()})
    return {name: torch.cat([part[name] for part in parts]).numpy() for name in parts[0]}


def closed_form(found: dict[str, np.ndarray], form: Form) -> np.ndarray:
    """The closed form of each token (N,), from `gold_statistics`."""
    u = found["unigram"] / np.maximum(found["left"], 1e-12) if form.excluded else found["unigram"]
    q = found["flattened_rest"] if form.excluded else found["flattened"]
    p, drawn = (torch.from_numpy(x) for x in (np.exp(found["logprob"]), form.unigram * u + form.flattened * q))
    score = optimum(p, drawn).numpy()
    return np.where(found["dominant"] == 1, 1.0, score) if form.excluded else score


def token_scores(found: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The simple scores and every closed form of the grid, by name; each (N,)."""
    simple = {"softmax": np.exp(found["logprob"]), "logprob": found["logprob"], "boostedprob": found["boostedprob"]}
    return simple | {form.name: closed_form(found, form) for form in FORMS}


def judged(task: str, items: pd.DataFrame) -> pd.DataFrame:
    """The items of a task that its main measure is about, with `gold`, `group` and `half` ("dev" or "test": whole groups at random).

    Listing and languages: right answers where several are right against wrong ones where few are; edited texts: graded gold without home
    ground; translations by people: behind the prompt with the source; arithmetic: an intermediate number changed.
    """
    right = items["gold"] == 1
    if task == "listing":
        k = items["slice"].str.removeprefix("k=").astype(int)
        chosen = items[(right & (k >= evaluation.HIGH)) | (~right & (k <= evaluation.LOW))]
    elif task == "languages":
        k = items["slice"].str.removeprefix("k=").astype(int)
        chosen = items[((right & (k == 2)) | (~right & (k == 1))) & ~items["prior"].astype(bool)]
    elif (items["slice"] == "type=original").any():
        chosen = evaluation.graded_errors(items)
    else:
        wanted = {"prompt=source", "changed=step", "all"} | set(items["slice"] if task == evaluation.OWN_TRANSLATIONS else ())
        chosen = items[items["slice"].isin(wanted)]
    groups = np.sort(chosen["group"].unique())
    dev = np.random.default_rng(0).permutation(groups)[: len(groups) // 2]
    return chosen.assign(half=np.where(chosen["group"].isin(dev), "dev", "test"))


def plan(parameters: dict, chosen: tuple[str, str] | None = None) -> list[Unit]:
    """One unit a task for a notebook's parameters (`tasks` and the fields of Settings); ValueError for unknown tasks.

    `chosen`: one score and way for all tasks; kept are the scores of the test items, and those of simple scores and of trained heads
    (`heads`, `seeds`) joined in the same way.
    """
    check_names("task", parameters["tasks"], TASKS)
    settings = settings_from(Settings, parameters)
    values = dataclasses.asdict(settings)
    if chosen:
        values |= {"chosen": list(chosen), "heads": parameters["heads"], "seeds": parameters["seeds"]}
    part = f"{PART}-chosen" if chosen else PART
    return [
        Unit(TASKS[task].study, task, settings.model, "untrained", part, 0, values, settings.data(task), RECIPE)
        for task in parameters["tasks"]
    ]


def runs(parameters: dict) -> list[dict]:
    """Parameters of the runs of notebook 16: the tasks of notebooks 10 and 12, and those of notebook 15 at their size."""
    both = {"tasks": parameters["tasks"]}, {"tasks": parameters["benchmarks"], "texts": parameters["benchmark_texts"]}
    return [parameters | changed for changed in both if changed["tasks"]]


def plan_notebook(parameters: dict) -> list[Unit]:
    """What notebook 16 computes first; the score it then chooses for all tasks is one more unit a task."""
    return [unit for one in runs(parameters) for unit in plan(one)]


def run(parameters: dict, chosen: tuple[str, str] | None = None) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Rows and items of all units: read where they are stored, computed where not."""
    units = plan(parameters, chosen)
    todo = pending(units, parameters["profile"])
    if todo:
        settings = settings_from(Settings, parameters)
        for unit in todo:  # once, before units run side by side
            task_states(settings, unit.dataset)
    return run_units(units, compute, parameters["profile"], default_jobs())


def compute(unit: Unit) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Rows: values on the test half, of each simple score and of the closed forms with what is best on dev; or of the score chosen for all
    tasks. Items: the whole grid, one row a score and way, with its value on dev and on test; or the test items with that score.
    """
    items, texts, states, scores = _scored(unit)
    text = text_numbers(texts)
    part = judged(unit.dataset, items)
    test = part[part["half"] == "test"]
    if "chosen" in unit.parameters:
        return _chosen(unit, texts, states, scores, test)
    metric, grid = evaluation.metric_of(part), []
    for name, tokens in progress(scores.items(), "closed forms"):
        inside = tokens.min() >= 0 and tokens.max() <= 1
        ways = ("mean",) if unit.dataset in SINGLE else [how for how in WAYS if inside or how not in ("log-mean", "product")]
        for how in ways:
            joined = sequence_scores(tokens, text, how)
            grid.append({"score": name, "aggregate": how, **{half: _value(joined, of, metric) for half, of in part.groupby("half")}})
    table = pd.DataFrame(grid)
    rows = []
    for method, (name, how) in best_on_dev(table).items():
        rows += _rows(unit, method, sequence_scores(scores[name], text, how), test, setting_name(score=name, aggregate=how))
    return make_table(rows), table


def _chosen(
    unit: Unit, texts: list[Text], states: Tensor, scores: dict[str, np.ndarray], test: pd.DataFrame
) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Row of the score chosen for all tasks, and the test items with it and with what it is compared with, all joined in its way; a head
    has one column a seed, `<head>@<seed>`.
    """
    name, how = unit.parameters["chosen"]
    how = "mean" if unit.dataset in SINGLE else how
    settings, text = settings_from(Settings, unit.parameters), text_numbers(texts)
    tokens = {CHOSEN: scores[name], "softmax": scores["softmax"], "closed-form": scores[PAPER.name]}
    for head, seed in product(unit.parameters["heads"], unit.parameters["seeds"]):
        tokens[f"{head}@{seed}"] = head_scores(trained_head(settings, head, seed), states, gold_tokens(texts))
    joined = {method: sequence_scores(values, text, how) for method, values in tokens.items()}
    rows = _rows(unit, CHOSEN, joined[CHOSEN], test, setting_name(score=name, aggregate=how))
    return make_table(rows), test[["id", "group", "gold"]].assign(**{method: values[test.index] for method, values in joined.items()})


def best_on_dev(grid: pd.DataFrame) -> dict[str, tuple[str, str]]:
    """Score and way that are best on the dev half: of each simple score, of the paper's closed form, and of all closed forms."""
    simple = [name for name in ("softmax", "logprob", "boostedprob") if name in set(grid["score"])]
    forms = grid[~grid["score"].isin(simple)]
    parts = {name: grid[grid["score"] == name] for name in simple}
    parts |= {"closed-form": forms[forms["score"] == PAPER.name], "closed-form:any": forms}
    return {method: tuple(part.loc[part["dev"].idxmax(), ["score", "aggregate"]]) for method, part in parts.items()}


def best_for_all(grids: dict[str, pd.DataFrame]) -> pd.Series:
    """Mean gain on the dev halves of all tasks over the mean log-probability, by (score, way), largest first; a way that a task of single
    tokens lacks is its mean.
    """
    gains = {}
    for task, grid in grids.items():
        table = grid.pivot(index="score", columns="aggregate", values="dev").reindex(columns=WAYS)
        table = table.apply(lambda column, mean=table["mean"]: mean) if task in SINGLE else table
        gains[task] = table.stack() - table.loc["logprob", "mean"]
    return pd.DataFrame(gains).dropna().mean(axis=1).sort_values(ascending=False)


def _scored(unit: Unit) -> tuple[pd.DataFrame, list[Text], Tensor, dict[str, np.ndarray]]:
    """Items of the unit's task, their texts and hidden states (N, d), and `token_scores`."""
    settings = settings_from(Settings, unit.parameters)
    items, texts, states = task_states(settings, unit.dataset)
    base = prepare(settings)
    found = gold_statistics(base.lm, states, gold_tokens(texts), base.unigram, settings.dominant)
    return items.reset_index(drop=True), texts, states, token_scores(found)


def _value(joined: np.ndarray, part: pd.DataFrame, metric: str) -> float:
    """One metric of the items `part`; joined (T,) scores of all items of the task."""
    return agreement(joined[part.index], part["gold"], part["group"], (metric,), resamples=1)[0][metric]


def _rows(unit: Unit, method: str, joined: np.ndarray, part: pd.DataFrame, setting: str) -> list[dict]:
    found = evaluation.agree(part.assign(score=joined[part.index]), "test", (evaluation.metric_of(part),))
    return evaluation.rows(found, unit.identity | {"method": method, "setting": setting})
