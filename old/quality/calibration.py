"""How many labelled items does a probability need? Learning curves of Platt scaling: sigmoid(slope * score + intercept), fitted on n items.

Whole groups are drawn: of the items in random order, group after group, those of the first half are there to learn from, in that order, and
all others test, whatever n is. A range over such draws says how much depends on *which* items are labelled; it is no interval over items.
"""

import numpy as np
import pandas as pd
from scipy.special import expit, logit
from sklearn.model_selection import GroupKFold

from old.quality.agreement import BINS, PENALTY, Draws, ece, platt
from old.quality.evaluation import Statistic
from old.quality.labelled import Labelled

BASE_RATE = "base rate"  # the same probability for every item: the share of right ones among those learnt from
_NEWTON_STEPS, _HALVINGS, _SMALL = 100, 30, 1e-10


def learning_curve(task: Labelled, sizes: list[int], draws: int, seed: int = 0) -> pd.DataFrame:
    """Columns score, n, metric (brier, ece), value (mean over draws), low, high (95 % range over draws).

    n: those of `sizes` that leave half of the items for testing, and half of the items; 0 is a score as it is, where it lies in [0, 1].
    The seeds of a head are averaged by their results. `one class` under BASE_RATE: share of draws whose n items are all right or all wrong.
    Empty where even the smallest of `sizes` leaves less than half.
    """
    order, learnable = random_orders(task.groups, draws, seed)
    most = int(learnable.min())
    if most < min(sizes):
        return pd.DataFrame(columns=["score", "n", "metric", "value", "low", "high"])
    sizes = [*(n for n in sorted(sizes) if n < most), most]
    tests = np.zeros(order.shape, bool)
    for test, items, first in zip(tests, order, learnable):
        test[items[first:]] = True
    rows = []
    for name, by_seed in {BASE_RATE: np.zeros((1, len(task.gold))), **task.scores}.items():
        if name != BASE_RATE and by_seed.min() >= 0 and by_seed.max() <= 1:
            rows += _rows(name, 0, [held_out(np.broadcast_to(score, tests.shape), task.gold, tests) for score in by_seed])
        for n in sizes:
            curves = [(score, *fit(score[order[:, :n]], task.gold[order[:, :n]])) for score in by_seed]
            scaled = (expit(np.outer(slope, score) + intercept[:, None]) for score, slope, intercept in curves)
            rows += _rows(name, n, [held_out(probability, task.gold, tests) for probability in scaled])
    for n in sizes:
        right = task.gold[order[:, :n]].mean(1)
        rows += _rows(BASE_RATE, n, [{"one class": (right == 0) | (right == 1)}])
    return pd.DataFrame(rows)


def random_orders(groups: np.ndarray, draws: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Items in random order, group after group, and how many of the first, whole groups, make up to half of them. (N,) -> (D, N), (D,)"""
    member, _ = pd.factorize(groups)
    sizes, rng, found = np.bincount(member), np.random.default_rng(seed), []
    for _ in range(draws):
        place = rng.permutation(len(sizes))  # of each group
        ends = np.cumsum(sizes[np.argsort(place)])
        found.append((np.lexsort((rng.random(len(member)), place[member])), ends[ends <= len(member) / 2].max(initial=0)))
    order, learnable = zip(*found)
    return np.array(order), np.array(learnable)


def fit(scores: np.ndarray, gold: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Slope and intercept of the curve that `agreement.platt` fits, for many samples at once. (D, n), (D, n) -> (D,), (D,)

    Newton's method on the summed log-loss + PENALTY / 2 * slope² of standardised scores; a step that does not help is halved. Where all n
    are right, or all wrong, no curve can be fitted: slope 0, and a probability of (right + 1) / (n + 2).
    """
    right, n = gold.sum(1), gold.shape[1]
    mixed = (right > 0) & (right < n)
    slope, intercept = np.zeros(len(gold)), logit((right + 1) / (n + 2))
    centre, spread = scores.mean(1), scores.std(1)
    spread[spread < _SMALL] = 1.0
    x = ((scores - centre[:, None]) / spread[:, None])[mixed]
    a, b = _newton(x, gold[mixed])
    slope[mixed] = a / spread[mixed]
    intercept[mixed] = b - slope[mixed] * centre[mixed]
    return slope, intercept


def _newton(x: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Standardised scores (D, n), gold (D, n) of both classes -> slope (D,), intercept (D,)"""
    a, b = np.zeros(len(x)), logit(y.mean(1))

    def loss(a: np.ndarray, b: np.ndarray) -> np.ndarray:
        z = a[:, None] * x + b[:, None]
        return (np.logaddexp(0, z) - y * z).sum(1) + PENALTY / 2 * a**2

    best = loss(a, b)
    for _ in range(_NEWTON_STEPS):
        p = expit(a[:, None] * x + b[:, None])
        error, curvature = p - y, p * (1 - p)
        grad_a, grad_b = (error * x).sum(1) + PENALTY * a, error.sum(1)
        aa, ab, bb = (curvature * x**2).sum(1) + PENALTY, (curvature * x).sum(1), curvature.sum(1)
        determinant = aa * bb - ab**2
        step_a, step_b = (bb * grad_a - ab * grad_b) / determinant, (aa * grad_b - ab * grad_a) / determinant
        part = np.ones(len(x))
        for _ in range(_HALVINGS):
            tried = loss(a - part * step_a, b - part * step_b)
            worse = ~(tried <= best + _SMALL)  # also where it is no number
            if not worse.any():
                break
            part[worse] /= 2
        part[worse] = 0
        a, b, best = a - part * step_a, b - part * step_b, np.where(worse, best, tried)
        if (np.abs(part * step_a) + np.abs(part * step_b) < _SMALL * (1 + np.abs(a) + np.abs(b))).all():
            break
    return a, b


def held_out(probability: np.ndarray, gold: np.ndarray, tests: np.ndarray) -> dict[str, np.ndarray]:
    """Brier score and ECE of each draw, over its test items. probability (D, N), gold (N,), tests (D, N) bool -> (D,) each"""
    size, error = tests.sum(1), (probability - gold) * tests
    bins = np.minimum((probability * BINS).astype(int), BINS - 1) + BINS * np.arange(len(tests))[:, None]
    in_bins = np.bincount(bins.ravel(), error.ravel(), BINS * len(tests)).reshape(-1, BINS)
    return {"brier": (error**2).sum(1) / size, "ece": np.abs(in_bins).sum(1) / size}


def _rows(score: str, n: int, by_seed: list[dict[str, np.ndarray]]) -> list[dict]:
    """One row a metric, from the values of all draws, seed by seed."""
    rows = []
    for metric in by_seed[0]:
        of_draws = np.mean([found[metric] for found in by_seed], 0)
        low, high = np.quantile(of_draws, [0.025, 0.975])
        rows.append({"score": score, "n": n, "metric": metric, "value": of_draws.mean(), "low": low, "high": high})
    return rows


def over_items(task: Labelled) -> dict[str, dict[str, Statistic]]:
    """By score: `brier`, `ece`, and `step`, the Brier score minus that of BASE_RATE, of Platt scaling fitted on one half of the groups and
    tested on the other, both ways; replicates resample groups. Heads: the mean over seeds.

    Empty where there are fewer than two groups, or a half has right or wrong items only.
    """
    halves = _halves(task)
    if not halves or any(len(np.unique(gold)) < 2 for gold in halves):
        return {}
    draws, found, base = Draws(task.groups), {}, None

    def statistic(values: np.ndarray) -> Statistic:
        return Statistic(float(values[0]), values[1:], len(task.gold), draws.drawn.shape[1])

    for name, by_seed in {BASE_RATE: np.zeros((1, len(task.gold))), **task.scores}.items():
        scaled = np.stack([platt(score, task.gold, task.groups, folds=2) for score in by_seed])  # (S, N)
        loss = ((scaled - task.gold) ** 2).mean(0)
        base = loss if base is None else base  # the first is BASE_RATE
        error = np.mean([ece(probability, task.gold, draws) for probability in scaled], 0)
        found[name] = {"brier": statistic(draws.mean(loss)), "step": statistic(draws.mean(loss - base)), "ece": statistic(error)}
    return found


def _halves(task: Labelled) -> list[np.ndarray]:
    """Gold of the two halves that `platt` makes; none where there is one group only."""
    if len(np.unique(task.groups)) < 2:
        return []
    return [task.gold[half] for _, half in GroupKFold(2).split(task.gold, groups=task.groups)]


def enough(curve: pd.DataFrame, within: float = 0.01) -> dict[str, int | None]:
    """By score, the smallest n from which on its mean Brier score is at most `within` above that at the largest n, and below that of
    BASE_RATE at the same n; None where there is none. For BASE_RATE itself only the first.
    """
    brier = brier_by_size(curve)
    found = {}
    for score, values in brier.iterrows():
        good = values <= values.iloc[-1] + within
        if score != BASE_RATE:
            good &= values < brier.loc[BASE_RATE]
        found[score] = _from_then_on(good)
    return found


def worth_scaling(curve: pd.DataFrame) -> dict[str, int | None]:
    """By score in [0, 1], the smallest n from which on its mean Brier score is below that of the score as it is; None if there is none."""
    brier, as_it_is = brier_by_size(curve), curve[(curve["metric"] == "brier") & (curve["n"] == 0)].set_index("score")["value"]
    return {score: _from_then_on(brier.loc[score] < value) for score, value in as_it_is.items()}


def brier_by_size(curve: pd.DataFrame) -> pd.DataFrame:
    """Mean Brier scores after scaling: scores by n."""
    return curve[(curve["metric"] == "brier") & (curve["n"] > 0)].pivot(index="score", columns="n", values="value")


def _from_then_on(good: pd.Series) -> int | None:
    """The smallest n of the index such that this and all larger ones are good."""
    lasting = good[::-1].cummin()
    return int(lasting[lasting].index.min()) if lasting.any() else None
