"""What all tests share: one thread, no network, results in a temporary folder."""

import os

os.environ |= {  # before torch is imported; processes that a test starts inherit it
    "HF_HUB_OFFLINE": "1",
    "STUDY_PROGRESS": "",
    "CUDA_VISIBLE_DEVICES": "",
    "OMP_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
}

from pathlib import Path

import datasets
import pytest
import torch

from old import paths

torch.set_num_threads(1)


@pytest.fixture
def results(tmp_path, monkeypatch):
    """An empty data/results of this test alone."""
    monkeypatch.setattr(paths, "RESULTS", tmp_path / "results")
    monkeypatch.setenv("TEST_RESULTS", str(paths.RESULTS))  # for processes started by the test (see test_units.compute)
    monkeypatch.delenv("STUDY_FORCE", raising=False)
    return paths.RESULTS


@pytest.fixture
def mirror(tmp_path, monkeypatch) -> Path:
    """An empty local mirror of benchmark files; caches of this test alone."""
    (tmp_path / "mirror").mkdir()
    monkeypatch.setenv("STUDY_DATA", str(tmp_path / "mirror"))
    monkeypatch.setattr(paths, "CACHE", tmp_path / "cache")
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "hub cache")
    return tmp_path / "mirror"
