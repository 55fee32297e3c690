"""Selective answering: answer the items with the best scores, abstain from the rest.

The risk at coverage n / N is the share of wrong ones among the n best-scored items. Tied items count as their average - each risk is the
expectation over all orders of the tied ones - so that nothing depends on the order of a table. A lower risk is better.
"""

from typing import NamedTuple

import numpy as np

from old.quality.agreement import Draws
from old.quality.evaluation import Statistic

_ROUNDING = 1e-9  # counts are whole numbers, rates are not


class _Blocks(NamedTuple):
    """Items in blocks of equal scores, the best block first, in every resample; all (r, J)."""

    size: np.ndarray
    wrong: np.ndarray  # how many of these are wrong
    before: np.ndarray  # items in better blocks
    wrong_before: np.ndarray


def risk_coverage(scores: np.ndarray, gold: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Coverage and risk after 1, 2, ... N answers. All (N,); gold 1 right, 0 wrong

    >>> risk_coverage(np.array([0.9, 0.5, 0.5]), np.array([1, 0, 1]))[1].round(2).tolist()  # tied: half an error each
    [0.0, 0.25, 0.33]
    """
    scores, gold = _checked(scores, gold)
    _, block = np.unique(-scores, return_inverse=True)  # the best block is number 0
    rate = np.bincount(block, 1 - gold) / np.bincount(block)
    answers = np.arange(1, len(gold) + 1)
    return answers / len(gold), np.cumsum(rate[np.sort(block)]) / answers


def statistics(scores: np.ndarray, gold: np.ndarray, draws: Draws, risks: tuple[float, ...] = ()) -> dict[str, Statistic]:
    """What a score (N,) is worth as a reason to abstain, gold (N,) 1 right, 0 wrong; replicates of the same `draws` are paired.

    `aurc`: area under the risk-coverage curve, the mean of the risks after 1 ... N answers (lower = better). `excess`: how far that is
    above the ideal order, all right ones first. `coverage:0.25` for each of `risks`: the largest coverage with a risk of at most that
    (higher = better), 0 where there is none. ValueError for scores that are not finite, or gold other than 0 and 1.
    """
    scores, gold = _checked(scores, gold)
    parts = []
    for weights in draws.weights():
        blocks = _blocks(scores, gold, weights)
        area = _area(blocks)
        parts.append([area, area - ideal_area(weights @ gold, weights.sum(1)), *(_coverage(blocks, risk) for risk in risks)])
    names, clusters = ("aurc", "excess", *(f"coverage:{risk:g}" for risk in risks)), draws.drawn.shape[1]
    found = {name: np.concatenate(values) for name, values in zip(names, zip(*parts))}
    return {name: Statistic(float(values[0]), values[1:], len(gold), clusters) for name, values in found.items()}


def ideal_area(right: np.ndarray, answers: np.ndarray) -> np.ndarray:
    """Area where all right ones come first: no risk up to there, (n - right) / n after n answers beyond. Counts (r,), (r,) -> (r,)"""
    right, answers = np.asarray(right).astype(int), np.asarray(answers).astype(int)
    harmonic = _harmonic(answers.max())
    return (answers - right - right * (harmonic[answers] - harmonic[right])) / answers


def _checked(scores: np.ndarray, gold: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    scores, gold = np.asarray(scores, float), np.asarray(gold, float)
    if scores.shape != gold.shape or not len(gold) or not np.isfinite(scores).all() or not np.isin(gold, (0, 1)).all():
        raise ValueError("every item needs a score, a finite number, and gold, 0 or 1")
    return scores, gold


def _blocks(scores: np.ndarray, gold: np.ndarray, weights: np.ndarray) -> _Blocks:
    """scores (N,), gold (N,), how often each item is drawn (r, N)"""
    down = np.argsort(-scores, kind="stable")
    starts = np.flatnonzero(np.r_[True, np.diff(scores[down]) != 0])
    drawn = weights[:, down]
    size, wrong = (np.add.reduceat(x, starts, axis=1) for x in (drawn, drawn * (1 - gold[down])))
    return _Blocks(size, wrong, np.cumsum(size, 1) - size, np.cumsum(wrong, 1) - wrong)


def _rate(blocks: _Blocks) -> np.ndarray:
    """Share of wrong ones in each block; 0 in one that is not drawn. (r, J)"""
    return np.divide(blocks.wrong, blocks.size, out=np.zeros_like(blocks.wrong), where=blocks.size > 0)


def _area(blocks: _Blocks) -> np.ndarray:
    """Mean risk over all numbers of answers. -> (r,)

    In a block of b items with rate e, after B others of which W are wrong, the risk after B + i answers is (W + e i) / (B + i). Summed
    over i = 1 ... b: e b + (W - e B) (H(B + b) - H(B)), with harmonic numbers H.
    """
    first, last = blocks.before.astype(int), (blocks.before + blocks.size).astype(int)
    harmonic = _harmonic(last.max())
    sums = blocks.wrong + (blocks.wrong_before - _rate(blocks) * first) * (harmonic[last] - harmonic[first])
    return sums.sum(1) / last[:, -1]


def _coverage(blocks: _Blocks, risk: float) -> np.ndarray:
    """Largest coverage whose risk is at most `risk`. -> (r,)

    Inside a block the risk moves towards the block's own rate e. Where e is not above the bound, the end of the block is the place to
    look at; where it is, (W + e (n - B)) / n <= risk is solved for n: below B there is no such place.
    """
    last, rate = blocks.before + blocks.size, _rate(blocks)
    below = blocks.wrong_before + blocks.wrong <= risk * last + _ROUNDING
    above = rate > risk
    reach = np.divide(rate * blocks.before - blocks.wrong_before, rate - risk, out=np.zeros_like(rate), where=above)
    reach = np.where(reach + _ROUNDING >= blocks.before, np.floor(reach + _ROUNDING), 0)
    return np.where(above, np.minimum(last, reach), np.where(below, last, 0)).max(1) / last[:, -1]


def _harmonic(most: int) -> np.ndarray:
    """Harmonic numbers H(0) ... H(most)."""
    return np.concatenate([[0.0], np.cumsum(1 / np.arange(1, most + 1))])
