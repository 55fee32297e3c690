"""What the paper prints (arXiv 2512.06938, BART-large) beside our numbers. Another model, other text: a pattern, not a target."""

import numpy as np
import pandas as pd

from old.figures import half_width, in_order
from old.length import evaluation

# CNN/DM, share of |error| > 20 tokens in percent, (RPE, PRE)
OUTLIERS = {
    "300-350": (10.8, 0.4), "400-450": (22.3, 1.5), "500-550": (37.0, 4.3), "550-600": (50.1, 5.4),
    "650-700": (53.9, 7.4), "800-850": (75.1, 9.0), "950-1000": (95.8, 19.8),
}  # fmt: skip
# trained range, data set -> model -> one value a column; its ROUGE-L is probably Lsum, its BERTScore is by bert-base-uncased
COLUMNS = {
    "rouge1": "ROUGE-1", "rouge2": "ROUGE-2", "rougeLsum": "ROUGE-L", "bertscore": "BERTScore", "bleu": "BLEU",
    "mae": "MAE (tokens)", "mae_sd": "SD of |error|",
}  # fmt: skip
_NONE = np.nan
CONTROL = {
    "cnn-dailymail": {
        "none": (44.2, 21.1, 40.9, 69.7, _NONE, 19.2, 17.0),
        "rpe": (44.5, 21.2, 41.3, 69.4, _NONE, 1.6, 3.6),
        "pre": (45.3, 21.9, 42.2, 69.8, _NONE, 0.5, 0.3),
    },
    "xsum": {"rpe": (*[_NONE] * 5, 0.7, _NONE), "pre": (*[_NONE] * 5, 0.1, 0.2)},
    "squad-qg": {
        "none": (54.4, _NONE, 50.1, 75.2, 16.7, 3.1, _NONE),
        "rpe": (52.1, _NONE, 47.7, 72.6, 16.4, 0.8, _NONE),
        "pre": (55.3, _NONE, 50.8, 74.8, 18.6, 0.0, _NONE),
    },
}


def control_table() -> pd.DataFrame:
    """The trained range on CNN/DM."""
    return pd.DataFrame(CONTROL["cnn-dailymail"], index=list(COLUMNS.values())).T.dropna(axis=1).rename_axis("paper, CNN/DM")


def outlier_table() -> pd.DataFrame:
    """Outlier shares by length on CNN/DM, percent."""
    return pd.DataFrame(OUTLIERS, index=["RPE (paper)", "PRE (paper)"]).T.rename_axis("requested length (tokens)")


def beside(table: pd.DataFrame, dataset: str) -> pd.DataFrame:
    """Our trained range (free decoding, value with half its interval; ROUGE and BERTScore times 100, as in print) above the paper's."""
    values = table[(table["slice"] == "in-distribution") & (table["setting"] == "")].set_index(["method", "metric"])
    values = values[["value", "ci_low", "ci_high"]]
    percent = values.index.get_level_values("metric").isin([*evaluation.ROUGE, "bertscore"])
    values = values.mul(np.where(percent, 100, 1), axis=0)
    rows = {}
    for name in in_order(table["method"]):
        ours = values.loc[name]
        digits = {"mae": 2} | {metric: 1 for metric in COLUMNS if metric in ours.index and not metric.startswith("mae")}
        rows[name, "ours"] = {m: half_width(ours.loc[m], n) for m, n in digits.items()} | {"mae_sd": f"{ours.loc['mae_sd', 'value']:.2f}"}
        if name in CONTROL.get(dataset, {}):
            rows[name, "paper"] = dict(zip(COLUMNS, CONTROL[dataset][name]))
    return pd.DataFrame(rows).T.reindex(columns=list(COLUMNS)).rename(columns=COLUMNS).fillna("–").rename_axis(["signal", "whose"])
