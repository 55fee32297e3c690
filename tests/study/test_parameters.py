"""Parameters of a notebook: what the cell may declare, which values fit, and how names that nobody
declared are noticed, however the notebook is run.
"""

import json

import pytest
import yaml

from lib.study import paths
from lib.study.parameters import Parameters, check_parameters, check_values, declared_parameters

DECLARED = {"signals": ["pre"], "seeds": [0, 1], "rate": 1e-3, "items": 5, "name": "x"}
DECLARED |= {"fast": True, "shift": -1.0, "options": {}}
NOTEBOOK = "31_costs"


def notebook(folder, source: str, tag: str = "parameters"):
    """A notebook with one cell."""
    cell = {"cell_type": "code", "metadata": {"tags": [tag]}, "source": source.splitlines(True)}
    file = folder / "tiny.ipynb"
    file.write_text(json.dumps({"cells": [cell]}))
    return file


def test_declared_parameters(tmp_path):
    source = (
        "# how much\nitems: int = 5  # of them\n\nsignals: list = ['pre']\nrate: float = -1.5e-3"
    )
    values = {"items": 5, "signals": ["pre"], "rate": -1.5e-3}
    assert declared_parameters(notebook(tmp_path, source)) == values
    with pytest.raises(ValueError, match="tiny.ipynb has no cell tagged 'parameters'"):
        declared_parameters(notebook(tmp_path, source, "other"))


@pytest.mark.parametrize(
    "source",
    [
        "items: int = 5 * 100",
        "seeds: list = list(range(3))",
        "seeds, extra = [0], 1",
        "items = 5",
        "%matplotlib inline\nitems: int = 5",
        "items: int = 5\n)",
        'name: str = f"mine"',
        "items: int = 5e2",
        "seeds: list = (0, 1)",
    ],
)
def test_what_the_cell_may_not_hold(tmp_path, source):
    """Expressions, unpacking, magics, broken lines, a value unlike its type: one line says so."""
    with pytest.raises(ValueError, match="^tiny: the parameters cell holds lines") as error:
        declared_parameters(notebook(tmp_path, source))
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    "given",
    [
        {},
        {"rate": 1},
        {"items": 0},
        {"signals": []},
        {"seeds": [5]},
        {"name": "y", "fast": False},
        {"shift": -0.5},
        {"options": {"lr": 1.0}},
    ],
    ids=str,
)
def test_accepts_values(given):
    check_values("n", given, DECLARED)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"signal": ["pre"]}, "no parameter 'signal' .*did you mean 'signals'.*it has signals, se"),
        ({"xyz": 1}, "no parameter 'xyz'; it has signals, seeds"),
        ({"rate": yaml.safe_load("1e-4")}, r"rate = '1e-4' must be of type float.*write 1.0e-4\)"),
        ({"rate": True}, "must be of type float, not bool"),
        ({"rate": float("nan")}, "rate = nan must be finite"),
        ({"rate": float("inf")}, "rate = inf must be finite"),
        ({"items": -3}, "items = -3 must be finite and not negative"),
        ({"items": True}, "must be of type int, not bool"),
        ({"items": 5.0}, "must be of type int, not float"),
        ({"fast": 1}, "must be of type bool, not int"),
        ({"name": None}, "must be of type str, not NoneType"),
        ({"signals": "pre"}, r"must be a list, such as \['pre'\]"),
        ({"signals": ["pre", 1]}, "holds an element that must be of type str, not int"),
        ({"signals": ["pre", "rpe", "pre"]}, "names something twice"),
        ({"seeds": ["0"]}, "holds an element that must be of type int, not str"),
        ({"seeds": []}, "seeds must name at least one"),
    ],
    ids=str,
)
def test_refuses_values(given, message):
    with pytest.raises(ValueError, match=message):
        check_values("n", given, DECLARED)


@pytest.fixture
def namespace():
    """A notebook's globals() after its parameters cell, in a fresh kernel."""
    declared = declared_parameters(paths.NOTEBOOKS / f"{NOTEBOOK}.ipynb")
    return {"json": json, "In": ["x"], "Out": {}, "_": 1, "RESAMPLES": 2000, **declared}


def test_own_values(namespace, capsys):
    parameters = check_parameters(NOTEBOOK, namespace)
    assert parameters.own and parameters["repeats"] == namespace["repeats"]
    assert set(parameters) == set(declared_parameters(paths.NOTEBOOKS / f"{NOTEBOOK}.ipynb"))
    assert capsys.readouterr().out == ""


def test_changed_values_are_named(namespace, shown):
    parameters = check_parameters(NOTEBOOK, namespace | {"repeats": 3})
    assert not parameters.own and parameters["repeats"] == 3
    assert len(shown) == 1 and "`repeats = 3`" in shown[0] and "positions" not in shown[0]


@pytest.mark.parametrize("injected", [{"repaets": 3}, {"repeats": "3"}, {"other": [1]}])
def test_what_papermill_would_accept_is_refused(namespace, injected):
    with pytest.raises(ValueError, match=next(iter(injected))):
        check_parameters(NOTEBOOK, namespace | injected)


def test_names_of_a_notebook_that_has_run_are_its_own(namespace, shown):
    """The cell run again by hand: only what looks like a misspelling is shown."""
    later = namespace | {"parameters": Parameters(), "error": 0.5, "repaets": 3}
    assert check_parameters(NOTEBOOK, later).own
    assert len(shown) == 1 and "`repaets` is no parameter" in shown[0]


def test_cell_that_has_not_run(namespace):
    del namespace["repeats"]
    with pytest.raises(ValueError, match="repeats is not set: run the parameters cell first"):
        check_parameters(NOTEBOOK, namespace)


@pytest.fixture
def shown(monkeypatch):
    """What is displayed as Markdown."""
    texts = []
    monkeypatch.setattr("IPython.display.display", lambda markdown: texts.append(markdown.data))
    return texts
