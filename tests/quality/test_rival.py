"""The supervised rival: means over tokens, and nothing of a group where the group is judged."""

import numpy as np
import pytest
import torch
from sklearn.linear_model import Ridge
from sklearn.model_selection import KFold, cross_val_predict

from lib.quality.scores import FOLDS, cross_fitted, fit_rival, mean_states

rng = np.random.default_rng(0)
GROUPS = np.repeat(np.arange(40), 3).astype(str)
FEATURES = rng.normal(size=(120, 6)) * [1, 10, 1e-3, 1, 1, 1] + [0, 5, 0, 0, 0, -2]
GOLD = FEATURES @ [1, 0.1, 1000, 0, 0, 0] + rng.normal(size=120) * 0.3


def test_mean_states():
    """The mean of each text's tokens, in whatever order they come; tensors and arrays alike."""
    states = torch.randn(50, 4, generator=torch.Generator().manual_seed(0))
    text = np.repeat([0, 1, 2, 3], [1, 30, 2, 17])
    expected = np.stack([states[text == number].double().mean(0) for number in range(4)])
    np.testing.assert_allclose(mean_states(states, text), expected, rtol=1e-6)
    order = np.random.default_rng(1).permutation(50)
    shuffled = mean_states(states.numpy()[order], text[order])
    np.testing.assert_allclose(shuffled, expected, rtol=1e-5, atol=1e-7)


def test_finds_a_linear_signal():
    """Whatever the scale of a feature; on its own data and on others."""
    assert np.corrcoef(cross_fitted(FEATURES, GOLD, GROUPS), GOLD)[0, 1] > 0.95
    half = GROUPS.astype(int) < 20

    def transferred(x: np.ndarray) -> np.ndarray:
        return fit_rival(x[half], GOLD[half], GROUPS[half]).predict(x[~half])

    scores = transferred(FEATURES)
    assert scores.shape == (60,) and np.corrcoef(scores, GOLD[~half])[0, 1] > 0.95
    np.testing.assert_allclose(transferred(FEATURES * 7 - 3), scores, rtol=1e-6)


def test_a_groups_gold_has_no_say_in_its_own_scores():
    """Others' scores do move: every other fold learns from it. Exactly the groups of its fold
    stay.
    """
    before = cross_fitted(FEATURES, GOLD, GROUPS)
    changed = np.where(GROUPS == "7", GOLD + 100, GOLD)
    same = cross_fitted(FEATURES, changed, GROUPS) == before
    assert same[GROUPS == "7"].all() and same.mean() == 1 / FOLDS


def test_a_groups_features_have_no_say_in_the_scores_of_its_fold():
    """Features are standardised on the training folds alone."""
    before = cross_fitted(FEATURES, GOLD, GROUPS)
    fold = cross_fitted(FEATURES, np.where(GROUPS == "7", GOLD + 100, GOLD), GROUPS) == before
    changed = np.where((GROUPS == "7")[:, None], FEATURES * 50, FEATURES)
    same = cross_fitted(changed, GOLD, GROUPS) == before
    np.testing.assert_array_equal(same, fold & (GROUPS != "7"))


def test_what_a_group_shares_is_not_learnt():
    """Features that are a name of the group, and gold that is the group's: known by heart, they
    would predict it well. So too where the penalty is chosen: only without groups does the least
    look best.
    """
    own = np.random.default_rng(1)
    names, values = own.normal(size=(40, 60)).repeat(3, 0), own.normal(size=40).repeat(3)
    shuffled = KFold(5, shuffle=True, random_state=0)
    by_heart = cross_val_predict(Ridge(), names, values, cv=shuffled)
    assert np.corrcoef(by_heart, values)[0, 1] > 0.8
    assert np.corrcoef(cross_fitted(names, values, GROUPS), values)[0, 1] < 0.4
    assert fit_rival(names, values, GROUPS).best_params_["ridge__alpha"] >= 1e3
    assert fit_rival(names, values, np.arange(120)).best_params_["ridge__alpha"] == 1


@pytest.mark.parametrize(("call", "groups"), [(fit_rival, 1), (cross_fitted, 1), (cross_fitted, 2)])
def test_too_few_groups(call, groups):
    with pytest.raises(ValueError, match="at least two groups"):
        call(FEATURES, GOLD, np.arange(120) % groups)
