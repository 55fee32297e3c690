"""Criteria measure what their text says, computed by hand or by the definition."""

import numpy as np
import pandas as pd
import pytest
from sklearn.metrics import roc_auc_score

from lib.study.statistics import sample
from lib.tasks.measures import (
    AMBIGUITY,
    HIGH,
    HOME_GROUND,
    LOW,
    above_alone,
    above_own_edit,
    compared,
    edit_criteria,
    graded_errors,
    main_metric,
    paired_criteria,
)

BY_LABEL = {criterion.label: criterion for criterion in AMBIGUITY}


def listing(scores) -> pd.DataFrame:
    """Four sets, two orders each, of six names; set a has three. `scores(k, kind)`"""
    rows = []
    for group in "abcd":
        for order in range(2):
            for k in range(1, 3 if group == "a" else 6):
                for kind in ("right", "listed", "sibling") if k <= LOW else ("right",):
                    gold, score = float(kind == "right"), scores(k, kind)
                    rows.append((group, order, k, kind, gold, score))
    return pd.DataFrame(rows, columns=["group", "order", "k", "kind", "gold", "score"])


def value(label: str, rows: pd.DataFrame) -> float:
    criterion = BY_LABEL[label]
    return sample(criterion.of(rows), criterion.measure).value


DROP, GAP = (
    "listing: P(many right > one right), ideal 0.5",
    "listing: share of the gap kept, ideal 1",
)


def test_a_score_that_falls_rises_or_stays():
    for scores, share in ((lambda k, _: -k, 0), (lambda k, _: k, 1), (lambda *_: 1, 0.5)):
        assert value(DROP, listing(scores)) == share


def test_every_set_counts_the_same():
    """However many orders and numbers of answers it has; ties count one half and are told."""
    rows = listing(lambda k, kind: 0.0)
    wins = (rows["group"] == "b") & (rows["order"] == 0) & (rows["k"] >= HIGH)
    rows.loc[wins, "score"] = 1.0
    table = above_alone(rows).set_index("group")
    assert table.index.tolist() == ["b", "c", "d"]  # set a never has four right answers
    assert table["above"].tolist() == [0.75, 0.5, 0.5] and table["tie"].tolist() == [0.5, 1, 1]
    assert value(DROP, rows) == pytest.approx((0.75 + 0.5 + 0.5) / 3)
    assert above_alone(rows, 2, 2)["group"].tolist() == list("abcd")


def test_share_of_the_gap():
    """(many - wrong) / (alone - wrong) of means by set; undefined without a clear gap."""
    rows = listing(lambda k, kind: {"right": 1.0 if k == 1 else 0.75}.get(kind, 0.5))
    assert value(GAP, rows) == pytest.approx(0.5)
    assert np.isnan(value(GAP, listing(lambda *_: 1.0)))


def test_many_right_against_wrong():
    rng = np.random.default_rng(0)
    rows = listing(lambda *_: rng.random())
    for kind, name in (("listed", "listed"), ("sibling", "other set")):
        chosen = rows[(rows["kind"] == kind) | ((rows["kind"] == "right") & (rows["k"] >= HIGH))]
        expected = roc_auc_score(chosen["gold"], chosen["score"])
        assert value(f"listing: AUROC, many right against {name}", rows) == pytest.approx(expected)


def test_languages():
    rng, rows = np.random.default_rng(1), []
    for group in range(30):
        for prior in (False, True):
            rows += [(group, 1 + group % 2, prior, gold, rng.random()) for gold in (1.0, 0.0)]
    table = pd.DataFrame(rows, columns=["group", "k", "prior", "gold", "score"])
    named = table[~table["prior"]]
    right = named[named["gold"] == 1]
    mixed = named[(named["gold"] == 1) == (named["k"] == 2)]
    expected = {
        "P(two > one right), ideal 0.5": roc_auc_score(right["k"] == 2, right["score"]),
        "AUROC, two right": roc_auc_score(*named[named["k"] == 2][["gold", "score"]].T.to_numpy()),
        "AUROC, right of two against wrong": roc_auc_score(mixed["gold"], mixed["score"]),
        "AUROC without territory (control)": roc_auc_score(
            *table[table["prior"]][["gold", "score"]].T.to_numpy()
        ),
    }
    for label, number in expected.items():
        assert value(f"languages: {label}", table) == pytest.approx(number), label


def test_what_methods_are_compared_by():
    """Not by controls, home ground, or where more is not better."""
    labels = [criterion.label for criterion in compared(AMBIGUITY)]
    assert DROP not in labels and GAP not in labels and len(labels) == 5
    edits = [c.label for c in compared(edit_criteria("t", ["deletion", HOME_GROUND], "t"))]
    assert edits == ["t: Pearson with the share of intact words", "t: AUROC, deletion"]


# ---- edited texts -----------------------------------------------------------------------------

EDITED = pd.DataFrame(
    [
        ("g0", 0, "original", 1.0, 0.9),
        ("g1", 1, "original", 1.0, 0.5),
        ("g2", 2, "original", 1.0, 0.1),
        ("g0", 0, "deletion", 0.8, 0.2),
        ("g1", 1, "deletion", 0.9, 0.5),
        ("g1", 1, HOME_GROUND, 0.7, 0.0),
        ("p", -1, "attested", 1.0, 0.3),
    ],
    columns=["group", "text", "edit", "gold", "score"],
)


def test_originals_are_compared_with_their_edits():
    """AUROC among texts that have that edit; original above its own edit, ties one half."""
    whole, deletion, home = edit_criteria("t", ["deletion", HOME_GROUND], "t")
    assert sample(deletion.of(EDITED), deletion.measure).value == pytest.approx(3.5 / 4)
    assert home.of(EDITED)["text"].tolist() == [1, 1] and "home ground" in home.label
    graded = whole.of(EDITED)
    assert set(graded["edit"]) == {"original", "deletion"}
    correlation = np.corrcoef(graded["gold"], graded["score"])[0, 1]
    assert sample(graded, whole.measure).value == pytest.approx(correlation)
    (paired,) = paired_criteria("t", ["deletion"])
    assert sample(paired.of(EDITED), paired.measure).value == 0.75


def test_a_missing_original_is_undefined():
    """Not counted as a loss."""
    rows = above_own_edit(EDITED[EDITED["text"].isin([0, 1]) & (EDITED["score"] < 0.9)])
    assert rows.set_index("text")["above"].isna().tolist() == [True, False, False]


def test_what_counts_as_an_edit():
    assert set(graded_errors(EDITED)["edit"]) == {"original", "deletion"}
    assert main_metric(EDITED) == "pearson" and main_metric(EDITED[EDITED["gold"] == 1]) == "auroc"
