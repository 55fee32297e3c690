"""What each task says about a score: from items with their scores to the rows of the result table.

`listing` and `languages` judge single tokens: no monotone transform of a score can change their statistics, but for mean scores and the
share of the gap. The other tasks join the tokens of a text, so there a transform of token scores does change rankings.
"""

from typing import NamedTuple

import numpy as np
import pandas as pd

from lib.quality.agreement import Draws, agreement
from lib.quality.tasks.corruption import HOME_GROUND, TYPES
from lib.results import interval

HIGH, LOW = 4, 2  # right answers left: "many" from HIGH on; wrong answers to compare with up to LOW
STUDY = {"listing": "ambiguity", "languages": "ambiguity", "corruption": "quality", "self-generation": "quality"}


class Statistic(NamedTuple):
    """One number about a score: its value, bootstrap replicates (R,), and how many items and clusters of items it is made of."""

    value: float
    replicates: np.ndarray
    n: int
    clusters: int


Statistics = dict[tuple[str, str], Statistic]  # by (slice, metric)


def statistics(task: str, items: pd.DataFrame, score: np.ndarray) -> Statistics:
    """All statistics of one task for one score. `items` as the task makes them; score (N,), higher = better."""
    items = items.assign(score=np.asarray(score, float))
    return {"listing": _listing, "languages": _languages, "corruption": _corruption}.get(task, _correlation)(items)


def rows(found: Statistics, identity: dict) -> list[dict]:
    """Rows of the result table, with intervals."""
    table = []
    for (name, metric), found_here in found.items():
        low, high = interval(found_here.replicates) if np.isfinite(found_here.replicates).any() else (np.nan, np.nan)
        numbers = {"value": found_here.value, "ci_low": low, "ci_high": high, "n": found_here.n}
        table.append({**identity, "slice": name, "metric": metric, **numbers})
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


def correlation(task: str, items: pd.DataFrame, score: np.ndarray) -> Statistics:
    """Pearson and Spearman of one score with the graded gold of a task of study `quality`: all errors but home ground, or all items."""
    items = items.assign(score=np.asarray(score, float))
    return _correlation(graded_errors(items), "errors") if task == "corruption" else _correlation(items)


def graded_errors(items: pd.DataFrame) -> pd.DataFrame:
    """The corruption items with graded gold: originals and all errors but home ground."""
    return items[items["slice"].str.removeprefix("type=").isin({"original", *TYPES} - {HOME_GROUND})]


def mean(values, clusters: pd.Series) -> Statistic:
    """Mean of values (N,) whose clusters are resampled whole."""
    found = Draws(clusters.to_numpy()).mean(np.asarray(values, float))
    return Statistic(float(found[0]), found[1:], len(clusters), clusters.nunique())


def above(many: pd.DataFrame, alone: pd.DataFrame) -> tuple[pd.Series, pd.Series]:
    """Listing: of one set after another, how often its answers score higher in `many` than the same answer in `alone` (ties one half), and
    how often they tie. Every order of a set counts the same.
    """
    before = alone.set_index(["group", "order"])["score"].reindex(pd.MultiIndex.from_frame(many[["group", "order"]])).to_numpy()
    ties = many["score"].to_numpy() == before
    table = many[["group", "order"]].assign(above=(many["score"].to_numpy() > before) + 0.5 * ties, ties=ties)
    by_set = table.groupby(["group", "order"])[["above", "ties"]].mean().groupby("group").mean()
    return by_set["above"], by_set["ties"]


def _agree(items: pd.DataFrame, name: str, metrics: tuple[str, ...] | None) -> Statistics:
    """`metrics` None: all that gold and score allow."""
    if items.empty:
        return {}
    values, replicates = agreement(items["score"].to_numpy(), items["gold"].to_numpy(), items["group"].to_numpy(), metrics)
    return {(name, m): Statistic(values[m], replicates[m], len(items), items["group"].nunique()) for m in values}


def _correlation(items: pd.DataFrame, name: str = "all") -> Statistics:
    return _agree(items, name, ("pearson", "spearman"))


def _corruption(items: pd.DataFrame) -> Statistics:
    """AUROC tells originals from edited texts, whichever they are; `p_right_above_wrong` the original from its own edited version."""
    kind, found = items["slice"].str.removeprefix("type="), {}
    originals = items[kind == "original"].set_index("text")
    for name in TYPES:
        edited = items[kind == name]
        both = pd.concat([originals.loc[originals.index.isin(edited["text"])].reset_index(), edited])
        found |= _agree(both.assign(gold=(both["gold"] == 1).astype(float)), f"type={name}", ("auroc",))
        if len(edited):
            right, wrong = originals["score"].reindex(edited["text"]).to_numpy(), edited["score"].to_numpy()
            found[f"type={name}", "p_right_above_wrong"] = mean((right > wrong) + 0.5 * (right == wrong), edited["group"])
    found |= _agree(items[kind == "attested"], "type=attested", None)  # right or wrong, half each: also judged as a probability
    return found | _correlation(graded_errors(items), "errors")


def _listing(items: pd.DataFrame) -> Statistics:
    """`p_high_above_low`: how often a right answer scores higher where many are right (k >= HIGH) than where it is the only one, ties one
    half (`tie_share` says how many): 0.5 for a score that does not drop. Every set counts the same. `gap_kept`: share of the gap between
    right (k = 1) and wrong answers that is left at k >= HIGH; undefined where there is no clear gap.
    """
    k = items["slice"].str.removeprefix("k=").astype(int)
    right = items["gold"] == 1
    many, alone, few = items[right & (k >= HIGH)], items[right & (k == 1)], items[~right & (k <= LOW)]
    found = _mean_by_k(items[right], k[right])
    if many.empty:
        return found
    for kind, wrong in few.groupby("kind"):
        found |= _agree(pd.concat([many, wrong]), f"right-many-wrong-{kind}", ("auroc",))
    for metric, by_set in zip(("p_high_above_low", "tie_share"), above(many, alone)):
        found["all", metric] = mean(by_set.to_numpy(), by_set.index.to_series())._replace(n=len(many))
    sets = pd.DataFrame({name: _by_set(part) for name, part in (("many", many), ("alone", alone), ("few", few))}).dropna()
    draws = Draws(sets.index.to_numpy())
    kept, whole = (draws.sum((sets[name] - sets["few"]).to_numpy()) for name in ("many", "alone"))
    share = kept / whole if interval(whole[1:])[0] > 0 else np.full(len(whole), np.nan)
    found["all", "gap_kept"] = Statistic(float(share[0]), share[1:], len(many), len(sets))
    return found


def _by_set(items: pd.DataFrame) -> pd.Series:
    return items.groupby(["group", "order"])["score"].mean().groupby("group").mean()


def _languages(items: pd.DataFrame) -> Statistics:
    """`p_high_above_low` compares right answers at k = 2 with *other* right answers, of other territories, at k = 1."""
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
    return found | {("all", "p_high_above_low"): _agree(both, "all", ("auroc",))["all", "auroc"]}


def _mean_by_k(right: pd.DataFrame, k: pd.Series) -> Statistics:
    """Mean score of right answers for every k."""
    parts = {number: right[k == number] for number in sorted(k.unique())}
    return {(f"k={number}", "mean_score"): mean(part["score"], part["group"]) for number, part in parts.items()}
