"""Units of the benchmarks: training corpora, words of translations, the supervised probe, and what the tables make of them."""

import dataclasses
import warnings

import numpy as np
import pandas as pd
import pytest
from helpers import docstring_corpus, saved_language_model, short_outputs
from sklearn.metrics import average_precision_score, matthews_corrcoef, roc_auc_score

from old import paths
from old.quality import benchmark_experiment, benchmark_figures, evaluation, experiment, figures, nmt, supervised, training_corpora
from old.quality.data import Settings, training_texts
from old.quality.evaluation import statistics, word_places, word_statistics
from old.quality.tasks import make_items
from old.quality.tasks.catalogue import TASKS, Task
from old.quality.training_corpora import CORPORA, Corpus

PARAMETERS = {"heads": ["sigmoid-lowrank"], "seeds": [0], "tasks": ["cola"], "texts": 5, "profile": "test"}

# ---- the plan ------------------------------------------------------------------------------------------------------------------------


def test_another_corpus_has_units_of_its_own():
    """Named by their part and their data; the usual corpus of a model is not named."""
    usual, other = (
        experiment.plan(["training", "scores"], PARAMETERS | {"trained_on": corpus}) for corpus in ("docstrings", "instructions")
    )
    assert {unit.part for unit in usual} == {"training", "scores"} and {unit.part for unit in other} == {"training", "scores-instructions"}
    assert not {unit.name for unit in usual} & {unit.name for unit in other} and not {u.data for u in usual} & {u.data for u in other}
    translating = experiment.plan(["scores"], PARAMETERS | {"model": "tiny-nmt", "trained_on": nmt.DATASET})
    assert {unit.part for unit in translating} == {"scores"} and {unit.model for unit in translating} == {"tiny-nmt"}


def test_the_identity_of_a_translation_model_is_in_its_units(monkeypatch):
    parameters = PARAMETERS | {"model": "tiny-nmt", "trained_on": nmt.DATASET}
    before = experiment.plan(["scores"], parameters)
    monkeypatch.setitem(nmt.MODELS, "tiny-nmt", dataclasses.replace(nmt.MODELS["tiny-nmt"], layers=1))
    assert all(a.key != b.key for a, b in zip(before, experiment.plan(["scores"], parameters)))


def test_plan_of_all_benchmarks_needs_no_data(monkeypatch, tmp_path):
    """Every task can be planned without a mirror and without a network: stored results can be read anywhere."""
    monkeypatch.delenv("STUDY_DATA", raising=False)
    monkeypatch.setattr(paths, "CACHE", tmp_path)
    parameters = PARAMETERS | {
        "tasks": [t for t in TASKS if not TASKS[t].translates],
        "corpora": ["own-samples"],
        "corpora_texts": 5,
        "corpora_tasks": ["cola"],
    }
    units = benchmark_experiment.plan(parameters)
    assert len({unit.name for unit in units}) == len(units) == 2 * len(parameters["tasks"]) + 2 + 3 * 4
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"trained_on": "novels"}, "unknown training corpus 'novels': choose from docstrings, instructions"),
        ({"tasks": ["multi30k-en-de"]}, "judges a translation model's own outputs: choose one of tiny-nmt"),
        ({"corpora": ["novels"]}, "unknown training corpus 'novels'"),
        ({"corpora_tasks": ["chess"]}, "unknown task 'chess'"),
    ],
    ids=str,
)
def test_refuses_wrong_parameters(change, message):
    parameters = PARAMETERS | {"corpora": ["instructions"], "corpora_texts": 5, "corpora_tasks": ["cola"]} | change
    with pytest.raises(ValueError, match=message):
        benchmark_experiment.plan(parameters)


# ---- what is measured ----------------------------------------------------------------------------------------------------------------


def translations() -> tuple[pd.DataFrame, list[np.ndarray]]:
    """Three outputs in two slices, words of one to three tokens."""
    rng, rows, numbers = np.random.default_rng(0), [], []
    for name in ("prompt=none", "prompt=source"):
        for group in "abcdef":
            words = int(rng.integers(3, 7))
            wrong = sorted(rng.choice(words, 2, replace=False).tolist())
            rows.append({"group": group, "slice": name, "prompt": "", "output": "-", "gold": 1 - 2 / words, "wrong_words": wrong})
            numbers.append(np.repeat(np.arange(words), rng.integers(1, 4, words)))
    return make_items(rows), numbers


def test_word_statistics():
    """AUROC and AP as scikit-learn has them; a word's score is the mean of its tokens'."""
    items, numbers = translations()
    words, rng = word_places(numbers), np.random.default_rng(1)
    score = rng.random(len(words.of_token))
    found = word_statistics(items, words, score)
    for name, part in items.groupby("slice"):
        bad, mean = [], []
        for index, wrong in part["wrong_words"].items():
            first = sum(len(n) for n in numbers[:index])
            for place in range(numbers[index][-1] + 1):
                bad.append(place in wrong)
                mean.append(score[first : first + len(numbers[index])][numbers[index] == place].mean())
        assert found[f"words:{name}", "auroc"].value == pytest.approx(roc_auc_score(bad, -np.array(mean)), abs=1e-9)
        assert found[f"words:{name}", "ap_bad"].value == pytest.approx(average_precision_score(bad, -np.array(mean)), abs=1e-9)
        assert found[f"words:{name}", "mcc"].n == len(bad)


def test_mcc_of_a_perfect_score_and_of_a_decision():
    """1 for the tags themselves, -1 never by choice; the threshold comes from the other half, the value is scikit-learn's."""
    items, numbers = translations()
    words = word_places(numbers)
    wrong = items["wrong_words"].map(set)
    bad = np.array([place in wrong[item] for item, place in zip(words.item, words.place)])
    found = word_statistics(items, words, 1.0 - bad[words.of_token])
    assert {found[f"words:prompt={name}", "mcc"].value for name in ("none", "source")} == {1.0}
    noise = np.random.default_rng(2).random(len(bad))
    value = word_statistics(items, words, noise[words.of_token])["words:prompt=none", "mcc"].value
    here = items["slice"].to_numpy()[words.item] == "prompt=none"
    half = pd.factorize(items["group"].to_numpy()[words.item][here])[0] % 2
    said = np.empty(here.sum())
    for side in (0, 1):
        other = half != side
        tried = [(matthews_corrcoef(bad[here][other], noise[here][other] < t), t) for t in np.sort(noise[here][other])[1:]]
        said[half == side] = noise[here][half == side] < max(tried)[1]
    assert value == pytest.approx(matthews_corrcoef(bad[here], said), abs=0.35)  # thresholds may lie anywhere between two scores


def test_every_slice_is_judged_and_pairs_are_compared():
    """Gold 0 or 1: AUROC; a `text` pairs the right version with the wrong one; gold of any size: correlations."""
    rows = [{"group": t, "text": t, "slice": s, "prompt": "", "output": "-", "gold": g} for t in range(4) for s in "ab" for g in (1.0, 0.0)]
    items = make_items(rows)
    score = items["gold"] + items["text"]  # right above its own wrong, though not above all wrong ones
    found = statistics("gsm8k", items, score)
    assert {found[s, "p_right_above_wrong"].value for s in "ab"} == {1.0} and 0.5 < found["a", "auroc"].value < 1
    graded = items.assign(gold=items["text"] / 3).drop(columns="text")
    assert statistics("cola", graded, graded["gold"])["a", "pearson"].value == pytest.approx(1)


def test_each_gold_of_own_translations():
    rng = np.random.default_rng(0)
    rows = [
        {"group": i % 5, "slice": f"decoding={d}", "prompt": "", "output": "-", "gold": 0.0} for i in range(20) for d in ("beam", "sample")
    ]
    items = make_items(rows)
    items = items.assign(**{name: rng.random(40) for name in ("gold", "gold_bleu", "gold_similarity")})
    found = statistics(nmt.DATASET, items, items["gold_bleu"])
    assert found["gold=bleu", "pearson"].value == pytest.approx(1) == found["decoding=beam;gold=bleu", "pearson"].value
    assert found["all", "pearson"].value == pytest.approx(np.corrcoef(items["gold"], items["gold_bleu"])[0, 1])


# ---- units at toy size ---------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def toy(tmp_path_factory):
    """A tiny model and corpus, two small tasks with judgements and one with tagged words."""
    folder = tmp_path_factory.mktemp("toy")
    saved_language_model(folder / "tiny")
    texts = short_outputs()

    def judged(_lm, texts_asked, shift=0.0):
        rows = [
            {"group": i, "slice": f"prompt={name}", "prompt": prompt, "output": text, "gold": len(text) + shift, "nmt-logprob": -0.5 * i}
            for name, prompt in (("none", ""), ("source", "the cat"))
            for i, text in enumerate(texts[:8])
        ]
        items = make_items(rows)
        items.attrs["scores"] = ["nmt-logprob"]
        return items

    def tagged(_lm, texts_asked):
        rows = [
            {"group": i, "slice": "prompt=none", "prompt": "", "output": text, "gold": 0.5, "wrong_words": [0, 2]}
            for i, text in enumerate(texts[:8])
        ]
        return make_items(rows)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(paths, "CACHE", folder / "cache")
        patch.setattr(paths, "RESULTS", folder / "results")
        patch.setattr(training_corpora, "docstring_table", docstring_corpus)
        for module in (experiment, supervised):
            patch.setattr(module, "default_jobs", lambda: 1)  # another process would know nothing of these tasks
        other = Corpus(lambda lm, split, count: pd.DataFrame({"prompt": ["say"] * 3, "output": texts[:3]}), lambda: "other")
        patch.setitem(CORPORA, "own-samples", other)
        patch.setitem(TASKS, "mlqe-pe-ro-en", Task(judged))
        patch.setitem(TASKS, "mlqe-pe-ru-en", Task(lambda lm, t: judged(lm, t, 3.0)))
        patch.setitem(TASKS, "hjqe-en-de", Task(tagged, wrong="words"))
        sizes = {"train_texts": 5, "validation_texts": 2, "updates": 3, "rank": 2, "positions_per_batch": 32, "negatives": 4, "texts": 1}
        tasks = {
            "tasks": ["mlqe-pe-ro-en", "mlqe-pe-ru-en", "hjqe-en-de"],
            "corpora": ["own-samples"],
            "corpora_texts": 5,
            "corpora_tasks": ["mlqe-pe-ro-en"],
        }
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # a random model's scores may not vary
            parameters = PARAMETERS | {"model": str(folder / "tiny"), **sizes, **tasks}
            yield parameters, *benchmark_experiment.run(parameters)


def test_benchmark_units(toy):
    """One row a task, score and slice; scores computed elsewhere are judged once; other corpora are a setting; no text is kept."""
    _, rows, items = toy
    assert set(rows["dataset"]) == {"mlqe-pe-ro-en", "mlqe-pe-ru-en", "hjqe-en-de"}
    elsewhere = rows[rows["method"] == "nmt-logprob"]
    assert set(elsewhere["setting"]) == {""} and not elsewhere.duplicated(["dataset", "slice", "metric"]).any()
    assert set(rows.loc[rows["method"] == "sigmoid-lowrank", "setting"].str.extract(r"(trained_on=[^;]+)")[0].dropna()) == {
        "trained_on=own-samples"
    }
    assert {"words:prompt=none"} == set(rows.loc[rows["metric"].isin(["ap_bad", "mcc"]), "slice"])
    assert not {"prompt", "output", "wrong_words"} & set(items)
    assert {"probe-mlqe-pe-ro-en", "probe-mlqe-pe-ru-en", "scores", "scores-own-samples"} == set(items["part"])


def test_a_probe_learns_from_its_own_task_only(toy):
    """Transferred scores do not depend on the gold of the task they are tested on (the two tasks differ by a shift of gold alone)."""
    _, _, items = toy
    part = items[(items["part"] == "probe-mlqe-pe-ro-en") & (items["dataset"] == "mlqe-pe-ru-en")]
    settings = Settings(**{f.name: toy[0][f.name] for f in dataclasses.fields(Settings) if f.name in toy[0]})
    table, features = supervised._pooled(settings, "mlqe-pe-ro-en")
    here = (table["slice"] == "prompt=source").to_numpy()
    expected = supervised.probe.transferred(features[here], table["gold"].to_numpy()[here], table["group"].to_numpy()[here], features[here])
    np.testing.assert_allclose(part[part["slice"] == "prompt=source"]["supervised-probe"], expected, rtol=1e-4)


def test_tables_of_benchmarks(toy):
    """Rows and columns that the notebook shows, and a verdict that follows from its comparisons."""
    _, rows, items = toy
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = figures.all_statistics(items[items["part"] == "scores"], ["softmax", "logprob", "sigmoid-lowrank", "nmt-logprob"])
        table = benchmark_figures.benchmark_table(found, benchmark_figures.HUMAN)
        probes = {"mlqe-pe-ro-en": figures.all_statistics(items[items["part"] == "probe-mlqe-pe-ro-en"], ["supervised-probe"])}
    assert list(table.columns[:1]) == ["n"] and set(table["n"]) == {"8"}
    robust = benchmark_figures.robustness(
        found, {k: {t: v[t] for t in v if t != "hjqe-en-de"} for k, v in probes.items()}, "softmax", "prompt=source"
    )
    assert robust["domain"].tolist() == ["same (cross-fitted)", "other pair"] and robust["p_holm"].between(0, 1).all()
    words = benchmark_figures.word_table(rows, ["softmax", "sigmoid-lowrank"])
    assert list(words.index) == [f"hjqe-en-de, target alone: {name}" for name in ("AUROC", "AP of BAD", "MCC")]


def test_informative_measures():
    """One score clearly better than chance is enough, a reference is no score; 0 is chance for a correlation, one half for a ranking."""
    sure, unsure = np.linspace(0.1, 0.3, 100), np.linspace(-0.1, 0.3, 100)
    cell = lambda drawn: evaluation.Statistic(float(drawn.mean()), drawn, 9, 9)  # noqa: E731
    found = {
        "a": {"softmax": {("all", "pearson"): cell(unsure)}, "logprob": {("all", "pearson"): cell(sure)}},
        "b": {"softmax": {("all", "auroc"): cell(sure)}, "length": {("all", "auroc"): cell(sure + 0.5)}},
        "c": {"softmax": {("all", "auroc"): cell(sure + 0.5)}},
        "d": {"softmax": {("all", "pearson"): cell(unsure)}, "nmt-logprob": {("all", "pearson"): cell(sure)}},
    }
    what = [(task, "all", "pearson" if task in "ad" else "auroc", task) for task in "abcde"]
    assert [label for *_, label in benchmark_figures.informative(found, what)] == ["a", "c"]


def test_verdicts():
    """Clearly better than all, than some, than none."""
    index = pd.MultiIndex.from_product([["a", "b", "c", "d"], ["softmax", "logprob"]], names=["measure", "against"])
    value = [1.0, 1.0, 1.0, -1.0, -1.0, 0.0, 0.1, 0.1]
    p = [0.0, 0.0, 0.0, 0.0, 0.0, 1.0, 1.0, 1.0]
    table = pd.DataFrame({"value": value, "p_holm": p, "seeds": [[v] for v in value]}, index=index)
    assert benchmark_figures.verdicts(table)["outperforms?"].tolist() == ["confirmed", "qualified", "refuted", "no clear difference"]


def test_training_texts_of_a_corpus_are_cut(toy):
    """At MAX_TOKENS tokens, whatever the corpus."""
    parameters = toy[0]
    settings = Settings(**{f.name: parameters[f.name] for f in dataclasses.fields(Settings) if f.name in parameters})
    for corpus in ("docstrings", "own-samples"):
        texts = training_texts(dataclasses.replace(settings, trained_on=corpus), "train")
        assert texts and max(len(text.output) for text in texts) <= training_corpora.MAX_TOKENS
    assert evaluation.error_types(pd.DataFrame({"slice": ["type=original", "type=b", "type=a", "type=attested"]})) == ["b", "a"]
