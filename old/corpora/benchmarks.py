"""Benchmark data sets, from a local mirror, the hub or pinned GitHub files; `sources.py` lists them.

The folder that the environment variable STUDY_DATA names is asked first, in this layout:
`hub/<namespace>__<name>/<config>/<split>.jsonl` (rows with the hub's column names, some files are subsets) and
`github/<owner>/<repository>/<commit>/<path>` (the files of that commit). What it lacks comes from the network and stays in a cache.
Checksums, columns and numbers of rows are checked, so a damaged file is an error and never a smaller data set.
"""

import dataclasses
import hashlib
import json
import os
import re
import tarfile
import unicodedata
from pathlib import Path

import datasets
import pandas as pd
import pooch
from huggingface_hub import HfApi

from old import paths
from old.corpora.sources import BENCHMARKS, Benchmark

FOLDER = "STUDY_DATA"  # environment variable: the local mirror
GITHUB = "https://raw.githubusercontent.com"
TIMEOUT = 5  # seconds until a silent server counts as unreachable


def fingerprint(*names: str) -> str:
    """Hash of what is declared about data sets (source, revision, checksums, rows): their identity, which needs no data at hand."""
    described = json.dumps({name: dataclasses.asdict(_known(name)) for name in names}, sort_keys=True)
    return hashlib.sha256(described.encode()).hexdigest()[:16]


def load(name: str, split: str) -> datasets.Dataset:
    """One split of a data set of the hub (or of the mirror in the hub's layout), with the columns listed in `BENCHMARKS`.

    The mirror may hold a subset (`mirror_rows`). Raises KeyError for an unknown name or split, ValueError for a damaged file, missing
    columns or an unexpected number of rows, RuntimeError where neither mirror nor network has it.
    """
    benchmark = _known(name)
    if benchmark.kind == "github":
        raise KeyError(f"{name} is read by direct_assessments, post_edits or hjqe")
    if split not in benchmark.rows:
        raise KeyError(f"{name} has the splits {list(benchmark.rows)}, not {split!r}")
    relative = f"hub/{benchmark.id.replace('/', '__')}/{benchmark.config}/{split}.jsonl"
    expected = {benchmark.rows[split]}
    if stored := _mirrored(relative):
        dataset = _read_jsonl(stored, benchmark.columns)
        expected.add(benchmark.mirror_rows.get(split, benchmark.rows[split]))
    elif benchmark.kind == "hub":
        dataset = _from_hub(name, benchmark, split, relative)
    else:
        raise RuntimeError(f"{name} is only in the local mirror: set {FOLDER} to a folder that holds {relative}")
    where = f"{stored or benchmark.id}, split {split}"
    if None not in expected and len(dataset) not in expected:
        raise ValueError(f"{where}: {len(dataset):,} rows, expected {' or '.join(f'{rows:,}' for rows in sorted(expected))}")
    if missing := set(benchmark.columns) - set(dataset.column_names):
        raise ValueError(f"{where}: no column {sorted(missing)}")
    return dataset.select_columns(list(benchmark.columns))


def direct_assessments(pair: str) -> pd.DataFrame:
    """MLQE-PE test20: one row a sentence translated by an NMT model and rated 0 to 100 by people. Pairs: en-de, ro-en, ru-en.

    `pair`, `source`, `translation`; `z_mean`, the mean of the ratings standardised by rater (the usual gold), and `mean`, of the raw
    ratings; `model_score`, the mean of `logprobs`: natural log-probabilities of the NMT model, one for each of its `tokens` (subwords
    joined by `@@`, HTML entities as in the file) and a last one for the end of the sentence. Raises as `load` does.
    """
    name = f"mlqe-pe-{pair}"
    (archive,) = _github_files(name)
    code, rows = pair.replace("-", ""), BENCHMARKS[name].rows["test20"]
    table = _tsv(archive, f"{pair}/test20.{code}.df.short.tsv", rows)
    table = table.rename(columns={"original": "source", "model_scores": "model_score"}).assign(pair=pair)
    table["tokens"] = [line.split(" ") for line in _lines(archive, f"{pair}/word-probas/mt.test20.{code}", rows)]
    logprobs = _lines(archive, f"{pair}/word-probas/word_probas.test20.{code}", rows)
    table["logprobs"] = [[float(value) for value in line.split(" ")] for line in logprobs]
    for number, (tokens, values) in enumerate(zip(table["tokens"], table["logprobs"]), 1):
        if len(values) != len(tokens) + 1:
            raise ValueError(f"{archive}, line {number} of the log-probabilities: {len(values)} values for {len(tokens)} tokens")
    return table.astype(dict.fromkeys(("z_mean", "mean", "model_score"), float))[list(BENCHMARKS[name].columns)]


def post_edits(pair: str) -> pd.DataFrame:
    """MLQE-PE test20, corrected by people: one row a sentence, words separated by spaces. Pairs: en-de, ro-en.

    `pair`, `source`, `translation`, `post_edit`; `hter`, edits needed per word of the post-edit; `tags`, a list with OK or BAD (to be
    changed) for each word of the translation. Tags of the gaps between words (something is missing there) are left out: no token
    carries them. Raises as `load` does.
    """
    name = f"mlqe-pe-tags-{pair}"
    (archive,) = _github_files(name)
    rows = BENCHMARKS[name].rows["test20"]
    source, translation, post_edit, hter, tags = (
        _lines(archive, f"{pair}-test20/test20.{end}", rows) for end in ("src", "mt", "pe", "hter", "tags")
    )
    table = pd.DataFrame({"source": source, "translation": translation, "post_edit": post_edit, "hter": hter}).assign(pair=pair)
    table["tags"] = _word_tags(archive, translation, tags)
    return table.astype({"hter": float})[list(BENCHMARKS[name].columns)]


def hjqe() -> pd.DataFrame:
    """HJQE en-de dev: translations in which experts marked the wrong words (MLQE-PE derives its tags from post-edits).

    `pair`, `source`, `translation`, `tags` as in `post_edits`. Raises as `load` does.
    """
    benchmark = BENCHMARKS["hjqe-en-de"]
    files = _github_files("hjqe-en-de")
    source, translation, tags = (_lines(file, None, benchmark.rows["dev"]) for file in files)
    table = pd.DataFrame({"source": source, "translation": translation}).assign(pair=benchmark.config)
    table["tags"] = _word_tags(files[-1], translation, tags)
    return table[list(benchmark.columns)]


def without_overlap(train: datasets.Dataset, test: datasets.Dataset) -> datasets.Dataset:
    """The rows of `train` that share nothing with `test`; both have the columns `question` and `context`.

    Dropped are rows with a question of the test set, and rows whose context (a sentence or a paragraph) lies within a test paragraph.
    Case, punctuation and Unicode variants do not count. XQuAD is a part of SQuAD's dev set, from which `squad-sentences` is made: train on
    the latter only after this.
    """
    questions = {_normalised(question) for question in test["question"]}
    paragraphs = "\n".join(f" {_normalised(context)} " for context in set(test["context"]))
    kept = [
        index
        for index, (question, context) in enumerate(zip(train["question"], train["context"]))
        if _normalised(question) not in questions and f" {_normalised(context)} " not in paragraphs
    ]
    return train.select(kept)


def data_card_section() -> str:
    """The table of data sets in Markdown, for data/README.md."""
    lines = [
        "## Benchmarks",
        "",
        f"Set `{FOLDER}` to a folder with `hub/<namespace>__<name>/<config>/<split>.jsonl` and",
        "`github/<owner>/<repository>/<commit>/<path>`, or connect: what the folder lacks is fetched from the hub or from GitHub and",
        "kept in a cache. Numbers of rows are checked where they are known, GitHub files also by SHA-256; the checksums, and where each",
        "revision was seen, are in `lib/corpora/sources.py`. “unpinned” means the newest version of the hub. “mirror” marks what the",
        "local folder of the stored results held: a subset, or a set made for this study that the hub does not have.",
        "",
        "| name | source | config | revision | licence | rows | checksum |",
        "|---|---|---|---|---|---|---|",
    ]
    for name, benchmark in BENCHMARKS.items():
        rows = "; ".join(_rows_in_words(benchmark, split) for split in benchmark.rows)
        revision = "-" if benchmark.kind == "mirror" else (benchmark.revision or "unpinned")[:12]
        cells = [name, f"{benchmark.kind} {benchmark.id}", benchmark.config, revision, benchmark.licence, rows]
        lines.append(f"| {' | '.join(cells)} | {'yes' if benchmark.files else 'no'} |")
    return "\n".join([*lines, ""])


def _rows_in_words(benchmark: Benchmark, split: str) -> str:
    rows = "not checked" if benchmark.rows[split] is None else f"{benchmark.rows[split]:,}"
    return f"{split} {rows}" + (f" (mirror {benchmark.mirror_rows[split]:,})" if split in benchmark.mirror_rows else "")


def _known(name: str) -> Benchmark:
    if name not in BENCHMARKS:
        raise KeyError(f"no data set {name!r}; there are {', '.join(BENCHMARKS)}")
    return BENCHMARKS[name]


# ---- where files come from -----------------------------------------------------------------------------------------------------------


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
        f"{name} is neither in a local mirror nor in the cache, and {address} is out of reach. Either set {FOLDER} to a folder that holds"
        f" {relative} (layout in data/README.md), or connect once. {type(problem).__name__}: {str(problem)[:200]}"
    )


def _from_hub(name: str, benchmark: Benchmark, split: str, relative: str) -> datasets.Dataset:
    """Rows from the hub; from the cache of `datasets` where the hub does not answer within TIMEOUT or refuses."""
    endpoint = datasets.config.HF_ENDPOINT
    arguments = {"path": benchmark.id, "name": benchmark.config, "split": split, "revision": benchmark.revision}
    try:  # one short question: `load_dataset` by itself asks an unreachable hub six times, for up to a minute and a half
        HfApi(endpoint).dataset_info(benchmark.id, revision=benchmark.revision, timeout=TIMEOUT)
    except Exception as problem:
        offline, datasets.config.HF_HUB_OFFLINE = datasets.config.HF_HUB_OFFLINE, True
        try:
            dataset = datasets.load_dataset(**arguments)
        except Exception:
            raise _unavailable(name, relative, f"{endpoint}/datasets/{benchmark.id}", problem) from problem
        finally:
            datasets.config.HF_HUB_OFFLINE = offline
        if benchmark.revision and any(benchmark.revision not in Path(file["filename"]).parts for file in dataset.cache_files):
            raise ValueError(f"{name}: the cache of `datasets` holds another revision than {benchmark.revision}; connect once") from problem
        return dataset
    return datasets.load_dataset(**arguments)


def _github_files(name: str) -> list[Path]:
    """The files of a data set at the pinned commit, in the order of the table, each with the pinned checksum."""
    benchmark = _known(name)
    found = []
    for path, sha in benchmark.files.items():
        relative = f"{benchmark.id}/{benchmark.revision}/{path}"
        if stored := _mirrored(f"github/{relative}"):
            if hashlib.sha256(stored.read_bytes()).hexdigest() != sha:
                raise ValueError(f"{stored} is damaged or another version: its SHA-256 is not {sha}")
            found.append(stored)
            continue
        target = paths.CACHE / "github" / relative
        try:
            pooch.retrieve(
                f"{GITHUB}/{relative}", sha, target.name, target.parent, downloader=pooch.HTTPDownloader(timeout=TIMEOUT, progressbar=False)
            )
        except OSError as problem:  # what `requests` raises; a wrong checksum is a ValueError that names the file
            raise _unavailable(name, f"github/{relative}", f"{GITHUB}/{relative}", problem) from problem
        found.append(target)
    return found


# ---- parsing -------------------------------------------------------------------------------------------------------------------------


def _read_jsonl(path: Path, columns: tuple[str, ...]) -> datasets.Dataset:
    """Rows of a JSON-lines file, read line by line: `str.splitlines` would also cut at U+2028 and the like, which texts contain."""
    rows = []
    with path.open(encoding="utf-8") as lines:
        for number, line in enumerate(lines, 1):
            try:
                row = json.loads(line)
            except json.JSONDecodeError as problem:
                raise ValueError(f"{path}, line {number}: not JSON, {problem}") from problem
            if missing := set(columns) - set(row):
                raise ValueError(f"{path}, line {number}: no column {sorted(missing)}")
            rows.append({column: row[column] for column in columns})
    return datasets.Dataset.from_list(rows)


def _lines(file: Path, member: str | None, rows: int) -> list[str]:
    """Lines of a text file or of a member of a tar archive. Line feeds end them; a carriage return before one is dropped."""
    if member is None:
        content = file.read_bytes()
    else:
        with tarfile.open(file) as archive:
            content = archive.extractfile(member).read()
    lines = [line.removesuffix("\r") for line in content.decode("utf-8").removesuffix("\n").split("\n")]
    if len(lines) != rows:
        raise ValueError(f"{file}{f', {member}' if member else ''}: {len(lines):,} lines, expected {rows:,}")
    return lines


def _tsv(file: Path, member: str, rows: int) -> pd.DataFrame:
    """A tab-separated table with a header line, as strings. Quotes are text, empty fields stay empty strings."""
    header, *body = (line.split("\t") for line in _lines(file, member, rows + 1))
    for number, fields in enumerate(body, 2):  # pandas would fill a short line with NaN
        if len(fields) != len(header):
            raise ValueError(f"{file}, {member}, line {number}: {len(fields)} columns, expected {len(header)}")
    return pd.DataFrame(body, columns=header)


def _word_tags(file: Path, sentences: list[str], lines: list[str]) -> list[list[str]]:
    """OK or BAD for each word of each sentence, from lines that also tag the gaps before, between and after its words."""
    tags = [line.split(" ") for line in lines]
    for number, (sentence, of_line) in enumerate(zip(sentences, tags), 1):
        if len(of_line) != 2 * len(sentence.split(" ")) + 1 or not set(of_line) <= {"OK", "BAD"}:
            raise ValueError(f"{file}, line {number} of the tags: not one OK or BAD for each word and each gap")
    return [of_line[1::2] for of_line in tags]


def _normalised(text: str) -> str:
    return " ".join(re.findall(r"\w+", unicodedata.normalize("NFKC", text).casefold()))
