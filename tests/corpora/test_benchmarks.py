"""Benchmark data: the order mirror, cache, network; odd characters survive; a damaged file is an
error; offline fails within seconds.
"""

import dataclasses
import http.server
import os
import re
import socket
import threading
import time
from functools import partial
from pathlib import Path

import datasets
import huggingface_hub
import pytest
from mirrors import (
    corrections,
    expert_files,
    json_lines,
    ratings,
    use_archive,
    use_expert_files,
    write,
)

from lib.corpora import benchmarks
from lib.corpora.benchmarks import BENCHMARKS, Source, load
from lib.study import paths

REAL = os.environ.get("STUDY_DATA")
needs_real_files = pytest.mark.skipif(not REAL, reason="STUDY_DATA names no local mirror")
# quotes, empty, non-ASCII, other line separators, what pandas takes for NaN
ODD = ['say "hi"', "", "Łódź 中文", "a\u2028b\x85c", "NA", "null"]
ANSWERS = [{"text": [text], "answer_start": [i]} for i, text in enumerate(ODD)]
ROWS = [{"other": 1, "answers": one, "text": text} for one, text in zip(ANSWERS, ODD)]
PLACE = "hub/space__small/en/test.jsonl"


@pytest.mark.parametrize("name", BENCHMARKS)
def test_table(name):
    """Pins are whole hashes; GitHub files always have both; subsets are of a known split."""
    one = BENCHMARKS[name]
    assert one.revision is None or re.fullmatch("[0-9a-f]{40}", one.revision)
    assert all(re.fullmatch("[0-9a-f]{64}", sha) for sha in one.files.values())
    assert bool(one.files) == (one.kind == "github") and (one.kind != "github" or one.revision)
    assert one.columns and one.licence and one.rows
    assert all(rows < one.rows[split] for split, rows in one.mirror_rows.items())


def test_data_card_names_every_data_set():
    """data/README.md has a row for each, with its revision, licence and numbers of rows."""
    text = (paths.ROOT / "data" / "README.md").read_text()
    rows = {line.split(" | ")[0].removeprefix("| "): line for line in text.splitlines()}
    for name, one in BENCHMARKS.items():
        assert one.id in rows[name] and one.licence in rows[name]
        assert all(f"{split} {count:,}" in rows[name] for split, count in one.rows.items())
        assert one.revision is None or one.revision[:12] in rows[name]


def test_unknown_names(mirror):
    with pytest.raises(KeyError, match=r"squat.*squad-sentences"):
        load("squat", "train")
    with pytest.raises(KeyError, match=r"train.*test"):
        load("gsm8k", "validation")


def test_mirror_must_exist(mirror, monkeypatch):
    monkeypatch.setenv("STUDY_DATA", str(mirror / "misspelt"))
    for name, split in (("gsm8k", "test"), ("hjqe-en-de", "dev")):
        with pytest.raises(FileNotFoundError, match=r"STUDY_DATA.*misspelt"):
            load(name, split)


# ---- hub layout --------------------------------------------------------------------------------


@pytest.fixture
def small(monkeypatch) -> Source:
    """A data set of 6 test rows of which the mirror may hold 3."""
    one = Source("hub", "space/small", "en", "CC0", ["text", "answers"], {"test": 6})
    one = dataclasses.replace(one, mirror_rows={"test": 3})
    monkeypatch.setitem(BENCHMARKS, "small", one)
    return one


@pytest.mark.parametrize("end", ["\n", "\r\n"], ids=["LF", "CRLF"])
def test_mirror_rows(mirror, small, end):
    """Texts arrive as they are, in order; the whole set and the known subset are both accepted."""
    write(mirror / PLACE, json_lines(ROWS, end))
    table = load("small", "test")
    assert list(table) == ["text", "answers"] and table["text"].tolist() == ODD
    assert table["answers"][3] == {"text": [ODD[3]], "answer_start": [3]}
    write(mirror / PLACE, json_lines(ROWS[:3], end).removesuffix(end))
    assert load("small", "test")["text"].tolist() == ODD[:3]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (json_lines(ROWS[:5]), "test.jsonl: 5 rows, expected 3 or 6"),
        (json_lines(ROWS + ROWS[:1]), "7 rows"),
        ("", "0 rows"),
        (json_lines(ROWS)[:-20], "test.jsonl cannot be read"),
        (json_lines(ROWS[:2]) + "\n" + json_lines(ROWS[:1]), "test.jsonl cannot be read"),
        (json_lines([*ROWS[:4], {"text": "x"}, ROWS[5]]), "cannot be read .*answers"),
    ],
    ids=["rows missing", "rows added", "empty", "cut off", "empty line", "column missing"],
)
def test_damaged_mirror(mirror, small, content, message):
    write(mirror / PLACE, content)
    with pytest.raises(ValueError, match=message):
        load("small", "test")


@pytest.fixture
def hub(tmp_path, monkeypatch, small) -> Path:
    """A folder laid out like a repository of the hub, which `datasets` reads as if it were one."""
    folder = tmp_path / "repository"
    known = dataclasses.replace(small, id=str(folder), config="default")
    monkeypatch.setitem(BENCHMARKS, "small", known)
    monkeypatch.setattr(huggingface_hub.HfApi, "dataset_info", lambda *_, **__: None)
    write(folder / "test.jsonl", json_lines(ROWS))
    return folder


def test_hub_rows(mirror, hub, monkeypatch):
    """What the mirror lacks, or without a mirror, comes from the hub, whole, and is kept."""
    table = load("small", "test")
    assert table["text"].tolist() == ODD and list(table) == ["text", "answers"]
    assert table["answers"][3] == {"text": [ODD[3]], "answer_start": [3]}
    (hub / "test.jsonl").unlink()
    assert load("small", "test").equals(table)
    write(mirror / f"hub/{str(hub).replace('/', '__')}/default/test.jsonl", json_lines(ROWS[:3]))
    assert len(load("small", "test")) == 3
    monkeypatch.delenv("STUDY_DATA")
    assert len(load("small", "test")) == 6


@pytest.mark.parametrize(
    ("rows", "message"), [(ROWS[:3], "3 rows, expected 6"), (6 * [{"text": "x"}], "answers")]
)
def test_hub_is_checked(mirror, hub, rows, message):
    """A subset is fine in the mirror only; other columns and numbers of rows are errors."""
    write(hub / "test.jsonl", json_lines(rows))
    with pytest.raises(ValueError, match=message):
        load("small", "test")


# ---- the network -------------------------------------------------------------------------------


@pytest.fixture(params=["silent", "refused"])
def unreachable(request, monkeypatch) -> str:
    """Address of a server that never answers, or of none at all; a second counts as never."""
    monkeypatch.setattr(benchmarks, "TIMEOUT", 1)
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"http://127.0.0.1:{server.getsockname()[1]}"
        if request.param == "refused":
            server.close()
        yield address


def assert_fails_soon(name: str, split: str, *parts: str) -> None:
    start = time.perf_counter()
    with pytest.raises(RuntimeError) as error:
        load(name, split)
    assert time.perf_counter() - start < 20  # `datasets` by itself: 90
    known = ("set STUDY_DATA to a folder that holds", "or connect")
    assert all(part in str(error.value) for part in (name, *parts, *known))


def test_unreachable_hub(mirror, unreachable, monkeypatch):
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(datasets.config, "HF_ENDPOINT", unreachable)
    where = "hub/openai__gsm8k/main/test.jsonl"
    assert_fails_soon("gsm8k", "test", f"{unreachable}/datasets/openai/gsm8k", where)
    assert datasets.config.HF_HUB_OFFLINE is False


class Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_):
        pass


def test_github_download(mirror, tmp_path, monkeypatch):
    """Files are fetched once and checked; one with another checksum is an error and not kept."""
    shas = expert_files(tmp_path / "server")
    handler = partial(Quiet, directory=tmp_path / "server")
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        monkeypatch.setattr(benchmarks, "GITHUB", f"http://127.0.0.1:{server.server_port}")
        use_expert_files(monkeypatch, shas | {"en-de/dev/dev.mt": "0" * 64})
        with pytest.raises(ValueError, match="dev.mt"):
            load("hjqe-en-de", "dev")
        files = [file.name for file in paths.CACHE.rglob("*") if file.is_file()]
        assert files == ["dev.src"]
        use_expert_files(monkeypatch, shas)
        fetched = load("hjqe-en-de", "dev")
        server.shutdown()
    assert load("hjqe-en-de", "dev").equals(fetched) and len(fetched) == 2


# ---- translations judged by people -------------------------------------------------------------


@pytest.mark.parametrize("end", ["\n", "\r\n"], ids=["LF", "CRLF"])
def test_direct_assessments(mirror, monkeypatch, end):
    members = {name: text.replace("\n", end) for name, text in ratings().items()}
    use_archive(monkeypatch, mirror, "mlqe-pe-en-de", members)
    table = load("mlqe-pe-en-de", "test20")
    assert list(table) == BENCHMARKS["mlqe-pe-en-de"].columns
    tokens = [["sag", "hal@@", "lo"], [-0.1, -0.2, -0.3, -0.2]]
    assert table.values.tolist() == [
        ["en-de", 'say "hi', 'sag\u2028"hallo"', -0.5, 8.5, -0.2, *tokens],
        ["en-de", "", "NA", 0.1, 1.0, -0.3, ["NA"], [-0.5, -0.1]],
    ]


def test_post_edits(mirror, monkeypatch):
    """Tags of words, not of gaps; an empty line is an empty sentence."""
    use_archive(monkeypatch, mirror, "mlqe-pe-tags-en-de", corrections())
    table = load("mlqe-pe-tags-en-de", "test20")
    assert list(table) == BENCHMARKS["mlqe-pe-tags-en-de"].columns
    assert table.values.tolist() == [
        ["en-de", 'a "b"', "NA x", "NA y", 0.5, ["OK", "BAD"]],
        ["en-de", "c", "", "z", 1.0, ["BAD"]],
    ]


@pytest.mark.parametrize("tags", ["OK OK OK OK OK\nOK OK\n", "OK OK OK OK OK\nOK GOOD OK\n"])
def test_bad_tags(mirror, monkeypatch, tags):
    """One too few; one that does not exist."""
    use_archive(monkeypatch, mirror, "mlqe-pe-tags-en-de", corrections(tags=tags))
    with pytest.raises(ValueError, match="line 2: not one OK or BAD for each word"):
        load("mlqe-pe-tags-en-de", "test20")


def test_hjqe(mirror, monkeypatch):
    use_expert_files(monkeypatch, expert_files(mirror / "github"))
    first = ["en-de", 'the "cat"', 'die "Kätze"', ["OK", "BAD"]]
    assert load("hjqe-en-de", "dev").values.tolist() == [first, ["en-de", "NA", "NA", ["OK"]]]
    use_expert_files(monkeypatch, expert_files(mirror / "github", src="the cat\r\n"))
    with pytest.raises(ValueError):
        load("hjqe-en-de", "dev")


@pytest.mark.parametrize("damage", [lambda c: c[:-1], lambda c: c + b" "], ids=["cut", "longer"])
def test_wrong_checksum(mirror, monkeypatch, damage):
    archive = use_archive(monkeypatch, mirror, "mlqe-pe-en-de", ratings())
    archive.write_bytes(damage(archive.read_bytes()))
    with pytest.raises(ValueError, match="en-de-test.tar.gz is damaged or another version"):
        load("mlqe-pe-en-de", "test20")


# ---- the real files ----------------------------------------------------------------------------


@needs_real_files
def test_real_hub_files():
    """Every file of the mirror's hub part is in the table and loads with its number of rows."""
    places = {
        f"{one.id.replace('/', '__')}/{one.config}/{split}.jsonl": (name, split)
        for name, one in BENCHMARKS.items()
        for split in one.rows
        if one.kind != "github"
    }
    files = [str(f.relative_to(Path(REAL) / "hub")) for f in (Path(REAL) / "hub").rglob("*.jsonl")]
    assert len(files) == 13
    for name, split in (places[file] for file in files):
        one, table = BENCHMARKS[name], load(name, split)
        assert len(table) == one.mirror_rows.get(split, one.rows[split])
        assert list(table) == one.columns


@needs_real_files
@pytest.mark.parametrize(("pair", "r"), [("en-de", 0.208), ("ro-en", 0.647), ("ru-en", 0.536)])
def test_real_direct_assessments(pair, r):
    """Lines belong together: the model's score is the mean of its log-probabilities."""
    table = load(f"mlqe-pe-{pair}", "test20")
    means = table["logprobs"].map(lambda values: sum(values) / len(values))
    assert (means - table["model_score"]).abs().max() < 1e-4
    assert all(len(row.logprobs) == len(row.tokens) + 1 for row in table.itertuples())
    assert table["z_mean"].corr(table["model_score"]) == pytest.approx(r, abs=1e-3)
    assert table["mean"].between(0, 100).all() and (table["source"] != "").all()


@needs_real_files
@pytest.mark.parametrize(
    ("name", "split", "words", "bad"),
    [
        ("mlqe-pe-tags-en-de", "test20", 16_154, 2344),
        ("mlqe-pe-tags-ro-en", "test20", 17_483, 3708),
        ("hjqe-en-de", "dev", 16_160, 1375),
    ],
)
def test_real_word_tags(name, split, words, bad):
    table = load(name, split)
    tags = table["tags"].explode()
    assert len(tags) == table["translation"].str.split(" ").str.len().sum() == words
    assert (tags == "BAD").sum() == bad
