"""Scores: the published BoostedProb, the closed form against a head trained to the end, and that a text's score is its own."""

from types import SimpleNamespace

import boostedprob
import numpy as np
import pytest
import torch
from helpers import language_model
from torch.nn import functional as F

from old.quality.distributions import NextToken
from old.quality.head import SigmoidHead
from old.quality.language_models import Text
from old.quality.negatives import SAMPLERS, TokenFrequencies, sample
from old.quality.scores import (
    AGGREGATES,
    CHUNK,
    METHOD,
    Baselines,
    closed_form,
    head_scores,
    sequence_scores,
    token_scores,
    untrained_losses,
)
from old.quality.training import Positions, collect, fit, gold_tokens, hidden_states, labels_of

BASELINES = Baselines(scale=0.3, shift=-2.0, power=0.2)
PROMPTS = ["the cat", "", "return the value of", "10 is"]
OUTPUTS = ["is not on the mat", "my_name", "the value of 1 2 3", "x"]


@pytest.fixture(scope="module")
def lm():
    """With a vocabulary of whole blocks: NextToken then overwrites the logits that it is given."""
    return language_model(vocab_size=320)


@pytest.fixture(scope="module")
def texts(lm):
    return lm.encode(PROMPTS, OUTPUTS)


@pytest.fixture(scope="module")
def unigram(lm):
    return TokenFrequencies(torch.rand(len(lm.unembedding), generator=torch.Generator().manual_seed(1)))


@pytest.fixture(scope="module")
def heads(lm):
    random = torch.Generator().manual_seed(2)
    heads = {"full": SigmoidHead(lm.unembedding, scale=0.5), "small": SigmoidHead(lm.unembedding, rank=2, scale=0.5)}
    with torch.no_grad():
        for head in heads.values():
            for parameter in head.parameters():
                parameter.add_(0.1 * torch.randn(parameter.shape, generator=random))
    return heads


# ---- scores of tokens ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["last", "first"])
def test_boostedprob_is_the_published_one(mode, lm, unigram):
    """For random outputs, most of them not dominant, and for the likeliest ones."""
    random = np.random.default_rng(0)
    texts = lm.encode(PROMPTS, [lm.tokenizer.decode(random.integers(5, 290, 12)) for _ in PROMPTS])
    log_p = lm.logits(hidden_states(lm, texts)).log_softmax(1)
    for gold in (gold_tokens(texts), log_p.argmax(1)):
        rows = iter(gold.tolist())
        chosen = [Text((*text.ids[: text.start], *(next(rows) for _ in text.output)), text.start) for text in texts]
        theirs = boostedprob.calculate_boostedprob(log_p[None].clone(), gold[None], cut_point_mode=mode)[0]
        ours = token_scores(lm, chosen, unigram, BASELINES, states=hidden_states(lm, texts), mode=mode)["boostedprob"]
        np.testing.assert_allclose(ours, theirs, atol=1e-5)


def test_plain_scores_are_their_formulas(lm, texts, unigram, heads):
    table, states = token_scores(lm, texts, unigram, BASELINES, heads), hidden_states(lm, texts)
    logits = lm.logits(states).double()
    gold, log_p = gold_tokens(texts), logits.log_softmax(1)
    own, z = (x.gather(1, gold[:, None])[:, 0] for x in (log_p, logits))
    expected = {
        "softmax": own.exp(),
        "logprob": own,
        "entropy": (log_p.exp() * log_p).sum(1),  # negated: higher is better
        "rescale": torch.sigmoid(0.3 * z - 2.0),
        "softmax-power": own.exp() ** 0.2,
        **{name: head.all_logits(states).sigmoid().gather(1, gold[:, None])[:, 0].detach() for name, head in heads.items()},
    }
    assert table["token_id"].tolist() == gold.tolist() and table["text"].tolist() == [i for i, t in enumerate(texts) for _ in t.output]
    for name, values in expected.items():
        np.testing.assert_allclose(table[name], values, atol=1e-5, rtol=1e-5, err_msg=name)
    assert set(table) == {"text", "token_id", "boostedprob", "closed-form", *expected}


def test_closed_forms_of_further_samplers(lm, texts, unigram):
    """One column a sampler, each its own; that of the paper's sampler is called closed-form."""
    table = token_scores(lm, texts, unigram, BASELINES, samplers=SAMPLERS)
    logits, gold = lm.logits(hidden_states(lm, texts)), gold_tokens(texts)
    for name in SAMPLERS:
        expected = closed_form(NextToken(logits.clone()), gold[:, None], unigram, name)[:, 0]
        np.testing.assert_allclose(table["closed-form" if name == "mixed-excluded" else f"closed-form:{name}"], expected, atol=1e-6)
    assert len({tuple(table[name]) for name in table if name.startswith("closed-form")}) == len(SAMPLERS)


def test_a_text_alone_scores_as_in_any_company(lm, texts, unigram, heads):
    """Whatever is scored with it, and in whatever order."""
    together = token_scores(lm, texts, unigram, BASELINES, heads)
    backwards = token_scores(lm, texts[::-1], unigram, BASELINES, heads)
    for number, text in enumerate(texts):
        alone = token_scores(lm, [text], unigram, BASELINES, heads).drop(columns="text")
        for table, place in ((together, number), (backwards, len(texts) - 1 - number)):
            there = table[table["text"] == place].drop(columns="text")
            np.testing.assert_allclose(there, alone, atol=1e-5, rtol=1e-5)


def test_known_states_change_nothing(lm, texts, unigram, heads, monkeypatch):
    """They save the forward pass: the same scores without any."""
    fresh, states = token_scores(lm, texts, unigram, BASELINES, heads), hidden_states(lm, texts)
    monkeypatch.setattr(lm.model, "forward", None)
    monkeypatch.setattr(lm.model.base_model, "forward", None)
    np.testing.assert_array_equal(token_scores(lm, texts, unigram, BASELINES, heads, states), fresh)


@pytest.mark.parametrize("batch", [1, 3, 1000])
def test_head_scores_do_not_depend_on_the_batch(batch, lm, texts, heads):
    states, gold = hidden_states(lm, texts), gold_tokens(texts)
    expected = heads["full"].all_logits(states).sigmoid().detach().numpy()[np.arange(len(gold)), gold]
    np.testing.assert_allclose(head_scores(heads["full"], states, gold, batch), expected, atol=1e-6)


def test_higher_means_better():
    """Where the model is certain, its token beats an unlikely one of a place where it knows nothing, in every column."""
    unembedding = torch.stack([torch.tensor([9.0, *[0.0] * 29]), torch.linspace(0, -1, 30)], 1)  # token 0 in context 0; nothing in 1
    toy = SimpleNamespace(logits=lambda hidden: hidden @ unembedding.T, device=torch.device("cpu"))
    texts = [SimpleNamespace(output=(0,)), SimpleNamespace(output=(25,))]
    heads = {"head": SigmoidHead(unembedding, scale=0.5, shift=-2.0)}
    table = token_scores(toy, texts, TokenFrequencies(torch.ones(30)), BASELINES, heads, torch.eye(2), SAMPLERS)
    scores = table.drop(columns=["text", "token_id"])
    assert scores.shape == (2, 6 + len(SAMPLERS) + 1)
    assert (scores.iloc[0] > scores.iloc[1]).all(), scores


# ---- the closed form -----------------------------------------------------------------------------------------------------------------

TRUTH = torch.tensor(  # p* of three contexts over twelve tokens: one right answer, two, and no clear one
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


def toy_next_token() -> NextToken:
    return NextToken(torch.eye(3) @ LANGUAGE.T)


def optimum(sampler: str) -> torch.Tensor:
    """Exact minimiser of the expected loss: positive count over all counts, by summing over every gold token. (3, 12)"""
    kind, best = sampler.removesuffix("-excluded"), torch.empty(3, 12, dtype=torch.float64)
    dominant = toy_next_token().is_dominant(EVERY) if sampler.endswith("-excluded") else torch.zeros(3, 12, dtype=torch.bool)
    for context, p in enumerate(TRUTH):
        sources = {"uniform": torch.ones(12), "unigram": UNIGRAM.probabilities, "softmax-sampled": p.sqrt()}
        parts = [("unigram", K / 2), ("softmax-sampled", K / 2)] if kind == "mixed" else [(kind, K)]
        drawn = torch.zeros(12, dtype=torch.float64)
        for source, count in parts:
            for gold in range(12):
                weights = sources[source].double().masked_fill(dominant[context], 0.0).index_fill(0, torch.tensor(gold), 0.0)
                drawn += p[gold] * count * weights / weights.sum()
        best[context] = p / (p + drawn)
    return best


def train_to_the_end(sampler: str) -> torch.Tensor:
    """What a full head learns from 2,000 positions a context, gold in exactly the shares of p*, and 10 draws each. (3, 12)"""
    random = torch.Generator().manual_seed(0)
    counts = (TRUTH * 2000).round().long()
    gold = torch.arange(12).repeat(3).repeat_interleave(counts.flatten())
    hidden = torch.eye(3)[torch.arange(3).repeat_interleave(counts.sum(1))]
    negatives = sample(NextToken(hidden @ LANGUAGE.T), gold, UNIGRAM, K, random, (sampler,))
    head = SigmoidHead(LANGUAGE, scale=0.5, shift=-2.0)
    fit(head, Positions(hidden, gold, negatives), sampler, updates=150, learning_rate=0.15, positions_per_batch=900, count=K)
    return head.all_logits(torch.eye(3)).sigmoid().detach()


@pytest.mark.parametrize("sampler", ["uniform", "unigram", "softmax-sampled", "mixed", "mixed-excluded"])
def test_a_trained_head_learns_the_closed_form(sampler):
    """The head reaches the exact optimum up to the noise of its negatives; the closed form neglects the renormalisation by gold."""
    exact, learned = optimum(sampler), train_to_the_end(sampler)
    closed = closed_form(toy_next_token(), EVERY, UNIGRAM, sampler, K)
    torch.testing.assert_close(closed, exact, atol=0.05, rtol=0, check_dtype=False)
    free = ~toy_next_token().is_dominant(EVERY) if sampler.endswith("-excluded") else torch.ones(3, 12, dtype=torch.bool)
    torch.testing.assert_close(learned[free], exact[free], atol=0.03, rtol=0, check_dtype=False)
    assert (learned[~free] > 0.9).all() and (closed[~free] == 1).all()  # never a negative


def test_exclusion_is_not_trivial():
    """One, two and no dominant tokens in the toy language."""
    assert toy_next_token().is_dominant(EVERY).sum(1).tolist() == [1, 2, 0]


@pytest.mark.parametrize("sampler", SAMPLERS)
def test_closed_form_of_a_few_tokens_is_that_of_all(sampler):
    some = torch.tensor([[3, 0], [1, 1], [11, 5]])
    all_of_them = closed_form(toy_next_token(), EVERY, UNIGRAM, sampler, K)
    torch.testing.assert_close(closed_form(toy_next_token(), some, UNIGRAM, sampler, K), all_of_them.gather(1, some))


@pytest.mark.parametrize("sampler", SAMPLERS)
def test_more_negatives_lower_the_closed_form(sampler):
    few, many = (closed_form(toy_next_token(), EVERY, UNIGRAM, sampler, count) for count in (2, 20))
    assert ((many < few) | (few == 1)).all() and (many < few).any()


# ---- fitted baselines ----------------------------------------------------------------------------------------------------------------


def test_baselines_fit_better_than_the_raw_scores():
    """Labels drawn with p^0.2: the power is found, and both fits beat power 1 and the raw logit."""
    random = torch.Generator().manual_seed(0)
    logits = torch.randn(20_000, generator=random) * 4 + 2
    log_p = -F.softplus(-(logits - 6))
    labels = (torch.rand(20_000, generator=random) < (0.2 * log_p).exp()).float()
    fitted = Baselines.fit(logits, log_p, labels)
    assert fitted.power == pytest.approx(0.2, rel=0.07)  # the grid's step is 6 %

    def bce(p: torch.Tensor) -> float:
        return F.binary_cross_entropy(p.double().clamp(1e-9, 1 - 1e-9), labels.double()).item()

    assert bce((fitted.power * log_p).exp()) < bce(log_p.exp())
    assert bce(torch.sigmoid(fitted.scale * logits + fitted.shift)) < bce(torch.sigmoid(logits))


# ---- scores of sequences -------------------------------------------------------------------------------------------------------------

TOKENS = np.array([0.9, 0.2, 0.5, 0.7, 1e-40, 0.3, 0.8])
TEXT = np.array([0, 0, 0, 1, 2, 2, 3])
BY_TEXT = [[0.9, 0.2, 0.5], [0.7], [1e-40, 0.3], [0.8]]


def mean(values: list[float]) -> float:
    return sum(values) / len(values)


def logs(values: list[float]) -> list[float]:
    return [float(np.log(max(value, 1e-30))) for value in values]  # no score is minus infinity


@pytest.mark.parametrize(
    ("how", "plain"),
    [("mean", mean), ("min", min), ("log-mean", lambda values: mean(logs(values))), ("product", lambda values: sum(logs(values)))],
)
def test_sequence_scores_are_plain_loops(how, plain):
    np.testing.assert_allclose(sequence_scores(TOKENS, TEXT, how), [plain(values) for values in BY_TEXT], rtol=1e-6)
    np.testing.assert_allclose(sequence_scores(np.array([0.25]), np.array([0]), how), [plain([0.25])], rtol=1e-6)


def test_scores_that_are_no_probabilities():
    """Negative ones have a mean and a minimum."""
    assert sequence_scores(np.array([-3.0, -1.0, -7.0]), np.array([0, 0, 1])).tolist() == [-2, -7]
    assert sequence_scores(np.array([-3.0, -1.0, -7.0]), np.array([0, 0, 1]), "min").tolist() == [-3, -7]


def test_refuses_unknown_aggregate():
    with pytest.raises(ValueError, match=f"unknown way 'median'.*{', '.join(AGGREGATES)}"):
        sequence_scores(TOKENS, TEXT, "median")


def test_untrained_losses_are_the_losses_of_their_scores():
    """Each closed form with its own negatives and with the common ones; softmax over the whole vocabulary. Chunks do not matter."""
    lm = language_model()
    texts = lm.encode(["the cat is"] * 40, [f" on the mat {i} of {i * 7}" for i in range(40)])
    unigram = TokenFrequencies.from_labels(gold_tokens(texts), len(lm.unembedding))
    samplers = ("uniform", METHOD)
    positions = collect(lm, texts, unigram, count=4, samplers=samplers)
    found = untrained_losses(lm, positions, unigram, samplers, count=4)
    p = lm.logits(positions.hidden_states).softmax(-1).double()
    gold = positions.gold[:, None]
    assert len(gold) > CHUNK
    assert found["softmax", "cross-entropy"] == pytest.approx(-p.gather(1, gold).log().mean().item(), abs=1e-5)
    labels = torch.zeros_like(p).scatter_(1, gold, 1.0)
    full = torch.nn.functional.binary_cross_entropy(p, labels, reduction="sum").item() / len(gold)
    assert found["softmax", "full"] == pytest.approx(full, abs=1e-4)
    for sampler in samplers:
        for name, negatives in (("own", sampler), ("common", METHOD)):
            ids, there = positions.candidates(negatives, slice(None), 4)
            score = closed_form(NextToken(lm.logits(positions.hidden_states)), ids, unigram, sampler, 4).double().clamp(1e-12, 1 - 1e-12)
            loss = torch.nn.functional.binary_cross_entropy(score, labels_of(ids).double(), reduction="none") * there
            assert found[sampler, name] == pytest.approx(loss.sum().item() / len(gold), abs=1e-5)
