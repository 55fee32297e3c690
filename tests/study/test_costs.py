"""Costs: turns and rounds, memory of a process of its own, medians paired within a round. Growth:
power laws with known exponents, sums that bend away from them, projections that are products.
"""

import numpy as np
import pandas as pd
import pytest

from lib.study import costs
from lib.study.costs import Thing
from lib.study.statistics import interval

EITHER = {"plain": (1, 1), "ours": (0, 2)}
THINGS = {"it": Thing("a thing", {"length": 8, "width": 4}, {"length": EITHER, "width": EITHER})}
SIZES = (2, 4, 8, 16)
PLAIN, OURS = (
    (lambda length, width: 1e-3 * length * width**2),
    (lambda length, width: 2e-3 * length),
)


def measured(noise: float = 0.01, rounds: int = 9, shared: bool = True, **cost) -> pd.DataFrame:
    """Rows of THINGS: `cost` by candidate, with noise that candidates of a round share or not."""
    rng, rows = np.random.default_rng(0), []
    for over in ("length", "width"):
        for turn in range(rounds):
            slow = np.exp(noise * rng.standard_normal())
            for size in SIZES:
                sizes = THINGS["it"].base | {over: size}
                for name, function in cost.items():
                    factor = slow if shared else np.exp(noise * rng.standard_normal())
                    row = {"what": "it", "over": over, "id": turn, "candidate": name, "size": size}
                    rows.append(row | {"measured": factor * function(**sizes), "unit": "s"})
    return pd.DataFrame(rows)


# ---- measuring -----------------------------------------------------------------------------------


def test_candidates_take_turns():
    """Every one once a round, each first in turn, after rounds that warm up and do not count."""
    calls = []
    candidates = [({"candidate": name}, lambda name=name: calls.append(name)) for name in "abc"]
    rows = costs.interleaved(candidates, 6, costs.seconds)
    assert len(calls) == 3 * (6 + 2) and [*rows["id"]] == sorted([0, 1, 2, 3, 4, 5] * 3)
    by_round = [list(group["candidate"]) for _, group in rows.groupby("id")]
    assert by_round[:3] == [["a", "b", "c"], ["b", "c", "a"], ["c", "a", "b"]]
    assert (rows["measured"] >= 0).all() and set(rows["unit"]) == {"s"}


def allocate(megabytes: int):
    return lambda: np.ones(megabytes * 125_000).sum()


def prepared(megabytes: int):
    """Its inputs are made before, and do not count."""
    inputs = np.ones(10 * 125_000)
    return lambda: inputs.sum() + allocate(megabytes)()


@pytest.mark.parametrize("megabytes", [40, 160])
def test_peak_memory(megabytes):
    assert costs.peak_mb(lambda: prepared(megabytes)) == pytest.approx(megabytes, abs=8)


def test_ratio_is_paired_within_rounds():
    """A slow round counts for both; the median ratio is not the ratio of medians."""
    rows = pd.DataFrame({"id": [0, 0, 1, 1, 2, 2], "candidate": ["a", "b"] * 3, "unit": "s"})
    rows["measured"] = [1.0, 2.0, 10.0, 20.0, 3.0, 6.0]
    ratio = costs.ratio(rows, "b", "a")
    np.testing.assert_allclose(ratio, 2.0)
    assert costs.medians(rows, "candidate").iloc[0].to_dict() == {"a": 3.0, "b": 6.0}


def test_table_of_bounds():
    rows = pd.DataFrame({"id": [0, 0, 1, 1, 2, 2], "candidate": ["plain", "ours"] * 3, "unit": "s"})
    rows["measured"] = [1.0, 0.5, 1.0, 0.6, 1.0, 0.4]
    memory = rows.assign(unit="MB", measured=[100.0, 50.0] * 3)
    bounds = [("x", "first", "the other", 0.6), ("y", "second", "the other", 0.4)]
    table = costs.against_bounds({"first": rows, "second": memory}, bounds, "ours")
    assert table.loc["first", "ratio"].startswith("0.500 [0.4")
    assert list(table["met"]) == ["yes", "no"] and table.loc["second", "peak_mb, baseline"] == "100"


# ---- power laws ----------------------------------------------------------------------------------


def test_known_exponents():
    """Within an interval that holds them; noise that all share leaves them alone; the largest size
    is predicted from the others.
    """
    rows = measured(plain=lambda length, width: 3e-3 * length * width**2, ours=PLAIN)
    numbers = costs.exponents(rows, THINGS)
    for over, exponent in (("length", 1), ("width", 2)):
        line = numbers.loc[("it", over, "plain")]
        assert line["exponent"] == pytest.approx(exponent, abs=1e-6)
        assert line["low"] - 1e-6 <= exponent <= line["high"] + 1e-6
        assert line["held_out"] == pytest.approx(1, abs=1e-6)
        assert (line["least"], line["most"]) == (1, 1)


def test_noise_of_single_measurements_widens_the_interval():
    widths = []
    for noise in (0.01, 0.1):
        rows = measured(noise, 25, False, plain=lambda length, width: length**1.5)
        law = costs.power_law(costs.sweeps(rows)["it", "length", "plain"])[0]
        low, high = interval(law[1:])
        assert low < 1.5 < high and abs(law[0] - 1.5) < 3 * noise
        widths.append(high - low)
    assert widths[1] > 3 * widths[0]


def test_a_fixed_cost_shows_in_the_largest_size_left_out():
    """1 + x bends upwards: exponent below 1, the largest size predicted too low."""
    numbers = costs.exponents(measured(plain=lambda length, width: 1 + length, ours=OURS), THINGS)
    line = numbers.loc[("it", "length", "plain")]
    assert line["exponent"] < 0.9 and line["held_out"] < 0.95


def test_projection_is_exact_for_a_product_and_its_ratio_is_paired():
    """At sizes that no sweep visited together; noise common to a round cancels in a ratio."""
    base = THINGS["it"].base
    projected = costs.project(
        measured(0.3, plain=PLAIN, ours=OURS), base, {"length": 64, "width": 32}
    )
    assert projected["plain"] / projected["ours"] == pytest.approx(32**2 / 2, rel=1e-6)
    assert np.std(np.log(projected["plain"])) > 0.01
    still = costs.project(measured(0, plain=PLAIN), base, {"length": 64})
    assert still["plain"] == pytest.approx(1e-3 * 64 * 4**2, rel=1e-6)
    with pytest.raises(ValueError, match="no size 'batch' was swept, only length, width"):
        costs.project(measured(plain=PLAIN), base, {"batch": 2})


def test_tables_and_panels():
    """What a reader sees: exponents beside theory, how far a projection goes beyond what was
    measured, and what was measured once without an interval.
    """
    rows = measured(plain=PLAIN, ours=OURS)
    table = costs.exponent_table(rows, THINGS)
    assert table.loc[("a thing", "width", "plain"), "exponent"].startswith("2.00")
    assert table.loc[("a thing", "width", "ours"), "theory"] == "0 to 2"
    assert table.loc[("a thing", "length", "plain"), "theory"] == "1"
    sizes = {"length": 32, "width": 8, "batch": 3}
    projected = costs.projection_table(rows, THINGS, {"paper": sizes})
    assert projected.loc[("paper", "a thing", "ours"), "beyond the measured"] == "length ×2"
    ratio = projected.loc[("paper", "a thing", "ours"), "ratio"].split(" ")[0]
    assert float(ratio) == pytest.approx(1 / 32, rel=0.01)
    assert costs.shown(np.full(5, 0.846), ".2f") == "0.85"
    panels = costs.growth_figure(rows, THINGS)
    assert [axis.get_xlabel() for axis in panels.axes] == ["length", "width"]
