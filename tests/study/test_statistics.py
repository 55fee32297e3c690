"""Estimates and differences: values against scipy and scikit-learn, replicates against samples with
repeated items, pairs against subtraction.
"""

import warnings

import numpy as np
import pandas as pd
import pytest
from scipy.stats import pearsonr, rankdata, spearmanr
from sklearn.metrics import average_precision_score, brier_score_loss, log_loss, roc_auc_score

from lib.study import agreement as module
from lib.study import statistics
from lib.study.agreement import (
    BINS,
    CORRELATIONS,
    PROBABILITIES,
    RANKINGS,
    agreement,
    defined_metrics,
)
from lib.study.statistics import (
    Draws,
    Estimate,
    compare,
    difference,
    estimate,
    holm,
    interval,
    mean,
    p_value,
    ratio,
    sample,
)

BINARY = CORRELATIONS + RANKINGS + PROBABILITIES


def plain_ece(scores: np.ndarray, gold: np.ndarray) -> float:
    """Weighted mean over bins of |mean score - share of right ones|."""
    bins = np.minimum((scores * BINS).astype(int), BINS - 1)
    inside = [np.flatnonzero(bins == number) for number in range(BINS)]
    gaps = [len(i) * abs(np.mean(scores[i]) - np.mean(gold[i])) for i in inside if len(i)]
    return sum(gaps) / len(scores)


REFERENCES = {
    "pearson": lambda scores, gold: pearsonr(scores, gold).statistic,
    "spearman": lambda scores, gold: spearmanr(scores, gold).statistic,
    "auroc": lambda scores, gold: roc_auc_score(gold, scores),
    "ap": lambda scores, gold: average_precision_score(gold, scores),
    "bce": lambda scores, gold: log_loss(gold, scores),
    "brier": lambda scores, gold: brier_score_loss(gold, scores),
    "ece": plain_ece,
}


def items(ties: bool = False, size: int = 60, seed: int = 0) -> pd.DataFrame:
    """Scores in (0, 1), gold of 0 and 1, clusters of very different sizes."""
    rng = np.random.default_rng(seed)
    gold = (rng.random(size) < 0.4).astype(float)
    scores = np.clip(0.3 * gold + 0.7 * rng.random(size), 0.01, 0.99)
    scores = np.round(scores, 1).clip(0.1, 0.9) if ties else scores
    group = rng.choice(list("aaaabbcdefgh"), size)
    return pd.DataFrame({"score": scores, "gold": gold, "group": group})


@pytest.mark.parametrize("ties", [False, True], ids=["", "ties"])
@pytest.mark.parametrize("metric", BINARY)
def test_value_is_that_of_the_reference(metric, ties):
    rows = items(ties)
    value = sample(rows, agreement(metric)).value
    expected = REFERENCES[metric](rows["score"].to_numpy(), rows["gold"].to_numpy())
    assert value == pytest.approx(expected, abs=1e-9)


@pytest.mark.parametrize("ties", [False, True], ids=["", "ties"])
@pytest.mark.parametrize("metric", BINARY)
def test_replicate_is_the_metric_of_the_repeated_items(metric, ties):
    """Every item as often as its cluster was drawn. Spearman: of the ranks of the whole sample."""
    rows, draws = items(ties), Draws(items(ties)["group"], 60)
    replicates = sample(rows, agreement(metric), resamples=60).replicates
    reference = REFERENCES["pearson" if metric == "spearman" else metric]
    pair = [rows[name].to_numpy() for name in ("score", "gold")]
    pair = [rankdata(x) for x in pair] if metric == "spearman" else pair
    times = [drawn[draws.member].astype(int) for drawn in draws.drawn[1:]]
    expected = [reference(*(np.repeat(x, weights) for x in pair)) for weights in times]
    np.testing.assert_allclose(replicates, expected, atol=1e-9)


@pytest.mark.parametrize("metric", BINARY)
def test_chunks_change_nothing(metric, monkeypatch):
    whole = sample(items(True), agreement(metric), resamples=50)
    monkeypatch.setattr(statistics, "CHUNK", 7 * 60)
    monkeypatch.setattr(module, "CHUNK", 7 * 60)
    chunks = sample(items(True), agreement(metric), resamples=50)
    np.testing.assert_allclose(chunks.replicates, whole.replicates, atol=1e-6)


def test_auroc_of_more_clusters_than_resamples():
    """Counted resample by resample instead of cluster by cluster: the same numbers."""
    rows = items(True).assign(group=range(60))
    few, many = (sample(rows, agreement("auroc"), resamples=n).replicates for n in (10, 200))
    np.testing.assert_allclose(few, many[:10], atol=1e-6)


@pytest.mark.parametrize("metric", CORRELATIONS + RANKINGS)
def test_rankings_do_not_change_with_the_scale(metric):
    rows = items(True)
    one, other = (
        sample(rows.assign(score=score), agreement(metric), resamples=50).replicates
        for score in (rows["score"], 2 * rows["score"] + 1)
    )
    np.testing.assert_allclose(one, other, atol=1e-6)


def test_metrics_that_gold_and_scores_allow():
    assert defined_metrics([0.2, 1.0], [1, 0]) == BINARY
    assert defined_metrics([0.2, 1.1], [1, 0]) == CORRELATIONS + RANKINGS
    assert defined_metrics([0.2, 0.4], [1, 0.5]) == CORRELATIONS


@pytest.mark.parametrize("size", [3, 10, 41])
@pytest.mark.parametrize("score", [0.1, 1 / 3, 1e-8, 1e6 + 0.1])
def test_constant_scores_do_not_correlate(score, size):
    rows = pd.DataFrame({"score": score, "gold": np.arange(size) % 3, "group": range(size)})
    assert np.isnan(sample(rows, agreement("pearson")).value)


@pytest.mark.parametrize("metric", ["auroc", "pearson", "spearman"])
def test_only_some_replicates_may_be_undefined(metric):
    """Few clusters: resamples of one class only are NaN, not some number, and without a warning."""
    rng = np.random.default_rng(0)
    rows = pd.DataFrame({"score": rng.random(20), "group": rng.integers(0, 4, 20)})
    rows["gold"] = (rows["group"] > 0).astype(float)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = sample(rows, agreement(metric), resamples=200)
    drawn = Draws(rows["group"], 200).drawn[1:]
    one_class = (drawn[:, 0] == 0) | (drawn[:, 0] == 4)
    assert 0 < one_class.sum() < 200 and np.isfinite(found.value)
    assert np.array_equal(np.isnan(found.replicates), one_class)
    assert np.isfinite([found.low, found.high]).all()


@pytest.mark.parametrize("broken", [np.nan, np.inf])
@pytest.mark.parametrize("column", ["score", "gold"])
def test_refuses_what_is_not_finite(broken, column):
    rows = items()
    rows.loc[3, column] = broken
    with pytest.raises(ValueError, match="must be finite"):
        sample(rows, agreement("auroc"))


def test_refuses_nothing_and_missing_clusters():
    with pytest.raises(ValueError, match="nothing to measure"):
        sample(items().iloc[:0], mean("score"))
    with pytest.raises(ValueError, match="1 rows have no 'group'"):
        sample(items().assign(group=lambda t: t["group"].where(t.index > 0)), mean("score"))


def test_mean_and_ratio_are_sums_over_the_drawn_items():
    rows, draws = items(), Draws(items()["group"])
    weights = draws.drawn[1:][:, draws.member]
    top, bottom = (weights * rows[name].to_numpy() for name in ("gold", "score"))
    found = sample(rows, ratio("gold", "score", np.exp))
    np.testing.assert_allclose(found.replicates, np.exp(top.sum(1) / bottom.sum(1)), atol=1e-9)
    expected = bottom.sum(1) / weights.sum(1)
    np.testing.assert_allclose(sample(rows, mean("score")).replicates, expected, atol=1e-9)


def test_the_error_is_the_standard_error_and_copies_do_not_shrink_it():
    rng = np.random.default_rng(0)
    rows = pd.DataFrame({"x": rng.normal(size=400), "group": range(400)})
    alone = sample(rows, mean("x")).replicates.std()
    assert alone == pytest.approx(rows["x"].std() / 20, rel=0.1)
    assert sample(pd.concat([rows] * 4), mean("x")).replicates.std() == pytest.approx(alone)


def test_seeds_are_averaged_item_by_item_or_statistic_by_statistic():
    both = pd.concat([items(seed=0).assign(seed=0), items(seed=0).assign(seed=1)])
    both.loc[both["seed"] == 1, "score"] **= 2
    parts = [part for _, part in both.groupby("seed")]
    for measure in (mean("score"), agreement("pearson")):
        apart = [sample(part, measure) for part in parts]
        together = sample(both, measure)
        np.testing.assert_allclose(together.value, np.mean([a.value for a in apart]))
        np.testing.assert_allclose(together.replicates, np.mean([a.replicates for a in apart], 0))
        np.testing.assert_allclose(together.by_seed, [a.value for a in apart])
    pooled = sample(both, ratio("gold", "score")).value
    assert pooled == pytest.approx(both["gold"].sum() / both["score"].sum())


def test_a_table_of_estimates():
    rows = items()
    table = estimate(rows, mean("score"), by=["gold"])
    assert table["gold"].tolist() == list(dict.fromkeys(rows["gold"]))
    for line in table.itertuples():
        part = rows[rows["gold"] == line.gold]
        assert (line.n, line.clusters) == (len(part), part["group"].nunique())
        assert line.low < line.value < line.high
        assert line.value == pytest.approx(part["score"].mean())


def test_differences_are_paired():
    rows = items().assign(better=lambda t: t["score"] + 0.1)
    a, b = (sample(rows, mean(name)) for name in ("better", "score"))
    step = difference(a, b)
    assert step.value == pytest.approx(0.1) and np.ptp(step.replicates) < 1e-9 < np.ptp(
        a.replicates
    )
    assert difference(a, b, ratio=True).value == pytest.approx(a.value / b.value)


def test_clear_means_significant_and_of_one_sign_in_all_seeds():
    drawn = np.random.default_rng(0).normal(0, 0.01, 2000)
    none = Estimate(0.0, np.zeros(2000), 9, 50, (0.0,))
    steps = {"all": (0.3, 0.2, 0.4), "one against": (0.3, -0.1, 0.7), "small": (0.01, 0.0001, 0.02)}
    pairs = {
        name: (Estimate(float(np.mean(by_seed)), np.mean(by_seed) + drawn, 9, 50, by_seed), none)
        for name, by_seed in steps.items()
    }
    table = compare(pairs)
    assert table["clear"].to_dict() == {"all": True, "one against": False, "small": False}
    np.testing.assert_allclose(table["p_holm"], holm(table["p"].to_numpy()))
    assert table.loc["all", "seeds"] == (0.3, 0.2, 0.4)
    assert compare({}).empty


def test_interval():
    """Percentiles 2.5 and 97.5 of 0...1000, undefined replicates left out."""
    np.testing.assert_allclose(interval(np.append(np.arange(1001.0), np.nan)), [25, 975])
    assert np.isnan(interval(np.full(3, np.nan))).all()


def test_p_value():
    """Student's t with the error of the replicates; what is always 0 is no difference."""
    drawn = np.random.default_rng(0).normal(0.3, 0.1, 100_000)
    assert p_value(0.196, drawn, 10**6) == pytest.approx(0.05, rel=0.02)
    assert p_value(-0.196, drawn, 9) == p_value(0.196, drawn, 9) > p_value(0.196, drawn, 99)
    assert p_value(0.0, np.zeros(9), 9) == 1 and p_value(0.2, np.full(9, 0.2), 9) == 0
    assert np.isnan(p_value(np.nan, drawn, 9)) and np.isnan(p_value(0.1, drawn, 1))


@pytest.mark.parametrize(
    ("raw", "corrected"),
    [
        ([0.01, 0.04, 0.03], [0.03, 0.06, 0.06]),  # times 3 2 1 in order, then running maximum
        ([0.9, 0.5], [1.0, 1.0]),
        ([0.02, np.nan], [0.04, np.nan]),
        ([], []),
    ],
)
def test_holm(raw, corrected):
    np.testing.assert_allclose(holm(np.array(raw)), corrected)
