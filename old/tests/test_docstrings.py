"""The docstring corpus: what counts as prose, and that no near-duplicate crosses a split."""

import doctest
import hashlib
import subprocess
import zipfile

import numpy as np
import pandas as pd
import pytest

from old import paths
from old.corpora import docstrings
from old.corpora.docstrings import near_duplicate_groups, read_wheel, split_by_group, split_docstring, word_ngrams

PROSE = "Both of them may be negative."
SHAS = {"alpha": ("1.0", "aa"), "beta": ("2.0", "bb")}


def test_examples_in_the_docstrings():
    outcome = doctest.testmod(docstrings)
    assert outcome.attempted and not outcome.failed


@pytest.mark.parametrize(
    "end",
    [
        "Parameters\n----------\nx : int",
        "Parameters:\n    x: a number",
        "Args:\n    x: a number",
        "Keyword arguments:\n    x",
        "Returns:\n    int",
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
    assert split_docstring(f"Add two numbers.\n\n    {PROSE}\n\n    {end}") == ("Add two numbers.", PROSE)
    assert split_docstring(f"Add two numbers.\n\n{end}\n\n{PROSE}") is None


def test_paragraphs_are_joined():
    """Paragraphs and line breaks become single spaces; a final `::` becomes a colon."""
    text = "\n    Add two\n    numbers.\n\n\n    Both may\tbe negative.\n\n    Like   this one::\n    "
    assert split_docstring(text) == ("Add two numbers.", "Both may be negative. Like this one:")


UNUSABLE = {
    "empty": "",
    "no description": "Add two numbers.",
    "one-word summary": f"Add.\n\n{PROSE}",
    "short": "Add two numbers.\n\nOnly three words.",
    "long": f"Add two numbers.\n\n{'word ' * 401}",
    "long summary": f"{'word ' * 61}\n\n{PROSE}",
    "not ASCII": "Add two numbers.\n\nDiese dürfen auch negativ sein.",
    "not letters": "Add two numbers.\n\n1 + 1 = 2 and 2 * 2 = 4 (!)",
}


@pytest.mark.parametrize("what", UNUSABLE)
def test_not_usable(what):
    assert split_docstring(UNUSABLE[what]) is None


def test_wheel(tmp_path):
    """Modules, classes, functions and methods of every readable file; no tests, no broken or huge files; nothing is imported."""
    doc = '"""Summary of {0}.\n\nThe {0} does this and that.\n"""\n'
    class_ = f"class A:\n    {doc.format('class')}\n    async def f(self):\n        {doc.format('method')}\n"
    files = {
        "b/__init__.py": f"{doc.format('module')}\nraise SystemExit\n\n{class_}",
        "a.py": f"def f():\n    {doc.format('function')}\n",
        "tests/helper.py": doc.format("test"),
        "a/test/x.py": doc.format("test"),
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
    found = [summary.removeprefix("Summary of ") for summary, _ in read_wheel(tmp_path / "a.whl")]
    assert found == ["function.", "module.", "class.", "method.", "contest."]


# ---- near-duplicates and splits ------------------------------------------------------------------------------------------------------


def shared_ngrams(texts: list[str], split: np.ndarray, a: str = "test", b: str = "train") -> float:
    """Share of the n-grams of one split that occur in another."""
    grams = {name: {g for t, s in zip(texts, split) if s == name for g in word_ngrams(t)} for name in (a, b)}
    return len(grams[a] & grams[b]) / len(grams[a])


def random_text(rng: np.random.Generator, words: int) -> str:
    return " ".join(f"w{i}" for i in rng.integers(0, 10_000, words))


def test_ngrams():
    """Case and punctuation do not count; a short text is its own n-gram."""
    assert word_ngrams("The cat, the DOG.", 3) == ["the cat the", "cat the dog"]
    assert word_ngrams("The cat!", 3) == ["the cat"] and word_ngrams("a b c", 3) == ["a b c"]


def test_chains_are_joined():
    """a ~ b ~ c end in one group though a and c share nothing; unrelated texts stay alone."""
    texts = ["x y z one two three", "p q", "One two, three! four five six", "r s t u v", "k four five six m", "R s"]
    assert near_duplicate_groups(texts, 3).tolist() == [0, 1, 0, 3, 0, 5]


def test_groups_are_connected_components():
    """Against brute force: the transitive closure of `share an n-gram`, each group numbered by its first member, in any order of texts."""
    rng = np.random.default_rng(0)
    texts = [" ".join(rng.choice(list("abcdefghijklmnop"), rng.integers(2, 6))) for _ in range(60)]
    grams = [set(word_ngrams(t, 2)) for t in texts]
    reach = np.array([[bool(a & b) for b in grams] for a in grams])
    for _ in range(6):
        reach = reach @ reach
    first = reach.argmax(1)
    assert 5 < len(set(first)) < 55
    assert near_duplicate_groups(texts, 2).tolist() == first.tolist()
    order = rng.permutation(60)
    shuffled = near_duplicate_groups([texts[i] for i in order], 2)
    assert all((shuffled == shuffled[i]).tolist() == (first[order] == first[order[i]]).tolist() for i in range(60))


def test_split_keeps_groups_together():
    """One split a group, in the stated shares, the same for the same seed."""
    groups = np.random.default_rng(0).integers(0, 5000, 20_000)
    split = split_by_group(groups)
    assert pd.Series(split).groupby(groups).nunique().max() == 1
    of_groups = pd.Series(split).groupby(groups).first().value_counts(normalize=True)
    assert of_groups.to_dict() == pytest.approx({"train": 0.90, "test": 0.06, "validation": 0.04}, abs=0.02)
    assert (split_by_group(groups) == split).all() and (split_by_group(groups, seed=1) != split).any()


def test_planted_near_duplicates_do_not_leak(tmp_path):
    """Chains of overlapping texts planted in a corpus: no 10-gram of test or validation is in train, exact duplicates are dropped."""
    rng = np.random.default_rng(0)
    rows = []
    for i in range(300):
        text = random_text(rng, 60)
        words = text.split()
        rows += [(random_text(rng, 5), " ".join(words[start : start + 25])) for start in (0, 12, 35)]  # 0~12 by 13 words, 12~35 by 2 only
        rows.append((f"again {i}", rows[-1][1]))
    table = pd.DataFrame(rows, columns=["source", "target"]).assign(package="alpha").sample(frac=1, random_state=0)
    docstrings._store(table, tmp_path / "corpus.parquet")
    stored = pd.read_parquet(tmp_path / "corpus.parquet")
    assert len(stored) == 900 and stored["target"].is_unique and stored["id"].tolist() == list(range(900))
    assert stored["group"].nunique() == 600
    texts = (stored["source"] + " " + stored["target"]).tolist()
    assert shared_ngrams(texts, stored["split"]) == shared_ngrams(texts, stored["split"], "validation") == 0
    assert shared_ngrams(texts, np.where(np.arange(900) % 2, "test", "train")) > 0.05  # a split by row would leak


def test_refuses_a_corpus_without_rows(tmp_path):
    with pytest.raises(ValueError, match="no usable row"):
        docstrings._store(pd.DataFrame(columns=["package", "source", "target"]), tmp_path / "corpus.parquet")
    assert not any(tmp_path.iterdir())


# ---- fetching and loading ------------------------------------------------------------------------------------------------------------


def test_fingerprint(monkeypatch):
    """Changes with every package, version, checksum and with the recipe; not with the order of the list."""
    same = docstrings.fingerprint(dict(reversed(SHAS.items())))
    others = [SHAS | {"beta": ("2.1", "bb")}, SHAS | {"beta": ("2.0", "bc")}, {"alpha": SHAS["alpha"]}, SHAS | {"gamma": ("1", "cc")}]
    assert docstrings.fingerprint(SHAS) == same
    assert len({same, *map(docstrings.fingerprint, others), docstrings.fingerprint()}) == 6
    monkeypatch.setattr(docstrings, "RECIPE", docstrings.RECIPE + 1)
    assert docstrings.fingerprint(SHAS) != same


def test_stored_corpus_is_read_not_built(tmp_path, monkeypatch):
    monkeypatch.setattr(paths, "CACHE", tmp_path)
    monkeypatch.setattr(docstrings, "fetch_wheels", lambda *_: pytest.fail("fetched though stored"))
    table = pd.DataFrame({"package": ["alpha"], "source": ["Add two numbers."], "target": [PROSE]})
    docstrings._store(table, tmp_path / "corpora" / f"docstrings-{docstrings.fingerprint(SHAS)}.parquet")
    corpus = docstrings.load(SHAS)
    assert corpus.column_names == ["id", "package", "source", "target", "group", "split"] and corpus[0]["target"] == PROSE


def test_wheels_are_found_by_checksum(tmp_path, monkeypatch):
    """The files are those with the pinned SHA-256, whatever they are called; a failed download says what to do."""
    contents = {"alpha": b"first", "beta": b"second"}
    packages = {name: ("1.0", hashlib.sha256(content).hexdigest()) for name, content in contents.items()}
    for name, content in contents.items():
        (tmp_path / f"renamed_{name}.whl").write_bytes(content)
    (tmp_path / "stranger.whl").write_bytes(b"other")
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: subprocess.CompletedProcess([], 0))
    assert [wheel.read_bytes() for wheel in docstrings.fetch_wheels(packages, tmp_path)] == [b"first", b"second"]
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: subprocess.CompletedProcess([], 1, stderr="no route to host"))
    with pytest.raises(RuntimeError, match=r"2 wheels(.|\n)*no route to host(.|\n)*Connect once, or put the wheels"):
        docstrings.fetch_wheels(packages, tmp_path)


def test_real_corpus_does_not_leak():
    """Test texts of the real corpus share next to nothing with training."""
    if not (paths.CACHE / "corpora" / f"docstrings-{docstrings.fingerprint()}.parquet").exists():
        pytest.skip("the corpus is not in the cache; `make study` builds it")
    corpus = docstrings.load().to_pandas()
    assert corpus["target"].is_unique and set(corpus["split"]) == set(docstrings.SPLITS)
    assert shared_ngrams((corpus["source"] + " " + corpus["target"]).tolist(), corpus["split"]) == 0
    assert shared_ngrams(corpus["target"].tolist(), corpus["split"]) < 0.001
