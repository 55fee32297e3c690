"""Rank and data: what is planned, states shared between corpora, mixtures, measures of held-out positions, and units at toy size."""

import dataclasses
import json
import warnings

import numpy as np
import pandas as pd
import pytest
import torch
from helpers import docstring_corpus, language_model, saved_language_model, short_outputs

from old import paths
from old.parameters import settings_from
from old.quality import heads, rank_and_data, training, training_corpora
from old.quality import rank_and_data_figures as figures
from old.quality.data import Settings, training_texts
from old.quality.head import sampled_loss
from old.quality.language_models import LanguageModel, Text
from old.quality.rank_and_data import FULL, Trained
from old.quality.tasks import catalogue
from old.quality.training_corpora import CORPORA, Corpus, Mixture
from old.results import cluster_bootstrap

PARAMETERS = {
    "profile": "test",
    "ranks": [8, 32, FULL],
    "sizes": [20, 10],
    "seeds": [0, 1],
    "corpora": ["docstrings:15", "own-samples:5", "both:5"],
    "tasks": ["listing", "gsm8k"],
    "texts": 5,
}


def test_trained_heads():
    """All ranks on all sizes once, those of the final comparison on the smallest and largest with every seed, one rank on the corpora."""
    found = rank_and_data.trained_heads(PARAMETERS)
    assert len(found) == len(set(found)) == 2 * 3 + 2 * 2 + 3 * 2
    assert {head.seed for head in found if head.corpus == "docstrings" and head.rank == 8} == {0}
    assert Trained("docstrings", 20, FULL, 1) in found and {head.rank for head in found if head.corpus != "docstrings"} == {Settings.rank}


def test_plan():
    """Units with names of their own and plain JSON parameters; one a head and corpus without training, one a task, corpus and seed."""
    units = rank_and_data.plan(PARAMETERS)
    assert len(units) == len({unit.name for unit in units}) == len(rank_and_data.trained_heads(PARAMETERS)) + 5 + 5 * 2 * 2
    assert all(json.loads(json.dumps(dataclasses.asdict(unit))) == dataclasses.asdict(unit) for unit in units)
    assert {u.parameters["texts"] for u in units if u.dataset == "gsm8k"} == {500} and {u.part for u in units} == {rank_and_data.PART}
    full = next(unit for unit in units if unit.method == "texts-20-full")
    assert settings_from(Settings, full.parameters).rank == Settings.rank  # the head of notebook 11
    assert full.parameters["held_out"] == [["docstrings", Settings.train_texts], ["own-samples", 5]]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"corpora": ["docstrings"]}, "name:texts"),
        ({"corpora": ["docstring:5"]}, "unknown training corpus 'docstring'"),
        ({"ranks": [-1]}, "a rank is positive"),
        ({"sizes": [0]}, "train_texts must be at least 1"),
        ({"tasks": ["lists"]}, "unknown task 'lists'"),
        ({"seeds": []}, "at least one"),
    ],
)
def test_refuses_wrong_parameters(change, message):
    with pytest.raises(ValueError, match=message):
        rank_and_data.plan(PARAMETERS | change)


def test_a_mixture_takes_turns_up_to_its_budget():
    """As many positions as the largest part has alone, up to the text that reaches it; a rest without a partner is left out."""
    short, long = (tuple(Text((0, number, *[9] * size), 1) for number in range(count)) for size, count in ((1, 4), (3, 3)))
    texts = Mixture(("a", "b")).mixed([short, long])
    assert texts == (short[0], long[0], short[1], long[1])  # 2 + 4 + 2 + 4 = 12 positions, as in `long`
    assert CORPORA["both"].fingerprint() == "-".join(CORPORA[name].fingerprint() for name in CORPORA["both"].of)


def test_states_are_shared(tmp_path, monkeypatch):
    """Known texts are taken from files, new ones computed, each once; the same numbers as computed alone."""
    lm = language_model(vocab_size=320)
    texts = lm.encode(["a", "b", "c", "d"], ["the cat", "is on", "the mat again", "and off"])
    training.hidden_states(lm, texts[:2], tmp_path)
    asked = []
    original = LanguageModel.hidden_states
    monkeypatch.setattr(LanguageModel, "hidden_states", lambda lm, texts: (asked.append(len(texts)), original(lm, texts))[1])
    wanted = [texts[3], texts[1], texts[2], texts[1]]
    training.share_states(lm, wanted, [texts[:2], texts], tmp_path)
    assert asked == [2]
    kept = training.hidden_states(lm, wanted, tmp_path)
    assert asked == [2]
    torch.testing.assert_close(kept, training.hidden_states(lm, wanted), atol=1e-5, rtol=1e-4)


def test_position_measures():
    """The loss is that of training; ties count one half, absent negatives nothing."""
    head_logits = torch.tensor([[1.0, 0.0, 1.0], [-1.0, 2.0, 0.0]], dtype=torch.float64)
    present = torch.tensor([[True, True, True], [True, True, False]])
    found = rank_and_data.position_measures(head_logits.sigmoid(), present)

    def logits(_hidden, ids):
        return head_logits

    expected = sampled_loss(logits, None, torch.tensor([0, 0]), torch.tensor([[1, 2], [1, -1]]))
    assert found["bce"].mean() == pytest.approx(expected.item())
    assert found["above"].tolist() == [0.75, 0.0] and found["score"].tolist() == head_logits[:, 0].sigmoid().tolist()


def test_held_out_statistic():
    """A mean over positions; texts without any stay in the resampling, so that slices are paired."""
    items = pd.DataFrame({"text": [3, 3, 5], "bce": [2.0, 1.0, 6.0], "n": [2, 1, 3]})
    texts = np.array([3, 5, 7])
    found = rank_and_data.held_out_statistic(items, "bce", texts)
    assert found.value == 1.5 and found.n == 6 and found.clusters == 3
    expected = cluster_bootstrap(np.array([[3.0], [6.0], [0.0]]), np.array([[3], [3], [0]]), texts)[:, 0]
    np.testing.assert_array_equal(found.replicates, expected)
    assert np.isnan(rank_and_data.held_out_statistic(items[:0], "bce", texts).value)


@pytest.fixture(scope="module")
def toy(tmp_path_factory):
    """A tiny model and corpora; everything else is as in a real run."""
    folder = tmp_path_factory.mktemp("toy")
    saved_language_model(folder / "tiny")
    texts = short_outputs()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(paths, "CACHE", folder / "cache")
        patch.setattr(paths, "RESULTS", folder / "results")
        patch.setattr(rank_and_data, "default_jobs", lambda: 1)  # another process would know nothing of these corpora
        for module in (training_corpora, catalogue):
            patch.setattr(module, "docstring_table", docstring_corpus)
        patch.setattr(LanguageModel, "is_token", lambda lm, text: True)
        samples = Corpus(lambda lm, split, count: pd.DataFrame({"prompt": ["say"] * 4, "output": texts[:4]}), lambda: "other")
        patch.setitem(CORPORA, "own-samples", samples)
        patch.setattr(heads, "LEARNING_RATES", (1e-3, 3e-3, 1e-2))
        sizes = {"sizes": [3, 5], "validation_texts": 4, "updates": 2, "positions_per_batch": 32, "negatives": 4, "texts": 1}
        changed = {"model": str(folder / "tiny"), "ranks": [2, FULL], "tasks": ["languages"], "corpora": ["own-samples:4", "both:4"]}
        patch.setattr(Settings, "rank", 2)
        patch.setattr(rank_and_data, "FINAL", (2, FULL))
        parameters = PARAMETERS | sizes | changed
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # a random model's scores may not vary
            yield parameters, *rank_and_data.run(parameters)


def test_units(toy):
    """Seen and unseen positions make up all; the loss of a head is that of `held_out_loss`; no text is kept."""
    parameters, rows, items = toy
    assert not {"prompt", "output", "answer"} & set(items)
    loss = rows[(rows["metric"] == "bce") & (rows["method"] == "sigmoid-full") & rows["setting"].str.endswith("docstrings;train_texts=3")]
    part = loss[loss["seed"] == "0"].set_index("slice")
    for corpus in ("docstrings", "own-samples"):
        n, value = part["n"], (part["value"] * part["n"]).fillna(0.0)
        names = [f"{corpus}:{name}" for name in ("all", "seen", "unseen")]
        assert n[names[0]] == n[names[1]] + n[names[2]] and value[names[0]] == pytest.approx(value[names[1]] + value[names[2]], rel=1e-4)
    settings = rank_and_data._settings(parameters, "docstrings", 3)
    judge = rank_and_data._settings(parameters, "docstrings", Settings.train_texts)
    held_out = rank_and_data.positions(judge, "validation")
    held_out = held_out.part(slice(len(held_out.gold) // 2, None))
    head = heads.trained_head(settings, "sigmoid-full", 0)
    expected = training.held_out_loss(head, held_out, "mixed-excluded", 4, limit=10**6)
    assert part.loc["docstrings:all", "value"] == pytest.approx(expected, rel=1e-4)
    labels = {token for text in training_texts(settings, "train") for token in text.output}
    assert part.loc["docstrings:unseen", "n"] == sum(token not in labels for token in held_out.gold.tolist())


def test_tables(toy):
    """Every table of the notebook, from the units alone; a score against itself differs by nothing."""
    parameters, rows, items = toy
    parts = figures.sizes_table(rows)
    assert parts.loc[("docstrings", 3), "positions"] < parts.loc[("docstrings", 5), "positions"]
    size = figures.bytes_table(rows)
    assert list(size.index) == ["2", "full"] and size.loc["full", "of the full head"] == 1
    table = figures.held_out_table(items, "bce", "all")
    assert list(table.index) == ["softmax", "rescale", "closed-form", "rank-2", "full"] and table.shape[1] >= 2
    figures.curves(items, parts["positions"], parameters["ranks"])
    found = figures.on_tasks(items, pd.DataFrame(columns=["dataset"]), ("softmax",))
    assert set(found) == {"languages"} and figures.tasks_table(found, parameters["sizes"], parameters["ranks"]).shape == (4, 1)
    measures = figures.held_out_measures(items, ("docstrings", 5))
    key, other = ("both", 4, "rank-2"), ("own-samples", 4, "rank-2")
    steps = figures.steps(measures, [(key, key), (key, other)], dict.fromkeys(measures, -1))
    assert (steps.xs(figures.label(key), level="against")["value"] == 0).all() and len(steps) == 2 * len(measures)
    figures.step_plot(steps.drop(figures.label(key), level="against"), "difference")
    assert ("", 0, "logprob") in measures["held-out docstrings: p_right_above_wrong"]
    assert figures.corpora_table(measures, [key, ("", 0, "closed-form")]).shape == (len(measures), 2)
