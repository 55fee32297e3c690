"""What each task says about a score: from items with their scores to the rows of the result table.

Every statistic but Pearson, mean scores and the share of the gap survives a monotone transform of the score. `p_high_above_low`: share of
answers that score higher where many are right (k >= HIGH) than the same answer where it is the only one (ties one half): 0.5 is ideal for a
score that does not drop; softmax is far below. `gap_kept`: share of the gap between right (k = 1) and wrong answers that is left at
k >= HIGH.
"""

import numpy as np
import pandas as pd

from lib.quality.agreement import agreement
from lib.quality.tasks.corruption import HOME_GROUND, TYPES
from lib.results import RESAMPLES, cluster_weights, interval

HIGH, LOW = 4, 2  # right answers left: "many" from HIGH on; wrong answers to compare with up to LOW
STUDY = {"listing": "ambiguity", "languages": "ambiguity", "corruption": "quality", "self-generation": "quality"}

Statistics = dict[tuple[str, str], tuple[float, np.ndarray, int]]  # (slice, metric): value, replicates, number of items


def statistics(task: str, items: pd.DataFrame, score: np.ndarray) -> Statistics:
    """All statistics of one task for one score. `items` as the task makes them; score (N,), higher = better."""
    items = items.assign(score=np.asarray(score, float))
    return {"listing": _listing, "languages": _languages, "corruption": _corruption}.get(task, _correlation)(items)


def rows(found: Statistics, identity: dict) -> list[dict]:
    """Rows of the result table, with intervals."""
    table = []
    for (name, metric), (value, replicates, count) in found.items():
        low, high = interval(replicates) if np.isfinite(replicates).any() else (np.nan, np.nan)
        table.append({**identity, "slice": name, "metric": metric, "value": value, "ci_low": low, "ci_high": high, "n": count})
    return table


def token_statistics(items: pd.DataFrame, wrong: np.ndarray, text: np.ndarray, score: np.ndarray) -> Statistics:
    """AUROC of right against wrong tokens in corrupted texts: slice `token` (all errors but home ground), and one slice a type.

    wrong (N,) bool and text (N,) number of the item, for every token; score (N,).
    """
    kind = items["slice"].str.removeprefix("type=").to_numpy()[text]
    table = pd.DataFrame({"gold": 1.0 - wrong, "group": items["group"].to_numpy()[text], "score": np.asarray(score, float), "kind": kind})
    found = _agree(table[table["kind"].isin(set(TYPES) - {HOME_GROUND})], "token", ("auroc",))
    for name in TYPES:
        found |= _agree(table[table["kind"] == name], f"token:type={name}", ("auroc",))
    return found


def _agree(items: pd.DataFrame, name: str, metrics: tuple[str, ...]) -> Statistics:
    if items.empty:
        return {}
    values, replicates = agreement(items["score"].to_numpy(), items["gold"].to_numpy(), items["group"].to_numpy(), metrics)
    return {(name, metric): (values[metric], replicates[metric], len(items)) for metric in metrics}


def _correlation(items: pd.DataFrame) -> Statistics:
    return _agree(items, "all", ("pearson", "spearman"))


def _corruption(items: pd.DataFrame) -> Statistics:
    kind, found = items["slice"].str.removeprefix("type="), {}
    for name in TYPES:
        edited = items[kind == name]
        originals = items[(kind == "original") & items["group"].isin(edited["group"])]
        both = pd.concat([originals, edited])
        found |= _agree(both.assign(gold=(both["gold"] == 1).astype(float)), f"type={name}", ("auroc",))
    found |= _agree(items[kind == "attested"], "type=attested", ("auroc",))
    errors = items[kind.isin({"original", *TYPES} - {HOME_GROUND})]
    return found | _agree(errors, "errors", ("pearson", "spearman"))


def _listing(items: pd.DataFrame) -> Statistics:
    k = items["slice"].str.removeprefix("k=").astype(int)
    right = items["gold"] == 1
    many, few = items[right & (k >= HIGH)], items[~right & (k <= LOW)]
    found = _agree(pd.concat([many, few]), "right-many-wrong-few", ("auroc",)) | _mean_by_k(items[right], k[right])
    alone = items[right & (k == 1)].set_index(["group", "order"])["score"]
    before = alone.reindex(pd.MultiIndex.from_frame(many[["group", "order"]])).to_numpy()
    above = (many["score"].to_numpy() > before) + 0.5 * (many["score"].to_numpy() == before)
    found["all", "p_high_above_low"] = mean(above, many["group"])
    weights, groups = _weights(items["group"])
    each_order = many.groupby(["group", "order"])["score"].mean().reset_index()  # as in `alone`, every order counts once
    means = []
    for part in (each_order, items[right & (k == 1)], few):
        count = _sums(np.ones(len(part)), part["group"], groups)
        with np.errstate(invalid="ignore", divide="ignore"):  # a resample may hold none of the sets
            means.append((weights @ _sums(part["score"], part["group"], groups)) / (weights @ count))
    found["all", "gap_kept"] = _ratio(means[0] - means[2], means[1] - means[2], len(many) + len(few))
    return found


def _languages(items: pd.DataFrame) -> Statistics:
    is_prior = items["prior"].astype(bool)
    named, prior = items[~is_prior], items[is_prior]
    k = named["slice"].str.removeprefix("k=").astype(int)
    right = named["gold"] == 1
    found = _mean_by_k(named[right], k[right])
    for number in sorted(k.unique()):
        found |= _agree(named[k == number], f"k={number}", ("auroc",))
    found |= _agree(pd.concat([named[right & (k == 2)], named[~right & (k == 1)]]), "right-many-wrong-few", ("auroc",))
    found |= _agree(prior, "prior", ("auroc",))
    both = named[right].assign(gold=(k[right] == 2).astype(float))  # right answers only: does k = 2 score below k = 1?
    values, replicates = agreement(both["score"].to_numpy(), both["gold"].to_numpy(), both["group"].to_numpy(), ("auroc",))
    found["all", "p_high_above_low"] = (values["auroc"], replicates["auroc"], len(both))
    return found


def _mean_by_k(right: pd.DataFrame, k: pd.Series) -> Statistics:
    """Mean score of right answers for every k."""
    parts = {number: right[k == number] for number in sorted(k.unique())}
    return {(f"k={number}", "mean_score"): mean(part["score"], part["group"]) for number, part in parts.items()}


def mean(values, clusters: pd.Series) -> tuple[float, np.ndarray, int]:
    """Mean, its replicates, and the number of values."""
    weights, groups = _weights(clusters)
    return _ratio(weights @ _sums(values, clusters, groups), weights @ _sums(np.ones(len(clusters)), clusters, groups), len(clusters))


def _weights(clusters: pd.Series) -> tuple[np.ndarray, np.ndarray]:
    """Weights of clusters, the sample itself first. (1 + R, C), (C,)"""
    drawn, _ = cluster_weights(clusters.to_numpy(), RESAMPLES)
    return np.vstack([np.ones((1, drawn.shape[1])), drawn]), np.unique(clusters)


def _sums(values, clusters: pd.Series, groups: np.ndarray) -> np.ndarray:
    """Sum of values in each of the groups. (C,)"""
    return np.bincount(np.searchsorted(groups, clusters.to_numpy()), np.asarray(values, float), len(groups))


def _ratio(top: np.ndarray, bottom: np.ndarray, count: int) -> tuple[float, np.ndarray, int]:
    with np.errstate(invalid="ignore", divide="ignore"):
        values = top / bottom
    return float(values[0]), values[1:], count
