"""The notebooks run: all that compute in the smoke profile on real text and a real model, 20 and 90 cell by cell under nbval."""

import os
import subprocess
import sys

import nbformat
import papermill
import pytest

from old import paths, study
from old.parameters import declared_parameters

NAMES = sorted(file.stem for file in paths.NOTEBOOKS.glob("*.ipynb"))


@pytest.mark.parametrize("name", NAMES)
def test_stored_notebook_is_clean(name):
    """Stored outputs hold no error, no stderr, no machine path; there is one cell tagged `parameters` with at most ten values."""
    notebook = nbformat.read(paths.NOTEBOOKS / f"{name}.ipynb", as_version=4)
    outputs = [output for cell in notebook.cells if cell.cell_type == "code" for output in cell.outputs]
    assert outputs, "no stored outputs: a reader on the web sees nothing"
    assert not [o for o in outputs if o.output_type == "error" or o.get("name") == "stderr"]
    assert str(paths.ROOT) not in nbformat.writes(notebook)
    assert "papermill" not in notebook.metadata
    assert sum("parameters" in cell.metadata.get("tags", []) for cell in notebook.cells) == 1
    assert len(declared_parameters(paths.NOTEBOOKS / f"{name}.ipynb")) <= 10


def test_smoke_profile_runs():
    """Everything that computes, end to end at smoke size; what an earlier run stored is read."""
    own_data = [name for name in study.PLANS if declared_parameters(paths.NOTEBOOKS / f"{name}.ipynb")["profile"] in ("cpu", "extras")]
    names = dict.fromkeys(("11_train_sigmoid_head", *own_data, "17_answer_or_abstain", "00_overview"))
    assert study.main([*(str(paths.NOTEBOOKS / f"{name}.ipynb") for name in names), "--profile", "smoke"]) == 0


@pytest.mark.parametrize("name", ["20_length_signals", "90_figures"])
def test_nbval(name, tmp_path):
    """Every cell runs, and cells marked NBVAL_CHECK_OUTPUT print what is stored. 90 draws the smoke results of the test before."""
    notebook = paths.NOTEBOOKS / f"{name}.ipynb"
    prepared = tmp_path / notebook.name
    parameters = {"profile": "smoke"} if name == "90_figures" else {}
    papermill.execute_notebook(notebook, prepared, parameters, prepare_only=True, progress_bar=False)
    command = [sys.executable, "-m", "pytest", "--nbval-lax", "--nbval-current-env", "-p", "no:cacheprovider", str(prepared)]
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "STUDY_PROGRESS": ""}, check=False)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-1000:]
