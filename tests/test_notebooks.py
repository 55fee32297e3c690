"""Notebooks: what is stored of each is clean and built like an article, every number of its prose
is claimed or the paper's, and the demonstration runs cell by cell at smoke size.
"""

import json
import os
import subprocess
import sys

import nbformat
import papermill
import pytest
from prose import claimed_numbers, numbers_in, unclaimed_numbers

from lib.study import paths
from lib.study.parameters import declared_parameters
from lib.study.run import profile_values

FILES = sorted(paths.NOTEBOOKS.glob("*.ipynb"))
DEMO = ("00", "10", "11", "20", "21")
README_MARK = "<!-- claimed -->"  # ends a line of README whose numbers stand in notebooks' claims

every_notebook = pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)


def tagged(notebook, tag: str) -> list[int]:
    """Places of the cells with a tag."""
    tags = [cell.metadata.get("tags", []) for cell in notebook.cells]
    return [place for place, own in enumerate(tags) if tag in own]


@every_notebook
def test_built_like_an_article(file):
    """Question and answer with a figure, ten parameters or fewer, limits, and claims at the end."""
    notebook = nbformat.read(file, as_version=4)
    nbformat.validate(notebook)
    first = notebook.cells[0].source
    texts = [cell.source for cell in notebook.cells if cell.cell_type == "markdown"]
    assert first.startswith(f"# {file.stem[:2]} · ")
    assert "**Question" in first and "**Answer" in first
    assert any("Limits" in text for text in texts)
    assert len(tagged(notebook, "parameters")) == 1 and len(declared_parameters(file)) <= 10
    assert tagged(notebook, "claims") == [len(notebook.cells) - 1]


@every_notebook
def test_stored_outputs_are_clean(file):
    """There are some; none is an error, a warning, a path of a machine, or from papermill; and what
    a reader sees comes from one run.
    """
    notebook = nbformat.read(file, as_version=4)
    cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
    outputs = [output for cell in cells for output in cell.outputs]
    assert outputs, "a reader on the web sees nothing"
    assert not [o for o in outputs if o.output_type == "error" or o.get("name") == "stderr"]
    assert str(paths.ROOT) not in file.read_text() and "papermill" not in notebook.metadata
    assert [cell.execution_count for cell in cells] == list(range(1, len(cells) + 1))
    assert not json.dumps(notebook.metadata.get("widgets", "")).count("state")


@every_notebook
def test_numbers_in_prose_are_claimed(file):
    """Or the paper's (`paper:`), or defined in the code; see tests/prose.py."""
    assert unclaimed_numbers(file) == []


def test_numbers_in_readme_are_claimed():
    claimed = set().union(*map(claimed_numbers, FILES))
    lines = (paths.ROOT / "README.md").read_text().splitlines()
    marked = [line for line in lines if line.endswith(README_MARK)]
    assert [number for line in marked for number in numbers_in(line) if number not in claimed] == []


# ---- running -------------------------------------------------------------------------------------


def nbval(file, folder, parameters: dict):
    """Run a notebook with other parameters cell by cell, as pytest does."""
    prepared = folder / file.name
    options = {"prepare_only": True, "progress_bar": False}
    papermill.execute_notebook(file, prepared, parameters, **options)
    options = ["--nbval-lax", "--nbval-current-env", "--nbval-cell-timeout=600"]
    command = [sys.executable, "-m", "pytest", *options, "-p", "no:cacheprovider", str(prepared)]
    environment = {**os.environ, "STUDY_PROGRESS": "", "PYTHONPATH": str(paths.ROOT)}
    return subprocess.run(command, capture_output=True, text=True, env=environment, check=False)


@pytest.mark.parametrize("name", [file.stem for file in FILES if file.stem[:2] in DEMO])
def test_demo_runs(name, tmp_path):
    """At smoke size, on real text and a real model."""
    (file,) = (file for file in FILES if file.stem == name)
    finished = nbval(file, tmp_path, profile_values("smoke").get(name) or {})
    assert finished.returncode == 0, finished.stdout[-3000:] + finished.stderr[-1000:]


def test_stored_results_suffice(tmp_path):
    """`make figures` on copies, with an empty cache: no notebook computes anything, its claims
    hold, and its outputs are of the same kinds as those stored.
    """
    copies = [tmp_path / file.name for file in FILES]
    for file, copy in zip(FILES, copies):
        copy.write_bytes(file.read_bytes())
    command = [sys.executable, "-m", "lib.study", *map(str, copies), "--skip-live"]
    environment = {**os.environ, "STUDY_CACHE": str(tmp_path), "PYTHONPATH": str(paths.ROOT)}
    finished = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    assert finished.returncode == 0, finished.stderr
    for file, copy in zip(FILES, copies):
        pairs = zip(*(nbformat.read(one, as_version=4).cells for one in (file, copy)))
        kinds = [[[list(o.get("data", o)) for o in c.get("outputs", [])] for c in p] for p in pairs]
        assert not [(before, after) for before, after in kinds if before != after], file.name
    assert not list(tmp_path.glob("results/**/*.parquet")), "something was computed"
