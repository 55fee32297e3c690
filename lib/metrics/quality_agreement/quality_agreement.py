"""Agreement of quality scores with gold as an `evaluate` metric."""

import datasets
import evaluate
import numpy as np
import pandas as pd

from lib.study.agreement import agreement, defined_metrics
from lib.study.statistics import difference, sample

_DESCRIPTION = """
Agreement of quality scores (higher = better) with gold: Pearson and Spearman; for gold of 0 and 1
also AUROC and average precision; for scores in [0, 1] also binary cross-entropy (nats), Brier score
and expected calibration error. Each with a cluster-bootstrap interval.
"""
_CITATION = "Dinh, Niehues: Sigmoid Head for Quality Estimation, arXiv 2601.00680"
_INPUTS = """
Args:
    predictions: scores, higher = better.
    references: gold values.
    groups: cluster of each item (document, source text); every item its own where missing.
    against: scores of another method on the same items: differences, too, with paired intervals.
Returns: {metric: value, metric_low, metric_high}; with `against` {metric_difference, ...}.
Examples:
    >>> metric = evaluate.load("lib/metrics/quality_agreement")
    >>> metric.compute(predictions=[0.9, 0.2, 0.6, 0.1], references=[1, 0, 1, 0])["auroc"]
    1.0
"""


class QualityAgreement(evaluate.Metric):
    """pearson, spearman, auroc, ap, bce, brier, ece with intervals."""

    def _info(self) -> evaluate.MetricInfo:
        number = datasets.Value("float64")
        features = datasets.Features({"predictions": number, "references": number})
        return evaluate.MetricInfo(_DESCRIPTION, _CITATION, features, inputs_description=_INPUTS)

    def _compute(self, predictions, references, groups=None, against=None) -> dict[str, float]:
        rows = pd.DataFrame({"score": predictions, "gold": references})
        rows["group"] = np.arange(len(rows)) if groups is None else groups
        result = {}
        for metric in defined_metrics(predictions, references):
            value = sample(rows, agreement(metric))
            numbers = {metric: value}
            if against is not None:
                other = sample(rows.assign(score=against), agreement(metric))
                numbers[f"{metric}_difference"] = difference(value, other)
            for name, one in numbers.items():
                result |= {name: one.value, f"{name}_low": one.low, f"{name}_high": one.high}
        return result
