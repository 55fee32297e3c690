"""Rows of the benchmarks, from a local mirror, the hub or pinned GitHub files: see `sources.json`.

The folder that STUDY_DATA names is asked first: `hub/<namespace>__<name>/<config>/<split>.jsonl`
(some are subsets), `github/<owner>/<repository>/<commit>/<path>`. What it lacks comes from the
network and stays in a cache. Checksums, columns and numbers of rows are checked.
"""

import csv
import dataclasses
import hashlib
import io
import json
import os
import tarfile
from pathlib import Path
from typing import Literal

import pandas as pd

from lib.study import paths
from lib.study.rows import readable, write_atomically

FOLDER = "STUDY_DATA"  # environment variable: the local mirror
GITHUB = "https://raw.githubusercontent.com"
TIMEOUT = 5  # seconds until a silent server counts as unreachable


@dataclasses.dataclass(frozen=True)
class Source:
    """Where a data set comes from, and what is checked. `mirror`: only the local mirror has it."""

    kind: Literal["hub", "github", "mirror"]
    id: str  # namespace/name on the hub, owner/repository on GitHub
    config: str
    licence: str
    columns: list[str]  # the ones loaded, in this order
    rows: dict[str, int]  # of the whole set, by split
    revision: str | None = None  # None: the newest
    mirror_rows: dict[str, int] = dataclasses.field(default_factory=dict)  # where it is a subset
    files: dict[str, str] = dataclasses.field(default_factory=dict)  # GitHub: path -> SHA-256


_TABLE = json.loads(Path(__file__).with_name("sources.json").read_text())
BENCHMARKS = {name: Source(**declared) for name, declared in _TABLE.items()}


def load(name: str, split: str) -> pd.DataFrame:
    """One split, with the columns of its Source. The mirror may hold a subset (`mirror_rows`).

    Raises KeyError for an unknown name or split, ValueError for a damaged file, missing columns or
    an unexpected number of rows, RuntimeError where neither mirror nor network has it.
    """
    source = _known(name)
    if split not in source.rows:
        raise KeyError(f"{name} has the splits {list(source.rows)}, not {split!r}")
    expected = {source.rows[split]}
    if source.kind == "github":
        where, table = source.id, _judged_translations(source, _github_files(name, source))
    else:
        relative = f"hub/{source.id.replace('/', '__')}/{source.config}/{split}.jsonl"
        if where := _mirrored(relative):
            expected.add(source.mirror_rows.get(split, source.rows[split]))
        else:
            where = _from_hub(name, source, split, relative)
        table = readable(lambda file: _read_json_lines(file, source.columns), where)
    if len(table) not in expected:
        wanted = " or ".join(f"{rows:,}" for rows in sorted(expected))
        raise ValueError(f"{where}: {len(table):,} rows, expected {wanted}")
    return table[source.columns]


def declared(name: str) -> dict:
    """All that is declared about a data set (source, revision, checksums, rows): its identity."""
    return {"name": name, **dataclasses.asdict(_known(name))}


def _known(name: str) -> Source:
    if name not in BENCHMARKS:
        raise KeyError(f"no data set {name!r}; there are {', '.join(BENCHMARKS)}")
    return BENCHMARKS[name]


# ---- where files come from -----------------------------------------------------------------------


def _mirrored(relative: str) -> Path | None:
    """The file in the local mirror, or None without a mirror or without the file in it."""
    if not (folder := os.environ.get(FOLDER)):
        return None
    if not Path(folder).expanduser().is_dir():
        raise FileNotFoundError(f"{FOLDER} names {folder}, which is no folder")
    file = Path(folder).expanduser() / relative
    return file if file.is_file() else None


def _unavailable(name: str, relative: str, address: str, problem: Exception) -> RuntimeError:
    return RuntimeError(
        f"{name} is neither in a local mirror nor in the cache, and {address} is out of reach. "
        f"Either set {FOLDER} to a folder that holds {relative} (layout in data/README.md), or "
        f"connect once. {type(problem).__name__}: {str(problem)[:200]}"
    )


def _from_hub(name: str, source: Source, split: str, relative: str) -> Path:
    """A file of the split's rows in the cache, fetched from the hub first where there is none."""
    if source.kind == "mirror":
        raise RuntimeError(f"{name}: set {FOLDER} to a folder that holds {relative}")
    import datasets  # noqa: PLC0415 - 2 s that only those pay who load from the hub
    from huggingface_hub import HfApi  # noqa: PLC0415

    file = paths.CACHE / (source.revision or "newest") / relative
    if not file.exists():
        endpoint, pinned = datasets.config.HF_ENDPOINT, {"revision": source.revision}
        try:  # one short question: `load_dataset` itself asks six times, for up to 90 s
            HfApi(endpoint).dataset_info(source.id, timeout=TIMEOUT, **pinned)
            rows = datasets.load_dataset(source.id, source.config, split=split, **pinned)
        except Exception as problem:
            address = f"{endpoint}/datasets/{source.id}"
            raise _unavailable(name, relative, address, problem) from problem
        write_atomically(file, rows.to_json)
    return file


def _github_files(name: str, source: Source) -> list[Path]:
    """The files of a data set at the pinned commit, in the order of the table, checked."""
    import pooch  # noqa: PLC0415 - only where files are fetched

    files = []
    for path, sha in source.files.items():
        relative = f"{source.id}/{source.revision}/{path}"
        if stored := _mirrored(f"github/{relative}"):
            if hashlib.sha256(stored.read_bytes()).hexdigest() != sha:
                raise ValueError(f"{stored} is damaged or another version: SHA-256 is not {sha}")
            files.append(stored)
            continue
        target, address = paths.CACHE / "github" / relative, f"{GITHUB}/{relative}"
        over_http = pooch.HTTPDownloader(timeout=TIMEOUT, progressbar=False)
        try:
            pooch.retrieve(address, sha, target.name, target.parent, downloader=over_http)
        except OSError as problem:  # a wrong checksum is a ValueError that names the file
            raise _unavailable(name, f"github/{relative}", address, problem) from problem
        files.append(target)
    return files


# ---- translations judged by people ---------------------------------------------------------------


def _judged_translations(source: Source, files: list[Path]) -> pd.DataFrame:
    """One row a sentence, words separated by spaces.

    MLQE-PE, direct assessments: `z_mean`, the mean of ratings standardised by rater (the usual
    gold), and `mean`, of the raw ones (0 to 100); `model_score`, the mean of `logprobs`: natural
    log-probabilities of the translating model, one for each of its `tokens` (subwords joined by
    `@@`) and a last one for the end of the sentence.

    MLQE-PE, post-edits: `post_edit`; `hter`, edits a word; `tags`, OK or BAD (to be changed) for
    each word of the translation. HJQE: `tags` of experts.
    """
    members = {file.name: file.read_bytes() for file in files}
    for archive in (file for file in files if file.suffix == ".gz"):
        with tarfile.open(archive) as opened:
            own = {Path(member.name).name: member for member in opened if member.isfile()}
            members = {name: opened.extractfile(member).read() for name, member in own.items()}
    if "z_mean" in source.columns:
        table = _direct_assessments(members, source.config.replace("-", ""))
    else:
        names = {"source": "src", "translation": "mt", "post_edit": "pe", "hter": "hter"}
        stem = next(name for name in members if name.endswith(".mt")).removesuffix(".mt")
        kept = {column: end for column, end in names.items() if column in source.columns}
        table = pd.DataFrame({c: _lines(members[f"{stem}.{end}"]) for c, end in kept.items()})
        table["tags"] = _word_tags(table["translation"], _lines(members[f"{stem}.tags"]))
        table = table.astype({"hter": float} if "hter" in table else {})
    return table.assign(pair=source.config)


def _direct_assessments(members: dict[str, bytes], pair: str) -> pd.DataFrame:
    table = pd.read_csv(
        io.BytesIO(members[f"test20.{pair}.df.short.tsv"].replace(b"\r\n", b"\n")),
        sep="\t",
        lineterminator="\n",
        quoting=csv.QUOTE_NONE,  # quotes are text
        keep_default_na=False,  # and so is "NA"
        dtype={"original": str, "translation": str},
    )
    table = table.rename(columns={"original": "source", "model_scores": "model_score"})
    table["tokens"] = [line.split(" ") for line in _lines(members[f"mt.test20.{pair}"])]
    logprobs = _lines(members[f"word_probas.test20.{pair}"])
    return table.assign(logprobs=[[float(v) for v in line.split(" ")] for line in logprobs])


def _word_tags(sentences: pd.Series, lines: list[str]) -> list[list[str]]:
    """OK or BAD for each word, from lines that also tag the gaps around words: no token carries a
    gap's. Raises ValueError where there is not one tag for each.
    """
    tags = [line.split(" ") for line in lines]
    for number, (sentence, given) in enumerate(zip(sentences, tags, strict=True), 1):
        if len(given) != 2 * len(sentence.split(" ")) + 1 or not set(given) <= {"OK", "BAD"}:
            raise ValueError(f"line {number}: not one OK or BAD for each word and each gap")
    return [given[1::2] for given in tags]


# ---- parsing -------------------------------------------------------------------------------------


def _read_json_lines(file: Path, columns: list[str]) -> pd.DataFrame:
    """Rows, line by line: `str.splitlines` would also cut at U+2028, which texts contain."""
    with file.open(encoding="utf-8") as lines:
        rows = [json.loads(line) for line in lines]
    return pd.DataFrame({column: [row[column] for row in rows] for column in columns})


def _lines(content: bytes) -> list[str]:
    """Lines without their ends (LF or CR LF)."""
    return content.decode("utf-8").replace("\r\n", "\n").removesuffix("\n").split("\n")
