"""Scores: the published BoostedProb, the closed form against a head trained to the end, joins."""

import boostedprob
import numpy as np
import pytest
import torch
from tiny import OUTPUTS, PROMPTS, language_model
from torch.nn import functional as F

from lib.quality.language_models import Unembedding
from lib.quality.scores import (
    WORST,
    Fitted,
    closed_form,
    draws_of,
    facts_of,
    fit_scores,
    head_scores,
    join,
    softmax_head_scores,
    token_scores,
    untrained_scores,
)
from lib.quality.training import Positions, collect, fit, gold_tokens, shuffled
from lib.sampler import METHOD, SAMPLERS, NextToken, TokenFrequencies, sample
from lib.sigmoid_head import SigmoidHead

FITTED = Fitted(scale=0.3, shift=-2.0, power=0.2)


@pytest.fixture(scope="module")
def lm():
    """With a vocabulary of whole blocks: NextToken then overwrites the logits that it is given."""
    return language_model(320)


@pytest.fixture(scope="module")
def texts(lm):
    return lm.encode(PROMPTS, OUTPUTS)


@pytest.fixture(scope="module")
def unigram(lm):
    random = torch.Generator().manual_seed(1)
    return TokenFrequencies(torch.rand(len(lm.unembedding), generator=random))


@pytest.fixture(scope="module")
def heads(lm):
    random = torch.Generator().manual_seed(2)
    heads = {
        name: SigmoidHead(lm.unembedding, None, r, 0.5)
        for name, r in (("full", None), ("small", 2))
    }
    with torch.no_grad():
        for parameter in (p for head in heads.values() for p in head.parameters()):
            parameter.add_(0.1 * torch.randn(parameter.shape, generator=random))
    return heads


@pytest.mark.parametrize("mode", ["last", "first"])
def test_boostedprob_is_the_published_one(mode, lm, texts):
    """For given outputs, most of them not dominant, and for the likeliest tokens."""
    states = lm.hidden_states(texts)
    log_p = lm.logits(states).log_softmax(1)
    for gold in (gold_tokens(texts), log_p.argmax(1)):
        copy = log_p[None].clone()
        theirs = boostedprob.calculate_boostedprob(copy, gold[None], cut_point_mode=mode)[0]
        ours = untrained_scores(lm, states, gold, mode=mode)["boostedprob"]
        np.testing.assert_allclose(ours, theirs, atol=1e-5)


def test_plain_scores_are_their_formulas(lm, texts, unigram, heads):
    table, states = token_scores(lm, texts, unigram, FITTED, heads), lm.hidden_states(texts)
    logits, gold = lm.logits(states).double(), gold_tokens(texts)
    log_p = logits.log_softmax(1)
    own, z = (x.gather(1, gold[:, None])[:, 0] for x in (log_p, logits))
    expected = {
        "softmax": own.exp(),
        "logprob": own,
        "entropy": (log_p.exp() * log_p).sum(1),  # negated: higher is better
        "rescale": torch.sigmoid(0.3 * z - 2.0),
        "softmax-power": own.exp() ** 0.2,
    }
    for name, head in heads.items():
        logits = head.all_logits(states).detach()
        expected[name] = logits.sigmoid().gather(1, gold[:, None])[:, 0]
        log_q = logits.log_softmax(1).gather(1, gold[:, None])[:, 0]
        np.testing.assert_allclose(softmax_head_scores(head, states, gold), log_q, atol=1e-5)
    assert table["token_id"].tolist() == gold.tolist()
    assert table["text"].tolist() == [i for i, text in enumerate(texts) for _ in text.output]
    for name, values in expected.items():
        np.testing.assert_allclose(table[name], values, atol=1e-5, rtol=1e-5, err_msg=name)
    assert set(table) == {"text", "token_id", "boostedprob", "closed-form", *expected}


def test_a_text_alone_scores_as_in_any_company(lm, texts, unigram, heads):
    together = token_scores(lm, texts[::-1], unigram, FITTED, heads)
    for number, text in enumerate(texts[::-1]):
        alone = token_scores(lm, [text], unigram, FITTED, heads).drop(columns="text")
        there = together[together["text"] == number].drop(columns="text")
        np.testing.assert_allclose(there, alone, atol=1e-5, rtol=1e-5)


def test_higher_means_better():
    """Where the model is certain, its token beats an unlikely one of a place where it knows
    nothing, in every column.
    """
    weight = torch.stack([torch.tensor([9.0, *[0.0] * 29]), torch.linspace(0, -1, 30)], 1)
    toy, even = Unembedding(weight), TokenFrequencies(torch.ones(30))
    table = untrained_scores(toy, torch.eye(2), torch.tensor([0, 25]), even, FITTED, SAMPLERS)
    assert table.shape == (2, 6 + len(SAMPLERS)) and (table.iloc[0] > table.iloc[1]).all()
    head = SigmoidHead(weight, scale=0.5, shift=-2.0)
    assert np.diff(head_scores(head, torch.eye(2), torch.tensor([0, 25]))) < 0


# ---- the closed form -----------------------------------------------------------------------------

TRUTH = torch.tensor(  # p* of three contexts: one right answer, two, and no clear one
    [
        [0.45] + [0.05] * 11,
        [0.30, 0.25] + [0.045] * 10,
        [0.11, 0.11, 0.10, 0.10, 0.09, 0.09, 0.08, 0.08, 0.07, 0.07, 0.05, 0.05],
    ],
    dtype=torch.float64,
)
UNIGRAM = TokenFrequencies(torch.tensor([4.0, 1, 3, 2, 2, 3, 1, 4, 2, 3, 1, 2]))
LANGUAGE = TRUTH.log().T.float()  # an unembedding: one-hot hidden states give log p*
EVERY, K = torch.arange(12).expand(3, -1), 10


def toy() -> NextToken:
    return NextToken(torch.eye(3) @ LANGUAGE.T)


def closed(sampler: str, ids: torch.Tensor = EVERY, count: int = K) -> torch.Tensor:
    return closed_form(facts_of(toy(), ids, UNIGRAM), **draws_of(sampler, count))


def excluded_by(sampler: str) -> torch.Tensor:
    """Which tokens are dominant, and therefore excluded. (3, 12)"""
    return toy().is_dominant(EVERY) & sampler.endswith("-excluded")


def optimum(sampler: str) -> torch.Tensor:
    """Exact minimiser of the expected loss: positive count over all counts, by summing over every
    gold token. (3, 12)
    """
    kind, best = sampler.removesuffix("-excluded"), torch.empty(3, 12, dtype=torch.float64)
    for context, p in enumerate(TRUTH):
        sources = {"uniform": torch.ones(12), "unigram": UNIGRAM.probabilities}
        sources["softmax-sampled"] = p.sqrt()
        halves = [("unigram", K / 2), ("softmax-sampled", K / 2)]
        drawn = torch.zeros(12, dtype=torch.float64)
        for source, count in halves if kind == "mixed" else [(kind, K)]:
            weights = sources[source].double().masked_fill(excluded_by(sampler)[context], 0.0)
            for gold in range(12):
                left = weights.index_fill(0, torch.tensor(gold), 0.0)
                drawn += p[gold] * count * left / left.sum()
        best[context] = p / (p + drawn)
    return best


def train_to_the_end(sampler: str) -> torch.Tensor:
    """What a full head learns from 2,000 positions a context, gold in exactly the shares of p*, and
    10 draws each. (3, 12)
    """
    random = torch.Generator().manual_seed(0)
    counts = (TRUTH * 2000).round().long()
    gold = torch.arange(12).repeat(3).repeat_interleave(counts.flatten())
    hidden = torch.eye(3)[torch.arange(3).repeat_interleave(counts.sum(1))]
    negatives = sample(NextToken(hidden @ LANGUAGE.T), gold, UNIGRAM, K, random, (sampler,))
    head = SigmoidHead(LANGUAGE, scale=0.5, shift=-2.0)
    batches = shuffled(Positions(hidden, gold, negatives), sampler, 900)
    fit(head, batches, updates=150, learning_rate=0.15)
    return head.all_logits(torch.eye(3)).sigmoid().detach()


@pytest.mark.parametrize("sampler", [*SAMPLERS[:4], METHOD])
def test_a_trained_head_learns_the_closed_form(sampler):
    """The head reaches the exact optimum up to the noise of its negatives; the closed form neglects
    the renormalisation by gold.
    """
    exact, learned = optimum(sampler).float(), train_to_the_end(sampler)
    torch.testing.assert_close(closed(sampler), exact, atol=0.05, rtol=0)
    free = ~excluded_by(sampler)
    torch.testing.assert_close(learned[free], exact[free], atol=0.03, rtol=0)
    assert (learned[~free] > 0.9).all() and (closed(sampler)[~free] == 1).all()  # never negative


def test_exclusion_is_not_trivial():
    """One, two and no dominant tokens in the toy language."""
    assert toy().is_dominant(EVERY).sum(1).tolist() == [1, 2, 0]


@pytest.mark.parametrize("sampler", SAMPLERS)
def test_the_closed_form_is_the_minimiser(sampler):
    """Of the loss that a token expects: any other score costs more; some tokens are as all."""
    score, facts = closed(sampler).double(), facts_of(toy(), EVERY, UNIGRAM)
    options = draws_of(sampler)
    rest = "_rest" if options["excluded"] else ""
    n = sum(
        options[one] * facts[name + rest]
        for one, name in (("unigram", "unigram"), ("flattened", "flattened"), ("uniform", "even"))
    )
    p, free = facts["probability"].double(), ~excluded_by(sampler)

    def loss(s):
        return (-p * s.log() - (1 - p) * n * torch.log1p(-s))[free]

    for other in (0.9 * score, 0.9 * score + 0.1):
        assert (loss(score.clamp(1e-6, 1 - 1e-6)) < loss(other.clamp(1e-6, 1 - 1e-6))).all()
    some = torch.tensor([[3, 0], [1, 1], [11, 5]])
    torch.testing.assert_close(closed(sampler, some), closed(sampler).gather(1, some))
    few, many = (closed(sampler, count=count) for count in (2, 20))
    assert ((many < few) | (few == 1)).all() and (many < few).any()


def test_fitted_scores_fit_better_than_the_raw_ones(lm):
    """On the positions that they are fitted to, and no worse than any other power of the grid."""
    texts = lm.encode(["the cat is"] * 30, [f" on the mat {i} of {i * 7}" for i in range(30)])
    even = TokenFrequencies(torch.ones(len(lm.unembedding)))
    positions = collect(lm, texts, even, samplers=(METHOD,))
    fitted = fit_scores(lm, positions)
    ids, labels, present = positions.candidates(METHOD)
    logits = lm.logits(positions.hidden_states)
    z, log_p = (x.gather(1, ids)[present].double() for x in (logits, logits.log_softmax(1)))

    def bce(p: torch.Tensor) -> float:
        clipped = p.clamp(1e-9, 1 - 1e-9)
        return F.binary_cross_entropy(clipped, labels[present].double()).item()

    best = bce((fitted.power * log_p).exp())
    assert best <= min(bce((fitted.power * factor * log_p).exp()) for factor in (0.5, 0.9, 1.1, 2))
    raw = bce(torch.sigmoid(z))
    assert bce(torch.sigmoid(fitted.scale * z + fitted.shift)) < raw


# ---- joins ---------------------------------------------------------------------------------------

TOKENS = np.array([0.9, 0.2, 0.5, 0.7, 1e-40, 0.3, 0.8])
TEXT = np.array([0, 0, 0, 1, 2, 2, 3])
BY_TEXT = [[0.9, 0.2, 0.5], [0.7], [1e-40, 0.3], [0.8]]
LOGS = [[float(np.log(max(value, 1e-30))) for value in values] for values in BY_TEXT]


def test_joins_are_plain_loops():
    expected = {
        "mean": [np.mean(values) for values in BY_TEXT],
        "min": [min(values) for values in BY_TEXT],
        "log-mean": [np.mean(values) for values in LOGS],  # no score is minus infinity
        "product": [sum(values) for values in LOGS],
        WORST: [np.mean(sorted(values)[:5]) for values in BY_TEXT],
    }
    for how, values in expected.items():
        np.testing.assert_allclose(join(TOKENS, TEXT, how), values, rtol=1e-6)
    long = np.arange(12.0)[::-1]
    assert join(long, np.zeros(12, int), WORST).tolist() == [2.0]
    with pytest.raises(ValueError, match="unknown way 'median'"):
        join(TOKENS, TEXT, "median")
