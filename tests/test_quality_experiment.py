"""The Sigmoid Head experiment: what it plans and refuses, which tokens count as wrong, what its statistics say, and units at toy size."""

import dataclasses
import json
import warnings
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
import torch
from helpers import docstring_corpus, language_model

from lib import paths
from lib.corpora import docstrings
from lib.quality import data, evaluation, experiment, heads, scores
from lib.quality.data import TASKS, Settings
from lib.quality.evaluation import HIGH, LOW, statistics, token_statistics
from lib.quality.experiment import plan
from lib.quality.heads import HEADS
from lib.quality.negatives import SAMPLERS
from lib.quality.tasks import corruption, languages, listing
from lib.results import cluster_weights, make_table

PARAMETERS = {"heads": ["sigmoid-lowrank", "uniform"], "seeds": [0, 1, 2], "tasks": ["listing", "corruption"], "texts": 5, "profile": "cpu"}

# ---- the plan ------------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("parts", "change", "count"),
    [
        (["training"], {}, 2 * 3 + 1),  # and the closed form, which is not trained
        (["scores"], {}, 2 * (1 + 3)),  # a task: once without training, and once a seed with all heads
        (["training", "scores"], {}, 7 + 8),
        (["scores"], {"heads": []}, 2),
        (["scores"], {"tasks": []}, 0),
        (["training"], {"heads": list(HEADS), "seeds": [4]}, len(HEADS) + 1),
    ],
)
def test_plan(parts, change, count):
    """Units with names of their own, plain JSON parameters, the settings asked for and the corpus's fingerprint."""
    units = plan(parts, PARAMETERS | change)
    assert len(units) == len({unit.name for unit in units}) == count
    for unit in units:
        assert json.loads(json.dumps(dataclasses.asdict(unit))) == dataclasses.asdict(unit) and unit.data == docstrings.fingerprint()
        assert experiment.settings_of(unit.parameters).of_heads() == Settings(texts=5).of_heads()
        assert unit.part == "training" or experiment.settings_of(unit.parameters) == Settings(texts=5)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"heads": ["sigmoid"]}, "unknown head 'sigmoid': choose from sigmoid-lowrank, sigmoid-full"),
        ({"tasks": ["listing", "translation"]}, "unknown task 'translation': choose from listing, languages"),
        ({"heads": ["uniform", "uniform"]}, "heads must not be named twice"),
        ({"tasks": ["listing", "listing"]}, "tasks must not be named twice"),
        ({"seeds": []}, "seeds must name at least one"),
        ({"seeds": [0, -1]}, "none negative"),
        ({"seeds": [1, 1]}, "none twice"),
        ({"dominant": "middle"}, "unknown dominant set 'middle': choose from last, first"),
        ({"model": "smollm2"}, "unknown model 'smollm2': 'smollm2-135m-q4', a folder, or a hub name"),
        *(
            ({name: 0}, f"{name} must be at least 1, not 0")
            for name in ("train_texts", "validation_texts", "negatives", "rounds", "rank", "updates", "positions_per_batch", "texts")
        ),
    ],
    ids=str,
)
def test_refuses_wrong_parameters(change, message):
    with pytest.raises(ValueError, match=message):
        plan(["training", "scores"], PARAMETERS | change)


@pytest.mark.parametrize(
    "change",
    [{"negatives": 5}, {"rounds": 1}, {"dominant": "first"}, {"rank": 2}, {"updates": 7}, {"train_texts": 9}, {"model": "a/b"}],
    ids=str,
)
def test_keys_depend_on_the_settings(change):
    """Every unit is another one: none is read where a setting differs."""
    before, after = (plan(["training", "scores"], PARAMETERS | more) for more in ({}, change))
    assert not {unit.key for unit in before} & {unit.key for unit in after}


def test_keys_do_not_depend_on_the_rest():
    """Not on the order of parameters, on those of no concern, on other seeds, or on what a part does not use."""
    keys = {unit.key for unit in plan(["training", "scores"], PARAMETERS)}
    backwards = dict(reversed(PARAMETERS.items())) | {"colour": "blue", "profile": "gpu"}
    assert {unit.key for unit in plan(["training", "scores"], backwards)} == keys
    assert {unit.key for unit in plan(["training", "scores"], PARAMETERS | {"seeds": [1]})} < keys
    trained, untrained = plan(["training"], PARAMETERS | {"texts": 9, "tasks": []}), plan(["scores"], PARAMETERS | {"heads": []})
    assert {unit.key for unit in trained + untrained} < keys


# ---- wrong tokens --------------------------------------------------------------------------------------------------------------------


def test_wrong_tokens_are_those_of_wrong_words(monkeypatch):
    """Word by word: in a byte-level tokenizer no token spans two words, so each word has the tokens that it has alone. A token that is
    only the space before a word is not part of it.
    """
    lm = language_model()
    monkeypatch.setattr(data, "language_model", lambda name: lm)
    cases = [
        ("the cat is not on the mat", [0, 3]),
        ("return my_name (200, done.", [1, 2, 3]),
        ("naïve café is", [0, 1]),
        ("the the the", [1]),
        (" the cat is on", []),
        ("the end", []),
    ]
    items = pd.DataFrame(cases, columns=["output", "wrong_words"])
    texts = lm.encode(["x"] * len(cases), items["output"].tolist())
    expected = []
    for output, wrong in cases:
        for number, word in enumerate(output.split()):
            expected += [number in wrong and token != "Ġ" for token in lm.tokenizer.tokenize(f" {word}")]
    assert data.wrong_tokens(Settings(), items, texts).tolist() == expected and 0 < sum(expected) < len(expected)


# ---- statistics ----------------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def listed() -> pd.DataFrame:
    items = listing.items(lambda text: len(text) < 10, orders=3)
    return items.assign(k=items["slice"].str.removeprefix("k=").astype(int))


def values(task: str, items: pd.DataFrame, score) -> dict:
    return {key: value for key, (value, _, _) in statistics(task, items, score).items()}


AUROC, HIGH_LOW, GAP = ("right-many-wrong-few", "auroc"), ("all", "p_high_above_low"), ("all", "gap_kept")


def test_listing_score_that_tells_right_from_wrong(listed):
    """It neither drops nor misses anything, in any resample."""
    found = statistics("listing", listed, listed["gold"])
    for key, expected in ((AUROC, 1.0), (HIGH_LOW, 0.5), (GAP, 1.0)):
        value, replicates, _ = found[key]
        assert value == pytest.approx(expected) and replicates == pytest.approx(expected)
    assert all(value == 1 for (_, metric), (value, _, _) in found.items() if metric == "mean_score")


def test_listing_score_of_the_answer_alone(listed):
    """How common a name is, say, and higher for right ones: it does not depend on k, so nothing is lost where k is high."""
    common = {name: len(name) / 20 for name in listed["answer"]}
    found = values("listing", listed, listed["answer"].map(common) + listed["gold"])
    assert found[HIGH_LOW] == 0.5
    assert found[GAP] == pytest.approx(1, abs=1e-6)


def test_listing_score_that_shares_a_mass_of_one(listed):
    """1/k, as softmax has it: no answer keeps its score, and some of the gap is lost."""
    found = values("listing", listed, listed["gold"] / listed["k"])
    assert found[HIGH_LOW] == 0 and 0 < found[GAP] < 1 / HIGH
    assert found["k=1", "mean_score"] == 1 and found["k=5", "mean_score"] == pytest.approx(0.2)


def test_listing_score_that_rises(listed):
    assert values("listing", listed, listed["k"] + 100 * listed["gold"])[HIGH_LOW] == 1


def test_listing_gap_does_not_change_with_the_scale(listed):
    """It is a ratio of differences: a larger unit or another zero changes nothing."""
    score = listed["gold"] / listed["k"] + np.random.default_rng(3).random(len(listed))
    plain, scaled = (statistics("listing", listed, s)[GAP] for s in (score, 7 * score - 3))
    assert 0 < plain[0] < 1
    np.testing.assert_allclose(scaled[1], plain[1], rtol=1e-6)  # differences of means of about 0.1


def test_listing_auroc_compares_many_with_few(listed):
    """Right answers at k >= HIGH with wrong ones at k <= LOW: others have no say."""
    right, wrong = (listed["gold"] == 1) & (listed["k"] >= HIGH), (listed["gold"] == 0) & (listed["k"] <= LOW)
    score = np.where(right, 1.0, np.where(wrong, 0.0, np.random.default_rng(0).normal(size=len(listed)) * 9))
    value, _, count = statistics("listing", listed, score)[AUROC]
    assert value == 1 and count == right.sum() + wrong.sum()


@pytest.mark.parametrize("task", ["listing", "languages", "corruption"])
def test_rankings_survive_a_monotone_transform(task, listed):
    """Value and replicates of AUROC and p_high_above_low; the transform that flattens cannot buy anything."""
    items = {"listing": lambda: listed, "languages": lambda: languages.items(each=8), "corruption": corrupted_items}[task]()
    score = np.random.default_rng(1).random(len(items)).round(2) + items["gold"]
    before, after = statistics(task, items, score), statistics(task, items, np.exp(3 * score) - 7)
    for key in before:
        if key[1] in ("auroc", "p_high_above_low"):
            np.testing.assert_allclose(before[key][1], after[key][1], atol=1e-12)
            assert before[key][0] == after[key][0] and 0 < before[key][0] < 1.0000001
    assert not np.isclose(before["k=1", "mean_score"][0], after["k=1", "mean_score"][0]) if task != "corruption" else True


def test_replicates_of_a_mean_are_brute_force(listed):
    """p_high_above_low with every set as often as drawn."""
    score = np.random.default_rng(2).random(len(listed))
    _, replicates, count = statistics("listing", listed, score)[HIGH_LOW]
    table = listed.assign(score=score)[listed["gold"] == 1]
    alone = table[table["k"] == 1].set_index(["group", "order"])["score"]
    many = table[table["k"] >= HIGH]
    above = [float(row.score > alone[row.group, row.order]) for row in many.itertuples()]
    weights, member = cluster_weights(many["group"].to_numpy(), 2000)
    assert count == len(many)
    np.testing.assert_allclose(replicates[:20], [np.average(above, weights=w[member]) for w in weights[:20]], atol=1e-12)


def test_few_sets_give_no_warning(listed):
    """Resamples without any set that has many right answers are undefined, not a fault."""
    items = listed[listed["group"].isin(["days", "seasons"])]
    items = items[(items["group"] == "days") | (items["k"] < HIGH)]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        _, replicates, _ = statistics("listing", items, items["gold"])[GAP]
    assert 0 < np.isnan(replicates).sum() < len(replicates)


def test_languages_statistics():
    """Gold as the score is perfect, also for the prior, which has the same gold; ties of right answers count one half."""
    items = languages.items(each=12)
    found = values("languages", items, items["gold"])
    aurocs = {name for name, metric in found if metric == "auroc"}
    assert aurocs == {"k=1", "k=2", "prior", "right-many-wrong-few"} and all(found[name, "auroc"] == 1 for name in aurocs)
    assert found["all", "p_high_above_low"] == 0.5
    shared = items["gold"] / items["slice"].str.removeprefix("k=").astype(int)
    found = values("languages", items, shared)
    assert found["all", "p_high_above_low"] == 0 and found["k=2", "mean_score"] == 0.5
    only_named = np.where(items["prior"], 0.5, items["gold"])  # a score that knows nothing without the territory
    assert values("languages", items, only_named)["prior", "auroc"] == 0.5


def corrupted_items() -> pd.DataFrame:
    return corruption.items(docstring_corpus(), texts=8)


def test_corruption_statistics():
    """Gold as the score: every type is told from originals, and the share of words left is itself."""
    items = corrupted_items()
    found = values("corruption", items, items["gold"])
    assert {name for name, metric in found if metric == "auroc"} == {f"type={name}" for name in (*corruption.TYPES, "attested")}
    assert all(value == pytest.approx(1) for value in found.values())
    swapped = items["slice"] == "type=number"  # one type of error that the score takes for originals, and originals for errors
    found = values("corruption", items, np.where(swapped, 2.0, items["gold"]))
    assert found["type=number", "auroc"] == 0 and found["type=deletion", "auroc"] == 1


def test_home_ground_does_not_count_as_an_error():
    """Random words, the head's own training task, change neither the summary of all errors nor that of all tokens."""
    items = corrupted_items()
    home = (items["slice"] == f"type={corruption.HOME_GROUND}").to_numpy()
    rng = np.random.default_rng(0)
    score = rng.random(len(items))
    before, after = (values("corruption", items, s) for s in (score, np.where(home, 9.0, score)))
    assert before["errors", "pearson"] == after["errors", "pearson"]
    assert before["type=random-words", "auroc"] != after["type=random-words", "auroc"]
    text = np.repeat(np.arange(len(items)), 3)
    wrong, token_score = rng.random(len(text)) < 0.3, rng.random(len(text))
    before, after = (token_statistics(items, wrong, text, s) for s in (token_score, np.where(home[text], 9.0, token_score)))
    assert before["token", "auroc"][0] == after["token", "auroc"][0]
    assert before["token:type=random-words", "auroc"][0] != after["token:type=random-words", "auroc"][0]


def test_token_statistics():
    """A score that is high for right tokens; unedited texts have no say."""
    items = corrupted_items()
    text = np.repeat(np.arange(len(items)), 4)
    edited = items["slice"].isin([f"type={name}" for name in corruption.TYPES]).to_numpy()[text]
    wrong = (np.arange(len(text)) % 4 == 1) & edited
    found = token_statistics(items, wrong, text, np.where(edited, ~wrong, -5.0))
    assert set(found) == {("token", "auroc"), *((f"token:type={name}", "auroc") for name in corruption.TYPES)}
    assert all(value == 1 and (replicates == 1).all() for value, replicates, _ in found.values())


def test_rows_hold_the_interval(listed):
    """A valid result table; an undefined value is an empty cell."""
    found = statistics("listing", listed, np.random.default_rng(0).random(len(listed)))
    found["none", "auroc"] = (np.nan, np.full(2000, np.nan), 3)
    identity = {"study": "ambiguity", "dataset": "listing", "model": "m", "method": "softmax", "seed": 0}
    table = make_table(evaluation.rows(found, identity)).set_index(["slice", "metric"])
    assert len(table) == len(found)
    for key, (value, replicates, count) in found.items():
        row = table.loc[key]
        low, high = np.quantile(replicates, [0.025, 0.975])
        np.testing.assert_allclose([row["value"], row["ci_low"], row["ci_high"]], [value, low, high], atol=1e-12)
        assert row["n"] == count


# ---- units at toy size ---------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def toy(tmp_path_factory):
    """A tiny model in a folder, a tiny corpus, a cache of its own: everything else is as in a real run."""
    folder = tmp_path_factory.mktemp("toy")
    lm = language_model(max_position_embeddings=512)
    lm.model.save_pretrained(folder / "tiny")
    lm.tokenizer.save_pretrained(folder / "tiny")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(paths, "CACHE", folder / "cache")
        patch.setattr(data, "_corpus", docstring_corpus)
        sizes = {"train_texts": 5, "validation_texts": 2, "updates": 3, "rank": 2, "positions_per_batch": 32, "negatives": 4, "texts": 1}
        parameters = {"heads": ["sigmoid-lowrank", "softmax-ce"], "seeds": [1], "model": str(folder / "tiny"), **sizes}
        yield SimpleNamespace(lm=lm, parameters=parameters)


def units(toy, parts: list[str], task: str) -> dict:
    return {unit.method: unit for unit in plan(parts, toy.parameters | {"tasks": [task]})}


@pytest.mark.parametrize("task", ["languages", "corruption", "self-generation"])
def test_untrained_unit(task, toy):
    """Every score that needs no training; an item's score is the mean of its tokens'. No text is kept."""
    unit = units(toy, ["scores"], task)["untrained"]
    rows, items = experiment.compute(unit)
    closed = {"closed-form"} | {f"closed-form:{name}" for name in SAMPLERS if name != scores.METHOD}
    methods = {"softmax", "logprob", "entropy", "boostedprob", "rescale", "softmax-power"} | closed
    assert set(rows["method"]) == methods < set(items.columns)
    assert set(rows["study"]) == {evaluation.STUDY[task]} and not {"prompt", "output", "answer"} & set(items.columns)
    full, texts, states = data.task_states(experiment.settings_of(unit.parameters), task)
    log_p = toy.lm.logits(states).log_softmax(1)[torch.arange(len(states)), torch.tensor([i for text in texts for i in text.output])]
    expected = [part.exp().mean().item() for part in log_p.split([len(text.output) for text in texts])]
    np.testing.assert_allclose(items["softmax"], expected, atol=1e-5)
    assert items["id"].tolist() == full["id"].tolist()


def test_heads_unit(toy, monkeypatch):
    """Scores of the kept heads (a softmax head by its softmax); what is kept is not trained again, and scores the same."""
    unit = units(toy, ["scores"], "languages")["heads"]
    rows, items = experiment.compute(unit)
    assert set(rows["method"]) == {"sigmoid-lowrank", "softmax-ce", "softmax-ce-logprob"} and set(rows["seed"]) == {"1"}
    settings = experiment.settings_of(unit.parameters)
    _, texts, states = data.task_states(settings, "languages")
    gold = torch.tensor([token for text in texts for token in text.output])
    for name in ("sigmoid-lowrank", "softmax-ce"):
        head = heads.trained_head(settings, name, 1)
        logits = head.all_logits(states)
        tokens = (logits.softmax(1) if name == "softmax-ce" else logits.sigmoid())[torch.arange(len(states)), gold]
        expected = [part.mean().item() for part in tokens.split([len(text.output) for text in texts])]
        np.testing.assert_allclose(items[name], expected, atol=1e-5)
    monkeypatch.setattr(heads, "fit", None)
    pd.testing.assert_frame_equal(experiment.compute(unit)[1], items)


@pytest.mark.parametrize("name", ["sigmoid-lowrank", "softmax-ce"])
def test_training_unit(name, toy):
    """A learning curve from the start to the last update; the rows are its end, at the learning rate with the least loss of its own."""
    unit = units(toy, ["training"], "listing")[name]
    rows, curve = experiment.compute(unit)
    assert curve["update"].tolist() == [0, 3]
    assert rows.set_index("slice")["value"].to_dict() == {what: curve[f"bce_{what}"].iloc[-1] for what in ("own", "common")}
    assert (curve["bce_own"].iloc[-1] == curve["bce_common"].iloc[-1]) == (name == "sigmoid-lowrank")  # own is the paper's sampler
    file = heads.head_file(experiment.settings_of(unit.parameters), name, 0).with_suffix(".rates.json")
    losses = json.loads(file.read_text())
    assert set(rows["setting"]) == {f"learning_rate={float(min(losses, key=losses.get)):g}"} and len(losses) == len(heads.LEARNING_RATES)


def test_the_experiment_trains_no_base(toy):
    """After all of that the model in memory is the one on disk."""
    used = data.language_model(toy.parameters["model"])
    assert used.fingerprint() == toy.lm.fingerprint()
    assert all(torch.equal(a, b) for a, b in zip(used.model.state_dict().values(), toy.lm.model.state_dict().values()))


def test_every_task_has_a_study():
    assert set(evaluation.STUDY) == set(TASKS)
