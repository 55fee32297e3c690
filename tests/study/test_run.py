"""Running notebooks: parameters are checked before any work, every mistake is one line, no failed
run looks done. Each command is a process of its own, with a cache folder of its own.
"""

import json
import os
import re
import signal
import subprocess
import sys
import time

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output

from lib.study import paths
from lib.study.run import PROFILES, Run, clean, profile_values, requested

SOURCE = "items: int = 5  # of them\nsignals: list = ['pre']\nrate: float = 1.5e-3"


@pytest.fixture
def study(tmp_path):
    """Run the command, in `tmp_path`: (status, stdout, stderr)."""

    def run(*arguments):
        options = {"env": environment(tmp_path), "cwd": tmp_path, "text": True}
        finished = subprocess.run(command(*arguments), capture_output=True, check=False, **options)
        return finished.returncode, finished.stdout, finished.stderr

    return run


def command(*arguments) -> list[str]:
    return [sys.executable, "-m", "lib.study", *map(str, arguments)]


def environment(folder) -> dict:
    own = {"STUDY_CACHE": str(folder / "cache"), "PYTHONPATH": str(paths.ROOT)}
    return {**os.environ, **own, "STUDY_PROGRESS": ""}


def notebook(folder, name: str, *cells, source: str = SOURCE):
    """A notebook of these cells behind a parameters cell."""
    parameters = new_code_cell(source, metadata={"tags": ["parameters"]})
    others = [cell if isinstance(cell, dict) else new_code_cell(cell) for cell in cells]
    kernel = {"name": "python3", "display_name": "Python 3", "language": "python"}
    everything = [new_markdown_cell("# Tiny"), parameters, *others]
    path = folder / f"{name}.ipynb"
    nbformat.write(new_notebook(cells=everything, metadata={"kernelspec": kernel}), path)
    return path


def printed(path) -> list[str]:
    """Texts of a notebook's outputs."""
    stored = nbformat.read(path, as_version=4)
    nbformat.validate(stored)
    cells = [cell for cell in stored.cells if cell.cell_type == "code"]
    return [output.get("text", "") for cell in cells for output in cell.outputs]


# ---- before any work -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["tiny.ipynb", "-p", "itmes", "3"], "no parameter 'itmes' (did you mean 'items'?)"),
        (["tiny.ipynb", "-p", "rate", "1e-4"], "write 1.0e-4"),
        (["tiny.ipynb", "-p", "rate", ".nan"], "rate = nan"),
        (["tiny.ipynb", "-p", "signals", "[pre"], "expected ',' or ']'"),
        (["tiny.ipynb", "--profile", "smoek"], "no profile 'smoek' (did you mean 'smoke'?)"),
        (["tiny.ipynb", "--profile", "../../x"], "no profile '../../x'"),
        (["tiny.ipynb", "--profile", "smoke"], "profile 'smoke' says nothing of tiny"),
        (["tyni.ipynb"], "no notebook tyni.ipynb: there are"),
        (["."], "no notebook .: there are"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_mistakes_end_in_one_line(study, tmp_path, arguments, message):
    notebook(tmp_path, "tiny", "open('ran', 'w')")
    status, out, err = study(*arguments)
    assert status == 1 and out == ""
    assert err.startswith("error: ") and err.count("\n") == 1 and message in err
    assert not (tmp_path / "cache").exists()


@pytest.mark.parametrize("arguments", [["--help"], ["tiny.ipynb", "-p", "itmes", "3"]], ids=str)
def test_answers_before_anything_heavy_is_imported(arguments, tmp_path):
    notebook(tmp_path, "tiny")
    program = f"import sys, lib.study.run as run\ntry:\n    run.main({arguments})\n"
    program += "except SystemExit:\n    pass\nprint(*sys.modules)"
    finished = subprocess.run(
        [sys.executable, "-c", program],
        env=environment(tmp_path),
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
    )
    modules = set(finished.stdout.splitlines()[-1].split())
    assert "lib.study.run" in modules
    assert not modules & {"torch", "transformers", "pandas", "numpy", "nbformat", "papermill"}


def test_plan_runs_nothing(study, tmp_path):
    before = notebook(tmp_path, "tiny", "open('ran', 'w')").read_text()
    status, out, _ = study("tiny.ipynb", "--plan", "-p", "items", "7")
    assert status == 0 and out == "tiny.ipynb: {'items': 7}\n"
    assert (tmp_path / "tiny.ipynb").read_text() == before and not (tmp_path / "cache").exists()


def test_values_of_a_run(tmp_path):
    """What a notebook declares reaches it, nothing else does; own values are a run of its own."""
    one = notebook(tmp_path, "one")
    two = notebook(tmp_path, "two", source="signals: list = ['pre']")
    changed = Run(one, {"items": 3}, "changed")
    assert requested([one, two], None, {"items": 3}) == [changed, Run(two, {}, None)]
    assert requested([one], None, {"items": 5}) == [Run(one, {}, None)]
    with pytest.raises(ValueError, match="one or two has no parameter 'seeds'"):
        requested([one, two], None, {"seeds": [1]})


@pytest.mark.parametrize("profile", ["smoke", "gpu"])
def test_profiles_fit_the_notebooks(profile):
    """Every notebook that a profile names exists, and takes its values."""
    for name in profile_values(profile):
        (run,) = requested([paths.NOTEBOOKS / f"{name}.ipynb"], profile, {})
        assert run.folder == profile
    section = PROFILES.read_text().partition(f"\n{profile}:\n")[2]
    section = re.split(r"^\w", section, maxsplit=1, flags=re.MULTILINE)[0]
    names = re.findall(r"^  (\w+):", section, re.MULTILINE)
    assert len(names) == len(set(names)) > 0, "YAML keeps only the last of two"


# ---- outputs -------------------------------------------------------------------------------------


def test_clean():
    """No papermill metadata, timings, stderr or machine paths; everything else stays."""
    at_root = f"read {paths.ROOT}/data/a.csv"
    shown = {"text/plain": at_root, "text/html": f"<b>{at_root}</b>", "image/png": "iVBOR"}
    outputs = [
        new_output("stream", name="stderr", text="warning"),
        new_output("stream", name="stdout", text=at_root),
        new_output("execute_result", shown, execution_count=7),
    ]
    metadata = {"papermill": {"duration": 1}, "execution": {"busy": "2026"}, "tags": ["x"]}
    cell = new_code_cell("1 + 1", outputs=outputs, metadata=metadata, execution_count=7)
    text = new_markdown_cell("text", metadata={"papermill": {}, "tags": []})
    whole = {"papermill": {"duration": 3}, "language_info": {"name": "python", "version": "3.1"}}
    document = json.loads(nbformat.writes(new_notebook(cells=[text, cell], metadata=whole)))
    clean(document)
    nbformat.validate(nbformat.from_dict(document))
    written = json.dumps(document)
    gone = ("papermill", "duration", "busy", "stderr", "3.1", str(paths.ROOT))
    assert not [word for word in gone if word in written]
    stream, result = document["cells"][1]["outputs"]
    assert "".join(stream["text"]) == "read data/a.csv" == "".join(result["data"]["text/plain"])
    assert result["execution_count"] == document["cells"][1]["execution_count"] == 1
    assert document["cells"][1]["metadata"] == {"tags": ["x"]}


def test_where_outputs_go(study, tmp_path):
    """Own values are written back, others lie in the cache folder; two notebooks at once."""
    live = new_code_cell("print(1 / 0)", metadata={"tags": ["live"]})
    live["outputs"] = [new_output("stream", name="stdout", text="stored")]
    one = notebook(tmp_path, "one", "print('items', items)", live)
    two = notebook(tmp_path, "two", "print(signals)", source="signals: list = ['pre']")
    status, out, err = study(one, two, "-p", "items", "7", "--skip-live")
    assert (status, err) == (0, "") and out.count("done: ") == 2
    assert printed(one) == ["stored"] and printed(two) == ["['pre']\n"]
    finished = tmp_path / "cache" / "runs" / "changed" / "one.ipynb"
    assert printed(finished) == ["items 7\n", "stored"]
    assert "papermill" not in two.read_text() and "execution" not in two.read_text().replace(
        "execution_count", ""
    )
    left = [file.name for file in tmp_path.rglob("*") if file.is_file()]
    assert sorted(left) == ["one.ipynb", "one.ipynb", "two.ipynb"]


def test_a_failed_run_leaves_nothing_that_looks_done(study, tmp_path):
    """One line names the error, the others go on, and an earlier result is gone."""
    bad = notebook(tmp_path, "bad", "raise KeyError('lost\\nhere')")
    good = notebook(tmp_path, "good", "print('fine')")
    before, runs = bad.read_text(), tmp_path / "cache" / "runs"
    (runs / "changed").mkdir(parents=True)
    (runs / "changed" / "bad.ipynb").write_text("of an earlier run")
    status, out, err = study(bad, good, "-p", "items", "7")
    assert status == 1 and "good.ipynb" in out
    assert err.startswith("error: bad.ipynb: KeyError: 'lost") and err.count("\n") == 1
    assert bad.read_text() == before
    whole = [file.name for file in runs.rglob("*.ipynb") if ".partial" not in file.name]
    assert whole == ["good.ipynb"]


def test_a_killed_run_leaves_nothing_that_looks_done(tmp_path):
    """SIGTERM ends the notebook's process, too."""
    started = tmp_path / "started"
    slow = notebook(tmp_path, "slow", f"open({str(started)!r}, 'w')\nimport time\ntime.sleep(120)")
    before = slow.read_text()
    process = subprocess.Popen(command(slow), env=environment(tmp_path), cwd=tmp_path)
    try:
        while not started.exists() and process.poll() is None:
            time.sleep(0.1)
    finally:
        process.send_signal(signal.SIGTERM)
    assert process.wait(timeout=60) == 128 + signal.SIGTERM
    assert slow.read_text() == before
    assert not list((tmp_path / "cache" / "runs").rglob("slow.ipynb"))
