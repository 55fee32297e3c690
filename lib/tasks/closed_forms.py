"""Scores without training, taken further: a grid of closed forms and of ways to join token scores;
and heads of several ranks and training corpora, on held-out text and on the items of tasks.

A Sigmoid Head trained with K_u negatives from u and K_q from q can at best learn p / (p + (1 - p)
(K_u u + K_q q)), see `lib.quality.scores.closed_form`. With the frozen model's p for the true one,
K_u, K_q and the exclusion of dominant tokens are free choices: nothing is trained. Half of the
groups of each task (dev) is for choosing; the other half (test) says what the choice is worth.
"""

from itertools import product

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from lib.quality.experiments import fitted_scores, head_learning_rate, load_head, trained_head
from lib.quality.hidden_states import corpus_states, last_layer, positions, unembedding_of, unigram
from lib.quality.hidden_states import data_of as data_of_corpus
from lib.quality.scores import JOINS, WORST, closed_form, join, token_facts
from lib.quality.scores import head_scores as scores_of_head
from lib.sampler import METHOD
from lib.study.agreement import agreement
from lib.study.cache import experiment
from lib.study.statistics import sample
from lib.tasks.experiments import data_of, head_scores, judged_outputs, output_states, task_items
from lib.tasks.measures import HIGH, HOME_GROUND, LOW, main_metric

UNIGRAM, FLATTENED = (0, 1, 3, 10, 30, 100), (0, 1, 3, 10, 30)  # K_u, K_q
CHOSEN = "closed-form:chosen"  # the one form and join for all tasks, as a method
SIMPLE = ("softmax", "logprob", "boostedprob")
UNTRAINED = ("softmax", "rescale", "closed-form")  # beside heads on held-out text
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
    scores = {"softmax": facts["probability"]} | {name: facts[name] for name in SIMPLE[1:]}
    scores |= {name: closed_form(facts, **draws) for name, draws in FORMS.items()}
    return {name: score[:, 0].double().numpy() for name, score in scores.items()}


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
    halves, measure, rows = dict(tuple(items.groupby("half"))), agreement(main_metric(items)), []

    def cell(name: str, how: str, half: str, **options):
        joined = join(scores[name], text, how)[halves[half]["id"]]
        return sample(halves[half].assign(score=joined), measure, **options)

    for name in scores:
        for how in joins_of(task, scores[name]):
            values = {half: cell(name, how, half, resamples=0).value for half in halves}
            rows.append({"score": name, "join": how, **values, "n": len(halves["test"])})
    grid = pd.DataFrame(rows).assign(low=np.nan, high=np.nan)
    for index in best_on_dev(grid).drop_duplicates(["score", "join"])["index"]:
        test = cell(*grid.loc[index, ["score", "join"]], "test")
        grid.loc[index, ["low", "high"]] = test.low, test.high
    return grid


@experiment(version=1, built_on=[output_states, trained_head], data=data_of)
def chosen_form_scores(
    form: str, how: str, heads: list, seeds: list, task: str, model: str, texts: int, training: dict
) -> pd.DataFrame:
    """The test items with one closed form, with softmax, the paper's form and trained heads, their
    tokens all joined in the same way, `how`. Columns: method, seed, id, group, gold, score.
    """
    items, text, scores = _tokens(task, model, texts, training)
    test = judged(items).query("half == 'test'")[["id", "group", "gold"]]
    names = {CHOSEN: form, "closed-form": PAPER, "softmax": "softmax"}
    tokens = {(method, 0): scores[name] for method, name in names.items()}
    known = output_states(task, model, texts)
    for head, seed in product(heads, seeds):
        trained = load_head(head, seed, model, training)
        tokens[head, seed] = scores_of_head(trained, known["states"], known["gold"])
    how, rows = "mean" if task in SINGLE else how, []
    for (method, seed), values in tokens.items():
        joined = join(values, text, how)[test["id"]]
        rows.append(test.assign(method=method, seed=seed, score=joined))
    return pd.concat(rows, ignore_index=True)


# ---- how large a head, how much text, and whose ------------------------------------------------


def position_measures(scores: Tensor, present: Tensor) -> dict[str, Tensor]:
    """By position: `bce`, binary cross-entropy; `above`, the share of its negatives that the gold
    token is scored above (ties one half); `score`, that of gold. (n,) each

    scores (n, 1 + K) in [0, 1], gold in column 0; present (n, 1 + K): which negatives there are
    """
    inside = scores.clamp(1e-12, 1 - 1e-12)
    there = present[:, 1:].double()
    loss = -inside[:, 0].log() - (torch.log1p(-inside[:, 1:]) * there).sum(1)
    above = (scores[:, :1] > scores[:, 1:]).double() + 0.5 * (scores[:, :1] == scores[:, 1:])
    share = (above * there).sum(1) / there.sum(1).clamp(min=1)
    return {"bce": loss, "above": share, "score": scores[:, 0]}


@experiment(
    version=1,
    built_on=[trained_head],
    data=lambda held_out, training: " ".join(map(data_of_corpus, (held_out, training["corpus"]))),
)
def held_out_sums(
    head: str, seed: int, held_out: str, held_out_texts: int, model: str, training: dict
) -> pd.DataFrame:
    """`position_measures` on a held-out corpus, of a head or one of UNTRAINED: sums by text and
    is_label (the gold token is a label of `training`), with their number of positions, n.

    The negatives are those of the paper's sampler with the frequencies of `held_out_texts` texts of
    that corpus, the same for all heads. The first half of the positions has chosen learning rates.
    """
    judge = training | {"corpus": held_out, "train_texts": held_out_texts}
    reported = positions(model, judge, "validation")
    half = slice(len(reported) // 2, None)
    reported, (ids, _, present) = reported[half], reported[half].candidates(METHOD)
    scores = _candidate_scores(head, seed, model, training, reported.hidden_states, ids)
    table = pd.DataFrame({k: v.numpy() for k, v in position_measures(scores, present).items()})
    texts = corpus_states(held_out, "validation", judge["validation_texts"], model)["text"]
    labels = corpus_states(training["corpus"], "train", training["train_texts"], model)["gold"]
    is_label = torch.isin(reported.gold, labels).numpy()
    table = table.assign(text=texts[half].numpy(), n=1, is_label=is_label)
    return table.groupby(["text", "is_label"], as_index=False).sum()


def _candidate_scores(
    head: str, seed: int, model: str, training: dict, states: Tensor, ids: Tensor
) -> Tensor:
    """states (N, d), ids (N, 1 + K) -> (N, 1 + K) in [0, 1], float64"""
    if head not in UNTRAINED:
        trained = load_head(head, seed, model, training)
        device, parts = trained.bias.device, zip(states.split(8192), ids.split(8192))
        with torch.no_grad():
            logits = [trained(hidden.to(device), some.to(device)).cpu() for hidden, some in parts]
        return torch.cat(logits).double().sigmoid()
    frequencies = unigram(training["corpus"], training["train_texts"], model)
    facts = token_facts(unembedding_of(model), states, ids, frequencies, training["dominant"])
    if head == "rescale":
        fitted = fitted_scores(model, training)
        return (fitted.scale * facts["logit"] + fitted.shift).double().sigmoid()
    return (facts["probability"] if head == "softmax" else closed_form(facts)).double()


@experiment(
    version=1,
    built_on=[trained_head, head_learning_rate],
    data=lambda training: data_of_corpus(training["corpus"]),
)
def head_facts(head: str, seed: int, model: str, training: dict) -> pd.DataFrame:
    """One row: positions it learnt from, numbers that it holds, its learning_rate."""
    gold = corpus_states(training["corpus"], "train", training["train_texts"], model)["gold"]
    trained = load_head(head, seed, model, training)
    facts = {"positions": len(gold), "numbers": sum(p.numel() for p in trained.parameters())}
    rate = head_learning_rate(head, model, training)
    return pd.DataFrame([facts | {"learning_rate": rate}])


@experiment(version=1, built_on=[task_items, head_scores], data=data_of)
def judged_head_scores(
    head: str, seed: int, task: str, model: str, texts: int, training: dict
) -> pd.DataFrame:
    """A head on the items that a task's main measure is about: id, group, gold, score."""
    items = judged(task_items(task, model, texts))[["id", "group", "gold"]]
    scores = head_scores(head, seed, task, model, texts, training)
    return items.merge(scores[["id", "score"]], on="id")
