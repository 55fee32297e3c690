"""Scores without training, taken further: a grid of closed forms and of ways to join token scores.

A Sigmoid Head trained with K_u negatives from u and K_q from q can at best learn p / (p + (1 - p)
(K_u u + K_q q)), see `lib.quality.scores.closed_form`. With the frozen model's p for the true one,
K_u, K_q and the exclusion of dominant tokens are free choices: nothing is trained.

Half of the groups of each task (dev) is for choosing; the other half (test) says what the choice is
worth.
"""

from itertools import product

import numpy as np
import pandas as pd

from lib.quality.experiments import load_head, trained_head
from lib.quality.hidden_states import corpus_states, last_layer, unembedding_of, unigram
from lib.quality.scores import JOINS, WORST, closed_form, head_scores, join, token_facts
from lib.study.agreement import agreement
from lib.study.cache import experiment
from lib.study.statistics import sample
from lib.tasks.experiments import data_of, judged_outputs, output_states
from lib.tasks.measures import HIGH, HOME_GROUND, LOW, main_metric

UNIGRAM = (0, 1, 3, 10, 30, 100)  # K_u
FLATTENED = (0, 1, 3, 10, 30)  # K_q
CHOSEN = "closed-form:chosen"  # the one form and join for all tasks, as a method
SIMPLE = ("softmax", "logprob", "boostedprob")
SINGLE = ("listing", "languages")  # tasks whose outputs are one token: nothing to join
MAIN = {  # of a task with such a column, the items that its main measure is about
    "order": f"gold == 1 and k >= {HIGH} or gold == 0 and k <= {LOW}",
    "prior": "prior == False and k - gold == 1",
    "edit": f"edit not in ('attested', '{HOME_GROUND}')",
    "with_source": "with_source",
    "changed": "changed == 'step'",
}


def form_name(unigram: int, flattened: int, excluded: bool) -> str:
    """`u10-q0`, `u5-q5-excluded`"""
    return f"u{unigram}-q{flattened}" + "-excluded" * excluded


_CHOICES = [(5, 5, True), *(c for c in product(UNIGRAM, FLATTENED, (False, True)) if any(c[:2]))]
FORMS = {form_name(*c): dict(zip(("unigram", "flattened", "excluded"), c)) for c in _CHOICES}
PAPER = form_name(5, 5, True)


def judged(items: pd.DataFrame) -> pd.DataFrame:
    """The items of a task that its main measure is about, with `half`: dev or test, whole groups at
    random.
    """
    for column in MAIN.keys() & {*items}:
        items = items.query(MAIN[column])
    groups = np.sort(items["group"].unique())
    dev = np.random.default_rng(0).permutation(groups)[: len(groups) // 2]
    return items.assign(half=np.where(items["group"].isin(dev), "dev", "test"))


def form_scores(facts: dict) -> dict[str, np.ndarray]:
    """The simple scores and every closed form, by name. `token_facts` (N, 1) -> (N,) each"""
    simple = {"softmax": facts["probability"]}
    simple |= {name: facts[name] for name in ("logprob", "boostedprob")}
    forms = {name: closed_form(facts, **draws) for name, draws in FORMS.items()}
    return {name: score[:, 0].double().numpy() for name, score in (simple | forms).items()}


def joins_of(task: str, scores: np.ndarray) -> tuple[str, ...]:
    """Ways to join these token scores (N,): logarithms need scores in [0, 1]."""
    if task in SINGLE:
        return ("mean",)
    inside = scores.min() >= 0 and scores.max() <= 1
    return tuple(how for how in (*JOINS, WORST) if inside or how not in ("log-mean", "product"))


def best_on_dev(grid: pd.DataFrame) -> pd.DataFrame:
    """The rows of one task's grid that are best on dev: of each simple score, of the paper's closed
    form, and of all closed forms. Index: method; column `index`: theirs in the grid.
    """
    parts = {name: grid["score"] == name for name in SIMPLE}
    parts |= {"closed-form": grid["score"] == PAPER, "closed-form:any": ~grid["score"].isin(SIMPLE)}
    best = [grid["dev"].where(part).idxmax() for part in parts.values()]
    return grid.loc[best].reset_index().set_axis(list(parts)).rename_axis("method")


def _tokens(task: str, model: str, texts: int, training: dict):
    """Of a task: its items, the item of each output token (N,), and `form_scores` of the tokens."""
    known = output_states(task, model, texts)
    frequencies = unigram(training["corpus"], training["train_texts"], model)
    lm, ids, mode = unembedding_of(model), known["gold"][:, None], training["dominant"]
    facts = token_facts(lm, known["states"], ids, frequencies, mode)
    return judged_outputs(task, model, texts), known["text"].numpy(), form_scores(facts)


@experiment(version=1, built_on=[output_states, corpus_states, last_layer], data=data_of)
def closed_form_grid(task: str, model: str, texts: int, training: dict) -> pd.DataFrame:
    """Columns: score, join, its agreement with gold on the halves dev and test (AUROC or Pearson),
    n (items of test); low, high: interval on test, of what `best_on_dev` names.
    """
    items, text, scores = _tokens(task, model, texts, training)
    items = judged(items)
    halves, metric, rows = dict(tuple(items.groupby("half"))), main_metric(items), []

    def scored(name: str, how: str, half: str) -> pd.DataFrame:
        joined = join(scores[name], text, how)
        return halves[half].assign(score=joined[halves[half]["id"]])

    for name in scores:
        for how in joins_of(task, scores[name]):
            parts = {half: scored(name, how, half) for half in halves}
            values = {half: sample(x, agreement(metric), resamples=0) for half, x in parts.items()}
            values = {half: one.value for half, one in values.items()}
            rows.append({"score": name, "join": how, **values, "n": len(halves["test"])})
    grid = pd.DataFrame(rows).assign(low=np.nan, high=np.nan)
    for index in best_on_dev(grid).drop_duplicates(["score", "join"])["index"]:
        test = sample(scored(*grid.loc[index, ["score", "join"]], "test"), agreement(metric))
        grid.loc[index, ["low", "high"]] = test.low, test.high
    return grid


@experiment(version=1, built_on=[output_states, trained_head], data=data_of)
def chosen_form_scores(
    form: str,
    how: str,
    heads: list,
    seeds: list,
    task: str,
    model: str,
    texts: int,
    training: dict,
) -> pd.DataFrame:
    """The test items with one closed form, with softmax, the paper's form and trained heads,
    their tokens all joined in the same way, `how`. Columns: method, seed, id, group, gold,
    score.
    """
    items, text, scores = _tokens(task, model, texts, training)
    test = judged(items).query("half == 'test'")[["id", "group", "gold"]]
    tokens = {(CHOSEN, 0): scores[form], ("closed-form", 0): scores[PAPER]}
    tokens["softmax", 0] = scores["softmax"]
    known = output_states(task, model, texts)
    for head, seed in product(heads, seeds):
        trained = load_head(head, seed, model, training)
        tokens[head, seed] = head_scores(trained, known["states"], known["gold"])
    how, rows = "mean" if task in SINGLE else how, []
    for (method, seed), values in tokens.items():
        joined = join(values, text, how)[test["id"]]
        rows.append(test.assign(method=method, seed=seed, score=joined))
    return pd.concat(rows, ignore_index=True)
