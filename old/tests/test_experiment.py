"""The length experiment: what it plans, what it refuses, and one whole unit at toy size."""

import dataclasses
import json

import datasets
import numpy as np
import pandas as pd
import pytest
import torch
from helpers import CONFIGS, controlled
from transformers import BartForConditionalGeneration

from old import paths
from old.corpora import docstrings
from old.length import experiment
from old.length.corpora import DATASETS
from old.length.experiment import Settings, plan
from old.length.signals import SIGNALS, make_signal
from old.parameters import settings_from
from old.small_bart import train_tokenizer
from old.units import Unit

PARAMETERS = {"signals": ["none", "rpe", "pre", "lrpe"], "seeds": [0, 1, 2], "items": 5, "profile": "cpu", "colour": "blue"}


@pytest.mark.parametrize(
    ("parts", "signals", "count"),
    [
        (["in-distribution"], None, 12),
        (["unseen", "faults"], None, 12 + 6),  # faults only for the signals whose published code had them
        (["faults"], ["none", "pre"], 3),
        (["faults"], ["none", "lrpe"], 0),
        (["in-distribution", "unseen"], list(SIGNALS), 2 * 3 * len(SIGNALS)),
    ],
)
def test_plan(parts, signals, count):
    """One unit a part, signal and seed, all with names of their own, plain JSON parameters and the corpus's fingerprint."""
    units = plan(parts, PARAMETERS | ({"signals": signals} if signals else {}))
    assert len(units) == len({u.name for u in units}) == count
    for unit in units:
        assert json.loads(json.dumps(dataclasses.asdict(unit))) == dataclasses.asdict(unit)
        assert settings_from(Settings, unit.parameters) == Settings(items=5) and unit.data == docstrings.fingerprint()


def test_notebooks_share_trained_models():
    """Another part of the same signal and seed is measured on the same model: only the part differs."""
    (a,), (b,) = (plan([part], {"signals": ["pre"], "seeds": [1]}) for part in ("in-distribution", "unseen"))
    assert dataclasses.replace(a, part="model").key == dataclasses.replace(b, part="model").key


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"dataset": "docstring"}, "unknown data set 'docstring'.*docstrings"),
        ({"model": "tiny-brat"}, "unknown model 'tiny-brat'.*tiny-bart.*facebook/bart-large"),
        ({"signals": ["pre", "prr"]}, "unknown signal 'prr'.*lrpe"),
        ({"signals": []}, "signals must name at least one"),
        ({"signals": ["pre", "pre"]}, "no signal must be named twice"),
        ({"seeds": [0, 1, 0]}, "seeds must name .* none twice"),
        ({"seeds": []}, "seeds must name at least one"),
        ({"seeds": [0, -1]}, "none negative"),
        ({"learning_rate": 0.0}, "learning_rate must be above 0"),
        ({"pretrain_updates": -1}, "pretrain_updates"),
        *(({name: 0}, f"{name} must be at least 1") for name in ("items", "finetune_updates", "tokens_per_batch")),
        ({"max_train_length": 5}, "max_train_length must be at least 6"),
    ],
    ids=str,
)
def test_refuses_wrong_parameters(change, message):
    with pytest.raises(ValueError, match=message):
        plan(["unseen"], PARAMETERS | change)


@pytest.mark.parametrize("name", ["pre", "rpe", "rpe-clipped", "rpe-random"])
def test_first_step_fault(name):
    """The official first step: no signal, or for countdowns `one token left`; every later step, cached or not, is right."""
    signal = make_signal(name, 16, **({"max_countdown": 10} if "clipped" in name else {})).eval()
    faulty, lengths = experiment._FirstStepFault(signal), torch.tensor([5, 9])
    right, wrong = (s(torch.arange(1, 5), lengths) for s in (signal, faulty))
    first = torch.zeros(2, 16) if name == "pre" else signal(torch.tensor([4, 8])[:, None], lengths)[:, 0]
    assert torch.equal(wrong[:, 0], first) and torch.equal(wrong[:, 1:], right[:, 1:])
    assert torch.equal(faulty(torch.tensor([3]), lengths), right[:, 2:3])


def test_faults_are_switched_on_one_at_a_time(monkeypatch):
    """Noise: the signal alone in training mode. First step: the fault's signal, without noise. Afterwards the model is as before."""
    model, seen = controlled(), []

    def look(model, method, settings, data):
        signal = model.length_signal
        seen.append((model.training, signal.training, getattr(signal, "signal", signal).training, type(signal).__name__))
        return pd.DataFrame({"id": [0]})

    monkeypatch.setattr(experiment, "control", look)
    original = model.length_signal
    out = experiment._faults(model, "pre", Settings(), None)
    assert out["setting"].tolist() == ["fault=noise-at-inference", "fault=no-signal-at-first-step"]
    assert seen[0] == (False, True, True, "ProgressRatio")
    assert seen[1][0] is seen[1][2] is False and seen[1][3] == "_FirstStepFault"
    assert model.length_signal is original and not original.training


# ---- one unit, from corpus to rows ---------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def toy(tmp_path_factory):
    """Parameters of a study of toy size: 120 random pairs, a random BART with its own tokenizer, a cache of its own."""
    rng = np.random.default_rng(0)
    words = [f"{a}{b}" for a in ("ka", "lo", "mi", "nu") for b in ("ta", "se", "ri", "po")]
    targets = [" ".join(rng.choice(words, n)) + "." for n in rng.integers(4, 120, 120)]
    table = pd.DataFrame({"id": range(120), "source": [t[:12] for t in targets], "target": targets, "group": range(120)})
    table["split"] = np.where(table["id"] < 80, "train", "test")
    folder = tmp_path_factory.mktemp("toy")
    tokenizer = train_tokenizer(targets, vocabulary=300)
    config = CONFIGS["bart"](vocab_size=300, max_position_embeddings=512, pad_token_id=0, bos_token_id=1, tie_word_embeddings=True)
    torch.manual_seed(0)
    BartForConditionalGeneration(config).save_pretrained(folder / "base")
    tokenizer.save_pretrained(folder / "base")
    corpus = dataclasses.replace(DATASETS["docstrings"], fingerprint=lambda: "toy", load=lambda: datasets.Dataset.from_pandas(table))
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(DATASETS, "toy", corpus)
        patch.setattr(paths, "CACHE", folder / "cache")
        experiment.prepare.cache_clear()
        yield {"dataset": "toy", "model": str(folder / "base"), "finetune_updates": 3, "tokens_per_batch": 200, "items": 3, "seeds": [0]}
        experiment.prepare.cache_clear()


def computed(toy: dict, part: str, signal: str) -> tuple[Unit, pd.DataFrame, pd.DataFrame]:
    (unit,) = plan([part], toy | {"signals": [signal]})
    return unit, *experiment.compute(unit)


@pytest.mark.parametrize("signal", ["none", "rpe-clipped", "linear"])
def test_trained_model_is_the_cached_model(toy, signal):
    """Training and loading what was trained give the same rows and items."""
    unit, rows, items = computed(toy, "in-distribution", signal)
    stored = list((paths.CACHE / "models").glob(f"*.{signal}.model.0-*"))
    assert len(stored) == 1 and stored[0].suffix == ".safetensors"
    _, again, items_again = computed(toy, "in-distribution", signal)
    pd.testing.assert_frame_equal(rows, again)
    pd.testing.assert_frame_equal(items, items_again)
    assert set(rows["method"]) == {signal} and set(rows["slice"]) == {"in-distribution"}
    forced = items[items["setting"].str.contains("forced")]
    assert (forced["generated_length"] == forced["target_length"]).all() and len(forced)
    measured = set(rows["metric"])
    assert measured >= {
        "mae",
        "mae_sd",
        "exact_rate",
        "outlier_rate",
        "rouge1",
        "rougeLsum",
        "bleu",
        "ppl_content",
        "ppl_eos",
        "repetition",
    }
    assert not items.columns.isin(["source", "target", "tokens", "text"]).any()  # no third-party text is stored


def test_fresh_cache(toy, tmp_path, monkeypatch):
    """The first model of an empty cache can be stored, whatever the base model is."""
    monkeypatch.setattr(paths, "CACHE", tmp_path)
    computed(toy, "in-distribution", "pre")
    assert len(list((tmp_path / "models").iterdir())) == 1


def test_unseen_lengths_and_faults(toy):
    """Every bucket has its requests, within its bounds and the same for control and faults."""
    _, rows, items = computed(toy, "unseen", "pre")
    _, _, faults = computed(toy, "faults", "pre")
    control = items[items["slice"].str.startswith("[")]
    assert control["slice"].value_counts().to_dict() == {f"[{low},{low + 32})": 3 for low in range(0, 256, 32)}
    low = control["slice"].str.extract(r"(\d+)")[0].astype(int)
    assert control["target_length"].between(low.clip(lower=2), low + 31).all()
    assert {"unseen", "long-references"} <= set(rows["slice"])
    assert items.loc[items["slice"] == "long-references", "target_length"].between(64, 255).all()
    assert faults["setting"].unique().tolist() == [f"fault={name}" for name in experiment.FAULTS]
    for _, fault in faults.groupby("setting"):
        assert fault["target_length"].tolist() == control["target_length"].tolist()


def test_refuses_unusable_data(toy):
    with pytest.raises(ValueError, match="no usable row.*shorter than 6 tokens"):
        experiment.prepare(Settings(dataset="toy", model=toy["model"], max_train_length=6))
