"""Experiments about tasks: their items, and what every score says of them. One row an item (`id`,
its number in the task), no text; `scored_items` puts them side by side. head: one of HEADS, or, in
those of agreement, "untrained" (seed 0): all scores without training. task: one of TASKS. texts:
its size. training: what heads and fitted scores learn from, see `lib.quality.experiments`.
"""

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from lib.quality.experiments import HEADS, fitted_scores, load_head, trained_head
from lib.quality.hidden_states import frozen_model, unembedding_of, unigram
from lib.quality.scores import JOINS, join, softmax_head_scores
from lib.quality.scores import head_scores as scores_of_head
from lib.quality.scores import untrained_scores as scores_without_training
from lib.quality.training import gold_tokens, text_numbers
from lib.quality.translator import DATASET, translation_model
from lib.sampler import SAMPLERS
from lib.study.agreement import agreement
from lib.study.cache import cached, experiment
from lib.study.figures import STYLE
from lib.study.models import smollm2_folder
from lib.study.statistics import estimate
from lib.tasks.catalogue import TASKS
from lib.tasks.measures import AUROC, graded_errors, main_metric, mcc, word_items

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
    """Columns: id, group, gold, and those that tell items apart (see `lib.tasks.catalogue`)."""
    items = judged_outputs(task, model, texts)
    return items.drop(columns=[name for name in items if name in (*TEXT, *STYLE)])


# ---- scores --------------------------------------------------------------------------------------


def token_scores(head: str, seed: int, task: str, model: str, texts: int, training: dict):
    """Scores of every output token, a column each; and the number of its item (N,)."""
    known, lm = output_states(task, model, texts), unembedding_of(model)
    states, gold, text = known["states"], known["gold"], known["text"].numpy()
    if head == "untrained":
        frequencies = unigram(training["corpus"], training["train_texts"], model)
        fitted, mode = fitted_scores(model, training), training["dominant"]
        return scores_without_training(lm, states, gold, frequencies, fitted, SAMPLERS, mode), text
    trained = load_head(head, seed, model, training)
    if HEADS[head].loss != "softmax":
        return pd.DataFrame({head: scores_of_head(trained, states, gold)}), text
    logprob = softmax_head_scores(trained, states, gold)  # its sigmoid means nothing
    return pd.DataFrame({head: np.exp(logprob), f"{head}-logprob": logprob}), text


@experiment(version=1, built_on=[output_states, trained_head], data=data_of)
def untrained_scores(task: str, model: str, texts: int, training: dict) -> pd.DataFrame:
    """Columns: id, and one a score, the mean over an output's tokens: softmax, logprob, entropy,
    boostedprob, rescale, softmax-power, closed-form, closed-form:<sampler>; length (tokens);
    right-mass (listing); scores of whole texts that come with the items (nmt-logprob).
    """
    tokens, text = token_scores("untrained", 0, task, model, texts, training)
    items = judged_outputs(task, model, texts)
    scores = pd.DataFrame({name: join(tokens[name], text) for name in tokens})
    if len(tokens) > len(items):
        scores["length"] = np.bincount(text).astype(float)
    if task == "listing":
        states = output_states(task, model, texts)["states"]  # a position an item
        scores["right-mass"] = _right_mass(frozen_model(model), items["right"], states)
    given = items[[name for name in items if name in STYLE]]
    return pd.concat([items[["id"]], scores, given], axis=1)


def _right_mass(lm, right: pd.Series, states: Tensor) -> list[float]:
    """Listing: the probability of all right names together (of their first tokens), an oracle."""
    mass = []
    for names, hidden in zip(right, states.split(1)):
        encoded = lm.encode([""] * len(names), [f" {name}" for name in names])
        first = list({text.output[0] for text in encoded})
        mass.append(lm.logits(hidden.to(lm.device)).softmax(-1)[0, first].sum().item())
    return mass


@experiment(version=1, built_on=[output_states, trained_head], data=data_of)
def head_scores(
    head: str, seed: int, task: str, model: str, texts: int, training: dict
) -> pd.DataFrame:
    """Columns: id, score (mean over the tokens), log_mean (of their logarithms; rows of the first
    edition lack it). `softmax-ce` is judged as a softmax is: mean probability, log-probability.
    """
    tokens, text = token_scores(head, seed, task, model, texts, training)
    joined = {"score": join(tokens[head], text), "log_mean": join(tokens[head], text, "log-mean")}
    return pd.DataFrame(joined).rename_axis("id").reset_index()


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


# ---- agreement that joined scores cannot give; columns also value, low, high, n -----------------


@experiment(version=1, built_on=[output_states, trained_head], data=data_of)
def join_agreement(
    head: str, seed: int, task: str, model: str, texts: int, training: dict
) -> pd.DataFrame:
    """How well ways to join token scores agree with gold; of edited texts with graded errors.
    Columns: score, join (JOINS), one of LABELS, metric (pearson; auroc where gold is 0 or 1).
    """
    tokens, text = token_scores(head, seed, task, model, texts, training)
    items, tables = judged_outputs(task, model, texts), []
    items = graded_errors(items) if "edit" in items else items
    label = [name for name in LABELS if name in items and task != DATASET][:1]
    for name in tokens:
        inside = tokens[name].between(0, 1).all()  # there a logarithm means something
        for how in JOINS if inside else ("mean", "min"):
            joined = join(tokens[name], text, how)[items["id"]]
            tables.append(items.assign(method=name, join=how, score=joined))
    rows, metric = pd.concat(tables), main_metric(items)
    return _stored(rows, metric, agreement(metric), ["method", "join", *label])


@experiment(version=1, built_on=[output_states, trained_head], data=data_of)
def word_agreement(
    head: str, seed: int, task: str, model: str, texts: int, training: dict
) -> pd.DataFrame:
    """Finding wrong words of translations, a word's score being the mean of its tokens'. Columns:
    score, with_source, metric (auroc, ap_bad: average precision for the wrong ones, mcc).
    """
    scores, _ = token_scores(head, seed, task, model, texts, training)
    tokenizer, items = frozen_model(model).tokenizer, judged_outputs(task, model, texts)
    words, of_token = word_items(tokenizer, items)
    rows = pd.concat(
        words.assign(method=name, score=join(scores[name], of_token)) for name in scores
    )
    bad = rows.assign(gold=1 - rows["gold"], score=-rows["score"])
    measures = [(rows, "auroc", AUROC), (bad, "ap_bad", agreement("ap")), (rows, "mcc", mcc)]
    return pd.concat(_stored(*measure, ["method", "with_source"]) for measure in measures)


def _stored(rows: pd.DataFrame, metric: str, measure, by: list[str]) -> pd.DataFrame:
    table = estimate(rows, measure, by).drop(columns="clusters").assign(metric=metric)
    return table.rename(columns={"method": "score"})
