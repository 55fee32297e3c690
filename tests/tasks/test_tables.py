"""Tables say what the scored items say; figures draw without warnings."""

import matplotlib

matplotlib.use("agg")
import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest

from lib.quality.experiments import HEADS
from lib.study.figures import STYLE
from lib.study.statistics import sample
from lib.tasks.measures import AUROC, LISTING, PEARSON, Criterion, compared
from lib.tasks.tables import (
    averaged,
    difference_plot,
    differences,
    judge,
    over_seeds,
    score_table,
    scores_among,
    truth_scatter,
    verdicts,
)

METHODS = ["softmax", "entropy", "sigmoid-lowrank", "length"]
DROP, _, LISTED, _ = (criterion.label for criterion in LISTING)


@pytest.fixture(scope="module")
def items() -> pd.DataFrame:
    """Listing items of four sets, two orders each, for two seeds of a head: `softmax` falls with k,
    the head does not, `entropy` is noise.
    """
    rng, rows = np.random.default_rng(0), []
    for group in "abcd":
        for order in range(2):
            for k in range(1, 6):
                common = {"group": group, "order": order, "k": k}
                right = {"gold": 1.0, "kind": "right", "softmax": 1 / k, "sigmoid-lowrank": 0.8}
                rows.append(common | right)
                wrong = {"gold": 0.0, "kind": "listed", "softmax": 0.1, "sigmoid-lowrank": 0.2}
                rows += [common | wrong] * (k <= 2)
    table = pd.DataFrame(rows).assign(task="listing", entropy=rng.random(len(rows)), length=1.0)
    table.insert(0, "id", range(len(table)))
    seeds = [
        table.assign(seed=seed, **{"sigmoid-lowrank": table["sigmoid-lowrank"] + shift})
        for seed, shift in ((0, 0.1), (1, -0.1))
    ]
    return pd.concat(seeds, ignore_index=True)


@pytest.fixture(scope="module")
def judged(items):
    return judge(items, LISTING, METHODS)


def test_scores_are_averaged_over_seeds(items):
    mean = averaged(items)
    assert len(mean) == items["id"].nunique() and "seed" not in mean
    expected = np.where(mean["gold"] == 1, 0.8, 0.2)
    assert mean["sigmoid-lowrank"].to_numpy() == pytest.approx(expected)
    pd.testing.assert_frame_equal(averaged(mean), mean)


def test_seeds_of_a_trained_score_only(judged, items):
    """A constant added to all scores changes no ranking; an untrained score has one value."""
    assert judged[LISTED]["sigmoid-lowrank"].by_seed == (1.0, 1.0)
    assert judged[LISTED]["softmax"].by_seed == (judged[LISTED]["softmax"].value,)
    one = LISTING[2]
    first = items[items["seed"] == 0].drop(columns="seed")
    noise = sample(one.of(first.assign(score=first["entropy"])), AUROC)
    assert judged[LISTED]["entropy"].value == noise.value
    np.testing.assert_array_equal(judged[LISTED]["entropy"].replicates, noise.replicates)


def test_the_best_is_marked_and_the_worse_is_not(judged):
    """No marks where an ideal is named, nor for references."""
    table = score_table(judged, LISTING)
    assert list(table) == METHODS and set(table.loc[LISTING[3].label]) == {"–"}  # no such answers
    assert table.loc[DROP].tolist()[0] == "0.00 [0.00, 0.00]"
    assert table.loc[DROP, "sigmoid-lowrank"] == "0.50 [0.50, 0.50]"
    marks = table.loc[LISTED].str[-1].to_dict()
    assert marks["sigmoid-lowrank"] in "*+" and marks["softmax"] in "*+"
    assert marks["entropy"] == "]" and marks["length"] == "]"


def test_differences(judged):
    table = differences(
        judged, compared(LISTING[:3]), "sigmoid-lowrank", ["softmax", "entropy", "gone"]
    )
    assert table.index.tolist() == [(LISTED, "softmax"), (LISTED, "entropy")]
    cells = judged[LISTED]
    expected = cells["sigmoid-lowrank"].value - cells["entropy"].value
    assert table.loc[(LISTED, "entropy"), "value"] == pytest.approx(expected)
    assert table.loc[(LISTED, "entropy"), "seeds"] == pytest.approx((expected, expected))


def test_a_task_without_a_score_or_rows():
    """No line, no cell; another task's criteria do not see these rows."""
    other = [Criterion("other", "elsewhere", PEARSON), Criterion("none", "t", PEARSON, "gold > 5")]
    rows = pd.DataFrame({"task": "t", "id": [0, 1], "group": ["a", "b"], "gold": [0.0, 1.0]})
    judged = judge(rows.assign(softmax=[0.1, 0.2], logprob=np.nan), other, ["softmax", "logprob"])
    assert judged == {"other": {}, "none": {}}


def test_over_seeds_takes_the_widest_interval():
    rows = pd.DataFrame({"method": ["logprob", "logprob", "softmax"], "edit": "s"})
    rows = rows.assign(value=[0.2, 0.4, 0.5], low=[0.1, 0.3, 0.4], high=[0.3, 0.5, 0.6])
    table = over_seeds(rows, "edit", 1)["s"]
    assert table.to_dict() == {"softmax": "0.5 [0.4, 0.6]", "logprob": "0.3 [0.1, 0.5]"}
    assert table.index.tolist() == ["softmax", "logprob"]


def test_verdicts():
    values = {"a": [0.1, 0.2], "b": [-0.1, 0.0], "c": [0.1, -0.1], "d": [0.0, 0.0]}
    index = pd.MultiIndex.from_product([values, ["x", "y"]], names=["measure", "against"])
    table = pd.DataFrame({"value": sum(values.values(), [])}, index=index)
    words = verdicts(table.assign(clear=table["value"] != 0))["outperforms?"].tolist()
    assert words == ["confirmed", "refuted", "qualified", "no clear difference"]


@pytest.mark.filterwarnings("error")
def test_figures_draw(judged, items):
    table = differences(judged, LISTING[:3], "sigmoid-lowrank", ["softmax", "entropy"])
    scatter = truth_scatter(items, ["softmax", "sigmoid-lowrank", "gone"], "gold")
    for figure in (scatter, difference_plot(table, "sigmoid-lowrank")):
        figure.canvas.draw()
        shown = [axis for axis in figure.axes if axis.axison]
        assert all(axis.get_xlabel() or figure.get_supxlabel() for axis in shown)
        plt.close(figure)
    assert len(scatter.axes) == 2


def test_every_score_has_a_style():
    """One without it would be missing from every table."""
    assert {*HEADS, "softmax", "logprob", "entropy", "closed-form", "rescale"} <= set(STYLE)
    among = ["closed-form:uniform", "length", "sigmoid-full", "softmax"]
    assert scores_among(among) == ["softmax", "sigmoid-full"]
