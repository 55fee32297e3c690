"""Risk-coverage curves: areas against closed forms and all orders of small samples, replicates against repeated items."""

import itertools

import matplotlib

matplotlib.use("agg")
import matplotlib.pyplot as plt
import numpy as np
import pytest

from old.figures import clear
from old.quality import abstain_figures, calibration
from old.quality.agreement import Draws
from old.quality.labelled import Labelled
from old.quality.selective import ideal_area, risk_coverage, statistics
from old.results import cluster_weights

RISKS = (0.0, 0.2, 0.3, 0.5)


def plain_risks(gold: np.ndarray) -> np.ndarray:
    """Risk after each answer, items given in the order in which they are answered."""
    return np.array([1 - np.mean(gold[:n]) for n in range(1, len(gold) + 1)])


def expected_risks(scores: np.ndarray, gold: np.ndarray) -> np.ndarray:
    """Mean risk after each answer over all orders that sort the scores."""
    orders = [list(order) for order in itertools.permutations(range(len(gold))) if (np.diff(scores[list(order)]) <= 0).all()]
    return np.mean([plain_risks(gold[order]) for order in orders], 0)


def values(scores: np.ndarray, gold: np.ndarray, risks=RISKS) -> dict[str, float]:
    found = statistics(scores, gold, Draws(np.arange(len(gold)), 1), risks)
    return {name: f.value for name, f in found.items()}


def sample(ties: bool, size: int = 50) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    gold = (rng.random(size) < 0.6).astype(float)
    scores = 0.4 * gold + rng.random(size)
    return np.round(scores, 1) if ties else scores, gold, rng.integers(0, 12, size)


@pytest.mark.parametrize("scores", [[5, 4, 3, 2, 1, 0], [1, 1, 1, 0, 0, 0], [2, 2, 1, 1, 1, 0], [1, 1, 1, 1, 1, 1]])
def test_ties_count_as_the_average_of_their_orders(scores):
    scores = np.array(scores, float)
    for gold in map(np.array, ([1, 0, 1, 1, 0, 0], [0, 0, 1, 0, 1, 1])):
        expected = expected_risks(scores, gold)
        np.testing.assert_allclose(risk_coverage(scores, gold)[1], expected, atol=1e-9)
        assert values(scores, gold)["aurc"] == pytest.approx(expected.mean(), abs=1e-9)


@pytest.mark.parametrize("ties", [False, True], ids=["", "ties"])
def test_area_is_the_mean_of_the_curve(ties):
    scores, gold, _ = sample(ties)
    coverage, risk = risk_coverage(scores, gold)
    assert coverage[-1] == 1 and risk[-1] == pytest.approx(1 - gold.mean(), abs=1e-9)
    assert values(scores, gold)["aurc"] == pytest.approx(risk.mean(), abs=1e-9)


def test_random_order_has_the_base_risk():
    """A score that says nothing, all tied; and the mean over all orders of a small sample."""
    _, gold, _ = sample(False)
    assert values(np.full(50, 0.3), gold)["aurc"] == pytest.approx(1 - gold.mean(), abs=1e-9)
    small = np.array([1, 0, 0, 1, 0])
    areas = [values(np.array(order, float), small)["aurc"] for order in itertools.permutations(range(5))]
    assert np.mean(areas) == pytest.approx(0.6, abs=1e-9) and np.std(areas) > 0.1


@pytest.mark.parametrize("right", [0, 1, 7, 20])
def test_ideal_order(right):
    """All right ones first: the closed form, and no excess; the worst order has one, unless all items are alike."""
    gold = np.arange(20) < right
    by_hand = sum((n - right) / n for n in range(right + 1, 21)) / 20
    assert ideal_area([right], [20])[0] == pytest.approx(by_hand, abs=1e-9)
    best, worst = values(1.0 * gold, gold), values(-1.0 * gold, gold)
    assert best["aurc"] == pytest.approx(by_hand, abs=1e-9) and best["excess"] == pytest.approx(0, abs=1e-9)
    assert (worst["excess"] > 0.01) == (0 < right < 20)


@pytest.mark.parametrize("ties", [False, True], ids=["", "ties"])
def test_only_the_order_counts(ties):
    """No monotone transform of the scores and no order of the items changes anything."""
    scores, gold, _ = sample(ties)
    expected = values(scores, gold)
    shuffled = np.random.default_rng(1).permutation(len(gold))
    for other in (values(np.exp(3 * scores) - 7, gold), values(scores[shuffled], gold[shuffled])):
        assert other == pytest.approx(expected, abs=1e-9)
    assert values(-scores, gold)["aurc"] > expected["aurc"] + 0.1


@pytest.mark.parametrize("ties", [False, True], ids=["", "ties"])
def test_replicate_is_that_of_the_repeated_items(ties):
    """Every item as often as its group was drawn."""
    scores, gold, groups = sample(ties)
    found = statistics(scores, gold, Draws(groups, 40), RISKS)
    drawn, member = cluster_weights(groups, 40)
    for number, weights in enumerate(drawn):
        expected = values(*(np.repeat(x, weights[member]) for x in (scores, gold)))
        assert {name: f.replicates[number] for name, f in found.items()} == pytest.approx(expected, abs=1e-9)
    assert np.std(found["aurc"].replicates) > 0.01 and found["aurc"].clusters == 12


def test_chunks_change_nothing(monkeypatch):
    """Replicates are computed some at a time."""
    scores, gold, groups = sample(True)
    whole = statistics(scores, gold, Draws(groups, 40), RISKS)
    monkeypatch.setattr("old.quality.agreement._CHUNK", 7 * 50)
    for name, found in statistics(scores, gold, Draws(groups, 40), RISKS).items():
        np.testing.assert_array_equal(found.replicates, whole[name].replicates)


@pytest.mark.parametrize("ties", [False, True], ids=["", "ties"])
@pytest.mark.parametrize("risk", RISKS)
def test_coverage_is_the_last_point_of_the_curve_within_the_risk(risk, ties):
    scores, gold, _ = sample(ties)
    for labels in (gold, np.sort(gold), 1 - gold):
        coverage, risks = risk_coverage(scores, labels)
        expected = coverage[risks <= risk + 1e-9].max(initial=0)
        assert values(scores, labels)[f"coverage:{risk:g}"] == pytest.approx(expected, abs=1e-9)
    assert values(gold, gold)[f"coverage:{risk:g}"] >= gold.mean() - 1e-9


@pytest.mark.parametrize("broken", [([np.nan, 1], [0, 1]), ([0.1, 1], [0, 0.5]), ([0.1], [0, 1]), ([], [])])
def test_refuses(broken):
    with pytest.raises(ValueError, match="needs a score, a finite number, and gold, 0 or 1"):
        risk_coverage(*map(np.array, broken))


# ---- tables and figures --------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def tasks() -> dict[str, Labelled]:
    """An untrained score, and a head of two seeds that is better than it."""
    rng = np.random.default_rng(0)
    gold = (rng.random(400) < 0.5).astype(float)
    head = np.stack([gold + rng.normal(0, 0.5, 400) for _ in range(2)])
    return {"cola": Labelled(gold, np.arange(400) // 2, {"softmax": rng.random((1, 400)), "sigmoid-lowrank": head})}


def test_head_is_compared_by_the_results_of_its_seeds(tasks):
    """The mean of the seeds' areas minus the other's, with paired replicates; a head is not compared with itself."""
    found = abstain_figures.selective_statistics(tasks, [0.25])
    table = abstain_figures.head_differences(found, "sigmoid-lowrank", ["softmax", "logprob"])
    other, *seeds = (f["aurc"] for score in ("softmax", "sigmoid-lowrank") for f in found["cola"][score])
    line = table.loc["CoLA", "softmax"]
    assert len(table) == 1 and line["value"] == pytest.approx(np.mean([s.value for s in seeds]) - other.value, abs=1e-9)
    assert line["seeds"] == pytest.approx([s.value - other.value for s in seeds], abs=1e-4) and seeds[0].value != seeds[1].value
    replicates = (seeds[0].replicates + seeds[1].replicates) / 2 - other.replicates
    assert (line["ci_low"], line["ci_high"]) == pytest.approx(tuple(np.quantile(replicates, [0.025, 0.975])), abs=1e-9)
    assert line["p_holm"] < 1e-6 and line["ci_high"] < 0


def test_tables_show_what_was_found(tasks):
    """Scores by tasks; a score clearly below the base rate is marked, one that says nothing is not."""
    over_items = {name: calibration.over_items(task) for name, task in tasks.items()}
    steps = abstain_figures.step_table(abstain_figures.below_base_rate(over_items))["CoLA"]
    assert steps["sigmoid-lowrank"].endswith(" *") and not steps["softmax"].endswith(" *")
    curves = {name: calibration.learning_curve(task, [10, 50], 10) for name, task in tasks.items()}
    needed = abstain_figures.enough_table(curves, 0.01)["CoLA (of 200)"]
    assert needed["softmax"] == "–" and needed["sigmoid-lowrank"] in ("10", "50", "200") and needed.index[0] == calibration.BASE_RATE


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("there", [True, False], ids=["", "nothing stored"])
def test_figures_and_tables_without_warnings(tasks, there):
    """Also where no task is stored: empty tables, and figures that say so."""
    tasks = tasks if there else {}
    curves = {name: calibration.learning_curve(task, [10, 50], 5) for name, task in tasks.items()}
    found = abstain_figures.selective_statistics(tasks, [0.25])
    scores = ["softmax", "sigmoid-lowrank"]
    figures = [abstain_figures.learning_curves(curves, metric, scores) for metric in ("brier", "ece")]
    for figure in (*figures, abstain_figures.risk_coverage(tasks, {"untrained": scores[:1], "all": scores})):
        figure.canvas.draw()
        assert bool(figure.legends) == there and bool(figure.get_supxlabel()) == there
        plt.close(figure)
    over_items = {name: calibration.over_items(task) for name, task in tasks.items()}
    steps = abstain_figures.below_base_rate(over_items)
    for table in (
        abstain_figures.enough_table(curves, 0.01),
        abstain_figures.step_table(steps),
        abstain_figures.item_table(over_items, "ece"),
        abstain_figures.item_table(abstain_figures.over_seeds(found), "aurc"),
        abstain_figures.head_differences(found, "sigmoid-lowrank", ["softmax"]),
        clear(abstain_figures.head_differences(found, "sigmoid-lowrank", ["softmax"])),
    ):
        assert table.empty != there
