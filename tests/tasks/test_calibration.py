"""Platt scaling, learning curves, risk and coverage."""

from itertools import permutations

import numpy as np
import pandas as pd
import pytest
from scipy.special import expit

from lib.study.statistics import Draws, sample
from lib.tasks.calibration import (
    area,
    from_labels,
    learning_curve,
    platt,
    risk_coverage,
)


@pytest.fixture
def noisy() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Scores, gold with P(right) = sigmoid(2 score), groups of four."""
    rng = np.random.default_rng(0)
    scores = rng.normal(size=800)
    return scores, (rng.uniform(size=800) < expit(2 * scores)).astype(float), np.arange(800) // 4


# ---- probabilities -----------------------------------------------------------------------------


def test_platt_finds_the_curve_that_made_the_labels(noisy):
    scores, _, _ = noisy
    probability = platt(*noisy)
    assert np.abs(probability - expit(2 * scores)).mean() < 0.03


def test_platt_does_not_see_the_fold_it_judges(noisy):
    scores, gold, groups = noisy
    before = platt(scores, gold, groups, folds=2)
    folds = pd.Series(before).groupby(groups).transform("first")  # any number a group
    other = gold.copy()
    other[groups == 0] = 1 - other[groups == 0]
    after = platt(scores, other, groups, folds=2)
    assert np.allclose(before[groups == 0], after[groups == 0])
    assert not np.allclose(before, after) and len(folds) == len(scores)


def test_platt_is_blind_to_scale_and_offset(noisy):
    scores, gold, groups = noisy
    assert np.allclose(platt(scores, gold, groups), platt(5 * scores - 3, gold, groups), atol=1e-3)


def test_labels_of_one_kind_fit_no_curve():
    scores = np.array([0.1, 0.9, 0.4])
    assert from_labels(scores, np.ones(3), np.array([0.2, 0.7])).tolist() == [0.8, 0.8]
    assert from_labels(scores, np.zeros(3), np.array([0.2])).tolist() == [0.2]


def test_more_labels_make_a_better_probability(noisy):
    curve = learning_curve(*noisy, [10, 50, 200], draws=20).set_index("n")
    assert list(curve.index) == [10, 50, 200]  # these scores are no probabilities: no 0
    assert curve.loc[10, "value"] > curve.loc[50, "value"] > curve.loc[200, "value"] - 0.002
    ends = curve.loc[200]
    assert ends["low"] < ends["value"] < ends["high"]


def test_a_score_in_0_1_is_also_judged_as_it_is(noisy):
    scores, gold, groups = noisy
    curve = learning_curve(expit(2 * scores), gold, groups, [100], draws=10).set_index("n")
    assert abs(curve.loc[0, "value"] - np.mean((expit(2 * scores) - gold) ** 2)) < 0.01
    assert curve.loc[0, "value"] < curve.loc[100, "value"] + 0.01


def test_a_constant_score_learns_the_base_rate(noisy):
    _, gold, groups = noisy
    curve = learning_curve(np.zeros(800), gold, groups, [200], draws=30)
    assert curve["n"].tolist() == [200]
    assert abs(curve["value"].iloc[0] - gold.var()) < 0.01


def test_half_of_the_items_are_left_to_test_on(noisy):
    curve = learning_curve(*noisy, [100, 400, 401], draws=5)
    assert curve["n"].tolist() == [100, 400]
    nothing = learning_curve(*noisy, [500], draws=5)
    assert nothing.empty and list(nothing) == ["n", "value", "low", "high"]


def test_a_group_is_labelled_or_tested_never_both():
    """Groups with a score of their own and a gold of their own: seen ones would be known."""
    rng = np.random.default_rng(0)
    groups = np.arange(400) // 2
    scores, gold = rng.normal(size=200)[groups], rng.integers(0, 2, 200)[groups].astype(float)
    curve = learning_curve(scores, gold, groups, [200], draws=30)
    assert abs(curve["value"].iloc[0] - 0.25) < 0.02


# ---- answering or abstaining -------------------------------------------------------------------


def test_risk_of_the_best_scored_answers():
    covered, risk = risk_coverage(np.array([0.9, 0.1, 0.5, 0.7]), np.array([1, 0, 0, 1]))
    assert covered.tolist() == [0.25, 0.5, 0.75, 1]
    np.testing.assert_allclose(risk, [0, 0, 1 / 3, 1 / 2])


def test_ties_are_the_average_of_their_orders():
    scores, gold = np.array([2, 1, 1, 1, 0.0]), np.array([1, 0, 1, 0, 1])
    orders = [[0, *middle, 4] for middle in permutations([1, 2, 3])]
    risks = [np.cumsum(1 - gold[order]) / np.arange(1, 6) for order in orders]
    np.testing.assert_allclose(risk_coverage(scores, gold)[1], np.mean(risks, 0))


def items(seed: int = 0, ties: bool = True) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    score = rng.integers(0, 6, 40) / 6 if ties else rng.normal(size=40)
    gold = rng.integers(0, 2, 40)
    return pd.DataFrame({"score": score, "gold": gold, "group": np.arange(40) // 4})


@pytest.mark.parametrize("ties", [True, False])
def test_the_area_is_the_mean_of_the_risks(ties):
    rows = items(ties=ties)
    value = sample(rows, area("score")).value
    assert value == pytest.approx(risk_coverage(rows["score"], rows["gold"])[1].mean())


def test_a_resample_of_the_area_is_that_of_the_repeated_items():
    rows = items()
    draws = Draws(rows["group"], resamples=5)
    values = area("score")(rows, draws)
    for value, drawn in zip(values, draws.drawn):
        repeated = rows.loc[rows.index.repeat(drawn[draws.member].astype(int))]
        risks = risk_coverage(repeated["score"], repeated["gold"])[1]
        assert value == pytest.approx(risks.mean())


def test_the_area_of_gold_itself_is_the_ideal():
    rows = items(ties=False)
    ideal = sample(rows, area("gold")).value
    right, n = rows["gold"].sum(), len(rows)
    assert ideal == pytest.approx(sum((k - right) / k for k in range(right + 1, n + 1)) / n)
    assert ideal < sample(rows, area("score")).value


def test_a_score_that_says_nothing_has_the_share_of_wrong_ones():
    rows = items().assign(score=0.5)
    assert sample(rows, area("score")).value == pytest.approx(1 - rows["gold"].mean())
