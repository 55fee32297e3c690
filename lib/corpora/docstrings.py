"""Docstrings of 48 Python packages, and splits that near-duplicates do not cross. A docstring's
summary line is the source, the prose description below it the target. The packages are pinned
(`wheels.txt`), read from their wheels and never imported: the text is the same on every platform.
"""

import ast
import hashlib
import re
import subprocess
import sys
import warnings
import zipfile
from pathlib import Path

import joblib
import numpy as np
import pandas as pd
from filelock import FileLock
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components

from lib.study import paths
from lib.study.rows import digest, write_atomically

WHEELS = Path(__file__).with_name("wheels.txt")
VERSION = 1  # raised when a change of the extraction or of the splits moves a text
SPLITS = {"train": 0.90, "validation": 0.04, "test": 0.06}
MIN_WORDS, MAX_WORDS = 4, 400  # of a description
MAX_FILE_BYTES = 300_000  # larger files are generated tables, slow to parse and without prose
NGRAM = 10  # words; two texts that share one such n-gram never fall on two sides of a split

_HEADINGS = r"""
    (other\ )?parameters?|(keyword\ |call\ )?(args|arguments)|returns?|raises|yields?|attributes
    |methods|examples?|doctests?|see\ also|notes?|references?|usage|options|keywords?|warnings?|todo
    |inputs?|outputs?|(input|output)\ shape|mathematical\ details
"""
_SECTION = re.compile(rf"^\s*({_HEADINGS})\s*:?\s*$", re.IGNORECASE | re.VERBOSE)
_TESTS = re.compile(r"(^|/)tests?/|(_test|conftest)\.py$")
_NOT_PROSE = re.compile(r"^(>>>|\.\. |:\w[\w ]*:|@\w+|```|[-=~^*#+|]{3,}|\$ |[|+])")


def load() -> pd.DataFrame:
    """The corpus, built once and kept in the cache: package, source, target, group, split.

    Texts are unique. Raises RuntimeError where the wheels are out of reach.
    """
    file = paths.CACHE / "corpora" / f"docstrings-{fingerprint()}.parquet"
    file.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(file.with_suffix(".lock")):
        if not file.exists():
            wheels = fetch(WHEELS, paths.CACHE / "wheels")
            pairs = joblib.Parallel(n_jobs=-1)(joblib.delayed(read_wheel)(one) for one in wheels)
            table = with_splits({name: own for (name, *_), own in zip(pins(WHEELS), pairs)})
            write_atomically(file, lambda partial: table.to_parquet(partial, index=False))
    return pd.read_parquet(file)


def fingerprint(wheels: Path = WHEELS, version: int = VERSION) -> str:
    """Hash of packages and extraction, which determine every text; no download is needed."""
    return digest([sorted(pins(wheels)), version])


def pins(wheels: Path) -> list[tuple[str, str, str]]:
    """Name, version and SHA-256 of each wheel."""
    return re.findall(r"^(\S+)==(\S+) --hash=sha256:(\w+)$", wheels.read_text(), re.MULTILINE)


def fetch(wheels: Path, folder: Path) -> list[Path]:
    """Pinned wheels, downloaded with pip where the folder lacks them; pip checks every SHA-256.
    Raises RuntimeError where it cannot.
    """
    folder.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check"]
    command += ["--no-deps", "--only-binary=:all:", "--require-hashes", "--dest", str(folder)]
    done = subprocess.run([*command, "-r", wheels], capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(
            f"pip could not fetch the wheels of the docstrings (100 MB): connect once, or put "
            f"those named in {wheels.name} into {folder}.\n{done.stderr.strip()[-800:]}"
        )
    by_hash = {hashlib.sha256(file.read_bytes()).hexdigest(): file for file in folder.glob("*.whl")}
    return [by_hash[sha] for _, _, sha in pins(wheels)]


def with_splits(pairs: dict[str, list[tuple[str, str]]]) -> pd.DataFrame:
    """(source, target) of each package as the corpus. Raises ValueError where there are none."""
    rows = [(package, *pair) for package, own in pairs.items() for pair in own]
    table = pd.DataFrame(rows, columns=["package", "source", "target"])
    table = table.drop_duplicates("target", ignore_index=True)
    if table.empty:
        raise ValueError("no docstring of these packages has a summary and a prose description")
    group = near_duplicate_groups((table["source"] + " " + table["target"]).tolist())
    return table.assign(group=group, split=split_by_group(group, SPLITS))


def read_wheel(wheel: Path) -> list[tuple[str, str]]:
    """(summary, description) of every documented object of a wheel, in file order."""
    pairs, documented = [], (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    with zipfile.ZipFile(wheel) as archive, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # old escape sequences in other people's files
        for name in sorted(archive.namelist()):
            large = archive.getinfo(name).file_size > MAX_FILE_BYTES
            if not name.endswith(".py") or _TESTS.search(name) or large:
                continue
            try:
                tree = ast.parse(archive.read(name).decode("utf-8"))
            except (SyntaxError, UnicodeDecodeError, ValueError):
                continue  # templates and deliberately broken test files
            nodes = [node for node in ast.walk(tree) if isinstance(node, documented)]
            texts = [ast.get_docstring(node, clean=False) for node in nodes]
            pairs += [pair for text in texts if text and (pair := split_docstring(text))]
    return pairs


def split_docstring(docstring: str) -> tuple[str, str] | None:
    """(summary, description) of a docstring, or None where it has no prose description.

    >>> split_docstring("Add two numbers.\\n\\nBoth may\\nbe negative.\\n\\nReturns\\n---\\nint")
    ('Add two numbers.', 'Both may be negative.')
    """
    summary, *rest = _paragraphs(docstring) or [""]
    description = re.sub(r"::$", ":", " ".join(rest))
    words = len(description.split())
    if not MIN_WORDS <= words <= MAX_WORDS or not 2 <= len(summary.split()) <= 60:
        return None
    letters = sum(c.isalpha() or c == " " for c in description)
    if not (summary + description).isascii() or letters < 0.85 * len(description):
        return None
    return summary, description


def _paragraphs(docstring: str) -> list[str]:
    """Prose before the first section heading or markup block; each paragraph on one line."""
    lines = [line.strip() for line in docstring.expandtabs().splitlines()]
    paragraphs: list[list[str]] = [[]]
    for number, line in enumerate(lines):
        underlined = number + 1 < len(lines) and re.fullmatch(r"[-=~^]{3,}", lines[number + 1])
        if _SECTION.match(line) or _NOT_PROSE.match(line) or underlined:
            break
        if line:
            paragraphs[-1].append(line)
        elif paragraphs[-1]:
            paragraphs.append([])
    return [re.sub(r"\s+", " ", " ".join(p)) for p in paragraphs if p]


# ---- near-duplicates -----------------------------------------------------------------------------


def word_ngrams(text: str, n: int = NGRAM) -> list[str]:
    """Word n-grams, lower case without punctuation; a shorter text is its own single n-gram."""
    words = re.findall(r"[a-z0-9]+", text.lower())
    return [" ".join(words[i : i + n]) for i in range(max(1, len(words) - n + 1))]


def near_duplicate_groups(texts: list[str], n: int = NGRAM) -> np.ndarray:
    """Group of each text where texts that share a word n-gram are linked. (N,) -> (N,)"""
    return linked([word_ngrams(text, n) for text in texts])


def linked(features: list[list[str]]) -> np.ndarray:
    """Group of each of N items, given by its features, where items that share one are linked,
    directly or through others; named by its first member. (N,)
    """
    number, names = pd.factorize(np.array([name for row in features for name in row], object))
    of_item = np.repeat(np.arange(len(features)), [len(row) for row in features])
    nodes = len(features) + len(names)  # a graph of items and features
    cells = (of_item, len(features) + number)
    links = coo_array((np.ones(len(number)), cells), shape=(nodes, nodes))
    group = connected_components(links, directed=False)[1][: len(features)]
    _, first, of_group = np.unique(group, return_index=True, return_inverse=True)
    return first[of_group]


def split_by_group(groups: np.ndarray, shares: dict[str, float], seed: int = 0) -> np.ndarray:
    """Split of each text, drawn by group, so that near-duplicates stay together. (N,) -> (N,)"""
    unique, member = np.unique(groups, return_inverse=True)
    return in_shares(np.random.default_rng(seed).random(len(unique)), shares)[member]


def in_shares(draws: np.ndarray, shares: dict[str, float]) -> np.ndarray:
    """Name of the split for numbers in [0, 1): the first ones up to its share, and so on."""
    bounds = np.cumsum(list(shares.values()))[:-1]
    return np.array(list(shares))[np.searchsorted(bounds, draws, side="right")]
