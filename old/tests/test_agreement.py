"""Agreement of scores with gold: values against scipy and scikit-learn, replicates against samples with repeated items."""

import warnings

import numpy as np
import pytest
from scipy.stats import pearsonr, rankdata, spearmanr
from sklearn.metrics import average_precision_score, brier_score_loss, log_loss, roc_auc_score

from old.quality.agreement import BINS, CORRELATIONS, PROBABILITIES, RANKINGS, agreement, platt
from old.results import cluster_weights


def plain_ece(scores: np.ndarray, gold: np.ndarray) -> float:
    """Weighted mean over bins of |mean score - share of right ones|."""
    total = 0.0
    for low in range(BINS):
        inside = [i for i, score in enumerate(scores) if min(int(score * BINS), BINS - 1) == low]
        if inside:
            total += len(inside) / len(scores) * abs(np.mean(scores[inside]) - np.mean(gold[inside]))
    return total


REFERENCES = {
    "pearson": lambda scores, gold: pearsonr(scores, gold).statistic,
    "spearman": lambda scores, gold: spearmanr(scores, gold).statistic,
    "auroc": lambda scores, gold: roc_auc_score(gold, scores),
    "ap": lambda scores, gold: average_precision_score(gold, scores),
    "bce": lambda scores, gold: log_loss(gold, scores),
    "brier": lambda scores, gold: brier_score_loss(gold, scores),
    "ece": plain_ece,
}
BINARY = CORRELATIONS + RANKINGS + PROBABILITIES


def sample(ties: bool, size: int = 60, seed: int = 0) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Scores in (0, 1), gold of 0 and 1, clusters of very different sizes."""
    rng = np.random.default_rng(seed)
    gold = (rng.random(size) < 0.4).astype(float)
    scores = np.clip(0.3 * gold + 0.7 * rng.random(size), 0.01, 0.99)
    return np.round(scores, 1).clip(0.1, 0.9) if ties else scores, gold, rng.choice(list("aaaabbcdefgh"), size)


@pytest.mark.parametrize("ties", [False, True], ids=["", "ties"])
@pytest.mark.parametrize("metric", BINARY)
def test_value_is_that_of_the_reference(metric, ties):
    scores, gold, clusters = sample(ties)
    values, _ = agreement(scores, gold, clusters)
    assert tuple(values) == BINARY
    assert values[metric] == pytest.approx(REFERENCES[metric](scores, gold), abs=1e-9)


@pytest.mark.parametrize("ties", [False, True], ids=["", "ties"])
@pytest.mark.parametrize("metric", CORRELATIONS)
def test_correlations_with_any_gold(metric, ties):
    scores, _, clusters = sample(ties)
    gold = np.round(np.random.default_rng(1).normal(size=60) * 3 - 1000, 1 if ties else 9)
    values, _ = agreement(scores * 50 - 7, gold, clusters)
    assert tuple(values) == CORRELATIONS
    assert values[metric] == pytest.approx(REFERENCES[metric](scores, gold), abs=1e-9)


@pytest.mark.parametrize("ties", [False, True], ids=["", "ties"])
@pytest.mark.parametrize("metric", BINARY)
def test_replicate_is_the_metric_of_the_repeated_items(metric, ties):
    """Every item as often as its cluster was drawn. Spearman: the correlation of the repeated ranks of the whole sample."""
    scores, gold, clusters = sample(ties)
    _, replicates = agreement(scores, gold, clusters, resamples=60)
    drawn, member = cluster_weights(clusters, 60)
    reference = REFERENCES["pearson" if metric == "spearman" else metric]
    pair = (rankdata(scores), rankdata(gold)) if metric == "spearman" else (scores, gold)
    expected = [reference(*(np.repeat(x, weights[member]) for x in pair)) for weights in drawn]
    np.testing.assert_allclose(replicates[metric], expected, atol=1e-9)


@pytest.mark.parametrize("metric", BINARY)
def test_chunks_change_nothing(metric, monkeypatch):
    """Replicates are computed some at a time."""
    whole = agreement(*sample(True), resamples=50)
    monkeypatch.setattr("old.quality.agreement._CHUNK", 7 * 60)
    values, replicates = agreement(*sample(True), resamples=50)
    assert values[metric] == pytest.approx(whole[0][metric], abs=1e-12)
    np.testing.assert_allclose(replicates[metric], whole[1][metric], atol=1e-12)


@pytest.mark.parametrize("metric", BINARY)
def test_replicates_are_paired(metric):
    """The same clusters get the same resamples: equal scores, in another call and beside other metrics, equal replicates."""
    scores, gold, clusters = sample(False)
    _, all_metrics = agreement(scores, gold, clusters)
    _, alone = agreement(scores, gold, np.char.add("cluster ", clusters), (metric,))  # only the order of the names counts
    np.testing.assert_array_equal(alone[metric], all_metrics[metric])
    assert alone[metric].std() > 0


@pytest.mark.parametrize("metric", CORRELATIONS + RANKINGS)
def test_rankings_do_not_change_with_the_scale(metric):
    """Twice the score plus one: the same correlation and the same ranking."""
    scores, gold, clusters = sample(True)
    values, replicates = agreement(2 * scores + 1, gold, clusters, (metric,), 50)
    plain, plain_replicates = agreement(scores, gold, clusters, (metric,), 50)
    assert values[metric] == pytest.approx(plain[metric], abs=1e-9)
    np.testing.assert_allclose(replicates[metric], plain_replicates[metric], atol=1e-9)


@pytest.mark.parametrize(
    ("scores", "gold", "metrics"),
    [
        ([0.2, 0.7, 0.4], [1, 0, 1], BINARY),
        ([0.2, 1.0, 0.0], [1, 0, 1], BINARY),
        ([0.2, 1.7, 0.4], [1, 0, 1], CORRELATIONS + RANKINGS),
        ([-0.2, 0.7, 0.4], [1, 0, 1], CORRELATIONS + RANKINGS),
        ([0.2, 0.7, 0.4], [1, 0.5, 0], CORRELATIONS),
    ],
)
def test_default_metrics_are_those_that_the_numbers_allow(scores, gold, metrics):
    assert tuple(agreement(np.array(scores), np.array(gold), np.arange(3), resamples=2)[0]) == metrics


@pytest.mark.parametrize(("metric", "value"), [("auroc", 1.0), ("ap", 1.0), ("bce", 0.0), ("brier", 0.0), ("ece", 0.0), ("pearson", 1.0)])
def test_perfect_scores(metric, value):
    """Scores of exactly 0 and 1, all right."""
    gold = np.array([0.0, 1, 1, 0, 1, 0])
    values, replicates = agreement(gold, gold, np.array([0, 0, 1, 1, 2, 2]))
    assert values[metric] == pytest.approx(value, abs=1e-6)
    np.testing.assert_allclose(replicates[metric], value, atol=1e-6)


def test_a_certain_error_costs_much_but_not_everything():
    values, _ = agreement(np.array([0.0, 1.0]), np.array([1, 0]), np.arange(2), ("bce",), 10)
    assert values["bce"] == pytest.approx(-np.log(1e-7), rel=1e-6)


# ---- undefined values ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("scores", "gold", "undefined"),
    [
        ([0.2, 0.7, 0.4, 0.3], [1, 1, 1, 1], {"pearson", "spearman", "auroc"}),
        ([0.2, 0.7, 0.4, 0.3], [0, 0, 0, 0], {"pearson", "spearman", "auroc", "ap"}),
        ([0.1, 0.1, 0.1, 0.1], [0, 1, 1, 0], {"pearson", "spearman"}),
        ([0.7], [1], {"pearson", "spearman", "auroc"}),
    ],
)
def test_undefined_is_nan_with_a_warning(scores, gold, undefined):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        values, replicates = agreement(np.array(scores), np.array(gold), np.arange(len(gold)), resamples=20)
    assert {metric for metric, value in values.items() if np.isnan(value)} == undefined
    assert {str(warning.message).split()[0] for warning in caught} == undefined
    assert all(np.isnan(replicates[metric]).all() for metric in undefined)


@pytest.mark.parametrize("size", [3, 10, 41])
@pytest.mark.parametrize("score", [0.1, 1 / 3, 1e-8, 1e6 + 0.1])
def test_constant_scores_do_not_correlate(score, size):
    """Undefined whatever rounding makes of the mean."""
    with pytest.warns(UserWarning, match="pearson is undefined"):
        values, replicates = agreement(np.full(size, score), np.arange(size) % 3, np.arange(size), ("pearson",), 20)
    assert np.isnan(values["pearson"]) and np.isnan(replicates["pearson"]).all()


@pytest.mark.parametrize("metric", ["auroc", "pearson", "spearman"])
def test_only_some_replicates_may_be_undefined(metric):
    """Few clusters: resamples of one class only are NaN, not some number, and without a warning as long as the value exists."""
    rng = np.random.default_rng(0)
    clusters = rng.integers(0, 4, 20)
    gold = (clusters > 0).astype(float)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        values, replicates = agreement(rng.random(20), gold, clusters, (metric,), 200)
    drawn, _ = cluster_weights(clusters, 200)
    one_class = (drawn[:, 0] == 0) | (drawn[:, 0] == 4)
    assert 0 < one_class.sum() < 200 and np.isfinite(values[metric])
    assert np.array_equal(np.isnan(replicates[metric]), one_class)


# ---- refusals ------------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("broken", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("where", [0, 1])
def test_refuses_what_is_not_finite(broken, where):
    columns = [np.array([0.1, 0.2, 0.3]), np.array([0.0, 1.0, 0.0])]
    columns[where][1] = broken
    with pytest.raises(ValueError, match="must be finite numbers"):
        agreement(*columns, np.arange(3))


@pytest.mark.parametrize("sizes", [(3, 2, 3), (3, 3, 2), (2, 3, 3), (0, 0, 0)])
def test_refuses_sizes(sizes):
    with pytest.raises(ValueError, match="same size, at least 1, not " + ", ".join(map(str, sizes))):
        agreement(*(np.ones(size) for size in sizes))


def test_platt_scaling_never_sees_its_own_group():
    """Probabilities are those of a curve fitted on other groups: the gold of a group does not touch its own."""
    rng = np.random.default_rng(0)
    scores, groups = rng.normal(size=60), np.repeat(np.arange(12), 5)
    gold = (scores + rng.normal(size=60) > 0).astype(float)
    before = platt(scores, gold, groups)
    assert ((before > 0) & (before < 1)).all() and np.corrcoef(before, scores)[0, 1] > 0.9
    own = groups == 3
    after = platt(scores, np.where(own, 1 - gold, gold), groups)
    np.testing.assert_allclose(after[own], before[own], atol=1e-6)
    assert not np.allclose(after[~own], before[~own])


def test_auroc_of_more_clusters_than_resamples():
    """Counted resample by resample instead of cluster by cluster: the same numbers."""
    rng = np.random.default_rng(0)
    scores, gold, clusters = rng.integers(0, 9, 60) / 9, rng.integers(0, 2, 60), np.arange(60)
    few, many = (agreement(scores, gold, clusters, ("auroc",), resamples)[1]["auroc"] for resamples in (10, 200))
    np.testing.assert_allclose(few, many[:10], atol=1e-6)
