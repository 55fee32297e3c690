"""The Sigmoid Head experiment: what it plans and refuses, which tokens count as wrong, what its statistics say, and units at toy size."""

import dataclasses
import json
import warnings
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
import torch
from helpers import docstring_corpus, language_model, saved_language_model

from old import paths
from old.corpora import docstrings
from old.parameters import settings_from
from old.quality import data, evaluation, experiment, heads, scores, training_corpora
from old.quality.data import Settings
from old.quality.evaluation import HIGH, LOW, statistics, token_statistics
from old.quality.experiment import plan
from old.quality.heads import HEADS
from old.quality.language_models import LanguageModel
from old.quality.negatives import SAMPLERS
from old.quality.tasks import catalogue, corruption, languages, listing
from old.quality.tasks.catalogue import TASKS
from old.results import cluster_weights, make_table

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
        assert settings_from(Settings, unit.parameters).of_heads() == Settings(texts=5).of_heads()
        assert unit.part == "training" or settings_from(Settings, unit.parameters) == Settings(texts=5)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"heads": ["sigmoid"]}, "unknown head 'sigmoid': choose from sigmoid-lowrank, sigmoid-full"),
        ({"tasks": ["listing", "translation"]}, "unknown task 'translation': choose from listing, languages"),
        ({"heads": ["uniform", "uniform"]}, "no head must be named twice"),
        ({"tasks": ["listing", "listing"]}, "no task must be named twice"),
        ({"seeds": []}, "seeds must name at least one"),
        ({"seeds": [0, -1]}, "none negative"),
        ({"seeds": [1, 1]}, "none twice"),
        ({"dominant": "middle"}, "unknown dominant set 'middle': choose from last, first"),
        ({"model": "smollm2"}, "unknown model 'smollm2': 'smollm2-135m-q4', 'tiny-nmt', 'tiny-nmt-smoke', a folder, or a hub name"),
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


def test_wrong_tokens_are_those_of_wrong_words():
    """Word by word: in a byte-level tokenizer no token spans two words, so each word has the tokens that it has alone. A token that is
    only the space before a word is not part of it.
    """
    lm = language_model()
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
    assert data.wrong_tokens(lm.tokenizer, items, texts).tolist() == expected and 0 < sum(expected) < len(expected)


# ---- statistics ----------------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def listed() -> pd.DataFrame:
    items = listing.items(lambda text: len(text) < 10, orders=3)
    return items.assign(k=items["slice"].str.removeprefix("k=").astype(int))


def values(task: str, items: pd.DataFrame, score) -> dict:
    return {key: found.value for key, found in statistics(task, items, score).items()}


AUROCS = [(f"right-many-wrong-{kind}", "auroc") for kind in ("listed", "sibling")]
HIGH_LOW, TIES, GAP = (("all", metric) for metric in ("p_high_above_low", "tie_share", "gap_kept"))


def any_token(text: str) -> bool:
    return True


def test_listing_score_that_tells_right_from_wrong(listed):
    """It neither drops nor misses anything, in any resample."""
    found = statistics("listing", listed, listed["gold"])
    for key, expected in (*((key, 1.0) for key in AUROCS), (HIGH_LOW, 0.5), (TIES, 1.0), (GAP, 1.0)):
        assert found[key].value == pytest.approx(expected) and found[key].replicates == pytest.approx(expected)
    assert all(cell.value == 1 for (_, metric), cell in found.items() if metric == "mean_score")


def test_listing_score_of_the_answer_alone(listed):
    """How common a name is, say, and higher for right ones: it does not depend on k, so nothing is lost where k is high."""
    common = {name: len(name) / 20 for name in listed["answer"]}
    found = values("listing", listed, listed["answer"].map(common) + listed["gold"])
    assert found[HIGH_LOW] == 0.5
    assert found[GAP] == pytest.approx(1, abs=1e-6)


def test_listing_score_that_shares_a_mass_of_one(listed):
    """1/k, as softmax has it: no answer keeps its score, and some of the gap is lost."""
    found = values("listing", listed, listed["gold"] / listed["k"])
    assert found[HIGH_LOW] == found[TIES] == 0 and 0 < found[GAP] < 1 / HIGH
    assert found["k=1", "mean_score"] == 1 and found["k=5", "mean_score"] == pytest.approx(0.2)


def test_listing_score_that_rises(listed):
    assert values("listing", listed, listed["k"] + 100 * listed["gold"])[HIGH_LOW] == 1


def test_listing_gap_does_not_change_with_the_scale(listed):
    """It is a ratio of differences: a larger unit or another zero changes nothing."""
    score = listed["gold"] / listed["k"] + np.random.default_rng(3).random(len(listed))
    plain, scaled = (statistics("listing", listed, s)[GAP] for s in (score, 7 * score - 3))
    assert 0 < plain.value < 1
    np.testing.assert_allclose(scaled.replicates, plain.replicates, rtol=1e-6)  # differences of means of about 0.1


def test_listing_gap_needs_a_gap(listed):
    """A score that does not tell right from wrong at k = 1 keeps no share of anything."""
    assert np.isnan(values("listing", listed, np.random.default_rng(0).random(len(listed)))[GAP])


def test_listing_auroc_compares_many_with_few(listed):
    """Right answers at k >= HIGH with wrong ones at k <= LOW: others have no say."""
    right, wrong = (listed["gold"] == 1) & (listed["k"] >= HIGH), (listed["gold"] == 0) & (listed["k"] <= LOW)
    score = np.where(right, 1.0, np.where(wrong, 0.0, np.random.default_rng(0).normal(size=len(listed)) * 9))
    found = statistics("listing", listed, score)
    assert all(found[key].value == 1 for key in AUROCS)
    assert sum(found[key].n for key in AUROCS) == 2 * right.sum() + wrong.sum()


@pytest.mark.parametrize("task", ["listing", "languages", "corruption"])
def test_rankings_survive_a_monotone_transform(task, listed):
    """Value and replicates of AUROC and p_high_above_low; the transform that flattens cannot buy anything."""
    items = {"listing": lambda: listed, "languages": lambda: languages.items(any_token, each=8), "corruption": corrupted_items}[task]()
    score = np.random.default_rng(1).random(len(items)).round(2) + items["gold"]
    before, after = statistics(task, items, score), statistics(task, items, np.exp(3 * score) - 7)
    for key in before:
        if key[1] in ("auroc", "p_high_above_low"):
            np.testing.assert_allclose(before[key].replicates, after[key].replicates, atol=1e-12)
            assert before[key].value == after[key].value and 0 < before[key].value < 1.0000001
    assert not np.isclose(before["k=1", "mean_score"].value, after["k=1", "mean_score"].value) if task != "corruption" else True


def test_replicates_of_a_mean_are_brute_force(listed):
    """p_high_above_low with every set as often as drawn, each counting the same, and in it every order."""
    score = np.random.default_rng(2).random(len(listed))
    found = statistics("listing", listed, score)[HIGH_LOW]
    table = listed.assign(score=score)[listed["gold"] == 1]
    alone = table[table["k"] == 1].set_index(["group", "order"])["score"]
    many = table[table["k"] >= HIGH]
    many = many.assign(above=[float(row.score > alone[row.group, row.order]) for row in many.itertuples()])
    by_set = [np.mean([part["above"].mean() for _, part in orders.groupby("order")]) for _, orders in many.groupby("group")]
    weights, _ = cluster_weights(np.arange(len(by_set)), 2000)
    assert found.n == len(many) and found.clusters == len(by_set) and found.value == pytest.approx(np.mean(by_set))
    np.testing.assert_allclose(found.replicates[:20], [np.average(by_set, weights=w) for w in weights[:20]], atol=1e-12)


def test_few_sets_give_no_warning(listed):
    """Sets of which no order has many right answers do not count; where there is no other, there is no such number."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        both, few = (listed[listed["group"].isin(groups)] for groups in (["days", "seasons"], ["seasons"]))
        found, none = (statistics("listing", items, items["gold"]) for items in (both, few))
    assert found[HIGH_LOW].clusters == 1 and (found[GAP].replicates == 1).all() and HIGH_LOW not in none


def test_languages_statistics():
    """Gold as the score is perfect, also for the prior, which has the same gold; ties of right answers count one half."""
    items = languages.items(any_token, each=12)
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
    assert all(value == pytest.approx(float(metric not in ("bce", "brier", "ece")), abs=1e-6) for (_, metric), value in found.items())
    swapped = items["slice"] == "type=number"  # one type of error that the score takes for originals, and originals for errors
    found = values("corruption", items, np.where(swapped, 2.0, items["gold"]))
    for metric in ("auroc", "p_right_above_wrong"):
        assert found["type=number", metric] == 0 and found["type=deletion", metric] == 1


def test_original_against_its_own_edit():
    """A score that knows nothing but which text it is ties each original with its edits, whatever AUROC says."""
    items = corrupted_items()
    found = values("corruption", items, items["text"])
    assert {found[f"type={name}", "p_right_above_wrong"] for name in corruption.TYPES} == {0.5}


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
    assert before["token", "auroc"].value == after["token", "auroc"].value
    assert before["token:type=random-words", "auroc"].value != after["token:type=random-words", "auroc"].value


def test_token_statistics():
    """A score that is high for right tokens; unedited texts have no say."""
    items = corrupted_items()
    text = np.repeat(np.arange(len(items)), 4)
    edited = items["slice"].isin([f"type={name}" for name in corruption.TYPES]).to_numpy()[text]
    wrong = (np.arange(len(text)) % 4 == 1) & edited
    found = token_statistics(items, wrong, text, np.where(edited, ~wrong, -5.0))
    assert set(found) == {("token", "auroc"), *((f"token:type={name}", "auroc") for name in corruption.TYPES)}
    assert all(cell.value == 1 and (cell.replicates == 1).all() for cell in found.values())


def test_rows_hold_the_interval(listed):
    """A valid result table; an undefined value is an empty cell."""
    found = statistics("listing", listed, np.random.default_rng(0).random(len(listed)))
    found["none", "auroc"] = evaluation.Statistic(np.nan, np.full(2000, np.nan), 3, 1)
    identity = {"study": "ambiguity", "dataset": "listing", "model": "m", "method": "softmax", "seed": 0}
    table = make_table(evaluation.rows(found, identity)).set_index(["slice", "metric"])
    assert len(table) == len(found)
    for key, cell in found.items():
        row = table.loc[key]
        low, high = np.quantile(cell.replicates, [0.025, 0.975])
        np.testing.assert_allclose([row["value"], row["ci_low"], row["ci_high"]], [cell.value, low, high], atol=1e-12)
        assert row["n"] == cell.n


# ---- units at toy size ---------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def toy(tmp_path_factory):
    """A tiny model in a folder, a tiny corpus, a cache of its own: everything else is as in a real run."""
    folder = tmp_path_factory.mktemp("toy")
    lm = saved_language_model(folder / "tiny")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(paths, "CACHE", folder / "cache")
        for module in (training_corpora, catalogue):
            patch.setattr(module, "docstring_table", docstring_corpus)
        patch.setattr(LanguageModel, "is_token", lambda lm, text: True)  # no name of a real thing is a token of this model
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
    methods |= {"length"} if TASKS[task].study == "quality" else set()
    assert set(rows["method"]) == methods < set(items.columns)
    assert set(rows["study"]) == {TASKS[task].study} and not {"prompt", "output", "answer"} & set(items.columns)
    full, texts, states = data.task_states(settings_from(Settings, unit.parameters), task)
    log_p = toy.lm.logits(states).log_softmax(1)[torch.arange(len(states)), torch.tensor([i for text in texts for i in text.output])]
    expected = [part.exp().mean().item() for part in log_p.split([len(text.output) for text in texts])]
    np.testing.assert_allclose(items["softmax"], expected, atol=1e-5)
    assert items["id"].tolist() == full["id"].tolist()


def test_heads_unit(toy, monkeypatch):
    """Scores of the kept heads (a softmax head by its softmax); what is kept is not trained again, and scores the same."""
    unit = units(toy, ["scores"], "languages")["heads"]
    rows, items = experiment.compute(unit)
    assert set(rows["method"]) == {"sigmoid-lowrank", "softmax-ce", "softmax-ce-logprob"} and set(rows["seed"]) == {"1"}
    settings = settings_from(Settings, unit.parameters)
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
    own = "own" if name == "sigmoid-lowrank" else "cross-entropy"
    assert rows.set_index("slice")["value"].to_dict() == {own: curve["bce_own"].iloc[-1], "common": curve["bce_common"].iloc[-1]}
    assert (curve["bce_own"].iloc[-1] == curve["bce_common"].iloc[-1]) == (name == "sigmoid-lowrank")  # own is the paper's sampler
    if name == "softmax-ce":  # it starts as the model's own softmax
        reference = experiment.compute(units(toy, ["training"], "listing")["untrained"])[0].set_index(["method", "slice"])["value"]
        assert curve["bce_own"].iloc[0] == pytest.approx(reference["softmax", "cross-entropy"], abs=1e-4)
    file = heads.head_file(settings_from(Settings, unit.parameters), name, 0).with_suffix(".rates.json")
    losses = json.loads(file.read_text())
    assert set(rows["setting"]) == {f"learning_rate={float(min(losses, key=losses.get)):g}"} and len(losses) >= 3


@pytest.mark.parametrize("best", range(len(heads.LEARNING_RATES)))
def test_search_ends_between_worse_neighbours(best):
    """Wherever the least loss lies; each rate is tried once, the best with both its neighbours, and a loss that is not finite loses."""
    rates, tried = heads.LEARNING_RATES, []

    def loss(rate: float) -> float:
        tried.append(rate)
        distance = abs(rates.index(rate) - best)
        return float(distance) if distance < 3 or rate < rates[best] else float("nan")

    losses = heads.search(loss)
    assert min(losses, key=losses.get) == rates[best] and tried == list(dict.fromkeys(tried))
    assert set(rates[max(0, best - 1) : best + 2]) <= set(tried) and len(tried) >= 3


@pytest.mark.parametrize("task", ["corruption", "self-generation"])
def test_other_ways_to_join_token_scores(task, toy):
    """Rows of a setting of their own; the log-mean of softmax is the mean of logprob, and only scores in [0, 1] have a logarithm."""
    rows, _ = experiment.compute(units(toy, ["scores"], task)["untrained"])
    value = rows[rows["metric"] == "pearson"].set_index(["method", "slice", "setting"])["value"]
    name = {"corruption": "errors", "self-generation": "all"}[task]
    np.testing.assert_allclose(value["softmax", name, "aggregate=log-mean"], value["logprob", name, ""], atol=1e-5)
    assert ("logprob", name, "aggregate=min") in value.index and ("logprob", name, "aggregate=product") not in value.index


def test_held_out_positions_choose_or_report(toy):
    """No position does both."""
    settings = settings_from(Settings, toy.parameters)
    chosen, reported = (heads.held_out(settings, value) for value in (False, True))
    everything = data.positions(settings, "validation")
    assert torch.equal(torch.cat([chosen.gold, reported.gold]), everything.gold)
    assert torch.equal(torch.cat([chosen.hidden_states, reported.hidden_states]), everything.hidden_states)


def test_mass_of_right_names(toy):
    """The probability of all right names' first tokens, each counted once."""
    items = pd.DataFrame({"right": [["the", "cat"], ["the"], ["the", "the"]]})
    states = torch.randn(3, toy.lm.unembedding.shape[1], generator=torch.Generator().manual_seed(0))
    p = toy.lm.logits(states).softmax(-1)
    the, cat = (toy.lm.tokenizer(f" {name}", add_special_tokens=False)["input_ids"][0] for name in ("the", "cat"))
    expected = [(p[0, the] + p[0, cat] * (the != cat)).item(), p[1, the].item(), p[2, the].item()]
    np.testing.assert_allclose(experiment._right_mass(toy.lm, items, states), expected, atol=1e-6)


def test_the_experiment_trains_no_base(toy):
    """After all of that the model in memory is the one on disk."""
    used = data.language_model(toy.parameters["model"])
    assert used.fingerprint() == toy.lm.fingerprint()
    assert all(torch.equal(a, b) for a, b in zip(used.model.state_dict().values(), toy.lm.model.state_dict().values()))
