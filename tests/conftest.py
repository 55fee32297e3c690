"""What all tests share: one thread, no network, no GPU; caches and results of a test's own."""

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

from lib.study import paths

torch.set_num_threads(1)


@pytest.fixture
def mirror(tmp_path, monkeypatch) -> Path:
    """An empty local mirror of benchmark files; caches of this test alone."""
    (tmp_path / "mirror").mkdir()
    monkeypatch.setenv("STUDY_DATA", str(tmp_path / "mirror"))
    monkeypatch.setattr(paths, "CACHE", tmp_path / "cache")
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "hub cache")
    return tmp_path / "mirror"
