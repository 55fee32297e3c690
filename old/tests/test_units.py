"""Units: computed once, read ever after, recomputed when - and only when - what their numbers depend on has changed."""

import os
import shutil
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

from old import paths, storage, units
from old.results import make_table
from old.units import Unit

UNIT = Unit("length", "docstrings", "tiny-bart", "pre", "unseen", 0, {"items": 3, "rate": 1e-3}, data="abc", recipe=1)
FILES = [f"length.docstrings.tiny-bart.unseen.{ending}" for ending in ("csv", "items.parquet", "json")]
STEPS = 12  # of packing three new units, one of which replaces another, with one that stays
THREE = [UNIT, replace(UNIT, seed=1), replace(UNIT, method="rpe")]


def compute(unit: Unit) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Rows and items that tell the unit and the process they come from. At module level: other processes import it."""
    paths.RESULTS = Path(os.environ["TEST_RESULTS"])  # in a process of its own the fixture's patch is not there
    if unit.method == "raises":
        raise RuntimeError("no luck")
    if unit.method == "waits":
        Path(os.environ["TEST_RESULTS"], str(os.getpid())).touch()
        time.sleep(600)
    identity = {"study": unit.study, "dataset": unit.dataset, "model": unit.model, "method": unit.method, "seed": unit.seed}
    value = float(unit.seed + 10 * (unit.method == "rpe"))
    rows = make_table([{**identity, "slice": "all", "metric": "mae", "value": value, "n": unit.parameters["items"]}])
    threads = float(torch.get_num_threads())
    return rows, pd.DataFrame({"id": [0, 1], "score": [value, threads], "process": os.getpid()})


@pytest.fixture
def counted():
    """`compute`, and a list of the units it was called with."""
    calls = []

    def counting(unit):
        calls.append(unit)
        return compute(unit)

    counting.calls = calls
    return counting


def test_name():
    assert UNIT.name == "length.docstrings.tiny-bart.pre.unseen.0"
    assert "/" not in replace(UNIT, model="facebook/bart-large").name


@pytest.mark.parametrize(
    "change",
    [{"parameters": {"items": 4, "rate": 1e-3}}, {"data": "abd"}, {"recipe": 2}, {"seed": 1}, {"method": "rpe"}, {"part": "faults"}],
    ids=str,
)
def test_key_depends_on_everything(change):
    assert replace(UNIT, **change).key != UNIT.key


def test_key_ignores_the_order_of_parameters():
    assert replace(UNIT, parameters={"rate": 1e-3, "items": 3}).key == UNIT.key


def test_states(results):
    """missing -> done; data or recipe moved on -> outdated; other profile -> missing."""
    assert units.state(UNIT, "cpu") == "missing"
    units.run([UNIT], compute, "cpu")
    assert units.state(UNIT, "cpu") == "done"
    assert units.state(UNIT, "mine") == "missing"
    assert units.state(replace(UNIT, data="abd"), "cpu") == units.state(replace(UNIT, recipe=2), "cpu") == "outdated"


def test_other_parameters_need_another_profile(results, monkeypatch):
    """They are no reason to overwrite stored rows: the error names the difference and the two ways out."""
    units.run([UNIT], compute, "cpu")
    other = replace(UNIT, parameters={"items": 4, "rate": 1e-3})
    with pytest.raises(ValueError, match=r"items: 3 -> 4\).*own profile name.*--force"):
        units.run([other], compute, "cpu")
    assert units.state(UNIT, "cpu") == "done"
    monkeypatch.setenv("STUDY_FORCE", "1")
    units.run([other], compute, "cpu")
    assert units.state(other, "cpu") == "done"


def test_computed_once(results, counted):
    """The second run reads; its tables equal the first's."""
    first = units.run(THREE, counted, "cpu")
    second = units.run(THREE, counted, "cpu")
    assert counted.calls == THREE
    pd.testing.assert_frame_equal(first[0], second[0])
    pd.testing.assert_frame_equal(first[1], second[1])
    assert first[0]["value"].tolist() == [0, 1, 10]
    assert first[1][["method", "seed"]].drop_duplicates().to_numpy().tolist() == [["pre", 0], ["pre", 1], ["rpe", 0]]


def test_stored_study_is_read_whole(results, monkeypatch):
    """read_stored: every finished unit of the study, whoever computed it, with the fields that name it."""
    with pytest.raises(FileNotFoundError, match="'cpu' holds no results of study 'length'.*PROFILE=cpu"):
        units.read_stored("length", "cpu")
    for unit in [*THREE, replace(UNIT, part="faults", dataset="other"), replace(UNIT, study="costs")]:
        units.run([unit], compute, "cpu")
    monkeypatch.setattr(storage, "pack", lambda profile: None)  # not yet with its part: read as well
    units.run([replace(UNIT, seed=2)], compute, "cpu")
    rows, items = units.read_stored("length", "cpu")
    assert sorted(rows["value"]) == [0, 0, 1, 2, 10]
    names = items[["study", "dataset", "model", "method", "part", "seed"]].drop_duplicates().to_numpy().tolist()
    assert sorted(".".join(map(str, n)) for n in names) == sorted(
        u.name for u in [*THREE, replace(UNIT, seed=2), replace(UNIT, part="faults", dataset="other")]
    )


def test_only_what_is_missing_or_outdated_is_computed(results, counted):
    units.run(THREE[:1], counted, "cpu")
    units.run(THREE, counted, "cpu")
    assert counted.calls == THREE
    newer = [replace(u, recipe=2) for u in THREE]
    units.run([THREE[0], newer[1], THREE[2]], counted, "cpu")
    assert counted.calls[3:] == [newer[1]]


def test_force_computes_again(results, counted, monkeypatch):
    units.run([UNIT], counted, "cpu")
    monkeypatch.setenv("STUDY_FORCE", "1")
    units.run([UNIT], counted, "cpu")
    monkeypatch.setenv("STUDY_FORCE", "0")
    units.run([UNIT], counted, "cpu")
    assert len(counted.calls) == 2


@pytest.mark.parametrize("jobs", [1, 2])
def test_failure_leaves_the_unit_missing(results, jobs):
    """The error arrives; no record says done; what was finished before stays."""
    failing = replace(UNIT, method="raises")
    units.run([UNIT], compute, "cpu")
    with pytest.raises(RuntimeError, match="no luck"):
        units.run([UNIT, failing, replace(failing, seed=1)], compute, "cpu", jobs=jobs)
    assert units.state(failing, "cpu") == "missing" and units.state(UNIT, "cpu") == "done"
    assert list(storage.index("cpu")) == [UNIT.name]


def test_kill_while_storing_leaves_the_unit_undone(results, monkeypatch):
    """The record is written last: rows without it do not count. What was stored before stays, whole."""
    monkeypatch.setattr(storage, "write_json", killed)
    with pytest.raises(KeyboardInterrupt):
        units.run([UNIT], compute, "cpu")
    assert units.state(UNIT, "cpu") == "missing" and list(results.rglob("*.csv"))


def killed(*_):
    raise KeyboardInterrupt


@pytest.mark.parametrize("moment", range(STEPS + 1))
def test_kill_while_packing_loses_nothing(results, monkeypatch, moment):
    """Whichever step of `pack` is the last, every unit is read as it was computed; and the next run packs."""
    kept = replace(UNIT, method="rpe-random")
    units.run([UNIT, kept], compute, "cpu")
    newer = [replace(UNIT, recipe=2), *THREE[1:], kept]
    with monkeypatch.context() as patch:
        patch.setattr(storage, "pack", lambda profile: None)
        expected = units.run(newer, compute, "cpu")
    steps = iter(range(100))

    def counted(step):
        def call(*arguments, **options):
            if next(steps) == moment:
                raise KeyboardInterrupt
            return step(*arguments, **options)

        return call

    with monkeypatch.context() as patch:
        patch.setattr(storage, "write_atomically", counted(storage.write_atomically))
        patch.setattr(storage, "write_table", counted(storage.write_table))
        patch.setattr(storage, "write_json", counted(storage.write_json))
        patch.setattr(Path, "unlink", counted(Path.unlink))
        if moment < STEPS:
            with pytest.raises(KeyboardInterrupt):
                storage.pack("cpu")
        else:
            storage.pack("cpu")
            assert next(steps) == STEPS
    assert not units.pending(newer, "cpu")
    for found, wanted in zip(units.read(newer, "cpu"), expected):
        pd.testing.assert_frame_equal(found, wanted)
    storage.pack("cpu")
    assert sorted(f.name for f in (results / "cpu").iterdir()) == FILES
    for found, wanted in zip(units.read(newer, "cpu"), expected):
        pd.testing.assert_frame_equal(found, wanted)


def test_workers_end_with_a_killed_run(results):
    """SIGKILL of the run: its workers do not go on in the background, and no unit counts as done."""
    results.mkdir()
    code = """
from dataclasses import replace
from test_units import UNIT, compute, units
units.run([replace(UNIT, method="waits", seed=s) for s in (0, 1)], compute, "cpu", jobs=2)
"""
    run = subprocess.Popen([sys.executable, "-c", code], cwd=Path(__file__).parent, stderr=subprocess.DEVNULL)
    wait_until(lambda: len(list(results.iterdir())) == 2)
    workers = [int(file.name) for file in results.iterdir()]
    run.kill()
    run.wait()
    wait_until(lambda: not any(is_running(process) for process in workers))
    assert not list(results.rglob("*.json"))


def wait_until(condition, seconds: float = 300) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.1)


def is_running(process: int) -> bool:
    """Whether a process exists and is not merely waiting to be collected."""
    try:
        return "Z" not in subprocess.run(["ps", "-o", "stat=", "-p", str(process)], capture_output=True, text=True, check=True).stdout
    except subprocess.CalledProcessError:
        return False


def test_jobs_change_nothing(results, monkeypatch):
    """Two processes at once give the tables of one, each unit in one thread outside this process."""
    for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS"):
        monkeypatch.setenv(name, "2")  # what a process of its own would use by default
    (rows, items), (rows2, items2) = units.run(THREE, compute, "one"), units.run(THREE, compute, "two", jobs=2)
    pd.testing.assert_frame_equal(rows, rows2)
    pd.testing.assert_frame_equal(items.drop(columns="process"), items2.drop(columns="process"))
    assert set(items["process"]) == {os.getpid()} and os.getpid() not in set(items2["process"])
    assert set(items.loc[items["id"] == 1, "score"]) == {1.0}


def test_threads_are_restored(results):
    torch.set_num_threads(2)
    try:
        _, items = units.run([UNIT], compute, "cpu")
        assert items["score"].tolist() == [0.0, 1.0] and torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(1)


def test_record(results):
    """What a stored unit says about itself: key, parameters and where it came from; nothing half-written lies about."""
    units.run([UNIT], compute, "cpu")
    record = storage.index("cpu")[UNIT.name].record
    assert record["key"] == UNIT.key and record["parameters"] == UNIT.parameters
    assert record["seconds"] >= 0 and set(record["versions"]) >= {"torch", "transformers"}
    assert sorted(f.name for f in (results / "cpu").iterdir()) == FILES


def test_identity_starts_a_row():
    """The columns of the result table that name a unit; `part` is none of them."""
    table = make_table([{**UNIT.identity, "slice": "all", "metric": "mae", "value": 1.0, "n": 1}])
    assert table.iloc[0][list(UNIT.identity)].tolist() == ["length", "docstrings", "tiny-bart", "pre", "0"]


def test_units_of_a_part_keep_their_own_columns(results):
    """Columns, whole numbers beyond float precision, undefined numbers and missing texts come back unit by unit."""
    first = pd.DataFrame({"id": [70_001, 3], "slice": ["a", None], "score": [np.nan, 0.25]})
    second = pd.DataFrame({"id": [1, 2, 3], "slice": ["a", "a", "b"], "other": [0.5, 1.0, np.nan]})
    made = {0: first, 1: second, 2: first.assign(score=np.nan)}
    _, items = units.run([replace(UNIT, seed=s) for s in made], lambda unit: (compute(unit)[0], made[unit.seed]), "cpu")
    for seed, frame in made.items():
        _, found = units.read([replace(UNIT, seed=seed)], "cpu")
        found = found[found.columns.difference(UNIT.fields, sort=False)]
        pd.testing.assert_frame_equal(found, frame, check_dtype=False)
        assert found["id"].dtype.kind == "i"
    assert len(items) == 7 and items["other"].isna().sum() == 5


def test_machines_share_a_grid(results, counted):
    """The files of another machine, copied into `new`, count as done, and are joined with the part by the next run."""
    units.run(THREE[:1], compute, "cpu")
    units.run(THREE[1:], compute, "other-machine")
    shutil.copytree(results / "other-machine", results / "cpu" / "new")
    rows, _ = units.run(THREE, counted, "cpu")
    assert not counted.calls and rows["value"].tolist() == [0, 1, 10]
    assert sorted(f.name for f in (results / "cpu").iterdir()) == FILES and len(storage.index("cpu")) == 3


def test_parts_of_other_versions_are_refused(results):
    """Rows fewer than the record counts: files of two versions."""
    units.run(THREE, compute, "cpu")
    (table,) = results.rglob("*.csv")
    table.write_text("".join(table.read_text().splitlines(keepends=True)[:-1]))
    with pytest.raises(ValueError, match="shorter than its .json says"):
        units.read(THREE, "cpu")
