"""Models for notebooks, trained by several processes: what `accelerate launch -m old.study_models` leaves in the cache."""

import dataclasses
import os
import subprocess
import sys
from pathlib import Path

import datasets
import pytest
import standins
import torch
from accelerate import PartialState
from safetensors.torch import load_file

from old import paths, study, study_models
from old.length import corpora, finetuning
from old.parameters import declared_parameters
from old.study import PLANS, chosen_parameters

NOTEBOOK = paths.NOTEBOOKS / "21_length_control.ipynb"


def corpus() -> datasets.Dataset:
    """Sixty pairs of a few words each."""
    words = ["return", "the", "number", "of", "items", "in", "cache", "monday", "list", "not", "empty", "names"]
    rows = [
        {
            "id": i,
            "source": " ".join(words[i % 7 : i % 7 + 3]),
            "target": " ".join(words[i % 5 : i % 5 + 1 + i % 6]),
            "group": i,
            "split": "train",
        }
        for i in range(60)
    ]
    return datasets.Dataset.from_list(rows)


LAUNCHED = f"""
import dataclasses, sys
sys.path.insert(0, {str(Path(__file__).parent)!r})
from test_study_models import corpora, corpus, study_models
corpora.DATASETS["docstrings"] = dataclasses.replace(corpora.DATASETS["docstrings"], load=corpus)
if __name__ == "__main__":
    sys.exit(study_models.main(sys.argv[1:]))
"""


def arguments(model: Path, updates: int = 3) -> list[str]:
    chosen = {"model": str(model), "signals": "[none, lrpe]", "seeds": "[0]", "max_train_length": "32", "finetune_updates": str(updates)}
    return [str(NOTEBOOK), "--profile", "gpu", *(part for name, value in chosen.items() for part in ("-p", name, value))]


@pytest.fixture
def model(tmp_path, monkeypatch) -> Path:
    """A tiny BART without dropout, and the toy corpus in place of the docstrings."""
    monkeypatch.setitem(corpora.DATASETS, "docstrings", dataclasses.replace(corpora.DATASETS["docstrings"], load=corpus))
    monkeypatch.setattr(paths, "CACHE", tmp_path / "one")
    finetuning.prepare.cache_clear()
    yield standins.bart_large(tmp_path / "bart-large", dropout=0.0, dtype=torch.float32)
    finetuning.prepare.cache_clear()


def test_two_processes_train_what_one_trains(model, tmp_path, capsys):
    """`accelerate launch --cpu --num_processes 2` leaves the models that one process leaves, to 1e-5 after three updates; once each."""
    (tmp_path / "launched.py").write_text(LAUNCHED)
    launch = [
        sys.executable,
        "-m",
        "accelerate.commands.launch",
        "--cpu",
        "--num_processes",
        "2",
        "--num_machines",
        "1",
        "--main_process_port",
        "0",
    ]
    done = subprocess.run(
        [*launch, str(tmp_path / "launched.py"), *arguments(model)],
        cwd=tmp_path, env={**os.environ, "STUDY_CACHE": str(tmp_path / "two")}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-1000:] + done.stderr[-3000:]
    assert done.stdout.count("2 models, 2 to train") == 1 and done.stdout.count("trained: bart-large lrpe seed 0") == 1
    assert study_models.main(arguments(model)) == 0
    assert "2 models, 2 to train" in capsys.readouterr().out
    one, two = (sorted((tmp_path / cache / "models").iterdir()) for cache in ("one", "two"))
    assert [file.name for file in one] == [file.name for file in two] and len(one) == 2
    base = load_file(model / "model.safetensors")
    for ours, theirs in zip(two, one):
        weights, expected = load_file(ours), load_file(theirs)
        assert any(not torch.equal(value, base[name]) for name, value in expected.items() if name in base)
        for name, value in expected.items():
            if not name.endswith("k_proj.bias"):  # softmax cancels it: its gradient is rounding error, which Adam would blow up
                torch.testing.assert_close(weights[name], value, atol=1e-5, rtol=0, msg=name)
    assert study_models.main(arguments(model)) == 0  # and what is there is not trained again
    assert "2 models, 0 to train" in capsys.readouterr().out
    parameters = declared_parameters(NOTEBOOK) | chosen_parameters(
        NOTEBOOK, "gpu", {"model": str(model), "signals": ["lrpe"], "seeds": [0], "max_train_length": 32, "finetune_updates": 3}
    )
    (unit,) = PLANS[NOTEBOOK.stem](parameters)
    assert finetuning.model_file(unit).exists()  # where the notebook looks


def test_notebooks_run_in_one_process(capsys, monkeypatch):
    """Several would write the same results."""
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert study.main([str(NOTEBOOK), "--plan"]) == 1
    assert "accelerate launch -m old.study_models" in capsys.readouterr().err


def test_mistakes_end_in_one_line(model, capsys, monkeypatch):
    """As in `old.study`; and the small model from scratch, which processes would train side by side, is refused under several."""
    assert study_models.main([str(NOTEBOOK), "-p", "sedes", "[0]"]) == 1
    assert study_models.main([str(NOTEBOOK), "-p", "seeds", "[0"]) == 1
    PartialState()
    monkeypatch.setitem(PartialState._shared_state, "num_processes", 2)
    assert study_models.main([str(NOTEBOOK), "-p", "seeds", "[77]"]) == 1
    lines = capsys.readouterr().err.splitlines()
    assert "did you mean 'seeds'" in lines[0] and "start it without `accelerate launch`" in lines[2] and len(lines) == 3
