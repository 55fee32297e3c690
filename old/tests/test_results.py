"""The result table: what it refuses, that it survives writing and reading; the bootstrap against brute force."""

import numpy as np
import pandas as pd
import pytest

from old import results
from old.results import cluster_bootstrap, holm, interval, make_table, p_value, read_table, validate, write_table

ROW = {
    "study": "length", "dataset": "docstrings", "model": "tiny-bart", "method": "none", "setting": "", "slice": "[64,96)",
    "metric": "exact_rate", "value": 0.5, "ci_low": 0.25, "ci_high": 0.75, "n": 20, "seed": 0,
}  # fmt: skip


def table(*changes: dict) -> pd.DataFrame:
    return make_table([{**ROW, **change} for change in changes])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"study": "lenght"}, "study must be one of"),
        ({"seed": "first"}, "seed must be"),
        ({"seed": -1}, "seed must be"),
        ({"setting": "rank"}, "setting must be"),
        ({"setting": "rank=1;"}, "setting must be"),
        ({"setting": "a=b=c"}, "setting must be"),
        ({"value": 1.5}, "rate must lie"),
        ({"value": -0.1}, "rate must lie"),
        ({"ci_low": 0.8}, "ci_low must not exceed"),
        ({"n": -1}, "n must not be negative"),
    ],
    ids=str,
)
def test_refuses_faulty_rows(change, message):
    with pytest.raises(ValueError, match=message):
        table({}, {"metric": "auroc", **change})


def test_refuses_duplicates_and_wrong_columns():
    with pytest.raises(ValueError, match="duplicate row"):
        table({}, {"value": 0.7})
    with pytest.raises(ValueError, match="has the columns"):
        validate(table({}).rename(columns={"slice": "part"}))
    with pytest.raises(ValueError, match="has the columns"):
        validate(table({})[results.COLUMNS[::-1]])


@pytest.mark.parametrize(
    "change", [{"seed": "all"}, {"setting": "rank=128;M=3.5"}, {"value": np.nan}, {"metric": "mae", "value": 72.0}, {"n": 0}], ids=str
)
def test_accepts(change):
    assert len(table({}, {"metric": "auroc", **change})) == 2


def test_written_is_read(tmp_path):
    """Six digits, empty cells, seed `all`, the method called none, text that looks like something else: all come back."""
    before = table(
        {}, {"seed": "all"}, {"value": np.nan, "ci_low": np.nan, "ci_high": np.nan, "metric": "auroc"},
        {"metric": "mae", "value": 123.456, "ci_low": 1e-7}, {"slice": "nan"}, {"slice": "all", "setting": "trained_on=NA"},
    )  # fmt: skip
    write_table(before, tmp_path / "deep" / "a.csv")
    after = read_table(tmp_path / "deep" / "a.csv")
    pd.testing.assert_frame_equal(before, after, rtol=1e-5, check_dtype=False)
    assert [f.name for f in (tmp_path / "deep").iterdir()] == ["a.csv"]


def test_all_cells_empty_is_read(tmp_path):
    """A column without any number stays a column of numbers."""
    write_table(table({"value": np.nan, "ci_low": np.nan, "ci_high": np.nan}), tmp_path / "a.csv")
    assert read_table(tmp_path / "a.csv")[["value", "ci_low", "ci_high"]].dtypes.tolist() == [float] * 3


def test_failed_write_leaves_the_old_file(tmp_path):
    write_table(table({}), tmp_path / "a.csv")
    broken = table({}).assign(study="x")
    with pytest.raises(ValueError, match="study"):
        write_table(broken, tmp_path / "a.csv")
    assert len(read_table(tmp_path / "a.csv")) == 1


def test_setting_name():
    assert results.setting_name() == "" and results.setting_name(rank=32, M="a=b;c") == "rank=32;M=a-b-c"


# ---- bootstrap -----------------------------------------------------------------------------------------------------------------------

RNG = np.random.default_rng(0)
CLUSTERS = np.array(["a", "b", "a", "c", "b", "d"])
TOP, BOTTOM = RNG.normal(size=(6, 3)), RNG.uniform(1, 2, size=(6, 3))


def test_bootstrap_is_brute_force():
    """Replicate = sum of numerators / sum of denominators over the items of the drawn clusters, each as often as drawn."""
    weights = np.random.default_rng(5).multinomial(4, np.full(4, 1 / 4), size=50)
    expected = [
        [
            sum(w["abcd".index(c)] * t for c, t in zip(CLUSTERS, top)) / sum(w["abcd".index(c)] * b for c, b in zip(CLUSTERS, bottom))
            for top, bottom in zip(TOP.T, BOTTOM.T)
        ]
        for w in weights
    ]
    np.testing.assert_allclose(cluster_bootstrap(TOP, BOTTOM, CLUSTERS, 50, seed=5), expected, atol=1e-12)


def test_bootstrap_is_paired():
    """Equal columns get equal replicates, whichever call they are in: differences between methods are paired."""
    both = cluster_bootstrap(np.stack([TOP[:, 0]] * 2, 1), np.ones((6, 2)), CLUSTERS)
    assert np.array_equal(both[:, 0], both[:, 1]) and both.std() > 0
    np.testing.assert_allclose(cluster_bootstrap(TOP[:, :1], np.ones((6, 1)), CLUSTERS)[:, 0], both[:, 0], atol=1e-12)


def test_one_cluster_has_no_width():
    replicates = cluster_bootstrap(TOP, BOTTOM, np.zeros(6))
    np.testing.assert_allclose(replicates, np.broadcast_to(TOP.sum(0) / BOTTOM.sum(0), (results.RESAMPLES, 3)))


def test_bootstrap_error_is_the_standard_error():
    """For a mean of independent items the replicates' spread is s / sqrt(n); clusters of copies widen it by sqrt(copies)."""
    x = RNG.normal(size=(400, 1))
    items = cluster_bootstrap(x, np.ones_like(x), np.arange(400)).std()
    assert items == pytest.approx(x.std() / 20, rel=0.1)
    copies = cluster_bootstrap(np.repeat(x, 4, 0), np.ones((1600, 1)), np.repeat(np.arange(400), 4)).std()
    assert copies == pytest.approx(items, rel=1e-6)


def test_interval():
    """Percentiles 2.5 and 97.5 of 0...1000, a column at a time, undefined replicates left out."""
    replicates = np.stack([np.arange(1001.0), -np.arange(1001.0)], 1)
    np.testing.assert_allclose(interval(replicates), [[25, -975], [975, -25]])
    np.testing.assert_allclose(interval(np.append(np.arange(1001.0), np.nan), level=0.9), [50, 950])


def test_p_value():
    """Normal, from the standard error of the replicates; a difference that is always 0 is no difference."""
    drawn = np.random.default_rng(0).normal(0.3, 0.1, 100_000)
    assert p_value(0.196, drawn, 10**6) == pytest.approx(0.05, rel=0.02) and p_value(-0.196, drawn, 9) == p_value(0.196, drawn, 9)
    assert p_value(0.0, np.zeros(9), 9) == 1 and p_value(0.2, np.full(9, 0.2), 9) == 0
    assert np.isnan(p_value(np.nan, drawn, 9)) and np.isnan(p_value(0.1, drawn, 1))


@pytest.mark.parametrize(
    ("raw", "corrected"),
    [
        ([0.01, 0.04, 0.03], [0.03, 0.06, 0.06]),  # sorted .01 .03 .04 times 3 2 1 = .03 .06 .04, then running maximum
        ([0.9, 0.5], [1.0, 1.0]),
        ([0.02], [0.02]),
        ([], []),
    ],
)
def test_holm(raw, corrected):
    np.testing.assert_allclose(holm(np.array(raw)), corrected)
