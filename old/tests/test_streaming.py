"""A head trained block by block: the same as on all positions at once, and never more of them in memory than asked for."""

import itertools

import numpy as np
import pytest
import torch
from helpers import language_model

from old.quality import streaming
from old.quality import training as whole
from old.quality.estimator import QualityEstimator
from old.quality.head import SigmoidHead, sampled_loss
from old.quality.language_models import LanguageModel, Text
from old.quality.negatives import TokenFrequencies
from old.quality.training import Positions, collect, fit, gold_tokens, learn

SAMPLER = "mixed-excluded"
OPTIONS = {"learning_rate": 1e-2, "positions_per_batch": 8, "count": 4, "seed": 3}


@pytest.fixture(scope="module")
def lm() -> LanguageModel:
    return language_model()


@pytest.fixture(scope="module")
def texts(lm) -> list[Text]:
    outputs = ["not on the mat", "return 1 2 3", "the value of the cat", "is a number", "10 200"]
    return lm.encode(["the cat is"] * 20, outputs * 4)


@pytest.fixture(scope="module")
def unigram(texts) -> TokenFrequencies:
    return TokenFrequencies.from_labels(gold_tokens(texts), 300)


def new_head(lm: LanguageModel, rank: int | None) -> SigmoidHead:
    torch.manual_seed(0)
    return SigmoidHead(lm.unembedding, rank=rank)


@pytest.fixture
def seen(monkeypatch) -> list[Positions]:
    """The blocks that a test's training computes."""
    blocks = []

    def watched(*arguments, **options) -> Positions:
        blocks.append(collect(*arguments, **options))
        return blocks[-1]

    monkeypatch.setattr(streaming, "collect", watched)
    return blocks


def equal(ours: SigmoidHead, theirs: SigmoidHead) -> None:
    for (name, a), b in zip(ours.named_parameters(), theirs.parameters()):
        torch.testing.assert_close(a, b, atol=1e-5, rtol=0, msg=name)


@pytest.mark.parametrize("rank", [None, 2])
def test_one_block_is_fit(rank, lm, texts, unigram, seen):
    """Where all positions make one block, the first pass is that of `fit` on the same negatives: losses and head."""
    updates = len(gold_tokens(texts)) // OPTIONS["positions_per_batch"]
    ours, theirs = new_head(lm, rank), new_head(lm, rank)
    losses = streaming.fit_streaming(ours, lm, texts, unigram, SAMPLER, updates=updates, **OPTIONS)
    (positions,) = seen
    assert torch.equal(positions.gold, gold_tokens(texts))
    expected = fit(theirs, positions, SAMPLER, updates=updates, **OPTIONS)
    assert losses == pytest.approx(expected, abs=1e-5) and len(set(losses)) == updates
    equal(ours, theirs)


class InOrder:
    """Random numbers of `fit` that leave positions in the order they are in."""

    def permutation(self, size: int) -> np.ndarray:
        return np.arange(size)

    def integers(self, _: int) -> int:
        return 0


@pytest.mark.parametrize("rank", [None, 2])
def test_blocks_are_fit_in_the_order_of_the_blocks(rank, lm, texts, unigram, monkeypatch):
    """Several blocks, two passes: `fit` on the positions and negatives in the order in which they came ends at the same head."""
    batches, updates = [], 40

    def watched(head, stream, **options):
        full = (batch for batch in stream if len(batch[1]) == OPTIONS["positions_per_batch"])  # the last block of a pass may be smaller
        batches.extend(itertools.islice(full, updates))
        return learn(head, iter(batches), **options)

    monkeypatch.setattr(streaming, "learn", watched)
    ours, theirs = new_head(lm, rank), new_head(lm, rank)
    losses = streaming.fit_streaming(ours, lm, texts, unigram, SAMPLER, updates=updates, **OPTIONS, positions_per_block=40)
    states, gold, negatives = (torch.cat(parts) for parts in zip(*batches))
    monkeypatch.setattr(whole.np.random, "default_rng", lambda seed: InOrder())
    expected = fit(theirs, Positions(states, gold, {SAMPLER: negatives}), SAMPLER, updates=updates, **OPTIONS)
    assert losses == pytest.approx(expected, abs=1e-5)
    equal(ours, theirs)


def test_every_text_once_a_pass_in_blocks_within_their_size(lm, texts, unigram, seen):
    """Two passes: the same texts in another order, other negatives, and never more positions at once than a block holds."""
    streaming.fit_streaming(new_head(lm, 2), lm, texts, unigram, SAMPLER, updates=40, **OPTIONS, positions_per_block=40)
    assert all(len(block.gold) <= 40 for block in seen) and len(seen) > 4
    total, sizes = len(gold_tokens(texts)), np.cumsum([len(block.gold) for block in seen])
    first = int(np.searchsorted(sizes, total)) + 1
    assert sizes[first - 1] == total  # a pass ends with a block
    once = torch.cat([block.gold for block in seen[:first]])
    assert sorted(once.tolist()) == sorted(gold_tokens(texts).tolist())
    again = torch.cat([block.gold for block in seen[first:]])
    assert len(again) and not torch.equal(once[: len(again)], again)
    assert not any(torch.equal(a.negatives[SAMPLER], b.negatives[SAMPLER]) for a, b in itertools.combinations(seen, 2))


def test_blocks(lm, texts):
    """A text longer than a block is a block of its own; the seed decides the order."""
    one = list(itertools.islice(streaming.blocks(texts, 1, 0), 20))
    assert all(len(block) == 1 for block in one) and sorted(b[0].ids for b in one) == sorted(text.ids for text in texts)
    orders = [[block[0].ids for block in itertools.islice(streaming.blocks(texts, 1, seed), 20)] for seed in (0, 0, 1)]
    assert orders[0] == orders[1] != orders[2]
    (everything,) = itertools.islice(streaming.blocks(texts, 10**6, 0), 1)
    assert everything == texts


def test_through_the_estimator():
    """It learns, with the interface of the estimator, from a start fitted on a part."""
    estimator = QualityEstimator(language_model())
    texts = (["Return the", "The"] * 8, ["number of items", "cache is empty"] * 8)
    losses = estimator.fit(*texts, rank=2, updates=30, positions_per_batch=16, learning_rate=1e-2, positions_per_block=30)
    assert np.mean(losses[-5:]) < np.mean(losses[:5])
    assert estimator.score(["The"], ["cache is empty"])["sigmoid"].between(0, 1).all()


def test_refuses_nothing_to_train_on(lm, unigram):
    with pytest.raises(ValueError, match="no texts were given"):
        streaming.fit_streaming(new_head(lm, 2), lm, [], unigram, SAMPLER, updates=1, **OPTIONS)


def test_refuses_several_processes(lm, texts, unigram, monkeypatch):
    """Sparse gradients are not shared between processes; better an error than as many heads as processes."""
    positions = collect(lm, texts[:2], unigram, count=4, samplers=(SAMPLER,))
    monkeypatch.setenv("WORLD_SIZE", "2")
    before = new_head(lm, None)
    with pytest.raises(RuntimeError, match="one process.*without `accelerate launch`"):
        fit(before, positions, SAMPLER, updates=1, **OPTIONS)
    equal(before, new_head(lm, None))
    monkeypatch.setenv("WORLD_SIZE", "1")
    assert len(fit(before, positions, SAMPLER, updates=1, **OPTIONS, loss=sampled_loss)) == 1
