"""The docstring corpus: what counts as prose, and that no near-duplicate crosses a split."""

import doctest
import hashlib
import re
import zipfile

import numpy as np
import pandas as pd
import pytest

from lib.corpora import docstrings
from lib.corpora.docstrings import (
    SPLITS,
    near_duplicate_groups,
    read_wheel,
    split_by_group,
    split_docstring,
    with_splits,
    word_ngrams,
)
from lib.study import paths

PROSE = "Both of them may be negative."


def test_examples_in_the_docstrings():
    outcome = doctest.testmod(docstrings)
    assert outcome.attempted and not outcome.failed


@pytest.mark.parametrize(
    "end",
    [
        "Parameters\n----------\nx : int",
        "Keyword arguments:\n    x",
        "See Also\n--------\nsub",
        "Mathematical details",
        "Anything underlined\n=====\nmore",
        ">>> add(1, 2)\n3",
        ".. note:: careful",
        ":param x: a number",
        "@param x a number",
        "```python\nadd(1, 2)\n```",
        "| a | b |",
        "$ add 1 2",
    ],
    ids=lambda end: end.splitlines()[0],
)
def test_prose_ends_at_sections_and_markup(end):
    summary = "Add two numbers."
    assert split_docstring(f"{summary}\n\n    {PROSE}\n\n    {end}") == (summary, PROSE)
    assert split_docstring(f"{summary}\n\n{end}\n\n{PROSE}") is None


def test_paragraphs_are_joined():
    """Paragraphs and line breaks become single spaces; a final `::` becomes a colon."""
    text = (
        "\n    Add two\n    numbers.\n\n\n    Both may\tbe negative.\n\n    Like   this one::\n    "
    )
    assert split_docstring(text) == ("Add two numbers.", "Both may be negative. Like this one:")


@pytest.mark.parametrize(
    "text",
    [
        "",
        "Add two numbers.",
        f"Add.\n\n{PROSE}",
        "Add two numbers.\n\nOnly three words.",
        f"Add two numbers.\n\n{'word ' * 401}",
        f"{'word ' * 61}\n\n{PROSE}",
        "Add two numbers.\n\nDiese dürfen auch negativ sein.",
        "Add two numbers.\n\n1 + 1 = 2 and 2 * 2 = 4 (!)",
    ],
    ids=["empty", "bare", "one word", "short", "long", "long summary", "not ASCII", "no letters"],
)
def test_not_usable(text):
    assert split_docstring(text) is None


def test_wheel(tmp_path):
    """Modules, classes, functions, methods of readable files; no tests, no broken or huge files."""
    doc = '"""Summary of {0}.\n\nThe {0} does this and that.\n"""\n'
    method = f"    async def f(self):\n        {doc.format('method')}\n"
    files = {
        "b/__init__.py": f"{doc.format('module')}\nraise SystemExit\n\nclass A:\n"
        f"    {doc.format('class')}\n{method}",
        "a.py": f"def f():\n    {doc.format('function')}\n",
        "tests/helper.py": doc.format("test"),
        "conftest.py": doc.format("test"),
        "a_test.py": doc.format("test"),
        "contest.py": doc.format("contest"),
        "broken.py": f"{doc.format('broken')}\nprint 'old'\n",
        "latin.py": doc.format("latin").encode() + b"# \xe9\n",
        "huge.py": doc.format("huge") + "#" * 300_000,
        "text.txt": doc.format("text"),
    }
    with zipfile.ZipFile(tmp_path / "a.whl", "w") as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    summaries = [
        summary.removeprefix("Summary of ") for summary, _ in read_wheel(tmp_path / "a.whl")
    ]
    assert summaries == ["function.", "module.", "class.", "method.", "contest."]


# ---- near-duplicates and splits ----------------------------------------------------------------


def shared_ngrams(texts: list[str], split, a: str = "test", b: str = "train") -> float:
    """Share of the n-grams of one split that occur in another."""
    own, other = (
        {gram for text, name in zip(texts, split) if name == side for gram in word_ngrams(text)}
        for side in (a, b)
    )
    return len(own & other) / len(own)


def test_chains_are_joined():
    """a ~ b ~ c end in one group though a and c share nothing; unrelated texts stay alone."""
    texts = ["x y z one two three", "p q", "One two, three! four five six", "r s t u v"]
    texts += ["k four five six m", "R s"]
    assert near_duplicate_groups(texts, 3).tolist() == [0, 1, 0, 3, 0, 5]


def test_groups_are_connected_components():
    """Against brute force: the transitive closure, each group named by its first member."""
    rng = np.random.default_rng(0)
    texts = [" ".join(rng.choice(list("abcdefghijklmnop"), rng.integers(2, 6))) for _ in range(60)]
    grams = [set(word_ngrams(text, 2)) for text in texts]
    reach = np.array([[bool(a & b) for b in grams] for a in grams])
    for _ in range(6):
        reach = reach @ reach
    first = reach.argmax(1)
    assert 5 < len(set(first)) < 55
    assert near_duplicate_groups(texts, 2).tolist() == first.tolist()


def test_split_keeps_groups_together():
    """One split a group, in the stated shares, the same for the same seed."""
    groups = np.random.default_rng(0).integers(0, 5000, 20_000)
    split = split_by_group(groups, SPLITS)
    assert pd.Series(split).groupby(groups).nunique().max() == 1
    shares = pd.Series(split).groupby(groups).first().value_counts(normalize=True)
    assert shares.to_dict() == pytest.approx(SPLITS, abs=0.02)
    assert (split_by_group(groups, SPLITS) == split).all()
    assert (split_by_group(groups, SPLITS, seed=1) != split).any()


def test_planted_near_duplicates_do_not_leak():
    """No 10-gram of test or validation is in train; exact duplicates are dropped."""
    rng, rows = np.random.default_rng(0), []
    for i in range(300):
        words = [f"w{n}" for n in rng.integers(0, 10_000, 60)]
        for start in (0, 12, 35):  # the first two share 13 words, the others 2
            rows.append((f"summary {i} {start}", " ".join(words[start : start + 25])))
        rows.append((f"again {i}", rows[-1][1]))
    table = with_splits({"alpha": [rows[i] for i in rng.permutation(len(rows))]})
    assert len(table) == 900 and table["target"].is_unique and table["group"].nunique() == 600
    texts = (table["source"] + " " + table["target"]).tolist()
    assert shared_ngrams(texts, table["split"]) == 0
    assert shared_ngrams(texts, table["split"], "validation") == 0
    assert shared_ngrams(texts, np.where(np.arange(900) % 2, "test", "train")) > 0.05
    with pytest.raises(ValueError, match="no docstring of these packages"):
        with_splits({})


# ---- fetching and loading ----------------------------------------------------------------------


def pinned(folder, **contents: bytes):
    """A list of pins, and files with other names beside it."""
    for name, content in contents.items():
        (folder / f"renamed_{name}.whl").write_bytes(content)
    hashes = {name: hashlib.sha256(content).hexdigest() for name, content in contents.items()}
    lines = [f"{name}==1.0 --hash=sha256:{sha}\n" for name, sha in hashes.items()]
    (folder / "wheels.txt").write_text("# a comment\n" + "".join(lines))
    return folder / "wheels.txt"


def test_fingerprint(tmp_path):
    """Changes with every pin and with the version; not with comments."""
    wheels = pinned(tmp_path, alpha=b"first", beta=b"second")
    first = docstrings.fingerprint(wheels)
    wheels.write_text(wheels.read_text().replace("a comment", "another"))
    assert docstrings.fingerprint(wheels) == first != docstrings.fingerprint(wheels, version=9)
    for old, new in (("beta==1.0", "beta==1.1"), ("alpha", "gamma"), ("sha256:", "sha256:0")):
        changed = tmp_path / "changed.txt"
        changed.write_text(wheels.read_text().replace(old, new))
        assert docstrings.fingerprint(changed) != first
    assert len(docstrings.pins(docstrings.WHEELS)) == 48


def test_a_failed_download_says_what_to_do(tmp_path):
    wheels = tmp_path / "wheels.txt"
    wheels.write_text(f"./no-such-file.whl --hash=sha256:{'0' * 64}\n")
    with pytest.raises(RuntimeError, match="connect once, or put those named in wheels.txt"):
        docstrings.fetch(wheels, tmp_path / "wheels")


def test_real_corpus_does_not_leak():
    """Test texts of the real corpus share next to nothing with training; numbers of the card."""
    if not (paths.CACHE / "corpora" / f"docstrings-{docstrings.fingerprint()}.parquet").exists():
        pytest.skip("the corpus is not in the cache; `make study` builds it")
    table = docstrings.load()
    assert table["target"].is_unique and set(table["split"]) == set(SPLITS)
    texts = (table["source"] + " " + table["target"]).tolist()
    assert shared_ngrams(texts, table["split"]) == 0
    card = (paths.ROOT / "data" / "README.md").read_text()
    for name, count in table["split"].value_counts().items():
        assert re.search(rf"\| {name} \| {count:,} \|", card)
