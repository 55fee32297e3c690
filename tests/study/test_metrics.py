"""The two `evaluate` metrics load without a network and are the study's own numbers."""

import evaluate
import numpy as np
import pandas as pd
import pytest

from lib.study import paths
from lib.study.agreement import agreement, defined_metrics
from lib.study.statistics import difference, sample


def metric(name: str) -> evaluate.Metric:
    return evaluate.load(str(paths.ROOT / "lib" / "metrics" / name))


def test_length_control():
    result = metric("length_control").compute(predictions=[10, 31, 9], references=[10, 10, 10])
    expected = {"mae": 22 / 3, "mae_sd": np.std([0, 21, 1]), "signed_error": 20 / 3}
    assert result == pytest.approx(expected | {"exact_rate": 1 / 3, "outlier_rate": 1 / 3})


def test_an_outlier_is_off_by_more_than_20():
    both = metric("length_control").compute(predictions=[30, 31], references=[10, 10])
    assert both["outlier_rate"] == 0.5
    both = metric("length_control").compute(predictions=[30, 31], references=[10, 10], outlier=5)
    assert both["outlier_rate"] == 1


def test_quality_agreement():
    rng = np.random.default_rng(0)
    rows = pd.DataFrame({"score": rng.random(40), "other": rng.random(40)})
    rows["gold"], rows["group"] = rng.integers(0, 2, 40), rng.integers(0, 9, 40)
    inputs = {"predictions": rows["score"], "references": rows["gold"]}
    result = metric("quality_agreement").compute(
        **inputs, groups=rows["group"], against=rows["other"]
    )
    for name in defined_metrics(rows["score"], rows["gold"]):
        own = sample(rows, agreement(name))
        apart = difference(own, sample(rows, agreement(name, score="other")))
        assert result[name] == pytest.approx(own.value)
        assert result[f"{name}_low"] == pytest.approx(own.low)
        assert result[f"{name}_difference"] == pytest.approx(apart.value)
        assert result[f"{name}_difference_high"] == pytest.approx(apart.high)
