"""Power laws: known exponents are found again, sums bend away from them, projections are products; every thing can be measured."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from old import growth, growth_figures, units
from old.growth import Thing
from old.length import costs as length_costs
from old.quality import costs as quality_costs

PARAMETERS = {
    "growth_repeats": 3,
    "growth_lengths": [2, 4, 8],
    "growth_batches": [2, 4, 8],
    "growth_widths": [8, 16, 24],
    "growth_vocabularies": [2048, 4096, 6144],  # sources and targets are drawn from 2,048 entries
    "growth_positions": [2, 4, 8],
}
THING = Thing("a thing", {"length": 8, "width": 4}, {over: {"plain": (1, 1), "ours": (0, 2)} for over in ("length", "width")})


def measured(cost, noise: float = 0.01, rounds: int = 9) -> pd.DataFrame:
    """Items of THING, as stored: `cost[candidate](length, width)` in seconds, with noise that is common to the candidates of a round."""
    rng, found = np.random.default_rng(0), []
    for over in THING.theory:
        for turn in range(rounds):
            slow = np.exp(noise * rng.standard_normal())
            for size in (2, 4, 8, 16):
                sizes = THING.base | {over: size}
                for name, f in cost.items():
                    row = {"method": "thing", "part": f"growth-{over}", "id": turn, "candidate": name, "size": size}
                    found.append(row | {"measured": slow * f(**sizes)})
    return pd.DataFrame(found)


def test_known_exponents_are_found_again():
    """Within an interval that holds them; noise that all share leaves them alone; the largest size is predicted from the others."""
    items = measured({"plain": lambda length, width: 3e-3 * length * width**2, "ours": lambda length, width: 2e-3 * width**0.5})
    found = growth.exponents(items, {"thing": THING})
    expected = {("length", "plain"): 1, ("width", "plain"): 2, ("length", "ours"): 0, ("width", "ours"): 0.5}
    for (over, name), exponent in expected.items():
        row = found.loc[("thing", over, name)]
        assert row["exponent"] == pytest.approx(exponent, abs=1e-6)
        assert row["low"] - 1e-9 <= exponent <= row["high"] + 1e-9
        assert row["held_out"] == pytest.approx(1, abs=1e-6)
    assert list(growth.unexpected(found).index) == [("thing", "width", "plain")]  # 2, where this theory says 1


def test_noise_of_single_measurements_widens_the_interval():
    """An interval over rounds that covers the exponent, and wider with more noise."""
    rng, width = np.random.default_rng(1), []
    for noise in (0.01, 0.1):
        items = measured({"plain": lambda length, width: length**1.5}, noise=0)
        items["measured"] *= np.exp(noise * rng.standard_normal(len(items)))
        sizes, costs = growth.of_thing(items, "thing")["length"]["plain"]
        exponent = growth.fit(sizes, costs).exponent
        low, high = np.quantile(exponent[1:], [0.025, 0.975])
        assert abs(exponent[0] - 1.5) < 3 * noise and low < 1.5 < high
        width.append(high - low)
    assert width[1] > 3 * width[0]


def test_a_fixed_cost_shows_in_the_largest_size_left_out():
    """1 + x bends upwards: exponent below 1, the largest size predicted too low."""
    found = growth.exponents(measured({"plain": lambda length, width: 1 + length, "ours": lambda length, width: 1.0}), {"thing": THING})
    row = found.loc[("thing", "length", "plain")]
    assert row["exponent"] < 0.9 and row["held_out_high"] < 0.95


def test_projection_is_exact_for_a_product_and_its_ratio_is_paired():
    """Both at sizes that no sweep visited together; noise common to a round cancels in the ratio of two candidates."""
    items = measured({"plain": lambda length, width: 1e-3 * length * width**2, "ours": lambda length, width: 2e-3 * length}, noise=0.3)
    costs = growth.project(items, "thing", THING, {"length": 64, "width": 32})
    ratio = costs["plain"] / costs["ours"]
    assert ratio == pytest.approx(32**2 / 2, rel=1e-6)
    assert np.std(np.log(costs["plain"])) > 0.01
    still = growth.project(measured({"plain": lambda length, width: 1e-3 * length * width**2}, noise=0), "thing", THING, {"length": 64})
    assert still["plain"] == pytest.approx(1e-3 * 64 * 4**2, rel=1e-6)
    with pytest.raises(ValueError, match="no size 'batch', only length, width"):
        growth.project(items, "thing", THING, {"batch": 2})


def test_tables_and_panels():
    """What a reader sees: exponents, how far a projection goes beyond what was measured, a projection beside a measurement."""
    items = measured({"plain": lambda length, width: 1e-3 * length * width**2, "ours": lambda length, width: 2e-3 * length})
    things = {"thing": THING}
    table = growth_figures.exponent_table(growth.exponents(items, things), things)
    assert table.loc[("a thing", "width", "plain"), "exponent"].startswith("2.00")
    assert table.loc[("a thing", "width", "ours"), "theory"] == "0 to 2" and table.loc[("a thing", "length", "plain"), "theory"] == "1"
    projected = growth_figures.projection_table(items, things, {"paper": {"length": 32, "width": 8, "batch": 3}})
    assert projected.loc[("paper", "a thing", "ours"), "beyond the measured"] == "length ×2"
    assert projected.loc[("paper", "a thing", "ours"), "ratio"].startswith("0.0312 [")
    rows = pd.DataFrame({"setting": "what=bound", "metric": "seconds", "method": ["ours", "other"], "value": [0.032, 1.0]})
    checked = growth_figures.check_table(items, things, rows, {"bound": ("thing", {"length": 32, "width": 8})})
    assert list(checked.index.get_level_values("candidate")) == ["ours"] and checked["ratio"].iloc[0] == pytest.approx(2, rel=0.05)
    panels = growth_figures.growth_plot(items, things)
    assert [axis.get_xlabel() for axis in panels.axes] == ["length", "width"]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"growth_repeats": 2}, "growth_repeats must be at least 3.*not 2"),
        ({"growth_lengths": [8, 16]}, "growth_lengths must be at least three rising sizes"),
        ({"growth_batches": [4, 8, 8]}, "growth_batches must be at least three rising sizes"),
        ({"growth_positions": [64, 32, 16]}, "growth_positions must be at least three rising sizes"),
        ({"growth_vocabularies": [0, 8, 16]}, "growth_vocabularies must be at least three rising sizes"),
        ({"growth_widths": [8, 16, 36]}, "growth_widths must be multiples of 8"),
    ],
)
def test_parameters_that_nothing_can_be_fitted_to_are_refused(change, message):
    """Before anything is measured."""
    for costs in (length_costs, quality_costs):
        with pytest.raises(ValueError, match=message):
            costs.plan_growth(PARAMETERS | change)


@pytest.mark.parametrize("costs", [length_costs, quality_costs])
def test_every_thing_is_measured(costs):
    """All candidates that theory speaks of, at all sizes; rows and items that the store takes; checks name things and sizes there are."""
    for unit in costs.plan_growth(PARAMETERS):
        small = {size: min(value, 64) if size != "vocabulary" else 2048 for size, value in unit.parameters["base"].items()}
        rows, items = units.one_threaded(costs.compute_growth, replace(unit, parameters=unit.parameters | {"base": small}))
        over, theory = unit.part.removeprefix("growth-"), costs.GROWTH[unit.method].theory
        assert set(items["candidate"]) == set(theory[over]) == set(rows["method"])
        assert len(items) == unit.parameters["repeats"] * 3 * len(theory[over])
        assert (items["measured"] > 0).all() and set(items["size"]) == set(unit.parameters["sizes"])
        assert list(rows["metric"].unique()) == [costs.GROWTH[unit.method].measure, "exponent"]
    checks = costs.CHECKS if costs is length_costs else costs.checks(128)
    assert set(checks) <= set(costs.BOUNDS)
    for what, sizes in checks.values():
        assert set(sizes) <= set(costs.GROWTH[what].base)
