"""Running notebooks: parameters are checked before any work, every mistake is one line, no failed run looks done."""

import nbformat
import pandas as pd
import pytest
import yaml
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output

from old import parameters, paths, storage, study
from old.results import make_table
from old.units import FORCE, Unit

DECLARED = {"signals": ["pre"], "seeds": [0, 1], "rate": 1e-3, "items": 5, "name": "x", "fast": True, "profile": "cpu"}
SOURCE = "# how much\nitems: int = 5  # of them\nsignals = ['pre']\nrate = -1.5e-3\nprofile = 'cpu'"


@pytest.fixture
def project(tmp_path, monkeypatch):
    """An empty project: notebooks, parameter files, runs and results in a temporary folder."""
    for name, folder in {"NOTEBOOKS": "notebooks", "PARAMETERS": "notebooks/params", "RUNS": "runs", "RESULTS": "results"}.items():
        (tmp_path / folder).mkdir(parents=True, exist_ok=True)
        monkeypatch.setattr(paths, name, tmp_path / folder)
    monkeypatch.setenv(FORCE, "0")
    return tmp_path


def notebook(name: str = "tiny", *cells: str, source: str | None = SOURCE):
    """A notebook of these code cells behind a parameters cell."""
    first = [] if source is None else [new_code_cell(source, metadata={"tags": ["parameters"]})]
    path = paths.NOTEBOOKS / f"{name}.ipynb"
    kernel = {"kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"}}
    nbformat.write(new_notebook(cells=[new_markdown_cell("# Tiny"), *first, *map(new_code_cell, cells)], metadata=kernel), path)
    return path


def fails(capsys, *arguments) -> str:
    """The one line on stderr that a failing command ends in."""
    assert study.main([str(a) for a in arguments]) == 1
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 1 and lines[0].startswith("error: ")
    return lines[0]


# ---- parameters ----------------------------------------------------------------------------------------------------------------------


def test_declared_parameters(project):
    assert parameters.declared_parameters(notebook()) == {"items": 5, "signals": ["pre"], "rate": -1.5e-3, "profile": "cpu"}
    with pytest.raises(ValueError, match="no cell tagged 'parameters'"):
        parameters.declared_parameters(notebook(source=None))


@pytest.mark.parametrize(
    "given", [{}, {"rate": 1.0e-4}, {"rate": 1}, {"items": 0}, {"signals": []}, {"seeds": [5]}, {"name": "y", "fast": False}], ids=str
)
def test_accepts_values(given):
    parameters.check_values("n", given, DECLARED)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"signal": ["pre"]}, "no parameter 'signal' .*did you mean 'signals'.*it has signals, seeds"),
        ({"xyz": 1}, "no parameter 'xyz'; it has signals, seeds"),
        ({"rate": yaml.safe_load("1e-4")}, r"rate = '1e-4' must be of type float, not str \(YAML reads 1e-4 as text: write 1.0e-4\)"),
        ({"rate": True}, "must be of type float, not bool"),
        ({"items": True}, "must be of type int, not bool"),
        ({"items": 5.0}, "must be of type int, not float"),
        ({"fast": 1}, "must be of type bool, not int"),
        ({"name": None}, "must be of type str, not NoneType"),
        ({"signals": "pre"}, r"must be a list, such as \['pre'\]"),
        ({"signals": ["pre", 1]}, "holds an element that must be of type str, not int"),
        ({"seeds": ["0"]}, "holds an element that must be of type int, not str"),
    ],
    ids=str,
)
def test_refuses_values(given, message):
    with pytest.raises(ValueError, match=message):
        parameters.check_values("n", given, DECLARED)


def test_profile_then_overrides(project):
    """The profile's file beats the notebook, -p beats both; `cpu` is the notebook itself; a profile without a file is a name."""
    path = notebook()
    (paths.PARAMETERS / "tiny.smoke.yaml").write_text("items: 2\nrate: 0.5\n")
    assert study.chosen_parameters(path, "smoke", {"rate": 0.25}) == {"items": 2, "rate": 0.25, "profile": "smoke"}
    assert study.chosen_parameters(path, "cpu", {"items": 3}) == {"items": 3}
    assert study.chosen_parameters(path, "mine", {}) == {"profile": "mine"}


@pytest.mark.parametrize("injected", ["# Parameters\nitmes = 3", "# Parameters\nitems = 'three'"])
def test_papermill_parameters_are_checked_in_the_notebook(project, injected):
    """papermill itself only warns of a misspelt name: the notebook's first cell refuses it, and returns the values otherwise."""
    notebook()
    values = {"items": 3, "signals": ["rpe"], "rate": 0.1, "profile": "cpu", "other": 1}
    checked = parameters.check_parameters("tiny", values | {"In": ["", SOURCE, "# Parameters\nitems = 3\n"]})
    assert checked == {"items": 3, "signals": ["rpe"], "rate": 0.1, "profile": "cpu"}
    with pytest.raises(ValueError, match="items"):
        parameters.check_parameters("tiny", values | {"In": ["", SOURCE, injected]})


RUNS = [(file.name.split(".")[0], file.name.split(".")[1]) for file in sorted(paths.PARAMETERS.glob("*.yaml"))]
RUNS += [(path.stem, profile) for path in sorted(paths.NOTEBOOKS.glob("*.ipynb")) for profile in ("cpu", "smoke", "my-own")]


@pytest.mark.parametrize(("name", "profile"), dict.fromkeys(RUNS))
def test_real_notebooks_can_be_planned(name, profile):
    """Every notebook under every profile: parameter files name declared parameters with values of the right type, and units follow."""
    path = paths.NOTEBOOKS / f"{name}.ipynb"
    if not path.exists():
        pytest.skip(f"{path.name} does not exist yet")
    declared, given = parameters.declared_parameters(path), study.chosen_parameters(path, profile, {})
    assert {**declared, **given}.get("profile", profile) == profile
    if name in study.PLANS:
        assert study.PLANS[name]({**declared, **given})


# ---- what a stored notebook holds ----------------------------------------------------------------------------------------------------


def test_clean():
    """No papermill metadata, timings, stderr or machine paths; everything else stays."""
    at_root = f"read {paths.ROOT}/data/a.csv"
    outputs = [
        new_output("stream", name="stderr", text="warning"),
        new_output("stream", name="stdout", text=at_root),
        new_output("execute_result", {"text/plain": at_root, "text/html": f"<b>{at_root}</b>", "image/png": "iVBOR"}),
    ]
    cell = new_code_cell(
        "1 + 1", outputs=outputs, metadata={"papermill": {"duration": 1}, "execution": {"iopub.status.busy": "2026"}, "tags": ["x"]}
    )
    metadata = {"papermill": {"duration": 3}, "language_info": {"name": "python", "version": "3.11.1"}}
    cleaned = study.clean(new_notebook(cells=[new_markdown_cell("text", metadata={"papermill": {}}), cell], metadata=metadata))
    nbformat.validate(cleaned)
    text = nbformat.writes(cleaned)
    assert not any(word in text for word in ("papermill", "duration", "busy", "stderr", "3.11.1", str(paths.ROOT)))
    _, result = cleaned.cells[1].outputs
    assert cleaned.cells[1].outputs[0].text == result.data["text/plain"] == "read data/a.csv"
    assert result.data["image/png"] == "iVBOR" and cleaned.cells[1].metadata == {"tags": ["x"]}


# ---- the command line ----------------------------------------------------------------------------------------------------------------


def test_mistakes_end_in_one_line(project, capsys):
    path = notebook("tiny", "open('ran', 'w')")
    assert "no parameter 'itmes' (did you mean 'items'?)" in fails(capsys, path, "-p", "itmes", "3")
    assert "write 1.0e-4" in fails(capsys, path, "-p", "rate", "1e-4")
    assert "there are tiny.ipynb" in fails(capsys, paths.NOTEBOOKS / "tyni.ipynb")
    (paths.PARAMETERS / "tiny.smoke.yaml").write_text("itmes: 2\n")
    assert "did you mean 'items'?" in fails(capsys, path, "--profile", "smoke")
    assert not list(project.rglob("ran")) and not any(paths.RUNS.iterdir())


def test_malformed_yaml_ends_in_one_line(project, capsys):
    fails(capsys, notebook(), "-p", "signals", "[pre")


def units(parameters: dict) -> list[Unit]:
    return [Unit("length", "docstrings", "m", s, "unseen", 0, {"items": parameters["items"]}, "d", 1) for s in parameters["signals"]]


def test_plan_shows_and_computes_nothing(project, capsys, monkeypatch):
    """Units, those to compute and, once units of the kind are on record, a time: median seconds times units over jobs."""
    path = notebook("tiny", "open('ran', 'w')")
    monkeypatch.setitem(study.PLANS, "tiny", units)
    monkeypatch.setattr(study, "default_jobs", lambda: 2)
    arguments = [str(path), "--plan", "-p", "signals", "[pre, rpe, none]"]
    assert study.main(arguments) == 0
    shown = capsys.readouterr().out
    assert "tiny.ipynb: 3 units, 3 to compute" in shown and "no estimate for unseen" in shown
    stored = Unit("length", "docstrings", "m", "other", "unseen", 0, {}, "", 0)
    rows = make_table([{**stored.fields, "slice": "all", "metric": "mae", "value": 0.0, "n": 1}])
    storage.write({"unit": stored.fields, "key": stored.key, "parameters": {}, "seconds": 240}, rows, pd.DataFrame({"id": [0]}), "cpu")
    assert study.main(arguments) == 0
    assert "about 6 min, 2 at once" in capsys.readouterr().out
    assert not list(project.rglob("ran"))


def test_overrides_go_to_the_notebooks_that_have_them(project, capsys, monkeypatch):
    """Several notebooks at once: an override reaches those that declare it, the others run as they are; nobody's is an error."""
    both = [notebook("one"), notebook("two", source="signals = ['pre']")]
    executed = []
    monkeypatch.setattr(study, "run", lambda path, profile, given: executed.append((path.stem, given)) or path)
    assert study.main([*map(str, both), "-p", "items", "3"]) == 0
    assert executed == [("one", {"items": 3}), ("two", {})]
    assert "one or two has no parameter 'seeds'" in fails(capsys, *both, "-p", "seeds", "[1]")


def test_profile_that_looks_misspelt(project, capsys):
    path = notebook("tiny")
    (paths.PARAMETERS / "other.benchmarks.yaml").write_text("items: 2\n")
    assert "looks like 'benchmarks'" in fails(capsys, path, "--plan", "--profile", "benchmark")
    assert study.main([str(path), "--plan", "--profile", "mine"]) == 0


# ---- execution -----------------------------------------------------------------------------------------------------------------------


def test_own_values_are_written_back(project, capsys):
    """A run with the notebook's own values stores its outputs in the notebook, and nothing beside it."""
    path = notebook("tiny", "print('items', items)")
    assert study.main([str(path)]) == 0
    stored = nbformat.read(path, as_version=4)
    nbformat.validate(stored)
    assert [o.text for c in stored.cells if c.cell_type == "code" for o in c.outputs] == ["items 5\n"]
    assert "papermill" not in path.read_text()
    assert [f for f in project.rglob("*") if f.is_file()] == [path]


def test_other_values_go_to_runs(project, capsys):
    """A run with other values leaves the notebook alone."""
    path = notebook("tiny", "print('items', items, profile)")
    before = path.read_text()
    assert study.main([str(path), "--profile", "mine", "-p", "items", "7"]) == 0
    assert path.read_text() == before
    assert "items 7 mine" in (paths.RUNS / "mine" / "tiny.ipynb").read_text()


def test_failed_run_leaves_nothing_that_looks_done(project, capsys):
    """The notebook raises: one line names the error; the stored notebook is as before and no finished output exists."""
    path = notebook("tiny", "raise KeyError('lost')")
    before = path.read_text()
    assert "KeyError: 'lost'" in fails(capsys, path)
    assert path.read_text() == before
    fails(capsys, path, "-p", "items", "7")
    assert not [f for f in paths.RUNS.rglob("*.ipynb") if not f.name.endswith(".partial.ipynb")]
