"""From a score to a decision: probabilities by Platt scaling, and answering only what scores best.

Gold is 1 (right) or 0 (wrong). Groups of items are drawn, split and resampled as a whole.
"""

import numpy as np
import pandas as pd
from sklearn.base import clone
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GroupKFold, cross_val_predict
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from lib.study.cache import experiment, kept
from lib.study.statistics import Draws, Measure
from lib.tasks.experiments import head_scores, scored_items, task_items, untrained_scores

BASE_RATE = "base rate"  # one probability for all: the share of right ones among those learnt from
# Platt scaling: sigmoid(a score + b), the two numbers of least log-loss; hardly any penalty
CURVE = make_pipeline(StandardScaler(), LogisticRegression(C=1e6))  # (N, 1) -> (N,)


def platt(scores: np.ndarray, gold: np.ndarray, groups: np.ndarray, folds: int = 5) -> np.ndarray:
    """Probabilities from a curve fitted on the other folds of groups. All (N,)"""
    options = {"cv": GroupKFold(min(folds, len(np.unique(groups)))), "method": "predict_proba"}
    scores = np.asarray(scores, float)[:, None]
    return cross_val_predict(CURVE, scores, gold, groups=groups, **options)[:, 1]


def from_labels(scores: np.ndarray, gold: np.ndarray, others: np.ndarray) -> np.ndarray:
    """Probabilities of `others` (M,) from a curve fitted on n labelled items: scores, gold (n,).

    Where all n are right, or all wrong, no curve can be fitted: (right + 1) / (n + 2) for all.
    """
    right, n = gold.sum(), len(gold)
    if right in (0, n):
        return np.full(len(others), (right + 1) / (n + 2))
    return clone(CURVE).fit(scores[:, None], gold).predict_proba(others[:, None])[:, 1]


def learning_curve(
    scores: np.ndarray, gold: np.ndarray, groups: np.ndarray, sizes: list[int], draws: int
) -> pd.DataFrame:
    """How good a probability n labelled items make: Brier score on items of other groups. All (N,)

    In each draw groups come in random order; those of the first half of the items can be labelled,
    one after another, and all others test, whatever n is. n = 0: the score as it is, where it lies
    in [0, 1]. Columns n, value (mean over draws), low, high (95 % range over draws: how much
    depends on which items are labelled; no interval over items).
    """
    member, _ = pd.factorize(groups)
    inside = scores.min() >= 0 and scores.max() <= 1 and np.ptp(scores) > 0
    rng, rows = np.random.default_rng(0), []
    for _ in range(draws):
        order = np.argsort(rng.permutation(member.max() + 1)[member], kind="stable")
        ends = np.flatnonzero(np.diff(member[order])) + 1  # of groups
        half = ends[ends <= len(member) / 2].max(initial=0)
        test = order[half:]
        for n in [*([0] if inside else []), *(size for size in sizes if size <= half)]:
            labels = order[:n]
            fitted = from_labels(scores[labels], gold[labels], scores[test]) if n else scores[test]
            rows.append({"n": n, "brier": np.mean((fitted - gold[test]) ** 2)})
    table = pd.DataFrame(rows, columns=["n", "brier"], dtype=float).astype({"n": int})
    by_size = table.groupby("n")["brier"]
    low, high = by_size.quantile(0.025), by_size.quantile(0.975)
    return pd.DataFrame({"value": by_size.mean(), "low": low, "high": high}).reset_index()


def decided_items(
    task: str, model: str, texts: int, training: dict, heads: list[str], seeds: list[int]
) -> pd.DataFrame:
    """One row an item and seed with a column a score, the mean over tokens; without prompts that
    name no territory (languages), and numbers of right answers for which no wrong one is scored
    (listing).
    """
    about = {"task": task, "model": model, "texts": texts}
    trained = kept(head_scores, {"head": heads, "seed": seeds}, training=training, **about)
    without = kept(untrained_scores, training=training, **about)
    items = scored_items(kept(task_items, **about), without, trained, by_seed=True)
    if task == "languages":
        return items[~items["prior"].astype(bool)]
    return items[items.groupby("k")["gold"].transform("min") == 0] if task == "listing" else items


@experiment(version=1, built_on=[untrained_scores, task_items, head_scores])
def calibration_curves(
    scores: list, heads: list, seeds: list, sizes: list, draws: int, **others
) -> pd.DataFrame:
    """`learning_curve` of every score of a task and of BASE_RATE; of a head, the mean over seeds.
    Columns: score, and those of the curve.
    """
    items, rows = decided_items(**others, heads=heads, seeds=seeds).assign(**{BASE_RATE: 0.0}), []
    for score in (BASE_RATE, *(name for name in scores if name in items)):
        parts = [part for _, part in items.groupby("seed")][: None if score in heads else 1]
        columns = [[part[name].to_numpy() for name in (score, "gold", "group")] for part in parts]
        curves = pd.concat(learning_curve(*of_seed, sizes, draws) for of_seed in columns)
        rows.append(curves.groupby("n").mean().reset_index().assign(score=score))
    return pd.concat(rows, ignore_index=True)


def risk_coverage(scores: np.ndarray, gold: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Coverage and risk (share of wrong ones) after the 1, 2, ... N best-scored answers. All (N,)

    Tied items count as the average over their orders, so that nothing depends on a table's order.

    >>> risk_coverage(np.array([0.9, 0.5, 0.5]), np.array([1, 0, 1]))[1].round(2).tolist()
    [0.0, 0.25, 0.33]
    """
    _, block = np.unique(-np.asarray(scores, float), return_inverse=True)  # the best is number 0
    rate = np.bincount(block, 1 - gold) / np.bincount(block)
    answers = np.arange(1, len(gold) + 1)
    return answers / len(gold), np.cumsum(rate[np.sort(block)]) / answers


def area(score: str) -> Measure:
    """AURC: the mean of the risks after 1, 2, ... N answers; lower is better.

    In a block of b tied items with rate e, after B others of which W are wrong, the risk after
    B + i answers is (W + e i) / (B + i). Summed over i: e b + (W - e B) (H(B + b) - H(B)).
    """

    def measure(rows: pd.DataFrame, draws: Draws) -> np.ndarray:
        scores, gold = rows[score].to_numpy(float), rows["gold"].to_numpy(float)
        down, values = np.argsort(-scores, kind="stable"), []
        starts = np.flatnonzero(np.r_[True, np.diff(scores[down]) != 0])
        for weights in draws.weights():  # blocks of equal scores, the best first (r, blocks)
            drawn = weights[:, down]
            size = np.add.reduceat(drawn, starts, axis=1)
            wrong = np.add.reduceat(drawn * (1 - gold[down]), starts, axis=1)
            last, rate = np.cumsum(size, 1), wrong / np.maximum(size, 1)
            before, wrong_before = last - size, np.cumsum(wrong, 1) - wrong
            harmonic = np.r_[0, np.cumsum(1 / np.arange(1, last.max() + 1))]
            steps = harmonic[last.astype(int)] - harmonic[before.astype(int)]
            values.append((wrong + (wrong_before - rate * before) * steps).sum(1) / last[:, -1])
        return np.concatenate(values)

    return measure
