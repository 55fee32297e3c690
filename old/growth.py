"""How a cost grows with a size: the power law y = a x^b fitted to what was measured, and what follows for sizes that were not.

One unit sweeps one size of one thing, all others at their base. Fits are least squares on logarithms of the medians over rounds; intervals
are a bootstrap over rounds, the same resamples for all that was measured in turns. They say how noisy the clock is, not whether a power law
is right: for that, the largest size is predicted from the others.
"""

import zlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import pandas as pd
import torch

from old.costs import interleaved
from old.results import RESAMPLES, interval, make_table, setting_name
from old.units import Unit

RECIPE = 1
# size that is swept: the parameter with its values
SIZES = {
    "length": "growth_lengths",
    "batch": "growth_batches",
    "width": "growth_widths",
    "vocabulary": "growth_vocabularies",
    "positions": "growth_positions",
}
PART = "growth-"

Functions = dict[str, Callable[[], object]]  # candidate: what is timed, or what returns its memory in MB


@dataclass(frozen=True)
class Thing:
    """What is measured, where its other sizes stand while one is swept, and the exponents, or ranges of them, that theory says.

    `theory`: size -> candidate -> (lowest, highest). `measure`: seconds or peak_mb.
    """

    title: str
    base: dict[str, int]
    theory: dict[str, dict[str, tuple[float, float]]]
    measure: str = "seconds"


class PowerLaw(NamedTuple):
    """log y = log_scale + exponent * log x: of the data (first entry) and of each bootstrap resample. Both (1 + R,)"""

    log_scale: np.ndarray
    exponent: np.ndarray

    def log_at(self, size: float) -> np.ndarray:
        """Logarithm of the cost at a size. (1 + R,)"""
        return self.log_scale + self.exponent * np.log(size)


def fit(sizes: np.ndarray, costs: np.ndarray) -> PowerLaw:
    """Least squares on logarithms. sizes (S,), costs (1 + R, S), both positive.

    >>> law = fit(np.array([1, 2, 4]), np.array([[3.0, 12.0, 48.0]]))
    >>> law.exponent.round(6), np.exp(law.log_at(8)).round(6)
    (array([2.]), array([192.]))
    """
    x, y = np.log(sizes), np.log(costs)
    x_mean, y_mean = x.mean(), y.mean(1)
    exponent = (y - y_mean[:, None]) @ (x - x_mean) / ((x - x_mean) ** 2).sum()
    return PowerLaw(y_mean - exponent * x_mean, exponent)


# ---- measuring -----------------------------------------------------------------------------------------------------------------------


def plan(model: str, things: dict[str, Thing], parameters: dict) -> list[Unit]:
    """One unit a thing and a size; ValueError for sizes or rounds that nothing can be fitted to."""
    repeats = parameters["growth_repeats"]
    if repeats < 3:
        raise ValueError(f"growth_repeats must be at least 3 for a median with an interval, not {repeats}")
    for name in SIZES.values():
        sizes = parameters[name]
        if len(sizes) < 3 or sizes != sorted(set(sizes)) or sizes[0] < 2:
            raise ValueError(f"{name} must be at least three rising sizes from 2 on, the last to be predicted from the others, not {sizes}")
    if any(width % 8 for width in parameters["growth_widths"]):  # four attention heads, pairs of components
        raise ValueError(f"growth_widths must be multiples of 8, not {parameters['growth_widths']}")
    units = []
    for name, thing in things.items():
        for over in thing.theory:
            base = {size: value for size, value in thing.base.items() if size != over}
            rounds = repeats if thing.measure == "seconds" else 1  # a peak hardly varies, and each needs a process of its own
            values = {"sizes": parameters[SIZES[over]], "repeats": rounds, "base": base}
            units.append(Unit("costs", "synthetic", model, name, PART + over, 0, values, "none", RECIPE))
    return units


def compute(unit: Unit, thing: Thing, functions: Callable[[str, dict[str, int]], Functions]) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Medians at each size and the exponent of each candidate, with intervals; items are the single measurements.

    `functions(what, sizes)` makes the candidates at given sizes; all candidates at all sizes are measured in turns.
    """
    torch.manual_seed(0)
    sizes, base, over = unit.parameters["sizes"], unit.parameters["base"], _over(unit.part)
    made = {f"{name}@{size}": f for size in sizes for name, f in functions(unit.method, {**base, over: size}).items()}
    if thing.measure == "seconds":
        measured = interleaved(made, unit.parameters["repeats"])
    else:
        measured = pd.DataFrame([{key: function() for key, function in made.items()}])
    items = measured.rename_axis("id").reset_index().melt("id", var_name="candidate", value_name="measured")
    items[["candidate", "size"]] = items["candidate"].str.split("@", expand=True)
    items["size"] = items["size"].astype(int)
    return _rows(unit, thing, items), items


def _rows(unit: Unit, thing: Thing, items: pd.DataFrame) -> pd.DataFrame:
    over = _over(unit.part)
    common = unit.identity | {"setting": setting_name(what=unit.method, over=over), "n": items["id"].nunique()}
    found = []
    for name, (sizes, costs) in candidates(items, unit.method, over).items():
        numbers = [(f"{over}={size}", thing.measure, column) for size, column in zip(sizes, costs.T)]
        for where, metric, values in [*numbers, ("all", "exponent", fit(sizes, costs).exponent)]:
            low, high = interval(values[1:])
            found.append({**common, "method": name, "slice": where, "metric": metric, "value": values[0], "ci_low": low, "ci_high": high})
    return make_table(found)


def _over(part: str) -> str:
    return part.removeprefix(PART)


# ---- fitting -------------------------------------------------------------------------------------------------------------------------


def candidates(items: pd.DataFrame, what: str, over: str) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Of the items of one unit, by candidate: the sizes (S,), and the medians over rounds, of the data and of resamples. (1 + R, S)"""
    table = items.pivot(index="id", columns=["candidate", "size"], values="measured")
    rng = np.random.default_rng(zlib.crc32(f"{what} {over}".encode()))  # units are independent, candidates of one are paired
    draws = np.vstack([np.arange(len(table)), rng.integers(0, len(table), (RESAMPLES, len(table)))])
    found = {}
    for name in items["candidate"].unique():
        part = table[name].sort_index(axis=1)
        found[name] = part.columns.to_numpy(int), np.median(part.to_numpy(float)[draws], axis=1)
    return found


def of_thing(items: pd.DataFrame, what: str) -> dict[str, dict[str, tuple[np.ndarray, np.ndarray]]]:
    """`candidates` of each size that was swept, of one thing; items as `units.run` reads them."""
    parts = items[items["method"] == what].groupby("part", sort=False)
    return {_over(part): candidates(group, what, _over(part)) for part, group in parts}


def exponents(items: pd.DataFrame, things: dict[str, Thing]) -> pd.DataFrame:
    """What grows how: one row a thing, a size and a candidate.

    Columns exponent, low, high; least, most (of theory); held_out, held_out_low, held_out_high: the cost predicted at the largest size from
    the others over the one measured there; sizes (smallest, largest), costs (there).
    """
    rows = {}
    for what, thing in things.items():
        for over, found in of_thing(items, what).items():
            for name, (sizes, costs) in found.items():
                law = fit(sizes, costs).exponent
                held_out = np.exp(fit(sizes[:-1], costs[:, :-1]).log_at(sizes[-1])) / costs[:, -1]
                numbers = [x for values in (law, held_out) for x in (values[0], *interval(values[1:]))]
                rows[what, over, name] = [*numbers, *thing.theory[over][name], tuple(sizes[[0, -1]]), tuple(costs[0, [0, -1]])]
    columns = ["exponent", "low", "high", "held_out", "held_out_low", "held_out_high", "least", "most", "sizes", "costs"]
    index = pd.MultiIndex.from_tuples(rows, names=["what", "over", "candidate"])
    return pd.DataFrame(list(rows.values()), index, columns)


def unexpected(found: pd.DataFrame, margin: float = 0.1) -> pd.DataFrame:
    """Of `exponents`, those that lie, with their whole interval, more than `margin` outside of what theory says."""
    return found[(found["low"] > found["most"] + margin) | (found["high"] < found["least"] - margin)]


def project(items: pd.DataFrame, what: str, thing: Thing, sizes: dict[str, int]) -> dict[str, np.ndarray]:
    """Cost of each candidate at `sizes` (those not named: at their base), of the data and of resamples. (1 + R,) each

    A product of powers: the cost at the base, the mean of what the fits say on a log scale, times (size / base)^b for each size.
    """
    if unknown := set(sizes) - set(thing.base):
        raise ValueError(f"{what} has no size {sorted(unknown)[0]!r}, only {', '.join(thing.base)}")
    swept = of_thing(items, what)
    found = {}
    for name in next(iter(swept.values())):
        laws = {over: fit(*there[name]) for over, there in swept.items()}
        at_base = np.mean([law.log_at(thing.base[over]) for over, law in laws.items()], axis=0)
        steps = [law.log_at(sizes.get(over, thing.base[over])) - law.log_at(thing.base[over]) for over, law in laws.items()]
        found[name] = np.exp(at_base + sum(steps))
    return found
