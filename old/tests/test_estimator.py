"""The estimator as a whole, and the two `evaluate` metrics, on tiny models and without a network."""

import evaluate
import numpy as np
import pytest
from helpers import language_model

from old import paths
from old.length.evaluation import OUTLIER
from old.quality.agreement import agreement
from old.quality.estimator import QualityEstimator
from old.quality.head import SigmoidHead

PROMPTS, OUTPUTS = ["Return the", "Return a", "The"], ["number of items", "list", "cache is empty"]


def test_fit_then_score_gives_a_row_a_token():
    estimator = QualityEstimator(language_model())
    losses = estimator.fit(PROMPTS * 4, OUTPUTS * 4, rank=2, updates=30, positions_per_batch=16, learning_rate=1e-2)
    assert np.mean(losses[-5:]) < np.mean(losses[:5])
    table = estimator.score(PROMPTS, OUTPUTS)
    texts = estimator.lm.encode(PROMPTS, OUTPUTS)
    assert table.groupby("text").size().tolist() == [len(text.output) for text in texts]
    assert table["sigmoid"].between(0, 1).all() and table["boostedprob"].ge(table["softmax"] - 1e-6).all()
    assert "".join(table.loc[table["text"] == 0, "token"]).strip() == OUTPUTS[0]


def test_scores_without_a_head():
    assert "sigmoid" not in QualityEstimator(language_model()).score(PROMPTS, OUTPUTS)


def test_no_texts():
    estimator = QualityEstimator(language_model())
    assert estimator.score([], []).empty
    with pytest.raises(ValueError, match="nothing to train on"):
        estimator.fit([], [])


def test_a_head_of_another_base_is_refused(tmp_path, monkeypatch):
    lm = language_model()
    SigmoidHead(lm.unembedding + 1, rank=1).save(tmp_path / "head.safetensors", "another")
    monkeypatch.setattr("old.quality.estimator.LanguageModel.load", lambda name: lm)
    with pytest.raises(ValueError, match="another"):
        QualityEstimator.from_language_model("any", tmp_path / "head.safetensors")


def metric(name: str) -> evaluate.Metric:
    return evaluate.load(str(paths.ROOT / "lib" / "metrics" / name))


def test_length_metric_loads_offline_and_counts():
    found = metric("length_control").compute(predictions=[10, 31, 9], references=[10, 10, 10])
    assert found == pytest.approx(
        {"mae": 22 / 3, "mae_sd": np.std([0, 21, 1]), "signed_error": 20 / 3, "exact_rate": 1 / 3, "outlier_rate": 1 / 3}
    )
    assert metric("length_control").compute(predictions=[10 + OUTLIER], references=[10])["outlier_rate"] == 0


def test_quality_metric_is_the_agreement_of_the_study():
    rng = np.random.default_rng(0)
    gold, scores, other, groups = rng.integers(0, 2, 40), rng.random(40), rng.random(40), rng.integers(0, 9, 40)
    found = metric("quality_agreement").compute(predictions=scores, references=gold, groups=groups, against=other)
    values, drawn = agreement(scores, gold, groups)
    others, other_drawn = agreement(other, gold, groups)
    for name, value in values.items():
        assert found[name] == pytest.approx(value)
        assert found[f"{name}_difference"] == pytest.approx(value - others[name])
        assert found[f"{name}_difference_low"] == pytest.approx(np.nanquantile(drawn[name] - other_drawn[name], 0.025))
