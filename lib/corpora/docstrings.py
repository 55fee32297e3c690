"""Docstrings of 48 Python packages: real text that needs nothing but PyPI.

The summary line of a docstring is the source, the prose description below it the target. The
packages are pure Python, pinned by version and SHA-256 (`wheels.txt`), read from their wheels and
never imported, so the text is the same on every platform.
"""

import ast
import hashlib
import re
import subprocess
import sys
import warnings
import zipfile
from collections.abc import Iterator
from pathlib import Path

import joblib
import pandas as pd
from filelock import FileLock

from lib.corpora.duplicates import near_duplicate_groups, split_by_group
from lib.study import paths
from lib.study.rows import digest, write_atomically

WHEELS = Path(__file__).with_name("wheels.txt")
VERSION = 1  # raised when a change of the extraction or of the splits moves a text
SPLITS = {"train": 0.90, "validation": 0.04, "test": 0.06}
MIN_WORDS, MAX_WORDS = 4, 400  # of a description
MAX_FILE_BYTES = 300_000  # larger files are generated tables, slow to parse and without prose

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
    """Pinned wheels, downloaded with pip, which checks every SHA-256; those already in the folder
    are not fetched again. Raises RuntimeError where pip cannot.
    """
    folder.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check"]
    command += ["--no-deps", "--only-binary=:all:", "--require-hashes", "--dest", str(folder)]
    done = subprocess.run(
        [*command, "-r", str(wheels)], capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise RuntimeError(
            f"the docstrings need {len(pins(wheels))} wheels from the package index (100 MB), and "
            f"pip could not fetch them:\n{done.stderr.strip()[-800:]}\n"
            f"Connect once, or put the wheels named in {wheels.name} into {folder}."
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
    pairs = []
    with zipfile.ZipFile(wheel) as archive:
        for name in sorted(archive.namelist()):
            large = archive.getinfo(name).file_size > MAX_FILE_BYTES
            if not name.endswith(".py") or _TESTS.search(name) or large:
                continue
            try:
                texts = list(_docstrings(archive.read(name).decode("utf-8")))
            except (SyntaxError, UnicodeDecodeError, ValueError):
                continue  # templates and deliberately broken test files
            pairs += [pair for text in texts if (pair := split_docstring(text))]
    return pairs


def _docstrings(source: str) -> Iterator[str]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # old escape sequences in other people's files
        tree = ast.parse(source)
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    for node in ast.walk(tree):
        if isinstance(node, documented) and (text := ast.get_docstring(node, clean=False)):
            yield text


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
