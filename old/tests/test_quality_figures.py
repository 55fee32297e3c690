"""Tables of quality estimation say what their items say; figures draw without warnings."""

import matplotlib

matplotlib.use("agg")
import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest

from old.figures import STYLE, clear, markdown, significant
from old.length.signals import SIGNALS
from old.quality import evaluation, figures
from old.quality.heads import HEADS
from old.results import make_table


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
    flat, auroc = table.loc[figures.AMBIGUITY[0][3]], table.loc[figures.AMBIGUITY[2][3]]
    assert flat["head"] == "0.50 [0.50, 0.50]" and flat["softmax"] == "0.00 [0.00, 0.00]"  # an ideal: no marks
    assert auroc["head"].startswith("1.00") and auroc["head"].endswith(("*", "+"))
    assert not auroc["noise"].endswith(("*", "+"))


@pytest.fixture(scope="module")
def rows(outputs) -> pd.DataFrame:
    """The result rows of these items."""
    found = []
    for (method, seed), part in outputs.groupby(["method", "seed"]):
        for score in ("softmax", "noise") if method == "untrained" else ("head",):
            identity = {"study": "ambiguity", "dataset": "listing", "model": "m", "method": score, "seed": seed}
            found += evaluation.rows(evaluation.statistics("listing", part.reset_index(drop=True), part[score].to_numpy()), identity)
    return make_table(found)


def test_differences_are_those_of_the_statistics(outputs, rows):
    """Of seed-averaged scores; beside them those of every seed against the one untrained score. Where an ideal is named, more is not
    better.
    """
    found = figures.all_statistics(outputs, ["softmax", "head"])
    table = figures.differences(found, rows, figures.compared(figures.AMBIGUITY), "head", ["softmax"])
    slice_name, metric, label = figures.AMBIGUITY[2][1:]
    line, (left, right) = table.loc[(label, "softmax")], (found["listing"][m][slice_name, metric][0] for m in ("head", "softmax"))
    assert line["value"] == pytest.approx(left - right)
    assert line["seeds"] == pytest.approx([left - right] * 2, abs=1e-4)  # a constant added to all scores changes no ranking
    assert table.index.get_level_values(0).tolist() == [label]


def test_clear_needs_the_texts_and_every_seed():
    table = pd.DataFrame({"value": [0.1, 0.1, -0.1], "p_holm": [0.01, 0.2, 0.01], "seeds": [[0.1, 0.2], [0.1, 0.1], [-0.3, 0.1]]})
    assert clear(table).index.tolist() == [0]


def test_over_seeds_takes_the_widest_interval(monkeypatch):
    monkeypatch.setattr(figures, "in_order", list)
    found = pd.DataFrame(
        {"method": ["a", "a", "b"], "slice": "s", "value": [0.2, 0.4, 0.5], "ci_low": [0.1, 0.3, 0.4], "ci_high": [0.3, 0.5, 0.6]}
    )
    assert figures.over_seeds(found, "slice", ["a", "b"], 1)["s"].tolist() == ["0.3 [0.1, 0.5]", "0.5 [0.4, 0.6]"]


def test_small_packages_are_taken_together():
    """Texts are counted, not items; every text with graded gold is in one line."""
    rng, lines = np.random.default_rng(0), []
    for group, package in enumerate(["big"] * 9 + ["small"] * 3 + ["tiny"]):
        lines += [{"group": group, "package": package, "slice": f"type={kind}", "gold": gold, "score": rng.random()}
                  for kind, gold in (("original", 1.0), ("negation", 0.8), (evaluation.HOME_GROUND, 0.5))]  # fmt: skip
    table = figures.by_package(pd.DataFrame(lines), ["score"])
    assert table["texts"].to_dict() == {"big": 9, "all smaller ones": 4}


def test_updates_until_a_loss_is_reached():
    curves = pd.DataFrame(
        {"method": ["raw"] * 3 + ["fit"] * 3, "seed": 0, "update": [0, 20, 40] * 2, "bce_common": [9.0, 3.0, 2.0, 2.5, 1.5, 1.0]}
    )
    table = figures.updates_to_reach(curves, [("raw", "fit")])
    assert table["updates of the raw start"].tolist() == ["40", "not reached"]


@pytest.mark.filterwarnings("error")
def test_figures_draw(outputs, rows, monkeypatch):
    monkeypatch.setattr(figures, "in_order", list)
    monkeypatch.setattr(figures, "STYLE", {name: ("black", "o", "-") for name in ("softmax", "head", "raw", "fit")})
    items, _ = figures.scored_items(outputs, "listing")
    curves = pd.DataFrame({"method": ["raw", "raw", "fit", "fit"], "seed": 0, "update": [0, 20] * 2, "bce_common": [9.0, 3.0, 2.0, 1.0]})
    differences = figures.differences(figures.all_statistics(outputs, ["softmax", "head"]), rows, figures.AMBIGUITY, "head", ["softmax"])
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
    assert evaluation.graded_errors(items)["slice"].tolist() == ["type=original", "type=negation"]


def test_markdown_has_one_cell_a_value():
    """A bar within a cell does not end it."""
    table = pd.DataFrame({"SD of |error|": [1.5]}, pd.Index(["pre"], name="signal"))
    for line in markdown(table).splitlines():
        assert line.replace(r"\|", "").count("|") == 3
    assert r"SD of \|error\|" in markdown(table)


def test_clear_ratios_lie_on_one_side_of_one():
    """What is clear among differences is the same among ratios, around 1."""
    seeds = [[0.2, 0.1], [-0.1, -0.3], [-0.1, 0.2]]
    differences = pd.DataFrame({"method": list("abc"), "value": [0.15, -0.2, 0.05], "p_holm": 0.01, "seeds": seeds}).set_index("method")
    ratios = differences.assign(value=differences["value"] + 1, seeds=[[value + 1 for value in each] for each in seeds])
    assert significant(differences) == significant(ratios, neutral=1.0) == ("`a`", "`b`")
    assert clear(ratios, neutral=1.0).index.tolist() == ["a", "b"]
