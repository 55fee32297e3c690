"""The study's own signals: what is tried, how a choice is made, and the bounds they are held to."""

import numpy as np
import pandas as pd
import pytest

from old.length import experiment, figures, tuning
from old.length.finetuning import Settings, signal_options
from old.length.signals import make_signal
from old.parameters import settings_from
from old.results import setting_name

PARAMETERS = {"signals": ["pre-countdown"], "seeds": [0], "sweep": True, "profile": "mine", "items": 3}


def test_everything_tried_is_a_signal_and_a_unit_of_its_own():
    units = tuning.plan_past_the_paper(PARAMETERS)
    assert len({unit.name for unit in units}) == len({unit.key for unit in units}) == len(units)
    for unit, (signal, options) in zip(units, tuning.PAST_THE_PAPER):
        assert unit.method == signal and unit.parameters.items() >= {"items": 3, **options}.items()
        make_signal(signal, 16, **options)


def test_sweep_is_a_choice():
    with_sweep, without = (tuning.plan_better_signals(PARAMETERS | {"sweep": sweep}) for sweep in (True, False))
    assert len(with_sweep) == len(tuning.PAST_THE_PAPER) + 2 and with_sweep[-2:] == without
    assert without == experiment.plan(["in-distribution", "unseen"], PARAMETERS)


@pytest.mark.parametrize("signal", ["pre-nyquist", "pre-countdown", "bucket"])
def test_options_in_use_were_tried(signal):
    """On validation text, before any test item was looked at."""
    options = signal_options(signal, settings_from(Settings, {}))
    assert (signal, options) in tuning.PAST_THE_PAPER


def tried(**cells: tuple[float, float]) -> pd.DataFrame:
    """`signal|options`: (mae, content perplexity), as result rows."""
    rows = []
    for name, (mae, perplexity) in cells.items():
        signal, _, options = name.partition("|")
        common = {"method": signal, "setting": options}
        rows += [{**common, "slice": "unseen", "metric": metric, "value": mae} for metric in ("mae", "exact_rate", "outlier_rate")]
        rows += [{**common, "slice": "[0,32)", "metric": "mae", "value": 99.0}]
        rows += [{**common, "slice": "validation", "metric": "ppl_content", "value": perplexity}]
    return pd.DataFrame(rows)


def test_choice_is_the_least_error_among_the_fluent():
    """Content perplexity at most 1 % above that of `pre`; `pre` itself is not chosen."""
    table = figures.tried_table(
        tried(**{"pre|": (5, 50), "pre-nyquist|share=1": (1, 50.6), "pre-nyquist|share=0.5": (2, 50.4), "pre-nyquist|share=0.8": (3, 49)})
    )
    assert table.loc[("pre-nyquist", "share=1"), "mae"] == 1
    assert figures.chosen_options(table) == {"pre-nyquist": "share=0.5"}
    assert figures.chosen_options(table, slack=-0.5) == {"pre-nyquist": "share=1"}  # none is fluent enough: the least error of all
    assert setting_name(share=0.5) == "share=0.5"


def outputs(method: str, error: int, perplexity: float) -> list[pd.DataFrame]:
    """Unseen requests in two buckets that miss by `error` or, every fourth, by none; references of one perplexity."""
    common = {"part": "unseen", "method": method, "seed": 0, "setting": ""}
    lengths = np.arange(64, 128)
    control = pd.DataFrame({"id": np.arange(64), "group": np.arange(64), "target_length": lengths, **common})
    control["generated_length"] = lengths + error * (np.arange(64) % 4 > 0)
    control["slice"] = np.where(lengths < 96, "[64,96)", "[96,128)")
    natural = pd.DataFrame({"id": np.arange(9), "group": np.arange(9), "slice": "in-distribution", **common, "part": "in-distribution"})
    return [control, natural.assign(nll_content=10 * np.log(perplexity), content_tokens=10)]


def test_bounds():
    """Half the error, as many exact outputs, the same perplexity: what is met and what is missed."""
    items = pd.concat([*outputs("pre", 8, 50), *outputs("pre-nyquist", 4, 50)], ignore_index=True)
    table = figures.bounds_table(items, ["[64,96)", "[96,128)"], ["pre-nyquist"]).loc["pre-nyquist"]
    assert [cell.split()[0] for cell in table["value"]] == ["0.500", "0.500", "0.000", "1.000", "1.000"]
    assert table["met"].tolist() == ["yes", "yes", "yes", "no", "yes"]
    worse = pd.concat([*outputs("pre", 8, 50), *outputs("pre-nyquist", 25, 51)], ignore_index=True)
    table = figures.bounds_table(worse, ["[64,96)", "[96,128)"], ["pre-nyquist"]).loc["pre-nyquist"]
    assert table["met"].tolist() == ["no"] * 5 and table["value"].iloc[2].split()[0] == "75.000"
