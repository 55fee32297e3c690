"""News, questions, instructions: who is in which split; fingerprints of all corpora."""

import dataclasses
import os

import numpy as np
import pandas as pd
import pytest
from mirrors import use_rows

from lib import corpora
from lib.corpora import CORPORA, benchmarks, pairs
from lib.corpora.pairs import without_overlap

NEWS = ["cnn-dailymail", "xsum", "squad-qg"]
needs_real_files = pytest.mark.skipif(
    not os.environ.get("STUDY_DATA"), reason="STUDY_DATA names no local mirror"
)


def texts(count: int, seed: int, words: int = 40) -> list[str]:
    """Random texts that share no ten words, of sentences of six words."""
    rng = np.random.default_rng(seed)
    drawn = [[f"w{n}" for n in rng.integers(0, 900, words)] for _ in range(count)]
    ends = ["." * (place % 6 == 5) for place in range(words)]
    return [" ".join(word + end for word, end in zip(row, ends)) for row in drawn]


def news(articles: list[str], first: int = 0) -> list[dict]:
    """Rows that fit both news data sets; a summary is the article's beginning, on two lines."""
    rows = []
    for number, article in enumerate(articles, first):
        summary = f"{article[:30]} .\n{article[30 : 60 + 5 * (number % 7)]} ."
        row = {"id": str(number), "article": article, "document": f"{article}\nEnd."}
        rows.append(row | {"highlights": summary, "summary": summary})
    return rows


@pytest.fixture
def made_up(mirror, monkeypatch) -> None:
    """Articles 0 and 1 share ten words, article 2 shares ten with a test article of CNN/DM, and the
    first two questions are also in XQuAD: as a question, as a part of a paragraph.
    """
    articles, test = texts(200, 0), texts(30, 1)
    articles[1] += " " + " ".join(articles[0].split()[:10])
    articles[2] += " " + " ".join(test[5].split()[-10:])
    use_rows(monkeypatch, mirror, "cnn-dailymail", "validation", news(articles))
    use_rows(monkeypatch, mirror, "cnn-dailymail", "test", news(test, 200))
    use_rows(monkeypatch, mirror, "xsum", "test", news(articles))
    contexts, paragraphs = texts(120, 2, 14), texts(12, 3)
    asked = [
        {"context": c, "question": f"What {i}?", "answers": {"text": [c.split()[0], "other"]}}
        for i, c in enumerate(contexts)
    ]
    asked[1]["context"] = " ".join(paragraphs[4].split()[3:12])
    about = [
        {"context": p, "question": f"Who {i}?", "answers": {"text": [p[-6:]]}}
        for i, p in enumerate(2 * paragraphs)
    ]
    about[0]["question"] = asked[0]["question"].upper()
    asked, about = ([{"id": str(i), **r} for i, r in enumerate(side)] for side in (asked, about))
    use_rows(monkeypatch, mirror, "squad-sentences", "train", asked)
    use_rows(monkeypatch, mirror, "xquad-en", "validation", about)


@pytest.mark.parametrize("name", NEWS)
def test_splits(made_up, name):
    """No group in two splits; shares as declared; one line a text; the same at every call."""
    table = corpora.load(name)
    assert list(table) == ["id", "source", "target", "group", "split"]
    assert table["id"].tolist() == list(range(len(table)))
    more = [] if name == "squad-qg" else ["continuation"]
    assert set(table["split"]) == {"train", "validation", "test", *more}
    sides = table["split"].replace("continuation", "train")
    assert (sides.groupby(table["group"]).nunique() == 1).all()
    apart = ["continuation"] if name == "xsum" else ["continuation", "test"]
    known = table[~table["split"].isin(apart)]
    share = {"cnn-dailymail": 0.90, "xsum": 0.80, "squad-qg": 0.95}[name]
    assert abs((known["split"] == "train").mean() - share) < 0.08
    for column in ("source", "target"):
        assert (table[column] == table[column].str.split().str.join(" ")).all()
    pd.testing.assert_frame_equal(table, corpora.load(name))


@pytest.mark.parametrize(("name", "words"), [("cnn-dailymail", 50), ("xsum", 30)])
def test_continuations(made_up, name, words):
    """A beginning and what follows it, in whole sentences, of training articles alone."""
    table = corpora.load(name)
    train = table[table["split"] == "train"]
    articles = train.groupby("group")["source"].agg("\n".join)
    continued = table[table["split"] == "continuation"]
    assert set(continued["group"]) <= set(articles.index) and len(continued) > len(articles)
    for pair in continued.itertuples():
        assert f"{pair.source} {pair.target}" in articles[pair.group]
        assert pair.source.endswith(".") and len(pair.target.split()) <= words
        assert pairs.LEAD[0] <= len(pair.source.split()) <= pairs.LEAD[1]


def test_near_duplicates(made_up):
    """Articles that share ten words are one group; one that shares them with a test text is out."""
    table = corpora.load("cnn-dailymail")
    known = table[table["split"].isin(["train", "validation"])]
    assert len(known) == 199 and known["group"].duplicated().sum() == 1


def test_questions(made_up):
    """The source is the first answer, then its context; nothing of XQuAD is trained on."""
    table = corpora.load("squad-qg")
    test, train = table[table["split"] == "test"], table[table["split"] != "test"]
    assert len(test) == 24 and test["group"].nunique() == 12 and len(train) == 118
    first = train[train["target"] == "What 2?"].iloc[0]
    answer, context = first["source"].split(pairs.SEPARATOR)
    assert context == texts(3, 2, 14)[2] and answer == context.split()[0]


def test_overlap():
    """By question and by sentence, whatever the case, punctuation and Unicode form."""
    paragraphs = ["The cat sat. It was 24–10, at the café!", "Another end"]
    test = pd.DataFrame({"question": ["Who won?", "Wo liegt Łódź?"], "context": paragraphs})
    rows = [
        ("same question", "who  won", "Something else."),
        ("same sentence", "What score?", "It was 24-10, at the CAFE\u0301"),
        ("whole paragraph", "Where?", "another END."),
        ("part of a word", "Where?", "At the caf"),
        ("across paragraphs", "Where?", "At the café another end."),
        ("new", "Who lost?", "The dog sat."),
    ]
    train = pd.DataFrame(rows, columns=["id", "question", "context"])
    left = without_overlap(train, test)["id"].tolist()
    assert left == ["part of a word", "across paragraphs", "new"]


# ---- instructions ------------------------------------------------------------------------------


@pytest.fixture
def sources(mirror, monkeypatch):
    """Three training splits; each caption and each sentence occurs twice."""
    solve = "So {0}+1=<<{0}+1={1}>>{1}\n#### {1}"
    problems = [{"question": f"Problem {i}?", "answer": solve.format(i, i + 1)} for i in range(30)]
    use_rows(monkeypatch, mirror, "gsm8k", "train", problems)
    captions = [{"en": f' A "{i // 2}".', "de": f"Ein „{i}“.\t"} for i in range(100)]
    use_rows(monkeypatch, mirror, "multi30k-en-de", "train", captions)
    answers = [{"text": [text, "x"]} for text in ("Łódź", "Yes!", "24–10")]
    questions = [
        {
            "id": f"{i}",
            "context": f"Text {i // 2}",
            "question": f"What {i}?",
            "answers": answers[i % 3],
        }
        for i in range(60)
    ]
    use_rows(monkeypatch, mirror, "squad-sentences", "train", questions)


def test_instructions(sources):
    """Equal shares, also among the first rows; a tenth held out, no text on both sides."""
    table = corpora.load("instructions")
    sizes = table.groupby(["split", "dataset"]).size().unstack()
    assert (sizes.loc["train"] == 27).all() and (sizes.loc["validation"] == 3).all()
    train = table[table["split"] == "train"]
    assert train["dataset"].tolist() == [*pairs.INSTRUCTED] * 27
    assert (table.groupby("group")["split"].nunique() == 1).all()
    assert not train["source"].is_monotonic_increasing


def test_instructions_are_in_the_words_of_the_tasks(sources):
    """Each pair is one of its source's; annotations are gone, an answer ends with one mark."""
    answers = ["Łódź.", "Yes!", "24–10."]
    problem, caption = pairs.word_problem, pairs.translation
    solved = [
        (problem(f"Problem {i}?"), f"So {i}+1={i + 1}\nThe answer is {i + 1}.") for i in range(30)
    ]
    translated = [(caption(f'A "{i // 2}".', "en-de"), f"Ein „{i}“.") for i in range(100)]
    read = [(pairs.reading(f"What {i}?", f"Text {i // 2}"), answers[i % 3]) for i in range(60)]
    table = corpora.load("instructions")
    assert set(zip(table["source"], table["target"])) <= {*solved, *translated, *read}


def test_a_row_without_text(sources, mirror, monkeypatch):
    rows = [{"en": "a", "de": "b"}, {"en": "a", "de": " "}]
    use_rows(monkeypatch, mirror, "multi30k-en-de", "train", rows)
    with pytest.raises(ValueError, match="multi30k-en-de, row 2: target is empty"):
        corpora.load("instructions")


def test_examples(sources):
    """Prompts and outputs of a split, always the same ones; no more than there are."""
    some = corpora.examples("instructions", "train", 10)
    pd.testing.assert_frame_equal(some, corpora.examples("instructions", "train", 10))
    assert list(some) == ["prompt", "output"] and len(some) == 10
    assert len(corpora.examples("instructions", "validation", 99)) == 9


# ---- names and fingerprints --------------------------------------------------------------------


def test_fingerprints(monkeypatch, tmp_path):
    """Need no data; differ from each other; change with what is declared, and with nothing else."""
    monkeypatch.setenv("STUDY_DATA", str(tmp_path))
    before = {name: corpora.fingerprint(name) for name in [*CORPORA, *benchmarks.BENCHMARKS]}
    assert len(set(before.values())) == len(before)
    changed = dataclasses.replace(benchmarks.BENCHMARKS["xquad-en"], revision="0" * 40)
    monkeypatch.setitem(benchmarks.BENCHMARKS, "xquad-en", changed)
    monkeypatch.setitem(CORPORA, "xsum", dataclasses.replace(CORPORA["xsum"], version=2))
    after = {name: corpora.fingerprint(name) for name in before}
    moved = {name for name in before if before[name] != after[name]}
    assert moved == {"xquad-en", "squad-qg", "xsum"}


def test_unknown_name():
    for call in (corpora.load, corpora.fingerprint):
        with pytest.raises(ValueError, match=r"unknown data set 'x-sum'.*xsum"):
            call("x-sum")


@needs_real_files
def test_real_instructions_hold_no_test_text():
    """No problem or solution of GSM8K's test split, no caption or translation of Multi30k's."""
    table = corpora.load("instructions")
    assert table["split"].value_counts().to_dict() == {"train": 20_178, "validation": 2241}
    assert (table.groupby("source")["split"].nunique() == 1).all()
    problems, captions = (benchmarks.load(n, "test") for n in ("gsm8k", "multi30k-en-de"))
    solved = pairs.steps_and_numbers(problems["answer"]).to_numpy()
    asked = {*problems["question"].map(pairs.word_problem)}
    asked |= {pairs.translation(text.strip(), "en-de") for text in captions["en"]}
    answered = {*captions["de"].str.strip(), *(pairs.conclusion(*row) for row in solved)}
    assert not asked & set(table["source"]) and not answered & set(table["target"])
    assert not table["target"].str.contains("<<|>>|####").any()


@needs_real_files
def test_real_questions_are_apart():
    """1,081 of 9,718 training rows are in XQuAD; afterwards no question is shared."""
    train = benchmarks.load("squad-sentences", "train")
    test = benchmarks.load("xquad-en", "validation")
    left = without_overlap(train, test)
    assert len(train) - len(left) == 1081
    assert not set(left["question"]) & set(test["question"])
