"""Length control as an `evaluate` metric: how far outputs are from the requested length."""

import datasets
import evaluate
import numpy as np

_DESCRIPTION = """
How well texts keep to a requested length: mean absolute error and its standard deviation, mean
signed error, share of exact lengths, share of outliers (off by more than `outlier`, 20 by default,
as in arXiv 2512.06938).
"""
_CITATION = "Botcazou, Amghar, Lamprier, Saubion: Progress Ratio Embeddings, arXiv 2512.06938"
_INPUTS = """
Args:
    predictions: generated lengths (integers; count the same specials as in the requests).
    references: requested lengths.
    outlier: largest error that is not an outlier, in the same unit.
Returns: mae, mae_sd, signed_error, exact_rate, outlier_rate.
Examples:
    >>> metric = evaluate.load("lib/metrics/length_control")
    >>> metric.compute(predictions=[10, 40], references=[10, 10])["mae"]
    15.0
"""


class LengthControl(evaluate.Metric):
    """mae, mae_sd, signed_error, exact_rate, outlier_rate of generated against requested."""

    def _info(self) -> evaluate.MetricInfo:
        whole = datasets.Value("int64")
        features = datasets.Features({"predictions": whole, "references": whole})
        return evaluate.MetricInfo(_DESCRIPTION, _CITATION, features, inputs_description=_INPUTS)

    def _compute(self, predictions, references, outlier: int = 20) -> dict[str, float]:
        error = np.asarray(predictions, float) - np.asarray(references, float)
        return {
            "mae": float(np.abs(error).mean()),
            "mae_sd": float(np.abs(error).std()),
            "signed_error": float(error.mean()),
            "exact_rate": float((error == 0).mean()),
            "outlier_rate": float((np.abs(error) > outlier).mean()),
        }
