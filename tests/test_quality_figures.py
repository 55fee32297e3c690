"""Tables of quality estimation say what their items say; figures draw without warnings."""

import matplotlib

matplotlib.use("agg")
import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest

from lib.figures import STYLE
from lib.length.signals import SIGNALS
from lib.quality import evaluation, figures
from lib.quality.heads import HEADS


@pytest.fixture(scope="module")
def outputs() -> pd.DataFrame:
    """Listing items of four sets, two orders each: `softmax` (untrained) falls with k, a head does not; two seeds of the head."""
    rng, rows = np.random.default_rng(0), []
    for group in "abcd":
        for order in range(2):
            for k in range(1, 6):
                common = {"group": group, "order": order, "slice": f"k={k}"}
                rows.append({**common, "gold": 1.0, "kind": "right", "softmax": 1 / k, "head": 0.8})
                if k <= 2:
                    rows.append({**common, "gold": 0.0, "kind": "listed", "softmax": 0.1, "head": 0.2})
    items = pd.DataFrame(rows).assign(id=range(len(rows)))
    common = {"study": "ambiguity", "dataset": "listing", "model": "m"}
    untrained = items.drop(columns="head").assign(**common, method="untrained", part="scores", seed=0)
    heads = [
        items.drop(columns="softmax").assign(**common, method="heads", part="scores", seed=seed, head=items["head"] + sign * 0.1)
        for seed, sign in ((0, 1), (1, -1))
    ]
    noise = untrained[["id"]].assign(noise=rng.random(len(untrained)))
    return pd.concat([untrained.merge(noise, on="id"), *heads], ignore_index=True)


def test_heads_are_averaged_over_seeds(outputs):
    items, methods = figures.scored_items(outputs, "listing")
    assert methods == ["softmax", "noise", "head"] and len(items) == outputs["id"].nunique()
    assert items["head"].tolist() == pytest.approx(np.where(items["gold"] == 1, 0.8, 0.2).tolist())


def test_the_best_is_marked_and_the_worse_is_not(outputs, monkeypatch):
    monkeypatch.setattr(figures, "in_order", list)
    found = figures.all_statistics(outputs, ["softmax", "noise", "head"])
    table = figures.score_table(found, figures.AMBIGUITY)
    flat, auroc = table.loc[figures.AMBIGUITY[0][3]], table.loc[figures.AMBIGUITY[1][3]]
    assert flat["head"].startswith("0.50") and flat["head"].endswith("+") and flat["softmax"] == "0.00 [0.00, 0.00]"
    assert auroc["head"].startswith("1.00") and auroc["head"].endswith(("*", "+"))
    assert not auroc["noise"].endswith(("*", "+"))


def test_differences_are_those_of_the_statistics(outputs):
    found = figures.all_statistics(outputs, ["softmax", "head"])
    table = figures.differences(found, figures.AMBIGUITY, "head", ["softmax"])
    label = figures.AMBIGUITY[2][3]
    assert table.loc[(label, "softmax"), "value"] == pytest.approx(
        found["listing"]["head"]["all", "gap_kept"][0] - found["listing"]["softmax"]["all", "gap_kept"][0]
    )
    assert figures.AMBIGUITY[0][3] not in table.index.get_level_values(0)  # where 0.5 is ideal, more is not better


def test_updates_until_a_loss_is_reached():
    curves = pd.DataFrame(
        {"method": ["raw"] * 3 + ["fit"] * 3, "seed": 0, "update": [0, 20, 40] * 2, "bce_common": [9.0, 3.0, 2.0, 2.5, 1.5, 1.0]}
    )
    table = figures.updates_to_reach(curves, [("raw", "fit")])
    assert table["updates of the raw start"].tolist() == ["40", "not reached"]


@pytest.mark.filterwarnings("error")
def test_figures_draw(outputs, monkeypatch):
    monkeypatch.setattr(figures, "in_order", list)
    monkeypatch.setattr(figures, "STYLE", {name: ("black", "o", "-") for name in ("softmax", "head", "raw", "fit")})
    items, _ = figures.scored_items(outputs, "listing")
    curves = pd.DataFrame({"method": ["raw", "raw", "fit", "fit"], "seed": 0, "update": [0, 20] * 2, "bce_common": [9.0, 3.0, 2.0, 1.0]})
    differences = figures.differences(figures.all_statistics(outputs, ["softmax", "head"]), figures.AMBIGUITY, "head", ["softmax"])
    for figure in (
        figures.drop_by_k(items, ["softmax", "head"]),
        figures.truth_scatter(items, ["softmax", "head"], "gold"),
        figures.reliability(items, ["softmax", "head"]),
        figures.learning_curves(curves, [("raw", "fit")]),
        figures.difference_plot(differences, "head"),
    ):
        figure.canvas.draw()
        assert all(axis.get_xlabel() or figure.get_supxlabel() for axis in figure.axes if axis.axison)
        plt.close(figure)


def test_every_method_of_the_study_has_a_style():
    """A method without one would be missing from every table."""
    assert {"softmax", "logprob", "entropy", "boostedprob", "closed-form", "softmax-power", "rescale", *HEADS, *SIGNALS} <= set(STYLE)


def test_graded_errors_leave_out_home_ground_and_attested():
    items = pd.DataFrame({"slice": ["type=original", "type=negation", "type=attested", f"type={evaluation.HOME_GROUND}"]})
    assert figures.graded_errors(items)["slice"].tolist() == ["type=original", "type=negation"]
