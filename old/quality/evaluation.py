"""What each task says about a score: from items with their scores to the rows of the result table.

`listing` and `languages` judge single tokens: no monotone transform of a score can change their statistics, but for mean scores and the
share of the gap. The other tasks join the tokens of a text, so there a transform of token scores does change rankings.
"""

from typing import NamedTuple

import numpy as np
import pandas as pd

from old.quality.agreement import Draws, agreement
from old.quality.tasks.corruption import HOME_GROUND
from old.results import interval

HIGH, LOW = 4, 2  # right answers left: "many" from HIGH on; wrong answers to compare with up to LOW
OWN_TRANSLATIONS = "multi30k-en-de"  # the task of translations judged against references
NO_ERRORS = ("original", "attested")  # slices `type=...` of the tasks with edited texts that are no type of error


class Statistic(NamedTuple):
    """One number about a score: its value, bootstrap replicates (R,), and how many items and clusters of items it is made of."""

    value: float
    replicates: np.ndarray
    n: int
    clusters: int


Statistics = dict[tuple[str, str], Statistic]  # by (slice, metric)


def difference(a: Statistic, b: Statistic) -> Statistic:
    """a minus b, two statistics of the same items: replicates are paired."""
    return Statistic(a.value - b.value, a.replicates - b.replicates, a.n, a.clusters)


def average(found: list[Statistic]) -> Statistic:
    """Mean of statistics of the same items, such as those of the seeds of a head: replicates are paired."""
    return found[0]._replace(value=float(np.mean([f.value for f in found])), replicates=np.mean([f.replicates for f in found], 0))


def statistics(task: str, items: pd.DataFrame, score: np.ndarray) -> Statistics:
    """All statistics of one task for one score. `items` as the task makes them; score (N,), higher = better."""
    items = items.assign(score=np.asarray(score, float))
    own = {"listing": _listing, "languages": _languages, OWN_TRANSLATIONS: _translations}
    return own.get(task, _edited if _is_edited(items) else _by_slice)(items)


def rows(found: Statistics, identity: dict) -> list[dict]:
    """Rows of the result table, with intervals."""
    table = []
    for (name, metric), found_here in found.items():
        low, high = interval(found_here.replicates) if np.isfinite(found_here.replicates).any() else (np.nan, np.nan)
        numbers = {"value": found_here.value, "ci_low": low, "ci_high": high, "n": found_here.n}
        table.append({**identity, "slice": name, "metric": metric, **numbers})
    return table


def token_statistics(items: pd.DataFrame, wrong: np.ndarray, text: np.ndarray, score: np.ndarray) -> Statistics:
    """AUROC of right against wrong tokens in edited texts: slice `token` (all errors but home ground), and one slice a type.

    wrong (N,) bool and text (N,) number of the item, for every token; score (N,).
    """
    kind = items["slice"].str.removeprefix("type=").to_numpy()[text]
    table = pd.DataFrame({"gold": 1.0 - wrong, "group": items["group"].to_numpy()[text], "score": np.asarray(score, float), "kind": kind})
    types = error_types(items)
    found = agree(table[table["kind"].isin(set(types) - {HOME_GROUND})], "token", ("auroc",))
    for name in types:
        found |= agree(table[table["kind"] == name], f"token:type={name}", ("auroc",))
    return found


class Words(NamedTuple):
    """Where the words of a task's outputs are: for each token the number of its word, counted through all items, and each word's item."""

    of_token: np.ndarray  # (N,)
    item: np.ndarray  # (W,)
    place: np.ndarray  # (W,) in its item


def word_places(numbers: list[np.ndarray]) -> Words:
    """From each item's own numbering, the word that each token belongs to, as `word_errors.word_numbers` gives it."""
    sizes = [int(words[-1]) + 1 for words in numbers]
    first = np.r_[0, np.cumsum(sizes)]
    of_token = np.concatenate([words + start for words, start in zip(numbers, first)])
    return Words(of_token, np.repeat(np.arange(len(sizes)), sizes), np.concatenate([np.arange(size) for size in sizes]))


def word_statistics(items: pd.DataFrame, words: Words, score: np.ndarray) -> Statistics:
    """Wrong words of translations by slice (`words:prompt=source`): AUROC, average precision of finding BAD words, and MCC.

    A word's score is the mean of its tokens' (N,). MCC needs a decision: the threshold that is best on one half of the groups decides in
    the other half, and the other way round.
    """
    wrong = items["wrong_words"].map(set).to_numpy()
    bad = np.array([place in wrong[item] for item, place in zip(words.item, words.place)])
    table = pd.DataFrame({"gold": 1.0 - bad, "score": np.bincount(words.of_token, score) / np.bincount(words.of_token)})
    table = table.assign(group=items["group"].to_numpy()[words.item], slice=items["slice"].to_numpy()[words.item])
    found = {}
    for name, part in table.groupby("slice"):
        found |= agree(part, f"words:{name}", ("auroc",))
        reverse = agree(part.assign(gold=1 - part["gold"], score=-part["score"]), f"words:{name}", ("ap",))
        found[f"words:{name}", "ap_bad"] = reverse[f"words:{name}", "ap"]
        found[f"words:{name}", "mcc"] = _mcc(part)
    return found


def _mcc(words: pd.DataFrame) -> Statistic:
    """Matthews correlation of BAD with "score below the threshold", thresholds from the other half of the groups."""
    score, bad = words["score"].to_numpy(), 1 - words["gold"].to_numpy()
    half = pd.factorize(words["group"])[0] % 2
    said = np.empty(len(words))
    for number in (0, 1):
        said[half == number] = score[half == number] < _best_threshold(score[half != number], bad[half != number])
    draws = Draws(words["group"].to_numpy())
    both, positives, called, n = (draws.sum(x) for x in (said * bad, bad, said, np.ones(len(words))))
    with np.errstate(invalid="ignore", divide="ignore"):
        value = (n * both - positives * called) / np.sqrt(positives * (n - positives) * called * (n - called))
    return Statistic(float(value[0]), value[1:], len(words), words["group"].nunique())


def _best_threshold(score: np.ndarray, bad: np.ndarray) -> float:
    """The score below which calling a word BAD has the highest MCC."""
    order = np.argsort(score, kind="stable")
    hits, called, n = np.cumsum(bad[order])[:-1], np.arange(1, len(score)), len(score)
    with np.errstate(invalid="ignore", divide="ignore"):
        mcc = (n * hits - bad.sum() * called) / np.sqrt(bad.sum() * (n - bad.sum()) * called * (n - called))
    best = int(np.nanargmax(mcc))
    return float((score[order[best]] + score[order[best + 1]]) / 2)


def joined(task: str, items: pd.DataFrame, score: np.ndarray) -> Statistics:
    """How well a way to join token scores serves a task: Pearson with graded gold, AUROC where gold is right or wrong. By slice; of edited
    texts all errors but home ground, of own translations all together.
    """
    items, metric = items.assign(score=np.asarray(score, float)), metric_of(items)
    if _is_edited(items):
        return agree(graded_errors(items), "errors", (metric,))
    parts = [("all", items)] if task == OWN_TRANSLATIONS else items.groupby("slice", sort=False)
    return {key: found for name, part in parts for key, found in agree(part, name, (metric,)).items()}


def metric_of(items: pd.DataFrame) -> str:
    """AUROC where gold is right or wrong, Pearson where it is graded."""
    return "auroc" if items["gold"].isin((0, 1)).all() else "pearson"


def graded_errors(items: pd.DataFrame) -> pd.DataFrame:
    """Of edited texts the items with graded gold: originals and all errors but home ground."""
    return items[items["slice"].str.removeprefix("type=").isin({"original", *error_types(items)} - {HOME_GROUND})]


def error_types(items: pd.DataFrame) -> list[str]:
    """Types of errors among the items of a task with edited texts, in the order of the task."""
    kinds = items["slice"].str.removeprefix("type=")
    return [kind for kind in dict.fromkeys(kinds) if kind not in NO_ERRORS]


def _is_edited(items: pd.DataFrame) -> bool:
    return bool((items["slice"] == "type=original").any())


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


def agree(items: pd.DataFrame, name: str, metrics: tuple[str, ...] | None) -> Statistics:
    """Agreement of `score` with `gold`, as the slice `name`. `metrics` None: all that gold and score allow."""
    if items.empty:
        return {}
    values, replicates = agreement(items["score"].to_numpy(), items["gold"].to_numpy(), items["group"].to_numpy(), metrics)
    return {(name, m): Statistic(values[m], replicates[m], len(items), items["group"].nunique()) for m in values}


def _correlation(items: pd.DataFrame, name: str = "all") -> Statistics:
    return agree(items, name, ("pearson", "spearman"))


def _by_slice(items: pd.DataFrame) -> Statistics:
    """Every slice by itself, by all metrics that gold and score allow; and where originals are paired with a changed version (column
    `text`), how often the original scores higher.
    """
    found = {}
    for name, part in items.groupby("slice", sort=False):
        found |= agree(part, name, None)
        if "text" in part:
            right, wrong = (part[part["gold"] == gold].set_index("text") for gold in (1, 0))
            found[name, "p_right_above_wrong"] = _above(right["score"], wrong["score"], wrong["group"])
    return found


def _translations(items: pd.DataFrame) -> Statistics:
    """Own translations: all together and by decoding, against each of the three golds (slices `all`, `decoding=beam;gold=bleu`)."""
    found = {}
    for name, part in [("all", items), *items.groupby("slice", sort=False)]:
        found |= _correlation(part, name)
        for gold in ("bleu", "similarity"):
            slice_name = f"gold={gold}" if name == "all" else f"{name};gold={gold}"
            found |= _correlation(part.assign(gold=part[f"gold_{gold}"]), slice_name)
    return found


def _edited(items: pd.DataFrame) -> Statistics:
    """AUROC tells originals from edited texts, whichever they are; `p_right_above_wrong` the original from its own edited version."""
    kind, found = items["slice"].str.removeprefix("type="), {}
    originals = items[kind == "original"].set_index("text")
    for name in error_types(items):
        edited = items[kind == name].set_index("text")
        both = pd.concat([originals.loc[originals.index.isin(edited.index)], edited])
        found |= agree(both.assign(gold=(both["gold"] == 1).astype(float)), f"type={name}", ("auroc",))
        found[f"type={name}", "p_right_above_wrong"] = _above(originals["score"], edited["score"], edited["group"])
    found |= agree(items[kind == "attested"], "type=attested", None)  # right or wrong, half each: also judged as a probability
    return found | _correlation(graded_errors(items), "errors")


def _above(right: pd.Series, wrong: pd.Series, clusters: pd.Series) -> Statistic:
    """How often the original scores higher than its own changed version, ties one half; all by number of the text."""
    right = right.reindex(wrong.index).to_numpy()
    return mean((right > wrong.to_numpy()) + 0.5 * (right == wrong.to_numpy()), clusters)


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
        found |= agree(pd.concat([many, wrong]), f"right-many-wrong-{kind}", ("auroc",))
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
        found |= agree(named[k == number], f"k={number}", ("auroc",))
    found |= agree(pd.concat([named[right & (k == 2)], named[~right & (k == 1)]]), "right-many-wrong-few", ("auroc",))
    found |= agree(prior, "prior", ("auroc",))
    both = named[right].assign(gold=(k[right] == 2).astype(float))  # right answers only: does k = 2 score below k = 1?
    return found | {("all", "p_high_above_low"): agree(both, "all", ("auroc",))["all", "auroc"]}


def _mean_by_k(right: pd.DataFrame, k: pd.Series) -> Statistics:
    """Mean score of right answers for every k."""
    parts = {number: right[k == number] for number in sorted(k.unique())}
    return {(f"k={number}", "mean_score"): mean(part["score"], part["group"]) for number, part in parts.items()}
