"""Learning curves of Platt scaling: the fit is the existing one, draws keep groups apart, Brier and ECE are those of `agreement`."""

import numpy as np
import pandas as pd
import pytest
from scipy.special import expit
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GroupKFold
from sklearn.preprocessing import StandardScaler

from old.quality.agreement import PENALTY, agreement, platt
from old.quality.calibration import BASE_RATE, enough, fit, held_out, learning_curve, over_items, random_orders, worth_scaling
from old.quality.labelled import Labelled, labelled_tasks


def sample(size: int = 120, seed: int = 0) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """A score that says something, gold, and groups of different sizes."""
    rng = np.random.default_rng(seed)
    scores = rng.normal(3, 2, size)
    return scores, (scores - 3 + rng.normal(size=size) > 0.5).astype(float), rng.choice(list("aaabbccdefghijkl"), size)


@pytest.fixture(scope="module")
def task() -> Labelled:
    """A score in [0, 1], one outside, one that is constant, and a head of two seeds."""
    scores, gold, groups = sample()
    noisy = np.stack([scores, scores + np.random.default_rng(1).normal(0, 3, len(scores))])
    found = {"inside": expit(scores)[None], "outside": scores[None], "constant": np.full((1, len(scores)), 0.2), "head": noisy}
    return Labelled(gold, groups, found)


def test_fit_is_that_of_scikit_learn():
    """To the last digits of the same pipeline, at its usual precision as good as that; a constant score and separable items included."""
    rng = np.random.default_rng(0)
    scores = np.stack([*rng.normal(3, 2, (6, 40)), np.full(40, 0.1), np.arange(40.0)])
    gold = np.stack([*(expit(2 - scores[:6]) > rng.random((6, 40))), rng.random(40) < 0.3, np.arange(40) > 30]).astype(float)
    slope, intercept = fit(scores, gold)
    for x, y, ours in zip(scores, gold, expit(slope[:, None] * scores + intercept[:, None])):
        scaled = StandardScaler().fit_transform(x[:, None])
        exact = LogisticRegression(C=1 / PENALTY, tol=1e-12, max_iter=10_000).fit(scaled, y).predict_proba(scaled)[:, 1]
        np.testing.assert_allclose(ours, exact, atol=1e-5)
    assert (slope[:6] < 0).all() and abs(slope[6]) < 1e-9


def test_at_all_items_it_is_the_existing_platt_scaling():
    """Fitted on all other folds, as `platt` does, which stops a little earlier; on ten of these items it is something else."""
    scores, gold, groups = sample()
    expected, ours, few = platt(scores, gold, groups), np.empty(len(gold)), np.empty(len(gold))
    for learnt, test in GroupKFold(5).split(scores, groups=groups):
        for found, items in ((ours, learnt), (few, learnt[:10])):
            slope, intercept = fit(scores[None, items], gold[None, items])
            found[test] = expit(slope * scores[test] + intercept)
    np.testing.assert_allclose(ours, expected, atol=1e-3)
    assert np.abs(few - expected).max() > 0.05


@pytest.mark.parametrize(("right", "expected"), [(0, 1 / 12), (10, 11 / 12)])
def test_one_class_has_no_curve(right, expected):
    slope, intercept = fit(np.random.default_rng(0).random((1, 10)), np.full((1, 10), right / 10))
    assert slope[0] == 0 and expit(intercept[0]) == pytest.approx(expected, abs=1e-9)


def test_draws_keep_groups_apart():
    """Every draw is an order of all items, group after group; those to learn from are whole groups, at most half; orders differ."""
    groups = sample()[2]
    order, learnable = random_orders(groups, 20)
    for items, first in zip(order, learnable):
        assert sorted(items) == list(range(120)) and 0 < first <= 60
        changes = (groups[items][1:] != groups[items][:-1]).sum()
        assert changes == len(set(groups)) - 1
        assert not set(groups[items[:first]]) & set(groups[items[first:]])
    assert len({tuple(items) for items in order}) == 20
    assert all((a == b).all() for a, b in zip(random_orders(groups, 20), (order, learnable)))


def test_brier_and_ece_are_those_of_agreement():
    """Over the test items of each draw alone."""
    scores, gold, groups = sample()
    rng = np.random.default_rng(2)
    probability, tests = rng.random((3, 120)), rng.random((3, 120)) < 0.5
    found = held_out(probability, gold, tests)
    for number, (p, test) in enumerate(zip(probability, tests)):
        expected, _ = agreement(p[test], gold[test], groups[test], ("brier", "ece"), 1)
        assert {name: values[number] for name, values in found.items()} == pytest.approx(expected, abs=1e-9)


def test_learning_curve(task):
    """Unscaled where in [0, 1]; sizes up to half; a constant score is the base rate; seeds are averaged by their results, not scores."""
    curve = learning_curve(task, [10, 20, 5000], 10)
    most = random_orders(task.groups, 10)[1].min()
    assert sorted(curve["n"].unique()) == [0, 10, 20, most]
    assert set(curve.loc[curve["n"] == 0, "score"]) == {"inside", "constant"}
    table = curve[(curve["n"] > 0) & (curve["metric"] != "one class")].set_index(["score", "metric", "n"])[["value", "low", "high"]]
    assert (table["low"] <= table["high"]).all()
    pd.testing.assert_frame_equal(table.xs("constant"), table.xs(BASE_RATE), atol=1e-9)
    alone = [learning_curve(task._replace(scores={"head": s[None]}), [10], 10) for s in task.scores["head"]]
    values = [t.set_index(["score", "metric", "n"])["value"]["head", "brier", most] for t in alone]
    assert table["value"]["head", "brier", most] == pytest.approx(np.mean(values), abs=1e-9)
    assert table["value"]["outside", "brier", most] < table["value"][BASE_RATE, "brier", most] - 0.05


def test_scale_and_shift_of_a_score_change_nothing(task):
    curves = [learning_curve(task._replace(scores={"s": s}), [20], 5) for s in (task.scores["outside"], 5 - 40 * task.scores["outside"])]
    np.testing.assert_allclose(curves[0]["value"], curves[1]["value"], atol=1e-5)


def test_one_class_draws_are_counted():
    """Of 40 groups of one item one is right: most draws of two hold none, and all are counted."""
    gold = 1.0 * (np.arange(40) == 0)
    task = Labelled(gold, np.arange(40), {})
    share = learning_curve(task, [2], 200).query("metric == 'one class'").set_index("n")["value"]
    assert share[2] == pytest.approx(0.95, abs=0.05) and share[20] == pytest.approx(0.5, abs=0.1)


def test_a_group_of_more_than_half_leaves_nothing_to_learn_from(task):
    assert learning_curve(task._replace(groups=np.zeros(120)), [10], 5).empty
    assert over_items(task._replace(groups=np.zeros(120))) == {}
    assert over_items(task._replace(gold=np.ones(120))) == {}


def test_over_items(task):
    """Both halves fitted on the other: `platt` with two folds, `agreement`'s Brier score and ECE, replicates paired with the base rate."""
    found = over_items(task)
    probability = platt(task.scores["outside"][0], task.gold, task.groups, 2)
    values, replicates = agreement(probability, task.gold, task.groups, ("brier", "ece"))
    for metric in values:
        assert found["outside"][metric].value == pytest.approx(values[metric], abs=1e-9)
        np.testing.assert_allclose(found["outside"][metric].replicates, replicates[metric], atol=1e-9)
    step, base = found["outside"]["step"], found[BASE_RATE]["brier"]
    assert step.value == pytest.approx(values["brier"] - base.value, abs=1e-9) and step.value < -0.05
    np.testing.assert_allclose(step.replicates, replicates["brier"] - base.replicates, atol=1e-9)
    assert found["constant"]["step"].value == pytest.approx(0, abs=1e-3)


def test_enough():
    """At this and every larger n: at most 0.01 above the last and below the base rate; and below the score as it is."""
    lines = {
        BASE_RATE: [0.3, 0.25, 0.25, 0.25],
        "fast": [0.15, 0.2, 0.2, 0.205],
        "late": [0.2, 0.3, 0.215, 0.2],
        "useless": [0.3, 0.26, 0.26, 0.25],
    }
    curve = pd.DataFrame(
        [{"score": s, "n": n, "metric": "brier", "value": v} for s, vs in lines.items() for n, v in zip((10, 20, 50, 90), vs)]
    )
    assert enough(curve) == {BASE_RATE: 20, "fast": 10, "late": 90, "useless": None}
    assert enough(curve, 0.02)["late"] == 50
    as_it_is = pd.DataFrame({"score": ["fast", "late"], "n": 0, "metric": "brier", "value": [0.204, 0.22]})
    assert worth_scaling(pd.concat([curve, as_it_is])) == {"fast": None, "late": 50}


def test_labelled_items():
    """Controls without a territory and numbers of right answers without a wrong one are left out; the first profile that holds a task and
    every seed by itself; a task that is nowhere is not there.
    """
    base = pd.DataFrame({"id": [3, 1, 2, 0], "gold": [1.0, 0.0, 1.0, 1.0], "group": list("abcd"), "dataset": "languages", "profile": "p"})
    base = base.assign(prior=[False, False, False, True], slice="k=1")
    untrained = base.assign(method="untrained", seed=0, softmax=base["id"] / 10)
    heads = [base.assign(method="heads", seed=seed, **{"sigmoid-lowrank": base["id"] + seed}) for seed in (0, 1)]
    items = pd.concat([untrained, *heads, untrained.assign(profile="q", softmax=9.0)])
    listing = items.assign(dataset="listing", slice=items["id"].map({0: "k=1", 1: "k=1", 2: "k=2", 3: "k=2"})).drop(columns="prior")
    found = labelled_tasks(pd.concat([items, listing]), ["languages", "listing", "cola"], ["sigmoid-lowrank", "softmax", "logprob"])
    assert list(found) == ["languages", "listing"] and list(found["languages"].scores) == ["softmax", "sigmoid-lowrank"]
    assert found["languages"].groups.tolist() == ["b", "c", "a"] and found["languages"].gold.tolist() == [0, 1, 1]
    np.testing.assert_allclose(found["languages"].scores["softmax"], [[0.1, 0.2, 0.3]])
    np.testing.assert_allclose(found["languages"].scores["sigmoid-lowrank"], [[1, 2, 3], [2, 3, 4]])
    assert found["listing"].groups.tolist() == ["d", "b"]
    with pytest.raises(ValueError, match="not every item has the score 'softmax'"):
        labelled_tasks(items[(items["method"] == "heads") | (items["id"] != 2)], ["languages"], ["softmax"])
    with pytest.raises(ValueError, match="gold must be 0 or 1"):
        labelled_tasks(items.assign(gold=0.5), ["languages"], ["softmax"])
