"""Agreement of quality scores with gold as an `evaluate` metric."""

import datasets
import evaluate
import numpy as np

from old.quality.agreement import agreement
from old.results import interval

_DESCRIPTION = """
Agreement of quality scores (higher = better) with gold: Pearson and Spearman; for gold of 0 and 1 also AUROC and average precision; for
scores in [0, 1] also binary cross-entropy (nats), Brier score and expected calibration error. Each with a cluster-bootstrap interval.
"""
_CITATION = "Dinh, Niehues: Sigmoid Head for Quality Estimation under Language Ambiguity, arXiv 2601.00680"
_INPUTS = """
Args:
    predictions: scores, higher = better.
    references: gold values.
    groups: cluster of each item (document, source text); every item its own where missing.
    against: scores of another method on the same items; then differences are returned too, with paired intervals.
Returns: {metric: value, metric_low, metric_high}, and {metric_difference, ..._low, ..._high} with `against`.
Examples:
    >>> metric = evaluate.load("old/metrics/quality_agreement")
    >>> metric.compute(predictions=[0.9, 0.2, 0.6, 0.1], references=[1, 0, 1, 0])["auroc"]
    1.0
"""


class QualityAgreement(evaluate.Metric):
    """pearson, spearman, auroc, ap, bce, brier, ece with intervals."""

    def _info(self) -> evaluate.MetricInfo:
        features = datasets.Features({"predictions": datasets.Value("float64"), "references": datasets.Value("float64")})
        return evaluate.MetricInfo(description=_DESCRIPTION, citation=_CITATION, inputs_description=_INPUTS, features=features)

    def _compute(self, predictions, references, groups=None, against=None) -> dict[str, float]:
        clusters = np.arange(len(predictions)) if groups is None else np.asarray(groups)
        values, drawn = agreement(predictions, references, clusters)
        found = {}
        for metric, value in values.items():
            low, high = interval(drawn[metric])
            found |= {metric: value, f"{metric}_low": float(low), f"{metric}_high": float(high)}
        if against is not None:
            other, other_drawn = agreement(against, references, clusters, tuple(values))
            for metric, value in values.items():
                low, high = interval(drawn[metric] - other_drawn[metric])
                name = f"{metric}_difference"
                found |= {name: value - other[metric], f"{name}_low": float(low), f"{name}_high": float(high)}
        return found
