"""Experiments about tasks: their items, and what every score says of them. One row an item (`id`,
its number in the task), no text; `scored_items` puts them side by side.

What heads and fitted scores learn from is one argument of all, `training` (see
`lib.quality.experiments`). head: one of HEADS, or in the last three "untrained" (with seed 0), all
scores without training. task: one of TASKS. model: a language model, or a translation model of the
study. texts: size of the task.
"""

from collections.abc import Iterator

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from lib.quality.experiments import HEADS, fitted_scores, load_head, trained_head
from lib.quality.hidden_states import frozen_model, unembedding_of, unigram
from lib.quality.scores import (
    JOINS,
    cross_fitted,
    fit_rival,
    join,
    mean_states,
    softmax_head_scores,
)
from lib.quality.scores import head_scores as scores_of_head
from lib.quality.scores import untrained_scores as scores_without_training
from lib.quality.training import gold_tokens, text_numbers
from lib.quality.translator import DATASET, translation_model
from lib.sampler import SAMPLERS
from lib.study.agreement import agreement
from lib.study.cache import cached, experiment
from lib.study.figures import STYLE
from lib.study.models import smollm2_folder
from lib.study.statistics import Measure, sample
from lib.tasks.catalogue import TASKS
from lib.tasks.measures import (
    AUROC,
    HOME_GROUND,
    edits_of,
    graded_errors,
    main_metric,
    mcc,
    token_items,
    word_items,
)

TEXT = ("prompt", "output", "answer", "right", "wrong_words")  # columns that no result keeps
LABELS = ("with_source", "changed", "decoding")  # columns whose values are judged each by itself


def data_of(task: str) -> str:
    """Content hash of what a task is made of; ValueError for an unknown one."""
    if task not in TASKS:
        raise ValueError(f"unknown task {task!r}: choose from {', '.join(TASKS)}")
    return TASKS[task].fingerprint()


# ---- items ---------------------------------------------------------------------------------------


@cached(version=1, built_on=[smollm2_folder, translation_model], data=data_of)
def judged_outputs(task: str, model: str, texts: int) -> pd.DataFrame:
    """The items of a task with their texts; some are the model's own."""
    return TASKS[task].items(frozen_model(model), texts)


@cached(version=1, built_on=[judged_outputs], data=data_of)
def output_states(task: str, model: str, texts: int) -> dict[str, Tensor]:
    """Output tokens of the items, in their order: `states` (N, d), `gold` (N,), `text` (N,)."""
    lm, items = frozen_model(model), judged_outputs(task, model, texts)
    turns = TASKS[task].chat and lm.has_turns
    encoded = lm.encode(items["prompt"].tolist(), items["output"].tolist(), turns)
    number = torch.from_numpy(text_numbers(encoded))
    return {"states": lm.hidden_states(encoded), "gold": gold_tokens(encoded), "text": number}


@experiment(version=1, built_on=[judged_outputs], data=data_of)
def task_items(task: str, model: str, texts: int) -> pd.DataFrame:
    """Columns: id, group, gold, and those that tell the task's items apart (see `lib.tasks`)."""
    items = judged_outputs(task, model, texts)
    return items.drop(columns=[name for name in items if name in (*TEXT, *STYLE)])


# ---- scores --------------------------------------------------------------------------------------


def _token_scores(head: str, seed: int, task: str, model: str, texts: int, training: dict):
    """Scores of every output token, a column each; and the number of its item (N,)."""
    known, lm = output_states(task, model, texts), unembedding_of(model)
    states, gold = known["states"], known["gold"]
    if head == "untrained":
        frequencies = unigram(training["corpus"], training["train_texts"], model)
        fitted = fitted_scores(model, training)
        mode = training["dominant"]
        table = scores_without_training(lm, states, gold, frequencies, fitted, SAMPLERS, mode)
        return table, known["text"].numpy()
    trained = load_head(head, seed, model, training)
    if HEADS[head].loss != "softmax":
        table = pd.DataFrame({head: scores_of_head(trained, states, gold)})
    else:  # its sigmoid means nothing: it is judged as a softmax is
        logprob = softmax_head_scores(trained, states, gold)
        table = pd.DataFrame({head: np.exp(logprob), f"{head}-logprob": logprob})
    return table, known["text"].numpy()


@experiment(version=1, built_on=[output_states, trained_head], data=data_of)
def untrained_scores(task: str, model: str, texts: int, training: dict) -> pd.DataFrame:
    """Columns: id, and one a score, the mean over an output's tokens: softmax, logprob, entropy,
    boostedprob, rescale, softmax-power, closed-form, closed-form:<sampler>; length (tokens);
    right-mass (listing); scores of whole texts that come with the items (nmt-logprob).
    """
    tokens, text = _token_scores("untrained", 0, task, model, texts, training)
    items = judged_outputs(task, model, texts)
    scores = pd.DataFrame({name: join(tokens[name], text) for name in tokens})
    if len(tokens) > len(items):
        scores["length"] = np.bincount(text).astype(float)
    if task == "listing":
        states = output_states(task, model, texts)["states"]  # a position an item
        scores["right-mass"] = _right_mass(frozen_model(model), items["right"], states)
    given = items[[name for name in items if name in STYLE]]
    return pd.concat([items[["id"]], scores, given], axis=1)


def _right_mass(lm, right: pd.Series, states: Tensor) -> np.ndarray:
    """Listing: the probability of all right names together (of their first tokens), an oracle."""
    mass = []
    for names, hidden in zip(right, states.split(1)):
        encoded = lm.encode([""] * len(names), [f" {name}" for name in names])
        first = list({text.output[0] for text in encoded})
        mass.append(lm.logits(hidden.to(lm.device)).softmax(-1)[0, first].sum().item())
    return np.array(mass)


@experiment(version=1, built_on=[output_states, trained_head], data=data_of)
def head_scores(
    head: str, seed: int, task: str, model: str, texts: int, training: dict
) -> pd.DataFrame:
    """Columns: id, score (mean over the tokens), log_mean (of their logarithms; rows of the first
    edition lack it). `softmax-ce` is judged as a softmax is: mean probability, log-probability.
    """
    tokens, text = _token_scores(head, seed, task, model, texts, training)
    joined = {"score": join(tokens[head], text), "log_mean": join(tokens[head], text, "log-mean")}
    return pd.DataFrame({"id": np.arange(len(joined["score"])), **joined})


def _data_of_both(learnt_from: str, task: str) -> list[str]:
    return [data_of(learnt_from), data_of(task)]


@experiment(version=1, built_on=[output_states], data=_data_of_both)
def rival_scores(learnt_from: str, task: str, model: str, texts: int) -> pd.DataFrame:
    """The supervised rival, fitted to the gold of the task `learnt_from`, with and without the
    source by itself; cross-fitted where that is the task itself. Columns: id, score.
    """
    (items, features), (known, examples) = (
        (
            judged_outputs(one, model, texts),
            mean_states(states["states"], states["text"].numpy()),
        )
        for one in (task, learnt_from)
        for states in [output_states(one, model, texts)]
    )
    score = np.full(len(items), np.nan)
    for source in items["with_source"].unique():
        here, there = items["with_source"] == source, known["with_source"] == source
        learnt = examples[there], known.loc[there, "gold"].to_numpy(), known.loc[there, "group"]
        if task == learnt_from:
            score[here] = cross_fitted(*learnt)
        else:
            score[here] = fit_rival(*learnt).predict(features[here])
    return items[["id"]].assign(score=score)


def scored_items(
    items: pd.DataFrame, untrained: pd.DataFrame, heads: pd.DataFrame, by_seed: bool = False
) -> pd.DataFrame:
    """Rows of `task_items` with one column a score: from the rows of `untrained_scores` and of
    `head_scores`, averaged over seeds, or `by_seed` one row an item and seed. One value of
    `training` at a time. `softmax-ce` is there as `softmax-ce-logprob`, too.
    """
    on = [name for name in ("task", "model", "texts") if name in items] + ["id"]
    softmax = heads[heads["head"] == "softmax-ce"]
    logprob = softmax.assign(head="softmax-ce-logprob", score=softmax.get("log_mean", np.nan))
    of_head = pd.concat([heads, logprob]).groupby([*on, *["seed"] * by_seed, "head"], sort=False)
    wide = of_head["score"].mean().unstack("head").reset_index()
    scores = untrained[[*on, *(name for name in untrained if name in STYLE)]]
    return items.merge(scores, on=on, how="left").merge(wide, on=on, how="left")


# ---- what joined scores of items cannot give -----------------------------------------------------


def _line(rows: pd.DataFrame, metric: str, measure: Measure) -> dict:
    one = sample(rows, measure)
    return {"metric": metric, "value": one.value, "low": one.low, "high": one.high, "n": one.n}


def _labelled(task: str, items: pd.DataFrame) -> Iterator[tuple[dict, pd.DataFrame]]:
    """Rows that are judged together, and their labels: graded errors of edited texts, all own
    translations, else the values of a column of LABELS.
    """
    by = [name for name in LABELS if name in items and task != DATASET]
    if "edit" in items or not by:
        yield {}, graded_errors(items) if "edit" in items else items
    else:
        yield from (({by[0]: value}, part) for value, part in items.groupby(by[0], sort=False))


@experiment(version=1, built_on=[output_states, trained_head], data=data_of)
def join_agreement(
    head: str, seed: int, task: str, model: str, texts: int, training: dict
) -> pd.DataFrame:
    """How well ways to join token scores agree with gold. Columns: score, join (JOINS), one of
    LABELS, metric (pearson; auroc where gold is right or wrong), value, low, high, n.
    """
    tokens, text = _token_scores(head, seed, task, model, texts, training)
    items, rows = judged_outputs(task, model, texts), []
    for name in tokens:
        inside = tokens[name].between(0, 1).all()  # there a logarithm means something
        for how in JOINS if inside else ("mean", "min"):
            joined = items.assign(score=join(tokens[name], text, how))
            for labels, part in _labelled(task, joined):
                metric = main_metric(part)
                line = _line(part, metric, agreement(metric))
                rows.append({"score": name, "join": how} | labels | line)
    return pd.DataFrame(rows)


@experiment(version=1, built_on=[output_states, trained_head], data=data_of)
def token_agreement(
    head: str, seed: int, task: str, model: str, texts: int, training: dict
) -> pd.DataFrame:
    """AUROC of right against wrong tokens in edited texts. Columns: score, edit ("all": all errors
    but home ground), metric, value, low, high, n.
    """
    scores, _ = _token_scores(head, seed, task, model, texts, training)
    items = judged_outputs(task, model, texts)
    tokens = token_items(frozen_model(model).tokenizer, items)
    edits, rows = edits_of(items), []
    kinds = {"all": [edit for edit in edits if edit != HOME_GROUND]} | {e: [e] for e in edits}
    for name in scores:
        scored = tokens.assign(score=scores[name].to_numpy())
        for kind, chosen in kinds.items():
            line = _line(scored[scored["edit"].isin(chosen)], "auroc", AUROC)
            rows.append({"score": name, "edit": kind} | line)
    return pd.DataFrame(rows)


@experiment(version=1, built_on=[output_states, trained_head], data=data_of)
def word_agreement(
    head: str, seed: int, task: str, model: str, texts: int, training: dict
) -> pd.DataFrame:
    """Finding wrong words of translations, a word's score being the mean of its tokens'. Columns:
    score, with_source, metric (auroc, ap_bad: average precision for the wrong ones, mcc), value,
    low, high, n.
    """
    scores, _ = _token_scores(head, seed, task, model, texts, training)
    items = judged_outputs(task, model, texts)
    words, of_token = word_items(frozen_model(model).tokenizer, items)
    rows = []
    for name in scores:
        scored = words.assign(score=join(scores[name], of_token))
        reverse = scored.assign(gold=1 - scored["gold"], score=-scored["score"])
        measures = {
            "auroc": (scored, AUROC),
            "ap_bad": (reverse, agreement("ap")),
            "mcc": (scored, mcc),
        }
        for metric, (table, measure) in measures.items():
            for source, part in table.groupby("with_source", sort=False):
                line = _line(part, metric, measure)
                rows.append({"score": name, "with_source": source} | line)
    return pd.DataFrame(rows)
