"""The `gpu` profile from its files to rows, with tiny random models in place of its own: every notebook, architecture and precision."""

import dataclasses
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import datasets
import numpy as np
import pandas as pd
import pytest
import standins
import torch
import yaml
from accelerate import Accelerator
from helpers import docstring_corpus, signal_options
from pretended_gpu import GPU, PretendedGpu, on_gpu
from transformers import AutoConfig

from old import paths, study, training
from old.corpora import docstrings
from old.length import corpora, finetuning
from old.length import experiment as length
from old.length.models import LengthControlled
from old.length.signals import SIGNALS, make_signal
from old.parameters import declared_parameters, settings_from
from old.pretrained import save_whole
from old.quality import data, language_models, training_corpora
from old.quality import experiment as quality
from old.quality.estimator import QualityEstimator
from old.quality.language_models import LanguageModel
from old.quality.tasks import catalogue
from old.quality.training import hidden_states

CAUSAL = {"OLMo-2": standins.olmo2, "Tower": standins.tower, "Llama-3.2": standins.llama32}
QUALITY = ["10_ambiguity", "11_train_sigmoid_head", "12_quality_estimation", "13_negative_sampling"]
LENGTH = ["21_length_control", "22_unseen_lengths"]
TINY = {"heads": ["sigmoid-lowrank", "sigmoid-full"], "seeds": [0], "train_texts": 6, "validation_texts": 2, "updates": 3, "texts": 15}
TINY |= {"positions_per_batch": 32}  # of the quality half


@pytest.fixture(scope="module")
def models(tmp_path_factory) -> dict[str, Path]:
    """Folders of the stand-ins, by name."""
    folder = tmp_path_factory.mktemp("models")
    return {name: make(folder / name) for name, make in (CAUSAL | {"bart-large": standins.bart_large}).items()}


@pytest.fixture
def toy(tmp_path, monkeypatch, results):
    """A tiny corpus, a cache and results of this test alone; units computed in this process."""
    monkeypatch.setattr(paths, "CACHE", tmp_path / "cache")
    for module in (training_corpora, catalogue):
        monkeypatch.setattr(module, "docstring_table", docstring_corpus)
    for module in (quality, length):
        monkeypatch.setattr(module, "default_jobs", lambda: 1)
    monkeypatch.setattr(data, "RECIPE", -1)  # results kept by functions in this process are of other tests
    for function in (data.language_model, data.prepare, data.training_texts, data.unigram, data.positions, data.task_items):
        function.cache_clear()


def parameters(name: str, **tiny) -> dict:
    """What notebook and `gpu` file say, with a few values of the notebook's own kind overridden."""
    notebook = paths.NOTEBOOKS / f"{name}.ipynb"
    declared = declared_parameters(notebook)
    return declared | study.chosen_parameters(notebook, "gpu", {key: value for key, value in tiny.items() if key in declared})


@pytest.mark.parametrize("name", QUALITY + LENGTH)
def test_parameter_file(name):
    """Names the paper's model and only what the notebook declares; notebooks that share trained models agree on what they depend on."""
    given = yaml.safe_load((paths.PARAMETERS / f"{name}.gpu.yaml").read_text())
    assert given["model"] == ("allenai/OLMo-2-0425-1B-SFT" if name in QUALITY else "facebook/bart-large")
    assert study.PLANS[name](parameters(name))
    if name in QUALITY:
        settings = [settings_from(data.Settings, parameters(other)) for other in QUALITY]
        assert len({str(chosen.of_heads()) for chosen in settings}) == 1
    else:
        models = [{finetuning.model_file(unit) for unit in study.PLANS[other](parameters(other))} for other in LENGTH]
        assert models[0] == models[1]


# ---- the quality half ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", CAUSAL)
def test_quality_notebooks(name, models, toy):
    """Notebooks 10 to 13, parts and all, with each architecture: rows of every method, heads that differ from their start."""
    shared = TINY | {"model": str(models[name])}
    for notebook, parts in (("11_train_sigmoid_head", ["training"]), ("10_ambiguity", ["scores"]), ("12_quality_estimation", ["scores"])):
        given = parameters(notebook, **shared)
        rows, items = quality.run(parts, given)
        methods = set(rows["method"])
        assert {"sigmoid-lowrank", "sigmoid-full"} <= methods and set(rows["model"]) == {name} and len(items)
        if "tasks" in given:
            assert {"softmax", "logprob", "closed-form"} <= methods and set(rows["dataset"]) == set(given["tasks"])
    given = parameters("13_negative_sampling", **shared | {"heads": ["unigram", "full-bce"], "tasks": ["corruption"]})
    rows, _ = quality.run(["training", "ablation"], given)
    assert {"unigram", "full-bce"} <= set(rows["method"])


@pytest.mark.parametrize("name", CAUSAL)
def test_start_tokens_and_turns(name, models):
    """What the tokenizer puts before a text stands before a prompt, once, in a turn too; an output has the tokens it has after a word."""
    lm = LanguageModel.load(str(models[name]))
    own = lm.tokenizer("the list")["input_ids"]
    assert lm.prompt_ids(["the list", ""]) == [own, []]
    assert (own[0] == lm.tokenizer.bos_token_id) == (name != "OLMo-2")
    assert lm.has_turns
    (turn,) = lm.encode(["the list"], ["is not"], chat=True)
    assert turn.ids[0] == lm.tokenizer.bos_token_id and turn.ids.count(lm.tokenizer.bos_token_id) == 1
    assert "the list" in lm.tokenizer.decode(turn.ids[: turn.start]) and lm.tokenizer.decode(turn.output).strip() == "is not"
    assert lm.is_token(" Monday")
    assert lm.encode(["the list is"], [" not"])[0].ids == tuple(lm.tokenizer("the list is not")["input_ids"])


def test_no_chat_template(models, tmp_path):
    """A base model has none; the study then asks for plain prompts."""
    lm = LanguageModel.load(str(models["OLMo-2"]))
    lm.tokenizer.chat_template = None
    assert not lm.has_turns


@pytest.mark.parametrize("name", CAUSAL)
def test_half_precision_base_float32_head(name, models, tmp_path, monkeypatch):
    """On a GPU with bfloat16 the base is loaded as it is stored; states, logits and head are float32; the head also fits on a CPU."""
    exact = QualityEstimator.from_language_model(str(models[name]))
    assert exact.lm.unembedding.dtype == torch.float32
    assert exact.lm.model.config.tie_word_embeddings == (name == "Llama-3.2")
    monkeypatch.setattr(language_models, "computes_in_bfloat16", lambda device: True)
    half = QualityEstimator.from_language_model(str(models[name]))
    assert {p.dtype for p in half.lm.model.parameters()} == {torch.bfloat16}
    before = {key: value.clone() for key, value in half.lm.model.state_dict().items()}
    prompts, outputs = ["Return the", "the list"], ["number of items", "is not empty"]
    half.fit(prompts * 4, outputs * 4, rank=None, updates=5, positions_per_batch=16)
    assert all(torch.equal(before[key], value) for key, value in half.lm.model.state_dict().items())  # tied or not: the base is frozen
    assert {p.dtype for p in half.head.parameters()} == {torch.float32}
    texts = half.lm.encode(prompts, outputs)
    states = hidden_states(half.lm, texts)
    logits = half.lm.logits(states)
    assert states.dtype == logits.dtype == torch.float32
    torch.testing.assert_close(logits, states @ half.lm.unembedding.float().T, atol=1e-5, rtol=1e-5)
    assert half.head(states, torch.zeros(len(states), 1, dtype=torch.long)).dtype == torch.float32
    half.head.save(tmp_path / "head.safetensors", name)
    assert half.lm.fingerprint() == f"{exact.lm.fingerprint()}-bfloat16"  # what is kept of one is not taken for the other's
    other = QualityEstimator.from_language_model(str(models[name]), tmp_path / "head.safetensors")
    there, here = (estimator.score(prompts, outputs) for estimator in (half, other))
    assert np.corrcoef(there["sigmoid"], here["sigmoid"])[0, 1] > 0.95


def test_what_is_stored_in_float32_stays_so(models, tmp_path, monkeypatch):
    """A small model of this study is not rounded on a GPU: its committed heads belong to it as it is."""
    lm = LanguageModel.load(str(models["Llama-3.2"]))
    save_whole(lm.model, lm.tokenizer, tmp_path / "exact")
    assert AutoConfig.from_pretrained(tmp_path / "exact").dtype == torch.float32
    monkeypatch.setattr(language_models, "computes_in_bfloat16", lambda device: True)
    assert LanguageModel.load(str(tmp_path / "exact")).unembedding.dtype == torch.float32
    assert LanguageModel.load(str(tmp_path / "exact"), torch.bfloat16).unembedding.dtype == torch.bfloat16


# ---- the length half -----------------------------------------------------------------------------------------------------------------


def pairs() -> datasets.Dataset:
    """Summaries and the first words of descriptions of the tiny corpus, the same in every split."""
    table = docstring_corpus()
    rows = [
        {"id": i, "source": row.source, "target": " ".join(row.target.split()[: 1 + i % 5]), "group": i, "split": split}
        for i, (row, split) in enumerate((row, split) for split in ("train", "validation", "test") for row in table.itertuples())
    ]
    return datasets.Dataset.from_pandas(pd.DataFrame(rows), preserve_index=False)


def test_length_notebooks(models, toy, monkeypatch):
    """Notebooks 21 and 22 with a BART stored in half precision: fine-tuned in float32, once for both; rows of every signal."""
    monkeypatch.setitem(corpora.DATASETS, "docstrings", dataclasses.replace(corpora.DATASETS["docstrings"], load=pairs))
    finetuning.prepare.cache_clear()
    tiny = {"model": str(models["bart-large"]), "signals": ["none", "pre", "rpe-clipped"], "seeds": [0], "max_train_length": 16}
    tiny |= {"finetune_updates": 2, "items": 2}
    for notebook, parts in (("21_length_control", ["in-distribution"]), ("22_unseen_lengths", ["unseen", "faults"])):
        rows, items = length.run(parts, parameters(notebook, **tiny))
        assert set(rows["method"]) == set(tiny["signals"]) and set(rows["model"]) == {"bart-large"}
        assert {"mae", "rouge1", "ppl_content"} <= set(rows["metric"]) or parts == ["faults"]
        assert items["generated_length"].dropna().ge(1).all()
    kept = list((paths.CACHE / "models").glob("*.safetensors"))
    assert len(kept) == 3 and not list((paths.CACHE / "models").glob("*.checkpoint*"))


def test_decoder_only_notebook(models, toy, monkeypatch):
    """Notebook 23 with a Llama stored in half precision: one set of low-rank updates a signal, for both parts."""
    small = dataclasses.replace(corpora.DATASETS["docstrings"], load=pairs, max_train_length=16)
    monkeypatch.setitem(corpora.DATASETS, "docstrings", small)
    finetuning.prepare.cache_clear()
    tiny = {"model": str(models["Llama-3.2"]), "datasets": ["docstrings"], "signals": ["none", "number-in-prompt", "pre"], "seeds": [0]}
    tiny |= {"finetune_updates": 2, "items": 2}
    for one in length.for_each_dataset(parameters("23_decoder_only", **tiny)).values():
        rows, items = length.run(["in-distribution", "unseen"], one)
    assert set(rows["method"]) == set(tiny["signals"]) and set(rows["study"]) == {"decoder-only"}
    assert {"mae", "rougeL", "ppl_content", "ppl_eos"} <= set(rows["metric"]) and items["generated_length"].dropna().ge(1).all()
    assert len(list((paths.CACHE / "models").glob("decoder-only.*.safetensors"))) == 3


def test_half_precision_checkpoint_is_fine_tuned_in_float32(models):
    """transformers would load what is stored in float16 as float16, in which Adam's small numbers are lost."""
    model = LengthControlled.from_pretrained(str(models["bart-large"]), signal="pre")
    assert {p.dtype for p in model.parameters()} == {torch.float32} and model.config.tie_word_embeddings
    assert model.generation_config.num_beams == 4  # a habit of the checkpoint, which experiments put off


# ---- on a GPU that is only pretended -------------------------------------------------------------------------------------------------


def test_pretending_finds_what_a_gpu_would_refuse():
    with PretendedGpu():
        here, there = torch.ones(3), torch.ones(3, device="cuda")
        assert (here.device.type, there.device.type, (2 * there).cpu().device.type) == ("cpu", "cuda", "cpu")
        for mistake in (
            lambda: here + there,
            lambda: here[there.long()],
            lambda: torch.rand(3, device="cuda", generator=torch.Generator()),
        ):
            with pytest.raises(RuntimeError):
                mistake()
        with pytest.raises(TypeError):
            there.numpy()


def test_quality_half_on_a_pretended_gpu(models, toy, monkeypatch):
    """Language model, samplers, heads of every kind, scores and sampling: nothing is left on the other side."""
    monkeypatch.setattr(language_models, "best_device", lambda: GPU)
    chosen = TINY | {"model": str(models["Llama-3.2"]), "heads": ["sigmoid-lowrank", "sigmoid-full-raw", "full-bce", "softmax-ce"]}
    chosen |= {"tasks": ["listing", "self-generation"], "updates": 2, "texts": 4}
    with PretendedGpu():
        assert on_gpu(LanguageModel.load(chosen["model"]).unembedding)
        rows, _ = quality.run(["training", "scores"], parameters("10_ambiguity", **chosen))
        assert set(chosen["heads"]) <= set(rows["method"])
        estimator = QualityEstimator.from_language_model(chosen["model"])
        estimator.fit(["Return the"] * 9, ["number of items"] * 9, updates=2, positions_per_batch=8, positions_per_block=20)
        assert on_gpu(estimator.head.bias)


class PretendedAccelerator(Accelerator):
    """Of one process, on the pretended GPU."""

    device = GPU

    def prepare(self, model, optimizer):
        return model.to(GPU), optimizer


def test_length_half_on_a_pretended_gpu(models, toy, monkeypatch):
    """Every signal; fine-tuning, generation, forced lengths and perplexity; then again with models from the cache."""
    monkeypatch.setitem(corpora.DATASETS, "docstrings", dataclasses.replace(corpora.DATASETS["docstrings"], load=pairs))
    monkeypatch.setattr(training, "Accelerator", PretendedAccelerator)
    monkeypatch.setattr(finetuning, "best_device", lambda: GPU)
    finetuning.prepare.cache_clear()
    chosen = ["none", "rpe-clipped", "pre"]
    tiny = {"model": str(models["bart-large"]), "signals": chosen, "seeds": [0], "max_train_length": 12, "finetune_updates": 2, "items": 1}
    with PretendedGpu():
        for name in SIGNALS:
            signal = make_signal(name, 16, **signal_options(name)).to(GPU)
            assert on_gpu(signal(torch.arange(1, 5, device=GPU), torch.tensor([4, 9], device=GPU)))
        for notebook, parts in (("21_length_control", ["in-distribution"]), ("22_unseen_lengths", ["faults"])):
            rows, _ = length.run(parts, parameters(notebook, **tiny))
            assert set(rows["method"]) == set(chosen if parts == ["in-distribution"] else ["pre"])
        unit, settings = (
            length.plan(parts, parameters(notebook, **tiny))[0],
            settings_from(finetuning.Settings, parameters(notebook, **tiny)),
        )
        assert on_gpu(finetuning.trained_model(unit, settings, finetuning.prepare(settings)).lm_head.weight)  # read from the cache


# ---- as a user runs it ---------------------------------------------------------------------------------------------------------------


def test_through_papermill(models, tmp_path):
    """`python -m old.study notebooks/11_train_sigmoid_head.ipynb --profile gpu -p model <folder>`, in a copy of the project.

    The parameter file of the profile, a kernel of its own and the notebook's figures included; with a tiny corpus in its cache.
    """
    name = "11_train_sigmoid_head"
    shutil.copytree(paths.ROOT / "lib", tmp_path / "lib", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copytree(paths.PARAMETERS, tmp_path / "notebooks" / "params")
    shutil.copy(paths.NOTEBOOKS / f"{name}.ipynb", tmp_path / "notebooks")
    corpus = tmp_path / ".cache" / "corpora" / f"docstrings-{docstrings.fingerprint()}.parquet"
    corpus.parent.mkdir(parents=True)
    docstring_corpus().to_parquet(corpus)
    tiny = {key: value for key, value in TINY.items() if key != "texts"} | {"model": str(models["OLMo-2"])}
    given = [part for key, value in tiny.items() for part in ("-p", key, json.dumps(value))]
    environment = {key: value for key, value in os.environ.items() if key != "STUDY_CACHE"} | {"PYTHONPATH": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-m", "old.study", f"notebooks/{name}.ipynb", "--profile", "gpu", *given],
        cwd=tmp_path, env=environment, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-1000:] + done.stderr[-3000:]
    assert (tmp_path / ".cache" / "runs" / "gpu" / f"{name}.ipynb").exists()
    (record,) = (tmp_path / "data" / "results" / "gpu").glob("sampling.docstrings.OLMo-2.training.json")
    assert {unit["parameters"]["validation_texts"] for unit in json.loads(record.read_text())["units"]} == {2}
