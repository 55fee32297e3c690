"""Closed forms of a grid: those of the samplers among them, limits that the formula implies, and choices made on one half only."""

import numpy as np
import pandas as pd
import pytest
import torch
from helpers import language_model

from old.quality import training_free
from old.quality.distributions import NextToken
from old.quality.negatives import TokenFrequencies
from old.quality.scores import closed_form, token_scores
from old.quality.training import gold_tokens, hidden_states
from old.quality.training_free import FORMS, PAPER, Form, gold_statistics, judged


@pytest.fixture(scope="module")
def given():
    """A tiny model, texts, their states, and frequencies."""
    lm = language_model(vocab_size=320)
    texts = lm.encode(["the cat", "", "return the value of"], ["is not on the mat", "my_name", "the value of 1 2 3"])
    unigram = TokenFrequencies(torch.rand(len(lm.unembedding), generator=torch.Generator().manual_seed(1)))
    return lm, texts, hidden_states(lm, texts), unigram


@pytest.fixture(scope="module")
def found(given):
    lm, texts, states, unigram = given
    return gold_statistics(lm, states, gold_tokens(texts), unigram, "last")


@pytest.mark.parametrize(
    ("form", "sampler"),
    [
        (Form(10, 0, False), "unigram"),
        (Form(10, 0, True), "unigram-excluded"),
        (Form(0, 10, False), "softmax-sampled"),
        (Form(0, 10, True), "softmax-sampled-excluded"),
        (Form(5, 5, False), "mixed"),
        (PAPER, "mixed-excluded"),
    ],
    ids=str,
)
def test_forms_of_the_samplers(form, sampler, given, found):
    """From a few numbers a token, the closed form that is computed from the whole distribution."""
    lm, texts, states, unigram = given
    ids = gold_tokens(texts)[:, None]
    expected = closed_form(NextToken(lm.logits(states)), ids, unigram, sampler)[:, 0]
    np.testing.assert_allclose(training_free.closed_form(found, form), expected, atol=1e-5)


def test_simple_scores_are_those_of_the_study(given, found):
    lm, texts, states, unigram = given
    table, scores = token_scores(lm, texts, unigram, states=states), training_free.token_scores(found)
    for name in ("softmax", "logprob", "boostedprob"):
        np.testing.assert_allclose(scores[name], table[name], atol=1e-5)


def test_many_draws_rank_by_the_ratio_of_odds_and_draws(found):
    """K to infinity: log score = log p - log(1 - p) - log u + const, a pointwise mutual information."""
    score = training_free.closed_form(found, Form(10**9, 0, False))
    p = np.exp(found["logprob"])
    shift = np.log(score) - (np.log(p) - np.log1p(-p) - np.log(found["unigram"]))
    np.testing.assert_allclose(shift, shift[0], atol=1e-5)


def test_more_draws_lower_every_score(found):
    for few, many in ((Form(1, 0, False), Form(3, 0, False)), (Form(3, 0, False), Form(3, 1, False))):
        assert (training_free.closed_form(found, many) < training_free.closed_form(found, few)).all()


def test_grid():
    """Names are unique; the paper's own form is in it, and no form without any negative."""
    assert len({form.name for form in FORMS}) == len(FORMS) and PAPER.name == "u5-q5-excluded" == FORMS[0].name
    assert min(form.unigram + form.flattened for form in FORMS) > 0


def items(task: str) -> pd.DataFrame:
    """A few items of every slice a task may have."""
    slices = {
        "listing": [f"k={k}" for k in (1, 2, 3, 4, 7)],
        "languages": ["k=1", "k=2"],
        "corruption": ["type=original", "type=deletion", "type=random-words", "type=attested"],
        "mlqe-pe-ro-en": ["prompt=none", "prompt=source"],
        "gsm8k": ["changed=step", "changed=answer"],
        "multi30k-en-de": ["decoding=beam", "decoding=sample"],
        "cola": ["all"],
    }[task]
    rows = [{"slice": name, "gold": gold, "group": group, "prior": group == 3} for name in slices for gold in (0, 1) for group in range(8)]
    return pd.DataFrame(rows)


@pytest.mark.parametrize(
    ("task", "kept"),
    [
        ("listing", {("k=4", 1), ("k=7", 1), ("k=1", 0), ("k=2", 0)}),
        ("languages", {("k=2", 1), ("k=1", 0)}),
        ("corruption", {("type=original", 0), ("type=original", 1), ("type=deletion", 0), ("type=deletion", 1)}),
        ("mlqe-pe-ro-en", {("prompt=source", 0), ("prompt=source", 1)}),
        ("gsm8k", {("changed=step", 0), ("changed=step", 1)}),
        ("multi30k-en-de", {("decoding=beam", 0), ("decoding=beam", 1), ("decoding=sample", 0), ("decoding=sample", 1)}),
        ("cola", {("all", 0), ("all", 1)}),
    ],
)
def test_judged_items(task, kept):
    """Those that the main measure of the task is about; a group is on one side only, half of them on each; the same each time."""
    chosen = judged(task, items(task))
    assert set(zip(chosen["slice"], chosen["gold"])) == kept
    assert (chosen.groupby("group")["half"].nunique() == 1).all()
    sizes = chosen.groupby("half")["group"].nunique()
    assert abs(sizes["dev"] - sizes["test"]) <= 1
    assert chosen["half"].equals(judged(task, items(task))["half"])
    assert task != "languages" or 3 not in set(chosen["group"])


def grid(**values: float) -> pd.DataFrame:
    """A grid of results: `u1_q0_mean=(dev, test)`."""
    rows = [dict(zip(("score", "aggregate"), name.rsplit("_", 1)), dev=dev, test=test) for name, (dev, test) in values.items()]
    return pd.DataFrame(rows)


def test_choices_look_at_dev_only():
    table = grid(logprob_mean=(0.5, 0.9), logprob_min=(0.6, 0.1), **{f"{PAPER.name}_mean": (0.3, 0.9), "u1-q0_mean": (0.7, 0.0)})
    best = training_free.best_on_dev(table)
    assert best == {"logprob": ("logprob", "min"), "closed-form": (PAPER.name, "mean"), "closed-form:any": ("u1-q0", "mean")}


def test_best_for_all_is_the_largest_mean_gain():
    """Over the mean log-probability of each task; what a single token has is its mean; a way that a task lacks is out."""
    first = grid(logprob_mean=(0.5, 0), logprob_min=(0.9, 0), **{"u1-q0_mean": (0.6, 0), "u1-q0_min": (0.8, 0)})
    second = grid(logprob_mean=(0.5, 0), **{"u1-q0_mean": (0.55, 0)})
    gains = training_free.best_for_all({"corruption": first, "listing": second})
    assert gains.index[0] == ("logprob", "min") and gains.iloc[0] == pytest.approx(0.2)
    assert gains["u1-q0", "min"] == pytest.approx((0.3 + 0.05) / 2) and gains["logprob", "mean"] == 0
    assert ("u1-q0", "min") not in training_free.best_for_all({"corruption": first, "cola": second}).index
