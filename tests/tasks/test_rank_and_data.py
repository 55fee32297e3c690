"""What a head says of held-out positions."""

import pytest
import torch
from torch.nn.functional import binary_cross_entropy

from lib.tasks.closed_forms import position_measures


def test_loss_is_that_of_gold_and_the_negatives_that_there_are():
    scores = torch.rand(6, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    present = torch.ones(6, 4, dtype=torch.bool)
    present[2, 3] = present[4, 1] = False
    labels = torch.zeros_like(scores)
    labels[:, 0] = 1
    every = binary_cross_entropy(scores, labels, reduction="none")
    expected = (every * present).sum(1)
    assert torch.allclose(position_measures(scores, present)["bce"], expected)


def test_ties_count_one_half_and_missing_negatives_not_at_all():
    scores = torch.tensor([[0.5, 0.4, 0.5, 0.6], [0.5, 0.4, 0.5, 0.6]], dtype=torch.float64)
    present = torch.tensor([[True] * 4, [True, True, False, False]])
    measures = position_measures(scores, present)
    assert measures["above"].tolist() == [0.5, 1.0]
    assert measures["score"].tolist() == [0.5, 0.5]


def test_certain_scores_cost_much_but_not_infinitely():
    scores = torch.tensor([[0.0, 1.0]], dtype=torch.float64)
    loss = position_measures(scores, torch.ones(1, 2, dtype=torch.bool))["bce"].item()
    assert loss == pytest.approx(2 * 27.631, abs=1e-2)
