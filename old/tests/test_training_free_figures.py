"""Tables of the scores without training: paired differences on the same items, and what was chosen where."""

import numpy as np
import pandas as pd
import pytest

from old.quality import training_free_figures as figures
from old.quality.agreement import agreement
from old.quality.training_free import FORMS


@pytest.fixture
def scored():
    """Test items of one task with a score; another score and a head of two seeds, on more items and in another order."""
    rng = np.random.default_rng(0)
    gold = np.repeat([0.0, 1.0], 30)
    items = pd.DataFrame({"dataset": "cola", "id": np.arange(60), "group": np.arange(60), "gold": gold, "ours": gold + rng.normal(size=60)})
    more = pd.DataFrame({"id": rng.permutation(80), "dataset": "cola"})
    parts = [more.assign(seed=0, softmax=rng.normal(size=80))]
    parts += [more.assign(seed=seed, head=more["id"].map(dict(enumerate(rng.normal(size=80)))) + seed) for seed in (0, 1)]
    return items, figures.by_their_mean(pd.concat(parts, ignore_index=True), ["softmax", "head", "absent"])


def auroc(items: pd.DataFrame, values) -> float:
    return agreement(np.asarray(values, float), items["gold"], items["group"], ("auroc",), 1)[0]["auroc"]


def test_differences_are_on_the_same_items(scored):
    """Stored items are found by id, whatever their order; of several seeds the mean of their values counts."""
    items, others = scored
    table = figures.differences(items, others, "ours")
    assert table.index.tolist() == [("cola", "softmax"), ("cola", "head")] and set(table["metric"]) == {"auroc"}
    by_seed = [auroc(items, part.set_index("id")["score"].loc[items["id"]]) for _, part in others["head"].groupby("seed")]
    row = table.loc[("cola", "head")]
    assert row["ours"] == pytest.approx(auroc(items, items["ours"])) and row["theirs"] == pytest.approx(np.mean(by_seed))
    assert row["value"] == pytest.approx(row["ours"] - row["theirs"]) and row["ci_low"] < row["value"] < row["ci_high"]
    np.testing.assert_allclose(row["seeds"], row["ours"] - np.array(by_seed), atol=1e-4)


def test_a_score_against_itself(scored):
    """No difference, no doubt."""
    items, _ = scored
    same = items[["dataset", "id"]].assign(seed=0, score=items["ours"])
    row = figures.differences(items, {"same": same}, "ours").iloc[0]
    assert row["value"] == row["ci_low"] == row["ci_high"] == 0 and row["p"] == 1


def test_columns_of_the_chosen_unit(scored):
    """A column a score, one a seed of each head: the comparison of the same numbers under other names."""
    items, others = scored
    wide = items.assign(part="x", seed=0, model="m", study="quality", method="untrained")
    for name, part in others.items():
        for seed, of in part.groupby("seed"):
            wide[name if name == "softmax" else f"{name}@{seed}"] = of.set_index("id")["score"].reindex(items["id"]).to_numpy()
    expected = figures.differences(items, others, "ours")
    pd.testing.assert_frame_equal(figures.differences(wide, figures.in_the_same_way(wide, "ours"), "ours"), expected)


def test_ways_table():
    """The chosen way's interval comes from the rows, the mean's value from the grid."""
    grid = pd.DataFrame([("logprob", "mean", 0.5, 0.4), ("logprob", "min", 0.6, 0.3)], columns=["score", "aggregate", "dev", "test"])
    row = {"dataset": "cola", "method": "logprob", "setting": "score=logprob;aggregate=min", "value": 0.3, "ci_low": 0.2, "ci_high": 0.4}
    table = figures.ways_table({"cola": grid}, pd.DataFrame([row]))
    assert table.loc[("cola", "logprob")].tolist() == ["logprob", "min", "0.30 [0.20, 0.40]", "0.40"]


def test_gain_maps():
    """Every form of the grid has its cell, in the panel of its exclusion."""
    gains = pd.Series({(form.name, "mean"): number / 100 for number, form in enumerate(FORMS)})
    figure = figures.gain_maps(gains)
    shown = [text.get_text() for axis in figure.axes[:2] for text in axis.texts]
    in_grid = [form for form in FORMS if form.name != "u5-q5-excluded"]
    assert sorted(shown) == sorted(f"{gains[form.name, 'mean']:+.3f}" for form in in_grid)
