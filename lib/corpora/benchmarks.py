"""Rows of the benchmarks, from a local mirror, the hub or pinned GitHub files; `sources` lists
them.

The folder that the environment variable STUDY_DATA names is asked first:
`hub/<namespace>__<name>/<config>/<split>.jsonl` (rows with the hub's column names; some files are
subsets) and `github/<owner>/<repository>/<commit>/<path>` (the files of that commit). What it lacks
comes from the network and stays in a cache. Checksums, columns and numbers of rows are checked: a
damaged file is an error, never a smaller data set.
"""

import dataclasses
import hashlib
import json
import os
import tarfile
from pathlib import Path

import pandas as pd

from lib.corpora.sources import BENCHMARKS, Source
from lib.study import paths

FOLDER = "STUDY_DATA"  # environment variable: the local mirror
GITHUB = "https://raw.githubusercontent.com"
TIMEOUT = 5  # seconds until a silent server counts as unreachable


def load(name: str, split: str) -> pd.DataFrame:
    """One split, with the columns listed in `sources`. The mirror may hold a subset
    (`mirror_rows`).

    Raises KeyError for an unknown name or split, ValueError for a damaged file, missing columns or
    an unexpected number of rows, RuntimeError where neither mirror nor network has it.
    """
    source = _known(name)
    if split not in source.rows:
        raise KeyError(f"{name} has the splits {list(source.rows)}, not {split!r}")
    if source.kind == "github":
        return _judged_translations(name, source, source.rows[split])
    relative = f"hub/{source.id.replace('/', '__')}/{source.config}/{split}.jsonl"
    expected = {source.rows[split]}
    if stored := _mirrored(relative):
        table = _read_json_lines(stored, source.columns)
        expected.add(source.mirror_rows.get(split, source.rows[split]))
    elif source.kind == "hub":
        table = _from_hub(name, source, split, relative)
    else:
        raise RuntimeError(
            f"{name} is only in the local mirror: set {FOLDER} to a folder that holds {relative}"
        )
    where = f"{stored or source.id}, split {split}"
    if None not in expected and len(table) not in expected:
        wanted = " or ".join(f"{rows:,}" for rows in sorted(expected))
        raise ValueError(f"{where}: {len(table):,} rows, expected {wanted}")
    if missing := set(source.columns) - set(table):
        raise ValueError(f"{where}: no column {sorted(missing)}")
    return table[list(source.columns)]


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
    if not os.environ.get(FOLDER):
        return None
    folder = Path(os.environ[FOLDER]).expanduser()
    if not folder.is_dir():
        raise FileNotFoundError(f"{FOLDER} names {folder}, which is no folder")
    return folder / relative if (folder / relative).is_file() else None


def _unavailable(name: str, relative: str, address: str, problem: Exception) -> RuntimeError:
    return RuntimeError(
        f"{name} is neither in a local mirror nor in the cache, and {address} is out of reach. "
        f"Either set {FOLDER} to a folder that holds {relative} (layout in data/README.md), or "
        f"connect once. {type(problem).__name__}: {str(problem)[:200]}"
    )


def _from_hub(name: str, source: Source, split: str, relative: str) -> pd.DataFrame:
    """Rows from the hub; from the cache of `datasets` where the hub does not answer soon."""
    import datasets  # noqa: PLC0415 - 2 s that only those pay who load from the hub
    from huggingface_hub import HfApi  # noqa: PLC0415

    endpoint, config = datasets.config.HF_ENDPOINT, datasets.config
    arguments = {"path": source.id, "name": source.config, "revision": source.revision}
    try:  # one short question: `load_dataset` itself asks six times, for up to 90 s
        HfApi(endpoint).dataset_info(source.id, revision=source.revision, timeout=TIMEOUT)
    except Exception as problem:
        offline, config.HF_HUB_OFFLINE = config.HF_HUB_OFFLINE, True
        try:
            rows = datasets.load_dataset(**arguments, split=split)
        except Exception:
            address = f"{endpoint}/datasets/{source.id}"
            raise _unavailable(name, relative, address, problem) from problem
        finally:
            config.HF_HUB_OFFLINE = offline
        places = [Path(file["filename"]).parts for file in rows.cache_files]
        if source.revision and any(source.revision not in parts for parts in places):
            raise ValueError(
                f"{name}: the cache of `datasets` holds another revision than {source.revision}; "
                "connect once"
            ) from problem
        return rows.to_pandas()
    return datasets.load_dataset(**arguments, split=split).to_pandas()


def _github_files(name: str, source: Source) -> list[Path]:
    """The files of a data set at the pinned commit, in the order of the table, checked."""
    import pooch  # noqa: PLC0415 - only where files are fetched

    files = []
    for path, sha in source.files.items():
        relative = f"{source.id}/{source.revision}/{path}"
        if stored := _mirrored(f"github/{relative}"):
            if hashlib.sha256(stored.read_bytes()).hexdigest() != sha:
                raise ValueError(
                    f"{stored} is damaged or another version: its SHA-256 is not {sha}"
                )
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


def _judged_translations(name: str, source: Source, rows: int) -> pd.DataFrame:
    """One row a sentence, words separated by spaces.

    MLQE-PE, direct assessments: `z_mean`, the mean of ratings standardised by rater (the usual
    gold), and `mean`, of the raw ones (0 to 100); `model_score`, the mean of `logprobs`: natural
    log-probabilities of the translating model, one for each of its `tokens` (subwords joined by
    `@@`) and a last one for the end of the sentence.

    MLQE-PE, post-edits: `post_edit`; `hter`, edits a word; `tags`, OK or BAD (to be changed) for
    each word of the translation. HJQE: `tags` of experts. Tags of the gaps between words are left
    out: no token carries them.
    """
    files, pair = _github_files(name, source), source.config
    if name == "hjqe-en-de":
        texts = [_lines(file, None, rows) for file in files]
        columns = {"source": texts[0], "translation": texts[1]}
        table = pd.DataFrame(columns).assign(tags=_word_tags(files[-1], *texts[1:]))
    elif "tags" in source.columns:
        table = _post_edits(files[0], pair, rows)
    else:
        table = _direct_assessments(files[0], pair, rows)
    return table.assign(pair=pair)[list(source.columns)]


def _direct_assessments(archive: Path, pair: str, rows: int) -> pd.DataFrame:
    end = f"test20.{pair.replace('-', '')}"
    table = _tab_separated(archive, f"{pair}/{end}.df.short.tsv", rows)
    table = table.rename(columns={"original": "source", "model_scores": "model_score"})
    tokens = _lines(archive, f"{pair}/word-probas/mt.{end}", rows)
    logprobs = _lines(archive, f"{pair}/word-probas/word_probas.{end}", rows)
    table["tokens"] = [line.split(" ") for line in tokens]
    table["logprobs"] = [[float(value) for value in line.split(" ")] for line in logprobs]
    for row, (words, values) in enumerate(zip(table["tokens"], table["logprobs"]), 1):
        if len(values) != len(words) + 1:
            raise ValueError(
                f"{archive}, line {row} of the log-probabilities: {len(values)} values for "
                f"{len(words)} tokens"
            )
    return table.astype(dict.fromkeys(("z_mean", "mean", "model_score"), float))


def _post_edits(archive: Path, pair: str, rows: int) -> pd.DataFrame:
    names = {
        "source": "src",
        "translation": "mt",
        "post_edit": "pe",
        "hter": "hter",
        "tags": "tags",
    }
    lines = {
        column: _lines(archive, f"{pair}-test20/test20.{end}", rows)
        for column, end in names.items()
    }
    lines["tags"] = _word_tags(archive, lines["translation"], lines["tags"])
    return pd.DataFrame(lines).astype({"hter": float})


# ---- parsing -------------------------------------------------------------------------------------


def _read_json_lines(file: Path, columns: tuple[str, ...]) -> pd.DataFrame:
    """Rows, line by line: `str.splitlines` would also cut at U+2028, which texts contain."""
    values = {column: [] for column in columns}
    with file.open(encoding="utf-8") as lines:
        for number, line in enumerate(lines, 1):
            try:
                row = json.loads(line)
            except json.JSONDecodeError as problem:
                raise ValueError(f"{file}, line {number}: not JSON, {problem}") from problem
            if missing := set(columns) - set(row):
                raise ValueError(f"{file}, line {number}: no column {sorted(missing)}")
            for column in columns:
                values[column].append(row[column])
    return pd.DataFrame(values)


def _lines(file: Path, member: str | None, rows: int) -> list[str]:
    """Lines of a text file or of a member of a tar archive, without their ends (LF or CR LF)."""
    if member is None:
        content = file.read_bytes()
    else:
        with tarfile.open(file) as archive:
            content = archive.extractfile(member).read()
    text = content.decode("utf-8").removesuffix("\n")
    lines = [line.removesuffix("\r") for line in text.split("\n")]
    if len(lines) != rows:
        where = f"{file}, {member}" if member else f"{file}"
        raise ValueError(f"{where}: {len(lines):,} lines, expected {rows:,}")
    return lines


def _tab_separated(file: Path, member: str, rows: int) -> pd.DataFrame:
    """A table with a header line, as strings. Quotes are text, empty fields stay empty strings."""
    header, *body = (line.split("\t") for line in _lines(file, member, rows + 1))
    for number, fields in enumerate(body, 2):  # pandas would fill a short line with NaN
        if len(fields) != len(header):
            wrong = f"{len(fields)} columns, expected {len(header)}"
            raise ValueError(f"{file}, {member}, line {number}: {wrong}")
    return pd.DataFrame(body, columns=header)


def _word_tags(file: Path, sentences: list[str], lines: list[str]) -> list[list[str]]:
    """OK or BAD for each word, from lines that also tag the gaps around words."""
    tags = [line.split(" ") for line in lines]
    for number, (sentence, given) in enumerate(zip(sentences, tags), 1):
        if len(given) != 2 * len(sentence.split(" ")) + 1 or not set(given) <= {"OK", "BAD"}:
            raise ValueError(
                f"{file}, line {number} of the tags: not one OK or BAD for each word and each gap"
            )
    return [given[1::2] for given in tags]
