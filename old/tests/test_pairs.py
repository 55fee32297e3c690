"""News and questions for length control: who is in which split, what a plan needs, and one whole unit at toy size."""

import dataclasses

import numpy as np
import pandas as pd
import pytest
from helpers import CONFIGS
from mirrors import use_rows
from transformers import BartForConditionalGeneration

from old import paths, sentence_embeddings, study, units
from old.corpora import benchmarks, pairs
from old.length import evaluation, experiment, figures, finetuning, paper
from old.length.corpora import DATASETS
from old.length.finetuning import Settings
from old.parameters import declared_parameters
from old.sentence_embeddings import bertscore
from old.small_bart import train_tokenizer

NEWS = ["cnn-dailymail", "xsum", "squad-qg"]
PARAMETERS = {"datasets": NEWS, "signals": ["none", "pre"], "seeds": [0, 1], "items": 3, "profile": "benchmarks"}


def texts(count: int, seed: int, words: int = 40) -> list[str]:
    """Random texts that share no ten words, of sentences of six words."""
    rng = np.random.default_rng(seed)
    drawn = [[f"{'bdgklmnprt'[n % 10]}{'aeiou'[n % 5]}{n % 90}" for n in rng.integers(0, 900, words)] for _ in range(count)]
    return [" ".join(word + "." * (place % 6 == 5) for place, word in enumerate(row)) for row in drawn]


def news(articles: list[str], first: int = 0) -> list[dict]:
    """Rows that fit both news data sets; a summary is the article's beginning, on two lines."""
    rows = []
    for number, article in enumerate(articles, first):
        summary = f"{article[:30]} .\n{article[30 : 60 + 5 * (number % 7)]} ."
        rows.append({"id": str(number), "article": article, "document": f"{article}\nEnd.", "highlights": summary, "summary": summary})
    return rows


@pytest.fixture
def made_up(mirror, monkeypatch) -> None:
    """All three data sets with made-up rows. Articles 0 and 1 share ten words, article 2 shares ten with a test article of CNN/DM, and the
    first two questions are also in XQuAD: as a question, as a part of a paragraph."""
    articles, test = texts(200, 0), texts(30, 1)
    shared = " ".join(articles[0].split()[:10])
    articles[1] += f" {shared}"
    articles[2] += " " + " ".join(test[5].split()[-10:])
    use_rows(monkeypatch, mirror, "cnn-dailymail", "validation", news(articles))
    use_rows(monkeypatch, mirror, "cnn-dailymail", "test", news(test, 200))
    use_rows(monkeypatch, mirror, "xsum", "test", news(articles))
    contexts, paragraphs = texts(120, 2, 14), texts(12, 3)
    asked = [
        {"context": c, "question": f"What is {c[:9]} {i}?", "answers": {"text": [c.split()[0], "another"]}} for i, c in enumerate(contexts)
    ]
    asked[1]["context"] = " ".join(paragraphs[4].split()[3:12])
    about = [{"context": p, "question": f"Who saw {p[:9]} {i}?", "answers": {"text": [p[-6:]]}} for i, p in enumerate(2 * paragraphs)]
    about[0]["question"] = asked[0]["question"].upper()
    rows = [[{"id": str(i), **row} for i, row in enumerate(part)] for part in (asked, about)]
    use_rows(monkeypatch, mirror, "squad-sentences", "train", rows[0])
    use_rows(monkeypatch, mirror, "xquad-en", "validation", rows[1])


def loaded(name: str) -> pd.DataFrame:
    return DATASETS[name].load().to_pandas()


@pytest.mark.parametrize("name", NEWS)
def test_splits(made_up, name):
    """Columns as of the docstrings; no group in two splits; shares as declared; one line a text; the same at every call."""
    table = loaded(name)
    assert list(table) == ["id", "source", "target", "group", "split"] and table["id"].tolist() == list(range(len(table)))
    assert set(table["split"]) == {"train", "validation", "test", *(["continuation"] if name != "squad-qg" else [])}
    assert (table["split"].replace("continuation", "train").groupby(table["group"]).nunique() == 1).all()
    known = table[~table["split"].isin(["continuation"] if name == "xsum" else ["continuation", "test"])]
    expected = {"cnn-dailymail": 0.90, "xsum": 0.80, "squad-qg": 0.95}[name]
    assert abs((known["split"] == "train").mean() - expected) < 0.08
    for column in ("source", "target"):
        assert (table[column] == table[column].str.split().str.join(" ")).all() and table[column].str.len().min() > 5
    pd.testing.assert_frame_equal(table, loaded(name))


@pytest.mark.parametrize("name", ["cnn-dailymail", "xsum"])
def test_near_duplicates(made_up, name):
    """Two articles that share ten words are one group; where a training article shares them with a test article, it is left out."""
    table = loaded(name)
    assert table.loc[0, "group"] == table.loc[1, "group"] != table.loc[3, "group"]
    article = texts(3, 0)[2]
    assert table["source"].str.startswith(article).any() == (name == "xsum")
    assert (table["split"] != "continuation").sum() == (200 if name == "xsum" else 229)


@pytest.mark.parametrize("name", ["cnn-dailymail", "xsum"])
def test_continuations(made_up, name):
    """A beginning and what follows it, in whole sentences, of training articles alone."""
    table = loaded(name)
    articles = table[table["split"] == "train"].groupby("group")["source"].agg("\n".join)
    continued = table[table["split"] == "continuation"]
    assert set(continued["group"]) <= set(articles.index) and len(continued) > len(articles)
    for pair in continued.itertuples():
        assert f"{pair.source} {pair.target}" in articles[pair.group]
        assert pair.source.endswith(".") and pairs.LEAD[0] <= len(pair.source.split()) <= pairs.LEAD[1]
        assert pair.target.endswith(".") or any(article.endswith(pair.target) for article in articles[pair.group].split("\n"))
        assert len(pair.target.split()) <= {"cnn-dailymail": 50, "xsum": 30}[name]


def test_a_fixed_number_of_articles(made_up, monkeypatch):
    """From the hub, whose splits are larger, as many articles are used as the mirror has; the others do not change what these become."""
    whole = loaded("xsum")
    monkeypatch.setitem(pairs.ROWS, "xsum", 60)
    some = loaded("xsum")
    pd.testing.assert_frame_equal(some[some["split"] != "continuation"], whole[:60])


def test_questions(made_up):
    """The source is the first answer, then its context; nothing of XQuAD is trained on, all of it is tested on."""
    table = loaded("squad-qg")
    train, test = (table[(table["split"] == "test") == tested] for tested in (False, True))
    assert len(test) == 24 and test["group"].nunique() == 12 and len(train) == 118
    first = train[train["target"].str.endswith(" 2?")].iloc[0]
    answer, context = first["source"].split(pairs.SEPARATOR)
    assert context == texts(3, 2, 14)[2] and answer == context.split()[0]


def test_plan_needs_no_data(tmp_path, monkeypatch):
    """Names, keys and training cuts follow from the declared data sets alone, and change with them."""
    monkeypatch.setenv("STUDY_DATA", str(tmp_path))
    planned = experiment.plan_each(["targets", "in-distribution", "unseen"], PARAMETERS)
    assert len(planned) == len({unit.name for unit in planned}) == 3 * (1 + 2 * 2 * 2)
    assert {unit.parameters["max_train_length"] for unit in planned} == {DATASETS[name].max_train_length for name in NEWS}
    assert len({unit.data for unit in planned}) == 3
    monkeypatch.setitem(benchmarks.BENCHMARKS, "xsum", dataclasses.replace(benchmarks.BENCHMARKS["xsum"], revision="0" * 40))
    again = experiment.plan_each(["targets", "in-distribution", "unseen"], PARAMETERS)
    assert {a.dataset for a, b in zip(again, planned) if a.key != b.key} == {"xsum"}
    with pytest.raises(ValueError, match="unknown data set 'x-sum'.*xsum"):
        experiment.plan_each(["targets"], PARAMETERS | {"datasets": ["x-sum"]})


@pytest.mark.parametrize("notebook", ["21_length_control", "22_unseen_lengths"])
def test_stored_docstring_results_are_read(notebook, monkeypatch):
    """What is stored for the docstrings keeps its keys: nothing has to be computed again."""
    monkeypatch.delenv(units.FORCE, raising=False)
    assert not units.pending(study.PLANS[notebook](declared_parameters(paths.NOTEBOOKS / f"{notebook}.ipynb")), "cpu")


@pytest.mark.parametrize("cut", [6, 7, 24, 46, 64, 76, 99])
def test_buckets(cut):
    """Eight adjoining ranges from 0 to four times the cut, which is the end of the second; those of the docstrings are 32 wide."""
    found = evaluation.buckets(cut)
    assert len(found) == 8 and found[0][0] == 0 and found[1][1] == cut and found[-1][1] == 4 * cut
    assert all(a[1] == b[0] for a, b in zip(found, found[1:])) and all(high - low in (cut // 2, cut - cut // 2) for low, high in found)
    assert cut != 64 or found == [(low, low + 32) for low in range(0, 256, 32)]


@pytest.mark.parametrize("name", NEWS)
def test_unit(made_up, name, tmp_path, monkeypatch):
    """A tiny model is trained on targets below the cut and measured, BERTScore included; items hold no text."""
    table = loaded(name)
    tokenizer = train_tokenizer((table["source"] + " " + table["target"]).tolist(), 600)
    config = CONFIGS["bart"](vocab_size=600, max_position_embeddings=1024, pad_token_id=0, bos_token_id=1, tie_word_embeddings=True)
    BartForConditionalGeneration(config).save_pretrained(tmp_path / "base")
    tokenizer.save_pretrained(tmp_path / "base")
    trained_on, fine_tune = [], finetuning.fine_tune
    monkeypatch.setattr(finetuning, "fine_tune", lambda model, part, *a, **b: trained_on.append(part) or fine_tune(model, part, *a, **b))
    experiment.prepare.cache_clear()
    settings = {"datasets": [name], "model": str(tmp_path / "base"), "finetune_updates": 2, "tokens_per_batch": 100}
    targets, inside = experiment.plan_each(["targets", "in-distribution"], PARAMETERS | settings | {"signals": ["pre"], "seeds": [0]})
    try:
        lengths, counts = experiment.compute(targets)
        rows, items = experiment.compute(inside)
        data = experiment.prepare(Settings(**inside.parameters))
    finally:
        experiment.prepare.cache_clear()
    cut = DATASETS[name].max_train_length
    (part,) = trained_on
    assert (
        part["length"].max() < cut
        and set(part["split"]) == {"train", *({"continuation"} & set(table["split"]))}
        and max(map(len, data.pairs["source_ids"])) <= 256
    )
    share = lengths[(lengths["metric"] == "share_below_cut") & (lengths["slice"] == "train")].iloc[0]
    assert share["value"] == pytest.approx((part["split"] == "train").sum() / share["n"]) and counts["pairs"].sum() == len(table)
    assert {"bertscore", "rougeLsum", "bleu", "mae"} <= set(rows["metric"])
    assert items["target_length"].max() < cut and not items.columns.isin(["source", "target", "tokens", "text"]).any()
    shown = figures.targets_table(lengths).loc[(name, "train")]
    assert shown["pairs"] == share["n"] and shown["below the cut (%)"] == round(100 * share["value"], 1)
    assert {"ours", "paper"} == set(paper.beside(rows, name).index.get_level_values("whose"))


def test_own_tiny_bart(made_up):
    """Each data set has a base model of its own, with the declared vocabulary and positions, from training texts of its own."""
    experiment.prepare.cache_clear()
    data = experiment.prepare(Settings(dataset="xsum", max_train_length=40, pretrain_updates=1))
    experiment.prepare.cache_clear()
    config = BartForConditionalGeneration.from_pretrained(data.base).config
    assert (config.vocab_size, config.max_position_embeddings) == (4096, 1024) and data.tokenizer.model_max_length == 1024
    assert data.base.parent == paths.CACHE / "models" and "xsum" in data.base.name


# ---- BERTScore -----------------------------------------------------------------------------------------------------------------------

SENTENCES = ["The council approved the park.", "A cat sat on the mat, and nobody came.", "Trains stop here.", "No."]
OTHERS = ["Councillors have approved a park.", "Nobody came.", "The last train left at nine in the evening.", "Yes, of course."]


def test_bertscore_identities():
    """1 for the text itself, symmetric, between 0 and 1, 0 for empty texts; a pair's value does not depend on the pairs around it."""
    together = bertscore(SENTENCES, OTHERS)
    assert bertscore(SENTENCES, SENTENCES) == pytest.approx(np.ones(4), abs=1e-6)
    assert bertscore(OTHERS, SENTENCES) == pytest.approx(together, abs=1e-6)
    assert ((together > 0) & (together < 1)).all()
    order = [2, 0, 3, 1]
    assert bertscore([SENTENCES[i] for i in order], [OTHERS[i] for i in order]) == pytest.approx(together[order], abs=1e-6)
    assert bertscore(["", " ", "a"], ["a", "", ""]).tolist() == [0, 0, 0]


def test_bertscore_value():
    """The value of the package bert-score 0.3.13 with the same encoder (6 layers, no idf, no rescaling)."""
    assert bertscore(SENTENCES[:1], OTHERS[:1])[0] == pytest.approx(0.816437, abs=1e-4)


def test_bertscore_of_long_texts():
    """Texts are cut at the encoder's limit, not refused."""
    long = "word " * 2 * sentence_embeddings.MAX_TOKENS
    assert bertscore([long], [long])[0] == pytest.approx(1, abs=1e-6)
