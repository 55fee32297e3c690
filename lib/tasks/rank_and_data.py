"""How large a head, how much text, and whose: heads of several ranks that learnt from several
corpora, on held-out text and on the items of tasks.

`training` is what a head learns from, see `lib.tasks.experiments`: its corpus, its size, its rank.
"""

import pandas as pd
import torch
from torch import Tensor

from lib.quality.experiments import fitted_scores, head_learning_rate, load_head, trained_head
from lib.quality.hidden_states import corpus_states, data_of, positions, unembedding_of, unigram
from lib.quality.scores import closed_form, token_facts
from lib.quality.training import Positions
from lib.sampler import METHOD
from lib.study.cache import experiment
from lib.tasks.closed_forms import judged
from lib.tasks.experiments import data_of as data_of_task
from lib.tasks.experiments import head_scores, task_items

UNTRAINED = ("softmax", "rescale", "closed-form")


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
    data=lambda held_out, training: f"{data_of(held_out)} {data_of(training['corpus'])}",
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
    everything = positions(model, judge, "validation")
    half = slice(len(everything) // 2, None)
    texts = corpus_states(held_out, "validation", judge["validation_texts"], model)["text"]
    labels = corpus_states(training["corpus"], "train", training["train_texts"], model)["gold"]
    reported = everything[half]
    ids, _, present = reported.candidates(METHOD)
    measures = position_measures(_scores(head, seed, model, training, reported, ids), present)
    table = pd.DataFrame({name: value.numpy() for name, value in measures.items()})
    table["text"], table["n"] = texts[half].numpy(), 1
    table["is_label"] = torch.isin(reported.gold, labels).numpy()
    return table.groupby(["text", "is_label"], as_index=False).sum()


def _scores(
    head: str, seed: int, model: str, training: dict, reported: Positions, ids: Tensor
) -> Tensor:
    """Of candidates (N, 1 + K) -> (N, 1 + K) in [0, 1], float64"""
    if head not in UNTRAINED:
        trained = load_head(head, seed, model, training)
        parts = zip(reported.hidden_states.split(8192), ids.split(8192))
        device = trained.bias.device
        with torch.no_grad():
            logits = [trained(hidden.to(device), some.to(device)).cpu() for hidden, some in parts]
        return torch.cat(logits).double().sigmoid()
    frequencies = unigram(training["corpus"], training["train_texts"], model)
    lm, mode = unembedding_of(model), training["dominant"]
    facts = token_facts(lm, reported.hidden_states, ids, frequencies, mode)
    if head == "rescale":
        fitted = fitted_scores(model, training)
        return (fitted.scale * facts["logit"] + fitted.shift).double().sigmoid()
    return (facts["probability"] if head == "softmax" else closed_form(facts)).double()


@experiment(
    version=1,
    built_on=[trained_head, head_learning_rate],
    data=lambda training: data_of(training["corpus"]),
)
def head_facts(head: str, seed: int, model: str, training: dict) -> pd.DataFrame:
    """One row: positions it learnt from, numbers that it holds, its learning_rate."""
    gold = corpus_states(training["corpus"], "train", training["train_texts"], model)["gold"]
    trained = load_head(head, seed, model, training)
    facts = {"positions": len(gold), "numbers": sum(p.numel() for p in trained.parameters())}
    rate = head_learning_rate(head, model, training)
    return pd.DataFrame([facts | {"learning_rate": rate}])


@experiment(version=1, built_on=[task_items, head_scores], data=data_of_task)
def judged_head_scores(
    head: str, seed: int, task: str, model: str, texts: int, training: dict
) -> pd.DataFrame:
    """A head on the items that a task's main measure is about: id, group, gold, score."""
    items = judged(task_items(task, model, texts))[["id", "group", "gold"]]
    scores = head_scores(head, seed, task, model, texts, training)
    return items.merge(scores[["id", "score"]], on="id")
