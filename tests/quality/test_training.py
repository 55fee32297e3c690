"""Training a head: the base stays as it is, every position is learnt from."""

import itertools

import numpy as np
import pytest
import torch
from tiny import OUTPUTS, PROMPTS, language_model

from lib.quality.estimator import QualityEstimator
from lib.quality.training import (
    FIRST_RATE,
    LEARNING_RATES,
    NEGATIVES,
    Positions,
    best_learning_rate,
    collect,
    fit,
    fitted_start,
    full_start,
    gold_tokens,
    held_out_loss,
    shuffled,
    text_numbers,
)
from lib.sampler import METHOD, SAMPLERS, TokenFrequencies
from lib.sigmoid_head import SigmoidHead, full_loss, sampled_loss, softmax_loss

both_kinds = pytest.mark.parametrize("rank", [None, 3], ids=["full", "low-rank"])


@pytest.fixture(scope="module")
def lm():
    return language_model()


@pytest.fixture(scope="module")
def positions(lm) -> Positions:
    texts = lm.encode(PROMPTS * 3, OUTPUTS * 3)
    unigram = TokenFrequencies.from_labels(gold_tokens(texts), len(lm.unembedding))
    return collect(lm, texts, unigram, rounds=2)


def new_head(lm, rank=None, seed=0) -> SigmoidHead:
    torch.manual_seed(seed)
    return SigmoidHead(lm.unembedding, lm.bias, rank, scale=0.1)


# ---- positions -----------------------------------------------------------------------------------


def test_positions_are_those_of_the_texts(lm, positions):
    texts = lm.encode(PROMPTS * 3, OUTPUTS * 3)
    assert positions.gold.tolist() == [token for text in texts for token in text.output]
    assert np.bincount(text_numbers(texts)).tolist() == [len(text.output) for text in texts]
    torch.testing.assert_close(positions.hidden_states, lm.hidden_states(texts))
    assert set(positions.negatives) == set(SAMPLERS)
    for negatives in positions.negatives.values():
        assert negatives.shape == (len(positions), 2 * NEGATIVES)
        assert (negatives != positions.gold[:, None]).all()


def test_candidates(positions):
    """Gold first, then the first round of negatives; what there is not is marked."""
    few = positions[2:5]
    few.negatives[METHOD][1, 3] = -1
    ids, labels, present = few.candidates(METHOD)
    assert (
        ids[:, 0].tolist() == positions.gold[2:5].tolist()
        and labels[0].tolist() == [1.0] + [0.0] * 10
    )
    assert ids.shape == (3, 11) and present.sum() == 32 and not present[1, 4] and ids.min() >= 0


def test_the_fitted_start_is_better_than_the_raw_one(lm, positions):
    losses = [
        held_out_loss(SigmoidHead(lm.unembedding, None, None, *start), positions, METHOD)
        for start in ((1.0, 0.0), fitted_start(lm, positions, METHOD))
    ]
    assert losses[1] < losses[0]
    start = full_start(lm, positions)
    heads = [SigmoidHead(lm.unembedding, None, None, *one) for one in ((1.0, 0.0), start)]
    raw, fitted = (held_out_loss(head, positions, METHOD, full_loss) for head in heads)
    assert fitted < raw


# ---- learning ------------------------------------------------------------------------------------


@both_kinds
@pytest.mark.parametrize("loss", [sampled_loss, full_loss, softmax_loss])
def test_the_base_model_stays_bit_identical(rank, loss, positions):
    """Embeddings are tied: a head that shared their storage would train them. The loss falls."""
    lm = language_model()
    before = {name: tensor.clone() for name, tensor in lm.model.state_dict().items()}
    head = new_head(lm, rank)
    start = held_out_loss(head, positions, METHOD, loss)
    batches = shuffled(positions, METHOD, 16)
    losses = fit(head, batches, updates=40, learning_rate=0.05, loss=loss)
    assert lm.model.get_input_embeddings().weight is lm.model.get_output_embeddings().weight
    after = lm.model.state_dict()
    assert all(torch.equal(before[name], tensor) for name, tensor in after.items())
    assert len(losses) == 40 and held_out_loss(head, positions, METHOD, loss) < 0.9 * start


@both_kinds
def test_the_seed_decides(rank, lm, positions):
    def run(seed: int) -> list[float]:
        batches = shuffled(positions, METHOD, 10, seed)
        return fit(new_head(lm, rank), batches, updates=5, learning_rate=0.01)

    assert run(0) == run(0) != run(1)


def test_every_pass_visits_every_position_once():
    """With its own round of negatives: both are written into the numbers themselves."""
    ids = torch.arange(20)
    negatives = ids[:, None] * 10 + torch.arange(3).repeat_interleave(NEGATIVES)
    told = Positions(ids[:, None].float(), ids, {"uniform": negatives.int()})
    seen = list(itertools.islice(shuffled(told, "uniform", 10), 6))
    rounds = []
    for hidden, gold, drawn in seen:
        assert torch.equal(hidden[:, 0], gold.float())
        assert torch.equal(drawn // 10, gold[:, None].expand_as(drawn))
        rounds += (drawn % 10).unique().tolist()
    assert rounds[::2] == rounds[1::2] and sorted(rounds[::2]) == [0, 1, 2]
    passes = [torch.cat([seen[i][1], seen[i + 1][1]]).tolist() for i in (0, 2, 4)]
    assert all(sorted(one) == list(range(20)) for one in passes) and passes[0] != passes[1]
    first = {next(shuffled(told, "uniform", 10, seed))[2][0, 0].item() % 10 for seed in range(12)}
    assert first == {0, 1, 2}  # seeds start from different rounds
    (_, gold, _) = next(shuffled(told, "uniform", 50))
    assert sorted(gold.tolist()) == list(range(20))  # fewer than a batch are one


def test_watch_sees_every_update(lm, positions):
    seen, batches = [], shuffled(positions, METHOD, 10)
    fit(new_head(lm), batches, updates=4, learning_rate=0.1, watch=seen.append)
    assert seen == [0, 1, 2, 3, 4]


def test_nothing_to_train_on(positions):
    with pytest.raises(ValueError, match="nothing to train on: 0 positions"):
        next(shuffled(positions[:0], METHOD, 10))


def test_held_out_loss_is_the_loss_of_all_positions(lm, positions):
    """Whatever the size of a batch, with the first round of negatives."""
    head, many = (
        new_head(lm),
        Positions(
            *(
                x.repeat(40, 1) if x.dim() > 1 else x.repeat(40)
                for x in (positions.hidden_states, positions.gold)
            ),
            {METHOD: positions.negatives[METHOD].repeat(40, 1)},
        ),
    )
    assert len(many) > 1024
    first = many.negatives[METHOD][:, :NEGATIVES].long()
    expected = sampled_loss(head, many.hidden_states, many.gold, first).item()
    assert held_out_loss(head, many, METHOD) == pytest.approx(expected, abs=1e-5)


@pytest.mark.parametrize("best", [0, 1, 4, 8])
def test_the_search_ends_between_worse_neighbours(best):
    """Or where the grid ends; a loss that is not finite is the worst."""
    tried = []

    def loss_at(rate: float) -> float:
        tried.append(rate)
        distance = abs(LEARNING_RATES.index(rate) - best)
        return float("nan") if distance > 5 else distance

    assert best_learning_rate(loss_at) == LEARNING_RATES[best]
    assert len(set(tried)) == len(tried) and FIRST_RATE in tried
    near = LEARNING_RATES[max(0, best - 1) : best + 2]
    assert set(near) <= set(tried)


# ---- the estimator -------------------------------------------------------------------------------


def test_fit_then_score_gives_a_row_a_token():
    estimator = QualityEstimator(language_model())
    options = {"positions_per_batch": 8, "learning_rate": 1e-2}
    losses = estimator.fit(PROMPTS * 4, OUTPUTS * 4, rank=2, updates=30, **options)
    assert np.mean(losses[-5:]) < np.mean(losses[:5])
    table = estimator.score(PROMPTS, OUTPUTS)
    texts = estimator.lm.encode(PROMPTS, OUTPUTS)
    assert table.groupby("text").size().tolist() == [len(text.output) for text in texts]
    assert table["sigmoid"].between(0, 1).all()
    assert "".join(table.loc[table["text"] == 0, "token"]).strip() == OUTPUTS[0]


def test_without_head_or_texts():
    estimator = QualityEstimator(language_model())
    assert "sigmoid" not in estimator.score(PROMPTS, OUTPUTS) and estimator.score([], []).empty
    with pytest.raises(ValueError, match="nothing to train on"):
        estimator.fit([], [])
