"""Samplers of negatives: what is never drawn, and that the rest is drawn from exactly the stated distribution."""

import boostedprob
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import chi2_contingency, chisquare

from old.quality.distributions import NextToken
from old.quality.negatives import NONE, SAMPLERS, TokenFrequencies, _inverse_cdf, sample

EXCLUDING = [name for name in SAMPLERS if name.endswith("-excluded")]
LOGITS = torch.randn(1, 40, generator=torch.Generator().manual_seed(25)) * 1.7
FREQUENCIES = torch.rand(40, generator=torch.Generator().manual_seed(5)).square()
GOLD = 7
DOMINANT = [token for token in boostedprob.find_dominant(LOGITS.log_softmax(1)[None].clone())[0, 0].tolist() if token >= 0]


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def expected(sampler: str) -> torch.Tensor:
    """The distribution of a sampler (not of `mixed`) in the toy example, computed directly. (40,)"""
    kind = sampler.removesuffix("-excluded")
    plain = {"uniform": torch.ones(40), "unigram": FREQUENCIES, "softmax-sampled": (LOGITS[0].log_softmax(0) / 2).softmax(0)}
    weights = plain[kind].double().index_fill(0, torch.tensor([GOLD, *(DOMINANT if sampler.endswith("-excluded") else [])]), 0.0)
    return weights / weights.sum()


def fits(drawn: torch.Tensor, probabilities: torch.Tensor) -> bool:
    """Chi-square test of goodness of fit; what has probability 0 must not occur at all."""
    counts = torch.bincount(drawn.flatten(), minlength=len(probabilities))
    possible = probabilities > 0
    assert drawn.min() >= 0 and counts[~possible].sum() == 0
    return chisquare(counts[possible].numpy(), (probabilities[possible] * drawn.numel()).numpy()).pvalue > 1e-3


@pytest.fixture(scope="module")
def draws() -> dict[str, torch.Tensor]:
    """From every sampler 2,000 positions of the toy example with 50 negatives each."""
    random, parts = generator(11), []
    for _ in range(40):
        parts.append(sample(NextToken(LOGITS.repeat(50, 1)), torch.full((50,), GOLD), TokenFrequencies(FREQUENCIES), 50, random))
    return {name: torch.cat([part[name] for part in parts]) for name in SAMPLERS}


def halves(sampler: str, draws: dict[str, torch.Tensor]) -> list[tuple[torch.Tensor, str]]:
    """The draws of a sampler with the distribution that they must have: two halves of `mixed`."""
    if not sampler.startswith("mixed"):
        return [(draws[sampler], sampler)]
    return [
        (draws[sampler][:, :25], sampler.replace("mixed", "unigram")),
        (draws[sampler][:, 25:], sampler.replace("mixed", "softmax-sampled")),
    ]


@pytest.mark.parametrize("sampler", SAMPLERS)
def test_distribution_is_exact(sampler, draws):
    assert len(DOMINANT) > 1 and GOLD not in DOMINANT
    for drawn, name in halves(sampler, draws):
        assert drawn.numel() >= 50_000 and fits(drawn, expected(name))


def test_distribution_is_exact_over_several_blocks():
    """The model's own distribution is drawn block by block: a vocabulary of three blocks, the last one not full."""
    logits = torch.randn(1, 600, generator=generator(1))
    drawn = sample(NextToken(logits.repeat(60, 1)), torch.full((60,), 300), TokenFrequencies(torch.ones(600)), 1000, generator())
    weights = (logits[0].double() / 2).softmax(0).index_fill(0, torch.tensor(300), 0.0)
    assert fits(drawn["softmax-sampled"], weights / weights.sum())


@pytest.mark.parametrize("sampler", SAMPLERS)
@pytest.mark.parametrize("pairs", ["columns", "positions"])
def test_draws_are_independent(sampler, pairs, draws):
    """Neighbours among the draws of one position, and among positions: no table of six classes of tokens shows a dependence."""
    for drawn, _ in halves(sampler, draws):
        classes = drawn[:, : drawn.shape[1] // 2 * 2] % 6
        first, second = (classes[:, ::2], classes[:, 1::2]) if pairs == "columns" else (classes[::2], classes[1::2])
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
    """Gold never, dominant tokens never where excluded; K ids of the vocabulary a position, or none at all."""
    random = generator(seed)
    logits = torch.randn(positions, vocabulary, generator=random) * scale
    gold = torch.randint(vocabulary, (positions,), generator=random)
    dominant = boostedprob.find_dominant(logits.log_softmax(1)[None].clone(), cut_point_mode=mode)[0]
    frequencies = TokenFrequencies(torch.rand(vocabulary, generator=random) + 1e-3)
    drawn = sample(NextToken(logits, mode), gold, frequencies, count, random)
    assert list(drawn) == list(SAMPLERS)
    for name, ids in drawn.items():
        assert ids.shape == (positions, count) and ids.max() < vocabulary
        for row, right, forbidden in zip(ids, gold, dominant):
            excluded = {right.item(), *(forbidden[forbidden >= 0].tolist() if name in EXCLUDING else [])}
            assert not excluded & set(row.tolist())
            assert (row == NONE).all() if len(excluded) == vocabulary else (row >= 0).all()


@pytest.mark.parametrize("gold", [3, 0])
def test_nothing_left_to_draw(gold):
    """All tokens dominant or gold: no negatives where dominant ones are excluded, K ones where not."""
    next_token = NextToken(torch.tensor([[0.5, 0.3, 0.15, 0.05]]).log())
    assert next_token.dominant.tolist() == [[0, 1, 2]]
    drawn = sample(next_token, torch.tensor([gold]), TokenFrequencies(torch.ones(4)), 8, generator())
    for name in SAMPLERS:
        left = {0, 1, 2, 3} - {gold} - ({0, 1, 2} if name in EXCLUDING else set())
        assert set(drawn[name][0].tolist()) <= (left or {NONE})


def test_a_sampler_alone_may_have_nothing_left():
    """Only gold was ever seen in training: no unigram negatives, but those of the model."""
    drawn = sample(NextToken(LOGITS.clone()), torch.tensor([GOLD]), TokenFrequencies(torch.eye(40)[GOLD]), 5, generator())
    assert (drawn["unigram"] == NONE).all() and (drawn["softmax-sampled"] >= 0).all()
    assert (drawn["mixed"] == NONE).tolist() == [[True, True, False, False, False]]  # an odd K: the model's half is the larger


@pytest.mark.parametrize("uniform", [0.0, 0.25, 0.5, 1 - 1e-16])
def test_weight_0_is_never_hit(uniform):
    """Not even by a random number on the very border between two tokens, or at either end."""
    weights = [0.0, 1.0, 0.0, 1.0, 2.0, 0.0]
    expected = {0.0: 1, 0.25: 3, 0.5: 4, 1 - 1e-16: 4}[uniform]
    number = torch.tensor([[uniform]], dtype=torch.float64)
    assert TokenFrequencies(torch.tensor(weights))._inverse(number).item() == expected
    assert _inverse_cdf(torch.tensor([weights]), number).item() == expected


def test_nothing_is_drawn_by_multinomial(monkeypatch):
    """It would dominate the run time: [positions, vocabulary] is never given to torch.multinomial."""

    def refuse(*_arguments, **_options):
        raise AssertionError("torch.multinomial")

    monkeypatch.setattr(torch, "multinomial", refuse)
    monkeypatch.setattr(torch.Tensor, "multinomial", refuse)
    drawn = sample(NextToken(LOGITS.clone()), torch.tensor([GOLD]), TokenFrequencies(FREQUENCIES), 5, generator())
    assert all((ids >= 0).all() for ids in drawn.values())


def test_the_generator_decides():
    """The same seed, the same draws; another seed, others; the global generator is not used."""

    def draw(seed: int) -> dict[str, torch.Tensor]:
        torch.manual_seed(seed + 100 * len(seen))
        seen.append(seed)
        return sample(NextToken(LOGITS.repeat(3, 1)), torch.tensor([1, 2, 3]), TokenFrequencies(FREQUENCIES), 10, generator(seed))

    seen: list[int] = []
    first, again, other = draw(0), draw(0), draw(1)
    for name in SAMPLERS:
        assert torch.equal(first[name], again[name]) and not torch.equal(first[name], other[name])


@pytest.mark.parametrize("sampler", SAMPLERS)
def test_only_the_asked_samplers(sampler):
    drawn = sample(NextToken(LOGITS.clone()), torch.tensor([GOLD]), TokenFrequencies(FREQUENCIES), 3, generator(), (sampler,))
    assert list(drawn) == [sampler]


def test_refuses_unknown_sampler():
    with pytest.raises(ValueError, match="unknown sampler 'zipf'.*uniform.*mixed-excluded"):
        sample(NextToken(LOGITS.clone()), torch.tensor([GOLD]), TokenFrequencies(FREQUENCIES), 3, generator(), ("zipf",))


# ---- token frequencies ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("weights", [[0.5, -0.1], [1.0, float("nan")], [1.0, float("inf")], [0.0, 0.0], [[0.5, 0.5]]], ids=str)
def test_refuses_what_is_no_distribution(weights):
    with pytest.raises(ValueError, match="token frequencies must be"):
        TokenFrequencies(torch.tensor(weights))


def test_frequencies_of_labels():
    """Counts over all labels, normalised, 0 for tokens that do not occur."""
    frequencies = TokenFrequencies.from_labels(torch.tensor([[3, 1], [3, 3]]), 6)
    assert frequencies.probabilities.tolist() == [0, 0.25, 0, 0.75, 0, 0]


def test_frequency_0_is_never_drawn():
    """At both ends and in between; a padding of -1 excludes nothing."""
    frequencies = TokenFrequencies(torch.tensor([0.0, 2.0, 0.0, 1.0, 0.0]))
    assert fits(frequencies.draw(torch.full((100, 1), -1), 500, generator()), torch.tensor([0, 2, 0, 1, 0]).double() / 3)
    assert (frequencies.draw(torch.tensor([[1]]), 500, generator()) == 3).all()


@pytest.mark.parametrize("mass", [0.97, 0.9, 1 - 1e-12])
def test_little_mass_left(mass):
    """What is excluded may hold nearly everything: the rest is still drawn exactly, beside positions that exclude little."""
    rest = torch.tensor([0.1, 0.0, 0.2, 0.7], dtype=torch.float64)
    frequencies = TokenFrequencies(torch.cat([rest * (1 - mass), torch.tensor([mass], dtype=torch.float64)]))
    drawn = frequencies.draw(torch.tensor([[4, -1], [0, -1], [2, 4]]), 50_000, generator())
    for ids, excluded in zip(drawn, ([4], [0], [2, 4])):
        weights = frequencies.probabilities.index_fill(0, torch.tensor(excluded), 0.0)
        if mass < 0.99 or 4 in excluded:  # otherwise no other token is expected often enough for the test
            assert fits(ids, weights / weights.sum())
