"""The one result table of the study, and the statistics that fill its intervals.

Columns: study, dataset, model, method, setting, slice, metric, value, ci_low, ci_high, n, seed. One row is one number. `seed` is an
integer, or "all" for the aggregate over seeds, whose interval is a paired cluster bootstrap over items. An undefined value is an empty
cell.
"""

import json
import os
import re
from pathlib import Path

import numpy as np
import pandas as pd
from scipy.stats import t as student_t

KEY = ["study", "dataset", "model", "method", "setting", "slice", "metric", "seed"]
COLUMNS = ["study", "dataset", "model", "method", "setting", "slice", "metric", "value", "ci_low", "ci_high", "n", "seed"]
STUDIES = ("ambiguity", "quality", "sampling", "length", "decoder-only", "costs")
RATES = ("outlier_rate", "exact_rate", "capped_rate", "sentence_end_rate", "auroc", "ap", "ece", "brier")  # within [0, 1]
RESAMPLES = 2000


def make_table(rows: list[dict]) -> pd.DataFrame:
    """A validated table from dictionaries; missing `setting`, `ci_low`, `ci_high` become empty."""
    table = pd.DataFrame([{"setting": "", **row} for row in rows], columns=COLUMNS)
    table["seed"] = table["seed"].astype(str)
    return validate(table.astype({"value": float, "ci_low": float, "ci_high": float, "n": int}))


def validate(table: pd.DataFrame) -> pd.DataFrame:
    """Return the table, or raise ValueError naming the first fault: columns, study, seed, rates outside [0, 1], intervals, duplicates."""
    if list(table.columns) != COLUMNS:
        raise ValueError(f"a result table has the columns {COLUMNS}, not {list(table.columns)}")
    faults = {
        f"study must be one of {STUDIES}": ~table["study"].isin(STUDIES),
        "seed must be an integer or 'all'": ~table["seed"].astype(str).str.fullmatch(r"\d+|all"),
        "setting must be empty or key=value;key=value": ~table["setting"].str.fullmatch(r"([\w-]+=[^;=]+(;[\w-]+=[^;=]+)*)?"),
        "a rate must lie in [0, 1]": table["metric"].isin(RATES) & ~(table["value"].between(0, 1) | table["value"].isna()),
        "ci_low must not exceed ci_high": table["ci_low"] > table["ci_high"],
        "n must not be negative": table["n"] < 0,
        "duplicate row": table.duplicated(KEY),
    }
    for message, wrong in faults.items():
        if wrong.any():
            raise ValueError(f"{message}: {table.loc[wrong].iloc[0].to_dict()}")
    return table


def write_table(table: pd.DataFrame, path: Path) -> None:
    """Write a validated table as CSV; atomic, so a kill never leaves half a file."""
    write_atomically(path, lambda partial: validate(table).to_csv(partial, index=False, float_format="%.6g"))


def read_table(path: Path) -> pd.DataFrame:
    """Read and validate one CSV of `write_table`."""
    return validate(
        pd.read_csv(
            path, dtype={"seed": str, "setting": str}, keep_default_na=False, na_values={c: [""] for c in ("value", "ci_low", "ci_high")}
        )
    )


def write_atomically(path: Path, write) -> None:
    """Call `write(partial path)`, then move the file into place."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(path.name + ".partial")
    write(partial)
    os.replace(partial, path)


def write_json(data: dict, path: Path) -> None:
    """Write readable JSON atomically."""
    write_atomically(path, lambda partial: partial.write_text(json.dumps(data, indent=1, sort_keys=True) + "\n"))


def setting_name(**options: object) -> str:
    """`key=value;key=value` in the order given; empty for none. Values must not contain ';' or '='."""
    return ";".join(f"{key}={re.sub(r'[;=]', '-', str(value))}" for key, value in options.items())


def cluster_weights(clusters: np.ndarray, resamples: int = RESAMPLES, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """How often each cluster is drawn in each bootstrap resample, and the cluster of each item. (N,) -> (resamples, C), (N,)

    Items with the same clusters get the same resamples: differences between methods are then paired.
    """
    member, _ = pd.factorize(np.asarray(clusters), sort=True)
    count = member.max() + 1
    return np.random.default_rng(seed).multinomial(count, np.full(count, 1 / count), size=resamples), member


def cluster_bootstrap(
    numerators: np.ndarray, denominators: np.ndarray, clusters: np.ndarray, resamples: int = RESAMPLES, seed: int = 0
) -> np.ndarray:
    """Bootstrap replicates of sum(numerator) / sum(denominator), resampling whole clusters, the same ones for every column (paired).

    numerators, denominators (N, M): items by quantities (methods, metrics); a mean has denominator 1. clusters (N,): any labels.
    -> (resamples, M). Items with NaN must be dealt with before: an undefined value is never dropped silently.
    """
    weights, member = cluster_weights(clusters, resamples, seed)
    top, bottom = (
        np.stack([np.bincount(member, column, weights.shape[1]) for column in np.asarray(x, float).T], 1)
        for x in (numerators, denominators)
    )
    with np.errstate(invalid="ignore", divide="ignore"):
        return (weights @ top) / (weights @ bottom)


def interval(replicates: np.ndarray, level: float = 0.95) -> tuple[np.ndarray, np.ndarray]:
    """Percentile interval of bootstrap replicates over the first axis. (R, ...) -> (...), (...)"""
    low, high = np.nanquantile(replicates, [(1 - level) / 2, (1 + level) / 2], axis=0)
    return low, high


def p_value(value: float, replicates: np.ndarray, clusters: int) -> float:
    """Two-sided p-value that a quantity is 0: Student's t with the standard error of its bootstrap replicates (R,), clusters - 1 degrees
    of freedom. NaN where undefined.

    Counting replicates on the other side of 0 would end at 2 / R, too coarse to correct for many comparisons.
    """
    if np.isnan(value) or not np.isfinite(replicates).any() or clusters < 2:
        return np.nan
    error = np.nanstd(replicates)
    if error == 0:
        return float(value == 0)
    return float(2 * student_t.sf(abs(value) / error, clusters - 1))


def holm(p_values: np.ndarray) -> np.ndarray:
    """Holm-corrected p-values of one family (table). (M,) -> (M,)"""
    p = np.asarray(p_values, float)
    order = np.argsort(p)
    corrected = np.empty_like(p)
    corrected[order] = np.minimum(1.0, np.maximum.accumulate(p[order] * np.arange(len(p), 0, -1)))
    return corrected
