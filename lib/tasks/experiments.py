"""Experiments about tasks: their items, and what every score says of them. One row an item (`id`, the
number of the item in its task), no text; `scored_items` puts them side by side.

What heads and fitted scores learn from is one argument of all, `training`:

    training = {"corpus": "docstrings", "train_texts": 2000, "validation_texts": 300, "updates": 400,
                "positions_per_batch": 1024, "rank": 32, "dominant": "last"}

Arguments: head (see `lib.quality.experiments.HEADS`), seed, task (see `lib.tasks.catalogue.TASKS`),
model (a language model, or a translation model of the study), texts (size of the task).
"""
# SKELETON: signatures are final, bodies follow

import pandas as pd


def task_items(task, model, texts) -> pd.DataFrame:
    """Columns: id, group, gold, and those that tell the task's items apart (see `lib.tasks`)."""


def untrained_scores(task, model, texts, training) -> pd.DataFrame:
    """Columns: id, and one a score, the mean over an output's tokens: softmax, logprob, entropy,
    boostedprob, rescale, softmax-power, closed-form, closed-form:<sampler> ..., length; listing: right-mass.
    Scores of whole texts that come with the items (nmt-logprob) too.
    """


def head_scores(head, seed, task, model, texts, training) -> pd.DataFrame:
    """Columns: id, score (mean over the tokens), log_mean (of their logarithms; undefined in rows
    of the first edition). The head `softmax-ce` is judged as a softmax is: score is the mean
    probability, log_mean the mean log-probability.
    """


def join_agreement(head, seed, task, model, texts, training) -> pd.DataFrame:
    """How well ways to join token scores agree with gold. head "untrained" (seed 0): all scores without
    training. Columns: score, join (mean, log-mean, product, min), the columns of the task that tell its
    rows apart (with_source, changed, decoding), metric (pearson, auroc), value, low, high, n.
    """


def token_agreement(head, seed, task, model, texts, training) -> pd.DataFrame:
    """AUROC of right against wrong tokens in edited texts. Columns: score, edit ("all": all errors but
    home ground), metric, value, low, high, n. head as in `join_agreement`.
    """


def word_agreement(head, seed, task, model, texts, training) -> pd.DataFrame:
    """Finding wrong words of translations. Columns: score, with_source, metric (auroc, ap_bad, mcc),
    value, low, high, n. head as in `join_agreement`.
    """


def rival_scores(learnt_from, task, model, texts) -> pd.DataFrame:
    """The supervised rival: fitted to the gold of the task `learnt_from`, with and without the source by
    itself; cross-fitted where that is the task itself. Columns: id, score.
    """


def scored_items(items, untrained, heads, by_seed=False) -> pd.DataFrame:
    """Rows of `task_items` with one column a score: from the rows of `kept(untrained_scores, ...)` and
    `kept(head_scores, ...)`, heads by their name, averaged over seeds (or, `by_seed`, one row an item
    and seed). softmax-ce also as `softmax-ce-logprob`.
    """
