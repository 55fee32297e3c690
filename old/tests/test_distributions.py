"""Next-token distributions against plain softmax, and dominant tokens against the published `boostedprob`."""

import boostedprob
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from old.quality.distributions import MODES, NextToken

SIZES = (2, 6, 63, 64, 65, 300, 2000)  # around the block of 64, and past the 1,024 tokens that boostedprob looks at
EXAMPLE = torch.tensor([[0.5, 0.2, 0.15, 0.1, 0.03, 0.02]])


def random_logits(vocabulary: int, count: int = 4, scale: float = 3.0, seed: int = 0) -> torch.Tensor:
    return torch.randn(count, vocabulary, generator=torch.Generator().manual_seed(seed)) * scale


def every(next_token: NextToken) -> torch.Tensor:
    """The ids of the whole vocabulary at every position. (C, V)"""
    return torch.arange(next_token.vocabulary).expand(len(next_token.root), -1)


def sets(ids: torch.Tensor) -> list[set[int]]:
    """The ids of each position, without padding."""
    return [set(row[row >= 0].tolist()) for row in ids]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("vocabulary", SIZES)
@settings(max_examples=40, deadline=None, derandomize=True)
@given(scale=st.sampled_from([0.05, 0.5, 1.0, 2.0, 4.0, 12.0]), seed=st.integers(0, 10_000))
def test_dominant_tokens_are_those_of_boostedprob(vocabulary, mode, scale, seed):
    logits = random_logits(vocabulary, scale=scale, seed=seed)
    theirs = boostedprob.find_dominant(logits.log_softmax(1)[None].clone(), cut_point_mode=mode)[0]
    assert sets(NextToken(logits, mode).dominant) == sets(theirs)


@pytest.mark.parametrize("mode", MODES)
def test_dominant_tokens_are_padded_and_in_falling_order(mode):
    """Each once, most probable first, -1 behind; none left out in between: they are the top of the distribution."""
    logits = random_logits(300, count=50)
    p = logits.softmax(1)
    dominant = NextToken(logits, mode).dominant
    for row, ids in zip(p, dominant):
        size = int((ids >= 0).sum())
        assert ids[:size].tolist() == row.topk(size).indices.tolist() and (ids[size:] == -1).all()
    assert (dominant >= 0).sum(1).unique().numel() > 2  # the case is not trivial


@pytest.mark.parametrize(("mode", "count"), [("last", 5), ("first", 1)])
def test_example_of_the_two_modes(mode, count):
    assert NextToken(EXAMPLE.log(), mode).dominant.tolist() == [list(range(count))]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("vocabulary", [2, 64, 300])
def test_flat_and_certain_predictions(vocabulary, mode):
    """No step, no dominant token; certainty, one, even where the padded vocabulary ends right behind."""
    assert NextToken(torch.zeros(3, vocabulary), mode).dominant.shape == (3, 0)
    certain = torch.nn.functional.one_hot(torch.tensor([vocabulary - 1]), vocabulary) * 30.0
    assert NextToken(certain, mode).dominant.tolist() == [[vocabulary - 1]]


@pytest.mark.parametrize("vocabulary", SIZES)
def test_equals_log_softmax(vocabulary):
    """p, log p, entropy and the mass of the dominant tokens, computed directly."""
    logits = random_logits(vocabulary)
    log_p = logits.double().log_softmax(1)
    dominant = boostedprob.find_dominant(log_p[None].clone())[0]
    mass = (log_p.exp().gather(1, dominant.clamp(min=0)) * (dominant >= 0)).sum(1)
    ours = NextToken(logits)
    close = {"atol": 1e-5, "rtol": 1e-5, "check_dtype": False}
    torch.testing.assert_close(ours.probability(every(ours)), log_p.exp(), **close)
    torch.testing.assert_close(ours.log_probability(every(ours)), log_p, **close)
    torch.testing.assert_close(ours.entropy(), -(log_p.exp() * log_p).sum(1), **close)
    torch.testing.assert_close(ours.dominant_mass(), mass, **close)


@pytest.mark.parametrize("vocabulary", SIZES)
def test_flattened_probability(vocabulary):
    """softmax(log p / 2), as it is and renormalised over the tokens that are not dominant."""
    logits = random_logits(vocabulary, count=20, scale=1.5)
    plain = (logits.double().log_softmax(1) / 2).softmax(1)
    ours = NextToken(logits)
    dominant = ours.is_dominant(every(ours))
    rest = plain.masked_fill(dominant, 0.0)
    rest = rest / rest.sum(1, keepdim=True)
    for exclude, expected in ((False, plain), (True, rest)):
        q = ours.flattened_probability(every(ours), exclude_dominant=exclude)
        torch.testing.assert_close(q, expected, atol=1e-5, rtol=1e-4, check_dtype=False)  # rtol: the rest may be a small difference
        torch.testing.assert_close(q.sum(1), torch.ones(20), atol=1e-4, rtol=0)


def test_is_dominant_looks_up_any_tokens():
    ours = NextToken(EXAMPLE.log().repeat(2, 1), "first")
    assert ours.is_dominant(torch.tensor([[5, 0, 3], [0, 1, 0]])).tolist() == [[False, True, False], [True, False, True]]


def test_probability_of_padding_is_0():
    assert NextToken(EXAMPLE.log()).probability(torch.tensor([[-1, 0]])).tolist() == [[0.0, pytest.approx(0.5)]]


def test_very_unlikely_tokens_keep_a_log_probability():
    """p itself underflows below e^-104, its root only far lower."""
    log_p = NextToken(torch.tensor([[0.0, -150.0, -200.0]])).log_probability(torch.tensor([[0, 1, 2]]))[0]
    assert log_p.isfinite().all()
    torch.testing.assert_close(log_p[:2], torch.tensor([0.0, -150.0]), atol=1e-5, rtol=1e-5)
    assert log_p[2].item() == pytest.approx(-200, abs=0.1)  # the root has two digits left there


def test_a_position_does_not_depend_on_its_batch():
    logits = random_logits(300, count=20)
    batch = NextToken(logits.clone())
    for position in range(20):
        alone = NextToken(logits[position : position + 1].clone())
        assert sets(alone.dominant) == sets(batch.dominant[position : position + 1])
        torch.testing.assert_close(alone.log_probability(every(alone))[0], batch.log_probability(every(batch))[position])
        torch.testing.assert_close(alone.entropy()[0], batch.entropy()[position])


@pytest.mark.parametrize("shift", [-300.0, 300.0])
def test_a_constant_added_to_the_logits_changes_nothing(shift):
    logits = random_logits(100, scale=1.0).round(decimals=2)
    plain, shifted = NextToken(logits.clone()), NextToken(logits + shift)
    assert sets(plain.dominant) == sets(shifted.dominant)
    torch.testing.assert_close(plain.entropy(), shifted.entropy(), atol=1e-3, rtol=0)  # float32 at 300 has steps of 3e-5


@pytest.mark.parametrize("value", [torch.nan, torch.inf])
@pytest.mark.parametrize("position", [0, 69])
def test_refuses_broken_logits(value, position):
    logits = random_logits(70)
    logits[2, position] = value
    with pytest.raises(ValueError, match="NaN or infinity"):
        NextToken(logits)


def test_refuses_unknown_mode():
    with pytest.raises(ValueError, match="unknown mode 'middle'.*last, first"):
        NextToken(EXAMPLE.log(), "middle")
