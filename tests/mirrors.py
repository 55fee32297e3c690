"""Local mirrors of benchmark files with made-up rows, in the real layout; the table of data sets is
told their checksums and numbers.
"""

import dataclasses
import hashlib
import io
import json
import tarfile
from pathlib import Path

from lib.corpora.benchmarks import BENCHMARKS

HJQE, MLQE = (
    f"{BENCHMARKS[name].id}/{BENCHMARKS[name].revision}" for name in ("hjqe-en-de", "mlqe-pe-en-de")
)
HEADER = "segid\toriginal\ttranslation\tscores\tmean\tz_scores\tz_mean\tmodel_scores"


def write(path: Path, content: str | bytes) -> str:
    """Write a file and return its SHA-256."""
    path.parent.mkdir(parents=True, exist_ok=True)
    content = content.encode() if isinstance(content, str) else content
    path.write_bytes(content)
    return hashlib.sha256(content).hexdigest()


def json_lines(rows: list[dict], end: str = "\n") -> str:
    return "".join(json.dumps(row, ensure_ascii=False) + end for row in rows)


def tar(members: dict[str, str]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as archive:
        for name, content in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(content.encode())
            archive.addfile(info, io.BytesIO(content.encode()))
    return buffer.getvalue()


def use_rows(monkeypatch, mirror: Path, name: str, split: str, rows: list[dict]) -> None:
    """Put a split of a data set of the hub into the mirror."""
    one = BENCHMARKS[name]
    place = f"hub/{one.id.replace('/', '__')}/{one.config}/{split}.jsonl"
    write(mirror / place, json_lines(rows))
    known = dataclasses.replace(one, rows={**one.rows, split: len(rows)}, mirror_rows={})
    monkeypatch.setitem(BENCHMARKS, name, known)


def use_archive(monkeypatch, mirror: Path, name: str, members: dict, rows: int = 2) -> Path:
    """Put an archive of some sentences into the mirror."""
    one = BENCHMARKS[name]
    (path,) = one.files
    sha = write(mirror / "github" / MLQE / path, tar(members))
    known = dataclasses.replace(one, rows={"test20": rows}, files={path: sha})
    monkeypatch.setitem(BENCHMARKS, name, known)
    return mirror / "github" / MLQE / path


def expert_files(folder: Path, **changed: str) -> dict[str, str]:
    """The files of HJQE with two sentences, below a folder of repositories; path -> SHA-256."""
    contents = {"src": 'the "cat"\r\nNA\r\n', "mt": 'die "Kätze"\r\nNA\r\n'}
    contents |= {"tags": "OK OK BAD BAD OK\r\nOK OK OK\r\n"} | changed
    places = {end: f"en-de/dev/dev.{end}" for end in contents}
    return {places[end]: write(folder / HJQE / places[end], text) for end, text in contents.items()}


def use_expert_files(monkeypatch, shas: dict[str, str], rows: int = 2) -> None:
    known = dataclasses.replace(BENCHMARKS["hjqe-en-de"], rows={"dev": rows}, files=shas)
    monkeypatch.setitem(BENCHMARKS, "hjqe-en-de", known)


def ratings(**changed: str) -> dict[str, str]:
    """The members of an archive of direct assessments, with two sentences."""
    first = '7\tsay "hi\tsag\u2028"hallo"\t[9, 8]\t8.5\t[0, 1]\t-0.5\t-0.2'
    table = f"{HEADER}\n{first}\n8\t\tNA\t[1]\t1.0\t[0]\t1e-1\t-0.3\n"
    contents = {"table": table, "tokens": "sag hal@@ lo\nNA\n"}
    contents |= {"logprobs": "-0.1 -0.2 -0.3 -0.2\n-0.5 -0.1\n"} | changed
    files = {"table": "test20.ende.df.short.tsv", "tokens": "word-probas/mt.test20.ende"}
    files |= {"logprobs": "word-probas/word_probas.test20.ende"}
    return {f"en-de/{files[key]}": content for key, content in contents.items()}


def corrections(**changed: str) -> dict[str, str]:
    """The members of an archive of post-edits, with two sentences."""
    contents = {
        "src": 'a "b"\nc\n',
        "mt": "NA x\n\n",
        "pe": "NA y\nz\n",
        "hter": "0.500000\n1.000000\n",
        "tags": "OK OK BAD BAD OK\nBAD BAD OK\n",
    }
    return {f"en-de-test20/test20.{end}": text for end, text in (contents | changed).items()}
