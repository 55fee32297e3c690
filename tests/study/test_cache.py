"""The cache: computed once, by a key that knows everything; nothing half-done ever looks whole."""

import json

import numpy as np
import pandas as pd
import pytest
import torch

from lib.study import paths
from lib.study.cache import cached, checkpoint_file, experiment, kept
from lib.study.rows import Keyed, RowStore, plain

CALLS: list[str] = []


@cached(version=1)
def states(size):
    CALLS.append("states")
    return {"x": torch.arange(size)}


@cached(version=1, built_on=[states])
def head(size, seed):
    CALLS.append("head")
    return {"weight": states(size)["x"] + seed}


@cached(version=1)
def elsewhere(size):
    return [size]


@experiment(version=1, built_on=[head])
def scores(size, seed, options=None):
    CALLS.append("scores")
    values = head(size, seed)["weight"].tolist()
    return pd.DataFrame({"item": range(size), "score": [float(v) for v in values]})


@experiment(version=1, data=lambda size: f"hash of {size}")
def sizes(size):
    return pd.DataFrame({"half": [size / 2]}).iloc[: 0 if size == 0 else 1]


@pytest.fixture(autouse=True)
def folders(tmp_path, monkeypatch):
    """Cache and results in a folder of the test's own."""
    monkeypatch.setattr(paths, "CACHE", tmp_path / "cache")
    monkeypatch.setattr(paths, "RESULTS", tmp_path / "results")
    monkeypatch.delenv("STUDY_KEEP", raising=False)
    CALLS.clear()
    return tmp_path


def store(function, arguments: dict, rows: pd.DataFrame) -> None:
    RowStore(paths.CACHE / "results", function).write(arguments, rows, 1.0, None)


def test_rows_are_computed_once_and_come_back_with_their_arguments_in_the_order_asked_for():
    rows = kept(scores, over={"seed": [1, 0]}, size=2, jobs=1)
    again = kept(scores, over={"seed": [1, 0]}, size=2, jobs=1)
    pd.testing.assert_frame_equal(rows, again)
    assert rows[["seed", "item", "score"]].to_numpy().tolist() == [
        [1, 0, 1], [1, 1, 2], [0, 0, 0], [0, 1, 1],
    ]  # fmt: skip
    assert sorted(CALLS) == ["head", "head", "scores", "scores", "states"]
    assert kept(scores, size=2, seed=0)["score"].tolist() == [0, 1]


def test_a_bumped_version_makes_all_dependents_outdated_and_nothing_else():
    everything = [states, head, scores, elsewhere, sizes]
    dependents = {"states": {"states", "head", "scores"}, "head": {"head", "scores"}}
    arguments = {"size": 2, "seed": 0, "options": None}

    def keys() -> dict[str, str]:
        own = {f.name: {n: arguments[n] for n in f.signature.parameters} for f in everything}
        return {f.name: f.key(own[f.name]) for f in everything}

    for function in everything:
        before = keys()
        function.version += 1
        changed = {name for name, key in keys().items() if key != before[name]}
        function.version -= 1
        assert changed == dependents.get(function.name, {function.name})
        assert keys() == before


def test_every_argument_and_the_data_are_in_the_key():
    base = scores.key(scores.bind(2, 0))
    assert base == scores.key(scores.bind(seed=0, size=2))  # however it is called
    others = [scores.bind(3, 0), scores.bind(2, 1), scores.bind(2, 0, {"lr": 1e-3})]
    assert len({base, *map(scores.key, others)}) == 4
    without = Keyed(sizes.function, 1, [], None)
    assert sizes.key({"size": 1}) != without.key({"size": 1})


def test_a_changed_source_under_the_same_version_is_an_error_that_offers_both_answers():
    kept(scores, size=2, seed=0)

    def changed(size, seed, options=None):
        return pd.DataFrame({"item": [0], "score": [7.0]})

    original = scores.function, scores.source
    scores.function, scores.source = changed, "another"
    try:
        with pytest.raises(ValueError, match="raise its version.*accept=True"):
            kept(scores, size=2, seed=0)
        assert len(kept(scores, size=2, seed=0, accept=True)) == 2  # the stored rows, still
        assert len(kept(scores, size=2, seed=0)) == 2  # accepted for good
        scores.version = 2
        assert kept(scores, size=2, seed=0)["score"].tolist() == [7.0]
    finally:
        (scores.function, scores.source), scores.version = original, 1


def test_a_function_must_say_what_it_is_built_on():
    @experiment(version=1)
    def careless(size):
        return pd.DataFrame({"n": elsewhere(size)})

    with pytest.raises(ValueError, match="add elsewhere to its built_on"):
        careless(size=1)


def test_options_become_columns_and_lists_one_value():
    rows = kept(scores, over={"options": [{"lr": 0.5, "k": [1, 2]}, {}]}, size=1, seed=0, jobs=1)
    assert rows["options.lr"].tolist()[0] == 0.5 and np.isnan(rows["options.lr"].tolist()[1])
    assert json.loads(rows["options.k"][0]) == [1, 2]


def test_undefined_values_stay_and_no_rows_count_as_done():
    store(sizes, {"size": 3}, pd.DataFrame({"half": [np.nan]}))
    assert kept(sizes, size=3)["half"].isna().tolist() == [True]
    assert kept(sizes, over={"size": [0, 4]})["half"].tolist() == [2.0]
    assert (
        len(json.loads((paths.CACHE / "results" / "sizes.json").read_text())["combinations"]) == 3
    )
    assert kept(sizes, size=0).empty


def test_results_are_read_from_both_folders_and_written_where_asked(monkeypatch):
    monkeypatch.setenv("STUDY_KEEP", "1")
    kept(sizes, size=1)
    monkeypatch.delenv("STUDY_KEEP")
    assert kept(sizes, over={"size": [1, 2]})["half"].tolist() == [0.5, 1.0]
    in_both = (paths.RESULTS / "sizes.json", paths.CACHE / "results" / "sizes.json")
    assert [len(json.loads(f.read_text())["combinations"]) for f in in_both] == [1, 1]


def test_a_kill_between_any_two_steps_of_joining_loses_nothing(folders):
    kept(sizes, size=1)
    folder = paths.CACHE / "results"
    before = {file: file.read_bytes() for file in folder.glob("sizes.*")}
    store(sizes, {"size": 2}, pd.DataFrame({"half": [1.0]}))
    new = {file: file.read_bytes() for file in folder.glob("new/*")}
    expected = kept(sizes, over={"size": [1, 2]})
    after = {file: file.read_bytes() for file in folder.glob("sizes.*")}
    table, index = sorted(after, key=lambda file: file.suffix, reverse=True)
    for stage in ({}, {table: after[table]}, after):  # nothing, the table, the index written
        for file, content in (before | new | stage).items():
            file.write_bytes(content)
        pd.testing.assert_frame_equal(kept(sizes, over={"size": [1, 2]}), expected)


def test_an_error_is_not_done():
    @experiment(version=1)
    def failing(size):
        if size == 2:
            raise RuntimeError("no")
        return pd.DataFrame({"n": [size]})

    with pytest.raises(RuntimeError, match="no"):
        kept(failing, over={"size": [1, 2]}, jobs=1)
    assert kept(failing, size=1)["n"].tolist() == [1]
    with pytest.raises(RuntimeError, match="no"):
        kept(failing, size=2)


def test_mistakes_end_in_one_clear_error():
    with pytest.raises(TypeError, match="scores: .*unexpected keyword argument 'sead'"):
        kept(scores, size=1, seed=0, sead=0)
    with pytest.raises(ValueError, match="seed must name at least one"):
        kept(scores, over={"seed": []}, size=1)
    with pytest.raises(TypeError, match="plain JSON value"):
        kept(scores, size=1, seed=np.ones(2))
    with pytest.raises(ValueError, match="column 'size' of their own"):
        store(sizes, {"size": 1}, pd.DataFrame({"size": [1]}))


def test_a_truncated_file_is_named():
    kept(sizes, size=1)
    table = paths.CACHE / "results" / "sizes.parquet"
    table.write_bytes(table.read_bytes()[:40])
    with pytest.raises(ValueError, match="sizes.parquet cannot be read"):
        kept(sizes, size=1)


def test_a_folder_is_known_by_its_content_not_its_path(folders):
    for name, content in (("a", "1"), ("b", "1"), ("c", "2")):
        (folders / name / "model").mkdir(parents=True)
        (folders / name / "model" / "w").write_text(content)
    one, same, other = (plain(str(folders / name / "model")) for name in "abc")
    assert one == same != other and one.startswith("model@")


def test_values_and_folders_of_cached_functions():
    @cached(version=1)
    def table():
        assert checkpoint_file().parent.is_dir()
        return pd.DataFrame({"x": [1]})

    @cached(version=1, folder=True)
    def files(folder, text):
        CALLS.append("files")
        (folder / "file").write_text(text)

    assert table()["x"].tolist() == [1] == table()["x"].tolist()
    assert elsewhere(3) == [3] == elsewhere(3)
    assert (files("hi") / "file").read_text() == "hi" == (files(text="hi") / "file").read_text()
    assert CALLS == ["files"]


def test_several_at_once_give_what_one_gives():
    rows = kept(sizes, over={"size": [1, 2, 3]}, jobs=2)
    assert rows["half"].tolist() == [0.5, 1.0, 1.5]


def test_other_arguments_are_those_of_what_an_experiment_is_built_on():
    @experiment(version=1, built_on=[head])
    def doubled(item, **training):
        return pd.DataFrame({"value": [2 * head(**training)["weight"][item].item()]})

    assert kept(doubled, item=1, size=2, seed=5, jobs=1)["value"].tolist() == [12]
    with pytest.raises(TypeError, match="it takes .item, ., size, seed"):
        doubled.bind(item=1, size=2, sed=5)
