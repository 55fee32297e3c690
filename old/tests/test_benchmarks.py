"""Benchmark data: the order mirror, cache, network; odd characters survive; a damaged file is an error; offline fails within seconds."""

import dataclasses
import http.server
import os
import re
import shutil
import socket
import threading
import time
from functools import partial
from pathlib import Path

import datasets
import huggingface_hub
import pytest
from mirrors import HEADER, corrections, expert_files, json_lines, ratings, use_archive, use_expert_files, write

from old import paths
from old.corpora import benchmarks
from old.corpora.benchmarks import BENCHMARKS, direct_assessments, hjqe, load, post_edits, without_overlap
from old.corpora.sources import Benchmark

REAL = os.environ.get("STUDY_DATA")
needs_real_files = pytest.mark.skipif(not REAL, reason="STUDY_DATA names no local mirror")
ODD = [
    'say "hi"',
    "",
    "Łódź 中文",
    "a\u2028b\x85c",
    "NA",
    "null",
]  # quotes, empty, non-ASCII, other line separators, what pandas takes for NaN


# ---- the table -----------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", BENCHMARKS)
def test_table(name):
    """Pins are whole hashes; GitHub files always have both; subsets are smaller than the whole and of a known split."""
    one = BENCHMARKS[name]
    assert one.revision is None or re.fullmatch("[0-9a-f]{40}", one.revision)
    assert all(re.fullmatch("[0-9a-f]{64}", sha) for sha in one.files.values())
    assert bool(one.files) == (one.kind == "github") and (one.kind != "github" or one.revision)
    assert one.columns and one.licence and one.rows
    assert all(rows < one.rows[split] for split, rows in one.mirror_rows.items())


def test_card():
    """One row a data set, and the committed card is the one of this table."""
    section = benchmarks.data_card_section()
    rows = {line.split(" | ")[0].removeprefix("| "): line for line in section.splitlines() if line.startswith("| ")}
    assert list(rows) == ["name", *BENCHMARKS]
    assert rows["cnn-dailymail"].endswith("train 287,113; validation 13,368 (mirror 500); test 11,490 (mirror 500) | no |")
    assert "| unpinned |" in rows["xsum"] and "| - |" in rows["squad-sentences"]
    assert "| af9fa5d1c2b2 |" in rows["hjqe-en-de"] and rows["hjqe-en-de"].endswith("| yes |")
    assert section in (paths.ROOT / "data" / "README.md").read_text()


def test_unknown_names(mirror):
    for call, message in (
        (lambda: load("squat", "train"), "squat.*squad-sentences"),
        (lambda: load("gsm8k", "validation"), "train.*test"),
        (lambda: load("hjqe-en-de", "dev"), "hjqe"),
        (lambda: direct_assessments("de-en"), "mlqe-pe-de-en"),
        (lambda: post_edits("ru-en"), "mlqe-pe-tags-ru-en"),
    ):
        with pytest.raises(KeyError, match=message):
            call()


def test_mirror_must_exist(mirror, monkeypatch):
    monkeypatch.setenv("STUDY_DATA", str(mirror / "misspelt"))
    for call in (lambda: load("gsm8k", "test"), hjqe):
        with pytest.raises(FileNotFoundError, match="STUDY_DATA.*misspelt"):
            call()


# ---- hub layout ----------------------------------------------------------------------------------------------------------------------


@pytest.fixture
def small(monkeypatch) -> Benchmark:
    """A data set of 6 test rows of which the mirror may hold 3."""
    one = Benchmark("hub", "space/small", "en", None, "CC0", ("text", "answers"), {"test": 6}, {"test": 3})
    monkeypatch.setitem(BENCHMARKS, "small", one)
    return one


ROWS = [{"other": i, "answers": {"text": [text], "answer_start": [i]}, "text": text} for i, text in enumerate(ODD)]
PLACE = "hub/space__small/en/test.jsonl"


@pytest.mark.parametrize("end", ["\n", "\r\n"], ids=["LF", "CRLF"])
def test_mirror_rows(mirror, small, end):
    """Texts arrive as they are, in order, with the columns of the table; the whole set and the known subset are both accepted."""
    write(mirror / PLACE, json_lines(ROWS, end))
    dataset = load("small", "test")
    assert dataset.column_names == ["text", "answers"] and dataset["text"][:] == ODD
    assert dataset[3]["answers"] == {"text": [ODD[3]], "answer_start": [3]}
    write(mirror / PLACE, json_lines(ROWS[:3], end).removesuffix(end))
    assert load("small", "test")["text"][:] == ODD[:3]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (json_lines(ROWS[:5]), "test.jsonl, split test: 5 rows, expected 3 or 6"),
        (json_lines(ROWS + ROWS[:1]), "7 rows"),
        ("", "0 rows"),
        (json_lines(ROWS)[:-20], "test.jsonl, line 6: not JSON"),
        (json_lines(ROWS[:2]) + "\n" + json_lines(ROWS[:1]), "test.jsonl, line 3: not JSON"),
        (json_lines([*ROWS[:4], {"text": "x"}, ROWS[5]]), r"test.jsonl, line 5: no column \['answers'\]"),
    ],
    ids=["rows missing", "rows added", "empty", "cut off", "empty line", "column missing"],
)
def test_damaged_mirror(mirror, small, content, message):
    write(mirror / PLACE, content)
    with pytest.raises(ValueError, match=message):
        load("small", "test")


@pytest.fixture
def hub(tmp_path, monkeypatch, small) -> Path:
    """A folder laid out like a repository of the hub, which `datasets.load_dataset` reads as if it were one."""
    folder = tmp_path / "repository"
    monkeypatch.setitem(BENCHMARKS, "small", dataclasses.replace(small, id=str(folder), config="default"))
    write(folder / "test.jsonl", json_lines(ROWS))
    return folder


def test_hub_rows(mirror, hub, monkeypatch):
    """What the mirror lacks, or without a mirror, comes from the hub, whole; with both, the mirror is read."""
    assert load("small", "test")["text"][:] == ODD and load("small", "test").column_names == ["text", "answers"]
    write(mirror / f"hub/{str(hub).replace('/', '__')}/default/test.jsonl", json_lines(ROWS[:3]))
    assert len(load("small", "test")) == 3
    monkeypatch.delenv("STUDY_DATA")
    assert len(load("small", "test")) == 6


def test_hub_is_checked(mirror, hub, monkeypatch):
    """A subset is fine in the mirror only; other columns and other numbers of rows are errors; unknown numbers are not checked."""
    write(hub / "test.jsonl", json_lines(ROWS[:3]))
    with pytest.raises(ValueError, match="repository, split test: 3 rows, expected 6"):
        load("small", "test")
    monkeypatch.setitem(BENCHMARKS, "small", dataclasses.replace(BENCHMARKS["small"], rows={"test": None}))
    assert len(load("small", "test")) == 3
    write(hub / "test.jsonl", json_lines([{"text": "x"}]))
    with pytest.raises(ValueError, match=r"repository, split test: no column \['answers'\]"):
        load("small", "test")


def test_hub_cache_and_revision(mirror, hub, small, monkeypatch):
    """Offline the cache of `datasets` is used, which does not look at revisions: another one than the pinned is an error."""
    built = Path(datasets.load_dataset(str(hub), "default", split="test").cache_files[0]["filename"])
    cached = datasets.config.HF_DATASETS_CACHE / "space___small" / "default" / "0.0.0" / ("f" * 40)
    shutil.copytree(built.parent, cached)
    (cached / built.name).rename(cached / "small-test.arrow")
    monkeypatch.setitem(BENCHMARKS, "small", dataclasses.replace(small, config="default", revision="f" * 40))
    assert load("small", "test")["text"][:] == ODD
    monkeypatch.setitem(BENCHMARKS, "small", dataclasses.replace(small, config="default", revision="e" * 40))
    with pytest.raises(ValueError, match="small.*another revision than e{40}"):
        load("small", "test")


def test_set_of_the_mirror_only(mirror):
    with pytest.raises(RuntimeError, match="squad-sentences.*STUDY_DATA.*hub/rajpurkar__squad/sentences/train.jsonl"):
        load("squad-sentences", "train")


# ---- the network ---------------------------------------------------------------------------------------------------------------------


@pytest.fixture(params=["silent", "refused"])
def unreachable(request, monkeypatch) -> str:
    """Address of a server that accepts connections and never answers, or of none at all; a second counts as never."""
    monkeypatch.setattr(benchmarks, "TIMEOUT", 1)
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"http://127.0.0.1:{server.getsockname()[1]}"
        if request.param == "refused":
            server.close()
        yield address


def assert_fails_soon(call, *parts: str) -> None:
    start = time.perf_counter()
    with pytest.raises(RuntimeError) as error:
        call()
    assert time.perf_counter() - start < 4
    assert all(part in str(error.value) for part in (*parts, "set STUDY_DATA to a folder that holds", "or connect"))


@pytest.mark.parametrize("with_mirror", [True, False])
def test_unreachable_hub(mirror, unreachable, with_mirror, monkeypatch):
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(datasets.config, "HF_ENDPOINT", unreachable)
    if not with_mirror:
        monkeypatch.delenv("STUDY_DATA")
    assert_fails_soon(lambda: load("gsm8k", "test"), "gsm8k", f"{unreachable}/datasets/openai/gsm8k", "hub/openai__gsm8k/main/test.jsonl")
    assert datasets.config.HF_HUB_OFFLINE is False


def test_offline_mode(mirror):
    """With HF_HUB_OFFLINE=1, as in these tests, the hub is not even asked."""
    assert_fails_soon(lambda: load("xsum", "test"), "xsum", "hub/EdinburghNLP__xsum/default/test.jsonl", "OfflineModeIsEnabled")


def test_unreachable_github(mirror, unreachable, monkeypatch):
    monkeypatch.setattr(benchmarks, "GITHUB", unreachable)
    assert_fails_soon(
        hjqe, "hjqe-en-de", unreachable, "github/ZhenYangIACAS/HJQE/af9fa5d1c2b2b68737d0177a11472898d8ebd512/en-de/dev/dev.src"
    )


class Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_):
        pass


def test_github_download(mirror, tmp_path, monkeypatch):
    """Files are fetched once, checked, and read from the cache afterwards; one with another checksum is an error and is not kept."""
    shas = expert_files(tmp_path / "server")
    use_expert_files(monkeypatch, shas)
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=tmp_path / "server")) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        monkeypatch.setattr(benchmarks, "GITHUB", f"http://127.0.0.1:{server.server_port}")
        use_expert_files(monkeypatch, shas | {"en-de/dev/dev.mt": "0" * 64})
        with pytest.raises(ValueError, match="dev.mt"):
            hjqe()
        assert [file.name for file in paths.CACHE.rglob("*") if file.is_file()] == ["dev.src"]
        use_expert_files(monkeypatch, shas)
        fetched = hjqe()
        server.shutdown()
    assert hjqe().equals(fetched) and len(fetched) == 2


# ---- translation quality -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("end", ["\n", "\r\n"], ids=["LF", "CRLF"])
def test_direct_assessments(mirror, monkeypatch, end):
    use_archive(monkeypatch, mirror, "mlqe-pe-en-de", {name: text.replace("\n", end) for name, text in ratings().items()})
    table = direct_assessments("en-de")
    assert table.columns.tolist() == list(BENCHMARKS["mlqe-pe-en-de"].columns)
    assert table.values.tolist() == [
        ["en-de", 'say "hi', 'sag\u2028"hallo"', -0.5, 8.5, -0.2, ["sag", "hal@@", "lo"], [-0.1, -0.2, -0.3, -0.2]],
        ["en-de", "", "NA", 0.1, 1.0, -0.3, ["NA"], [-0.5, -0.1]],
    ]


BAD_RATINGS = {
    "short row": ({"table": f"{HEADER}\n7\ta\tb\tc\t1\td\t2\n8\ta\tb\tc\t1\td\t2\t3\n"}, "tsv, line 2: 7 columns, expected 8"),
    "long row": ({"table": f"{HEADER}\n7\ta\tb\tc\t1\td\t2\t3\n8\ta\tb\tc\t1\td\t2\t3\t4\n"}, "tsv, line 3: 9 columns, expected 8"),
    "rows missing": ({"table": f"{HEADER}\n7\ta\tb\tc\t1\td\t2\t3\n"}, "tsv: 2 lines, expected 3"),
    "tokens missing": ({"tokens": "sag hal@@ lo\n"}, "mt.test20.ende: 1 lines, expected 2"),
    "values missing": ({"logprobs": "-0.1 -0.2 -0.3 -0.2\n-0.5\n"}, "line 2 of the log-probabilities: 1 values for 1 tokens"),
}


@pytest.mark.parametrize("what", BAD_RATINGS)
def test_bad_direct_assessments(mirror, monkeypatch, what):
    changed, message = BAD_RATINGS[what]
    use_archive(monkeypatch, mirror, "mlqe-pe-en-de", ratings(**changed))
    with pytest.raises(ValueError, match=f"en-de-test.tar.gz.*{message}"):
        direct_assessments("en-de")


def test_post_edits(mirror, monkeypatch):
    """Tags of words, not of gaps; an empty line is an empty sentence."""
    use_archive(monkeypatch, mirror, "mlqe-pe-tags-en-de", corrections())
    table = post_edits("en-de")
    assert table.columns.tolist() == list(BENCHMARKS["mlqe-pe-tags-en-de"].columns)
    assert table.values.tolist() == [["en-de", 'a "b"', "NA x", "NA y", 0.5, ["OK", "BAD"]], ["en-de", "c", "", "z", 1.0, ["BAD"]]]


@pytest.mark.parametrize("tags", ["OK OK OK OK OK\nOK OK\n", "OK OK OK OK OK\nOK GOOD OK\n"], ids=["one too few", "unknown tag"])
def test_bad_tags(mirror, monkeypatch, tags):
    use_archive(monkeypatch, mirror, "mlqe-pe-tags-en-de", corrections(tags=tags))
    with pytest.raises(ValueError, match=r"en-de-test.tar.gz, line 2 of the tags"):
        post_edits("en-de")


def test_hjqe(mirror, monkeypatch):
    use_expert_files(monkeypatch, expert_files(mirror / "github"))
    assert hjqe().values.tolist() == [["en-de", 'the "cat"', 'die "Kätze"', ["OK", "BAD"]], ["en-de", "NA", "NA", ["OK"]]]
    use_expert_files(monkeypatch, expert_files(mirror / "github", src="the cat\r\n"))
    with pytest.raises(ValueError, match=r"dev.src: 1 lines, expected 2"):
        hjqe()


@pytest.mark.parametrize("damage", [lambda content: content[:-1], lambda content: content + b" "], ids=["truncated", "extended"])
def test_wrong_checksum(mirror, monkeypatch, damage):
    archive = use_archive(monkeypatch, mirror, "mlqe-pe-en-de", ratings())
    archive.write_bytes(damage(archive.read_bytes()))
    with pytest.raises(ValueError, match="en-de-test.tar.gz is damaged or another version"):
        direct_assessments("en-de")


# ---- overlap -------------------------------------------------------------------------------------------------------------------------


def test_overlap():
    """By question and by sentence, whatever the case, punctuation and Unicode form; parts of words and of other paragraphs do not count."""
    test = datasets.Dataset.from_dict(
        {"question": ["Who won?", "Wo liegt Łódź?"], "context": ["The cat sat. It was 24–10, at the café!", "Another end"]}
    )
    rows = {
        "same question": ("who  won", "Something else."),
        "same sentence": ("What score?", "It was 24-10, at the CAFE\u0301"),
        "whole paragraph": ("Where?", "another END."),
        "part of a word": ("Where?", "At the caf"),
        "across paragraphs": ("Where?", "At the café another end."),
        "new": ("Who lost?", "The dog sat."),
    }
    train = datasets.Dataset.from_dict(
        {"id": list(rows), "question": [q for q, _ in rows.values()], "context": [c for _, c in rows.values()]}
    )
    assert without_overlap(train, test)["id"][:] == ["part of a word", "across paragraphs", "new"]


# ---- the real files ------------------------------------------------------------------------------------------------------------------


@needs_real_files
def test_real_hub_files():
    """Every file of the mirror's hub part is in the table and loads with the number of rows it states."""
    places = {
        f"{one.id.replace('/', '__')}/{one.config}/{split}.jsonl": (name, split)
        for name, one in BENCHMARKS.items()
        for split in one.rows
        if one.kind != "github"
    }
    files = sorted(str(file.relative_to(Path(REAL) / "hub")) for file in (Path(REAL) / "hub").rglob("*.jsonl"))
    assert len(files) == 13
    for name, split in (places[file] for file in files):
        one = BENCHMARKS[name]
        dataset = load(name, split)
        assert len(dataset) == one.mirror_rows.get(split, one.rows[split]) and tuple(dataset.column_names) == one.columns


@needs_real_files
def test_real_gold():
    """Gold labels of the real files are of the documented kind."""
    assert set(load("paws-x-en", "test")["label"]) == set(load("cola", "validation")["label"]) == {0, 1}
    assert all(re.search(r"#### -?[\d,.]+$", answer) for answer in load("gsm8k", "test")["answer"])
    for row in load("squad-sentences", "train"):
        start, text = row["answers"]["answer_start"][0], row["answers"]["text"][0]
        assert row["context"][start : start + len(text)] == text


@needs_real_files
@pytest.mark.parametrize(("pair", "pearson"), [("en-de", 0.208), ("ro-en", 0.647), ("ru-en", 0.536)])
def test_real_direct_assessments(pair, pearson):
    """Lines belong together: the NMT model's score is the mean of its log-probabilities; the gold belongs to the same rows."""
    table = direct_assessments(pair)
    means = table["logprobs"].map(lambda values: sum(values) / len(values))
    assert len(table) == 1000 and (means - table["model_score"]).abs().max() < 1e-4
    assert table["z_mean"].corr(table["model_score"]) == pytest.approx(pearson, abs=1e-3)
    assert table["mean"].between(0, 100).all() and (table["source"] != "").all()


@needs_real_files
def test_real_word_tags():
    for table, words, bad in ((post_edits("en-de"), 16_154, 2344), (post_edits("ro-en"), 17_483, 3708), (hjqe(), 16_160, 1375)):
        tags = table["tags"].explode()
        assert len(table) == 1000 and len(tags) == table["translation"].str.split(" ").str.len().sum() == words
        assert (tags == "BAD").sum() == bad


@needs_real_files
def test_real_overlap():
    """1,081 of 9,718 training rows are in XQuAD; afterwards no question is shared."""
    train, test = load("squad-sentences", "train"), load("xquad-en", "validation")
    kept = without_overlap(train, test)
    assert len(train) - len(kept) == 1081
    assert set(train["question"]) & set(test["question"]) and not set(kept["question"]) & set(test["question"])
    paragraphs = "\n".join(set(test["context"]))
    assert not any(context in paragraphs for context in kept["context"] if len(context) > 20)
