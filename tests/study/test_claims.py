"""Numbers in prose: what counts as one, what a claim compares, and how a tie is no mistake."""

import json

import pytest
from prose import claimed_numbers, numbers_in, unclaimed_numbers

from lib.study.claims import check_claims
from lib.study.parameters import Parameters

OWN, OTHERS = Parameters(), Parameters()
OTHERS.own = False


@pytest.mark.parametrize(
    ("quoted", "value"),
    [
        ("7.1", 7.1499),
        ("7.1", 7.05),
        ("0.0312", 1 / 32),
        ("0.0313", 1 / 32),
        ("36 %", 0.3649),
        ("36%", 0.36),
        ("−0.46", -0.4551),
        ("-0.46", -0.4649),
        ("+0.05", 0.0451),
        ("1,024", 1024),
        ("1,024", 1023.6),
        ("7.1 [6.9, 7.3]", (7.1, 6.85, 7.34)),
        ("3 of 5", [3, 5]),
    ],
)
def test_what_agrees(quoted, value):
    table = check_claims([(quoted, value, "this")], OWN)
    assert table.loc["this", "agrees"]


@pytest.mark.parametrize(
    ("quoted", "value"),
    [
        ("7.1", 7.151),
        ("0.0312", 0.03126),
        ("36 %", 36.0),
        ("0.46", -0.46),
        ("−0.46", 0.46),
        ("1,024", 1023.4),
        ("7.1", float("nan")),
        ("7.1 [6.9, 7.3]", (7.1, 6.9, 7.4)),
    ],
)
def test_what_does_not(quoted, value):
    with pytest.raises(ValueError, match="the text quotes other numbers.*this: "):
        check_claims([(quoted, value, "this")], OWN)
    assert list(check_claims([(quoted, value, "this")], OTHERS).columns) == ["quoted", "now"]


def test_all_failing_claims_are_named():
    claims = [("1.0", 1.0, "right"), ("2.0", 2.5, "one"), ("3 %", 0.5, "other")]
    with pytest.raises(ValueError, match="one: 2.0, but 2.50; other: 3 %, but 50.0 %") as error:
        check_claims(claims, OWN)
    assert "right" not in str(error.value)


@pytest.mark.parametrize(("quoted", "value"), [("none", 0), ("7.1", (7.1, 6.9)), ("1 to 2", 1)])
def test_as_many_values_as_numbers(quoted, value):
    with pytest.raises(ValueError, match="numbers, for"):
        check_claims([(quoted, value, "this")], OTHERS)


@pytest.mark.parametrize(
    ("text", "numbers"),
    [
        ("PRE is off by 7.1 tokens, RPE by 1,024.", ["7.1", "1,024"]),
        ("Between −0.46 and +0.05; 36 %.", ["0.46", "0.05", "36"]),
        ("Ranges 0.5–1.2, 10-20.", ["0.5", "1.2", "10", "20"]),
        ("Over (12) [3] ×4 ~5 ≤6 tokens.", ["12", "3", "4", "5", "6"]),
        ("Names: ROUGE-1, SmolLM2-135M, OLMo-2 1B, d128, 7B, 2nd, CO2.", []),
        ("Code `x = 5`, formulas $r = 0.5$ and $$\nM = 64\n$$.", []),
        ("```\nx = 5\n```\nThen 6.", ["6"]),
        ("arXiv 2512.06938 of 2025, on 2026-12-01; [a](b/3.html) https://x.org/4", []),
        ("# 31 · What of 12 items?", ["12"]),
        ("1. first 3\n2. second", ["3"]),
        ("See notebook 21, notebooks 10, 11 and 20, section 4, table 2, seeds 0 to 2.", []),
        ("A 95 % interval.", []),
        ("Paper: 0.5 to 1.2. Ours is 0.7.", ["0.7"]),
        ("Ours is 0.7 (paper: 0.5).\n\nElsewhere 8.", ["8"]),
        ("| a | 1.5 |\n| paper: | 2.5 |", ["1.5"]),
        ("<img width=30> <!-- 4 --> 5", ["5"]),
    ],
)
def test_numbers_in_prose(text, numbers):
    assert numbers_in(text) == numbers


def test_numbers_nobody_claims(tmp_path):
    """A number must stand in a claim, as it is written there, or in the code."""

    def cell(kind, source, *tags):
        return {"cell_type": kind, "source": [source], "metadata": {"tags": list(tags)}}

    cells = [
        cell("markdown", "Off by 7.1 of 64 tokens, 36 % of 2,048 are cut, 12 of 3."),
        cell("code", "length: int = 64", "parameters"),
        cell("code", "entries = 2_048\nx[5, 12, 'a']"),
        cell(
            "code", "check_claims([('7.1', mae, 'x'), ('36 %', cut['a', 3, 1], '9')], p)", "claims"
        ),
    ]
    file = tmp_path / "tiny.ipynb"
    file.write_text(json.dumps({"cells": cells}))
    assert claimed_numbers(file) == {"7.1", "36"}
    assert unclaimed_numbers(file) == ["3"]
