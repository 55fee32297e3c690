"""Samplers of negatives: what is never drawn, and that the rest comes from exactly the stated
distribution, which the plain reference says for one position.
"""

import boostedprob
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import chi2_contingency, chisquare

from lib.sampler import (
    METHOD,
    NONE,
    SAMPLERS,
    NextToken,
    TokenFrequencies,
    _inverse_cdf,
    dominant_tokens,
    plain_negatives,
    sample,
)

LOGITS = torch.randn(1, 40, generator=torch.Generator().manual_seed(25)) * 1.7
FREQUENCIES = torch.rand(40, generator=torch.Generator().manual_seed(5)).square()
GOLD = 7
DOMINANT = dominant_tokens(LOGITS[0].softmax(0)).tolist()


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def expected(sampler: str) -> torch.Tensor:
    """The distribution of a sampler (not of `mixed`) in the toy example, computed directly."""
    kind, excluded = sampler.removesuffix("-excluded"), sampler.endswith("-excluded")
    flattened = (LOGITS[0].log_softmax(0) / 2).softmax(0)
    plain = {"uniform": torch.ones(40), "unigram": FREQUENCIES, "softmax-sampled": flattened}
    out = torch.tensor([GOLD, *(DOMINANT if excluded else [])])
    weights = plain[kind].double().index_fill(0, out, 0.0)
    return weights / weights.sum()


def fits(drawn: torch.Tensor, probabilities: torch.Tensor) -> bool:
    """Chi-square test of fit; what has probability 0 must not occur at all."""
    counts, possible = torch.bincount(drawn.flatten(), minlength=40), probabilities > 0
    assert drawn.min() >= 0 and counts[~possible].sum() == 0
    wanted = probabilities[possible] * drawn.numel()
    return chisquare(counts[possible].numpy(), wanted.numpy()).pvalue > 1e-3


@pytest.fixture(scope="module")
def draws() -> dict[str, torch.Tensor]:
    """From every sampler 2,000 positions of the toy example with 50 negatives each."""
    random, unigram, gold = generator(11), TokenFrequencies(FREQUENCIES), torch.full((50,), GOLD)
    chunks = [sample(NextToken(LOGITS.repeat(50, 1)), gold, unigram, 50, random) for _ in range(40)]
    return {name: torch.cat([chunk[name] for chunk in chunks]) for name in SAMPLERS}


def halves(sampler: str, draws: dict) -> list[tuple[torch.Tensor, str]]:
    """The draws of a sampler with the distribution that they must have: `mixed` has two halves."""
    kinds = [sampler.replace("mixed", kind) for kind in ("unigram", "softmax-sampled")]
    parts = draws[sampler].split(25, 1) if sampler.startswith("mixed") else [draws[sampler]]
    return list(zip(parts, kinds if len(parts) == 2 else [sampler]))


@pytest.mark.parametrize("sampler", SAMPLERS)
def test_distribution_is_exact(sampler, draws):
    assert len(DOMINANT) > 1 and GOLD not in DOMINANT
    for drawn, name in halves(sampler, draws):
        assert drawn.numel() >= 50_000 and fits(drawn, expected(name))


def test_distribution_is_that_of_the_plain_reference(draws):
    """Position by position with `torch.multinomial`, as the first lines of the file say it."""
    torch.manual_seed(3)
    p = LOGITS[0].softmax(0)
    plain = torch.stack([plain_negatives(p, GOLD, FREQUENCIES, 50) for _ in range(2000)])
    for own, fast in zip(plain.split(25, 1), draws[METHOD].split(25, 1)):
        counts = torch.stack([x.flatten().bincount(minlength=40) for x in (own, fast)])
        assert chi2_contingency(counts[:, counts.any(0)].numpy()).pvalue > 1e-3


@pytest.mark.parametrize("sampler", SAMPLERS)
@pytest.mark.parametrize("pairs", ["columns", "positions"])
def test_draws_are_independent(sampler, pairs, draws):
    """Neighbours among the draws of one position, and among positions: no table of six classes of
    tokens shows a dependence.
    """
    for drawn, _ in halves(sampler, draws):
        classes = drawn[:, : drawn.shape[1] // 2 * 2] % 6
        steps = (classes[:, ::2], classes[:, 1::2])
        first, second = steps if pairs == "columns" else (classes[::2], classes[1::2])
        table = torch.bincount((first * 6 + second).flatten(), minlength=36).view(6, 6)
        assert chi2_contingency(table.numpy()).pvalue > 1e-3


@settings(max_examples=50, deadline=None, derandomize=True)
@given(
    vocabulary=st.sampled_from([2, 3, 6, 64, 65, 300, 700]),
    positions=st.integers(1, 6),
    count=st.integers(1, 12),
    scale=st.sampled_from([0.1, 1.0, 3.0, 10.0]),
    mode=st.sampled_from(["last", "first"]),
    seed=st.integers(0, 10_000),
)
def test_what_is_never_drawn(vocabulary, positions, count, scale, mode, seed):
    """Gold never, dominant tokens (those of the published code, and of the plain reference) never
    where excluded; K ids of the vocabulary a position, or none at all.
    """
    random = generator(seed)
    logits = torch.randn(positions, vocabulary, generator=random) * scale
    gold = torch.randint(vocabulary, (positions,), generator=random)
    log_p = logits.log_softmax(1)[None].clone()  # the published code overwrites what it is given
    published = boostedprob.find_dominant(log_p, cut_point_mode=mode)[0]
    next_token = NextToken(logits.clone(), mode)
    for row, one, fast in zip(logits, published, next_token.dominant):
        plain = set(dominant_tokens(row.softmax(0), mode).tolist())
        assert plain == set(one[one >= 0].tolist()) == set(fast[fast >= 0].tolist())
    frequencies = TokenFrequencies(torch.rand(vocabulary, generator=random) + 1e-3)
    drawn = sample(next_token, gold, frequencies, count, random)
    assert list(drawn) == list(SAMPLERS)
    for name, ids in drawn.items():
        assert ids.shape == (positions, count) and ids.max() < vocabulary
        for row, right, forbidden in zip(ids, gold, published):
            out = forbidden[forbidden >= 0].tolist() if name.endswith("-excluded") else []
            out = {right.item(), *out}
            assert not out & set(row.tolist())
            assert (row == NONE).all() if len(out) == vocabulary else (row >= 0).all()


def test_probabilities_and_dominant_sets_of_two_modes():
    p = torch.tensor([[0.5, 0.2, 0.15, 0.1, 0.03, 0.02]])
    sets = [NextToken(p.log(), mode).dominant[0].tolist() for mode in ("last", "first")]
    assert sets == [[0, 1, 2, 3, 4], [0]]
    ids = torch.tensor([[3, -1, 0]])
    assert torch.allclose(NextToken(p.log()).probability(ids), torch.tensor([[0.1, 0.0, 0.5]]))
    flat = NextToken(torch.zeros(1, 1000))
    assert flat.dominant.shape == (1, 0)


@pytest.mark.parametrize("gold", [3, 0])
def test_nothing_left_to_draw(gold):
    """All tokens dominant or gold: no negatives where dominant ones are excluded, K where not."""
    next_token = NextToken(torch.tensor([[0.5, 0.3, 0.15, 0.05]]).log())
    assert next_token.dominant.tolist() == [[0, 1, 2]]
    even = TokenFrequencies(torch.ones(4))
    drawn = sample(next_token, torch.tensor([gold]), even, 8, generator())
    for name in SAMPLERS:
        left = {0, 1, 2, 3} - {gold} - ({0, 1, 2} if name.endswith("-excluded") else set())
        assert set(drawn[name][0].tolist()) <= (left or {NONE})


def test_a_sampler_alone_may_have_nothing_left():
    """Only gold was ever seen in training: no unigram negatives, but those of the model."""
    only_gold = TokenFrequencies(torch.eye(40)[GOLD])
    drawn = sample(NextToken(LOGITS.clone()), torch.tensor([GOLD]), only_gold, 5, generator())
    assert (drawn["unigram"] == NONE).all() and (drawn["softmax-sampled"] >= 0).all()
    # an odd K: the model's half is the larger
    assert (drawn["mixed"] == NONE).tolist() == [[True, True, False, False, False]]


def test_a_common_token_excluded():
    """Little mass is left: drawn from what remains, not by rejection without end."""
    weights = torch.full((40,), 1e-6).index_fill(0, torch.tensor(GOLD), 1.0)
    drawn = TokenFrequencies(weights).draw(torch.full((3, 1), GOLD), 1000, generator())
    assert (drawn != GOLD).all() and len(drawn.unique()) == 39


@pytest.mark.parametrize("uniform", [0.0, 0.25, 0.5, 1 - 1e-16])
def test_weight_0_is_never_hit(uniform):
    """Not even by a random number on the very border between two tokens, or at either end."""
    weights = [0.0, 1.0, 0.0, 1.0, 2.0, 0.0]
    number = torch.tensor([[uniform]], dtype=torch.float64)
    wanted = {0.0: 1, 0.25: 3, 0.5: 4, 1 - 1e-16: 4}[uniform]
    assert TokenFrequencies(torch.tensor(weights))._inverse(number).item() == wanted
    assert _inverse_cdf(torch.tensor([weights]), number).item() == wanted


def test_rounds_are_rounds_of_each_half():
    """Of every round of `mixed` the first half is unigram: rounds are cut apart later."""
    one_sided = TokenFrequencies(torch.eye(40)[3])
    drawn = sample(
        NextToken(LOGITS.clone()), torch.tensor([GOLD]), one_sided, 4, generator(), rounds=3
    )
    for start in range(0, 12, 4):
        assert (drawn["mixed"][0, start : start + 2] == 3).all()


@pytest.mark.parametrize("broken", [torch.nan, torch.inf])
def test_refuses(broken):
    with pytest.raises(ValueError, match="NaN or infinity"):
        NextToken(torch.tensor([[0.0, broken, 1.0]]))
    with pytest.raises(ValueError, match="token frequencies"):
        TokenFrequencies(torch.tensor([1.0, -broken]))
    with pytest.raises(ValueError, match="unknown mode"):
        NextToken(LOGITS.clone(), "middle")
    with pytest.raises(ValueError, match="unknown sampler 'x'"):
        even = TokenFrequencies(torch.ones(40))
        sample(NextToken(LOGITS.clone()), torch.tensor([0]), even, 2, generator(), ("x",))
