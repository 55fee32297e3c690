"""Token and sequence scores of given outputs; all oriented so that higher means better. Everything that needs the whole vocabulary is
computed in one pass over chunks of positions; a head looks up its rows only.

Untrained: `softmax` p(y), `logprob` log p(y), `entropy` (negated entropy of the prediction), `boostedprob` (arXiv 2502.11115),
`closed-form` (what a Sigmoid Head with this sampler would learn if the model's p were true, see `closed_form`).
Two fitted numbers on a dev split: `rescale` sigmoid(a z + c) of the raw logit z, `softmax-power` p(y)^a.
"""

from collections import defaultdict
from dataclasses import dataclass

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from old.progress import progress
from old.quality.distributions import CHUNK, NextToken
from old.quality.head import SigmoidHead, fit_start
from old.quality.language_models import LanguageModel, Text
from old.quality.negatives import TokenFrequencies
from old.quality.training import Positions, gold_tokens, hidden_states, text_numbers

METHOD = "mixed-excluded"  # the paper's sampler
AGGREGATES = ("mean", "log-mean", "product", "min")
WORST = "worst-5"  # the mean of the five worst tokens


@dataclass(frozen=True)
class Baselines:
    """The numbers that `rescale` and `softmax-power` need, fitted once on validation positions: no test item, no task."""

    scale: float
    shift: float
    power: float

    @classmethod
    def fit(cls, logits: Tensor, log_probabilities: Tensor, labels: Tensor) -> "Baselines":
        """Least binary cross-entropy of sigmoid(scale z + shift) and of p^power; all (M,), labels 1 for gold tokens, 0 for negatives."""
        scale, shift = fit_start(logits, labels)
        powers = torch.logspace(-2, 0.5, 101, dtype=torch.float64)
        log_p = log_probabilities.double().clamp(max=-1e-9)
        right = labels.bool()
        losses = [-(a * log_p[right]).sum() - torch.log1p(-(a * log_p[~right]).exp()).sum() for a in powers]
        return cls(scale, shift, float(powers[int(torch.stack(losses).argmin())]))


def closed_form(next_token: NextToken, token_ids: Tensor, unigram: TokenFrequencies, sampler: str, count: int = 10) -> Tensor:
    """The score that minimises the expected loss of a Sigmoid Head if the model's p is the truth. (C, n) ids -> (C, n)

    sigma(z_v) = p(v) / (p(v) + (1 - p(v)) (K_u u(v) + K_q q(v))): v is positive with probability p(v), and negative whenever another
    token is gold and v is drawn (u, q renormalised after exclusion; that excluding gold rescales the draws a little is neglected).
    With exclusion a dominant token is never negative: its score is 1.
    """
    kind, excluded = sampler.removesuffix("-excluded"), sampler.endswith("-excluded")
    p, dominant = next_token.probability(token_ids), next_token.dominant
    shared = {"uniform": count, "unigram": count, "mixed": count // 2}.get(kind, 0)  # draws from u, the same at every position
    drawn = torch.zeros_like(p)  # expected number of draws of v
    if shared:
        vocabulary = next_token.vocabulary
        u = torch.full((vocabulary,), 1 / vocabulary, device=p.device) if kind == "uniform" else unigram.probabilities.to(p)
        left = 1 - (u[dominant.clamp(min=0)] * (dominant >= 0)).sum(1, keepdim=True) if excluded else torch.ones_like(p[:, :1])
        drawn = drawn + shared * u[token_ids] / left.clamp(min=1e-12)
    if kind not in ("uniform", "unigram"):
        drawn = drawn + (count - shared) * next_token.flattened_probability(token_ids, exclude_dominant=excluded)
    score = optimum(p, drawn)
    return torch.where(next_token.is_dominant(token_ids), 1.0, score) if excluded else score


def optimum(p: Tensor, drawn: Tensor) -> Tensor:
    """Score with the least expected loss of a token that is right with probability p and otherwise drawn `drawn` times. Any shape."""
    return (p / (p + (1 - p) * drawn)).nan_to_num(0.0)  # 0: neither ever right nor ever drawn


def closed_form_name(sampler: str) -> str:
    """What results call the closed form of a sampler."""
    return "closed-form" if sampler == METHOD else f"closed-form:{sampler}"


@torch.no_grad()
def untrained_losses(
    lm: LanguageModel, positions: Positions, unigram: TokenFrequencies, samplers: tuple[str, ...], count: int = 10, mode: str = "last"
) -> dict[tuple[str, str], float]:
    """What `held_out_loss` is for a head, for scores that need no training; nats a position.

    (sampler, "own"), (sampler, "common"): the closed form of each sampler with that sampler's negatives, and with those of METHOD;
    ("softmax", "full"): p itself as every token's probability of being right, over the whole vocabulary;
    ("softmax", "cross-entropy"): -log p of the gold token.
    """
    total: dict[tuple[str, str], float] = defaultdict(float)
    for start in range(0, len(positions.gold), CHUNK):
        part = slice(start, start + CHUNK)
        logits = lm.logits(positions.hidden_states[part].to(lm.device))
        log_p = logits.log_softmax(-1).double()
        gold = log_p.gather(1, positions.gold[part, None].to(lm.device))
        others = torch.log1p(-log_p.exp().clamp(max=1 - 1e-12)).sum() - torch.log1p(-gold.exp().clamp(max=1 - 1e-12)).sum()
        total["softmax", "cross-entropy"] -= float(gold.sum())
        total["softmax", "full"] -= float(gold.sum() + others)
        next_token = NextToken(logits, mode)
        for sampler in samplers:
            for name, negatives in (("own", sampler), ("common", METHOD)):
                ids, present = positions.candidates(negatives, part, count)
                score = closed_form(next_token, ids.to(lm.device), unigram, sampler, count).cpu().double().clamp(1e-12, 1 - 1e-12)
                total[sampler, name] -= float(score[:, 0].log().sum() + (torch.log1p(-score[:, 1:]) * present[:, 1:]).sum())
    return {name: value / len(positions.gold) for name, value in total.items()}


@torch.no_grad()
def token_scores(
    lm: LanguageModel,
    texts: list[Text],
    unigram: TokenFrequencies | None = None,
    baselines: Baselines | None = None,
    heads: dict[str, SigmoidHead] | None = None,
    states: Tensor | None = None,
    samplers: tuple[str, ...] = (METHOD,),
    count: int = 10,
    mode: str = "last",
) -> pd.DataFrame:
    """Scores of every output token: columns `text` (number), `token_id`, one a score, one a head (by its name), float32.

    `states` (N, d) saves the forward pass where the hidden states are known. Closed forms are named by `closed_form_name`. Without
    `unigram` there are none, without `baselines` no `rescale` and `softmax-power`.
    """
    states = hidden_states(lm, texts) if states is None else states
    gold = gold_tokens(texts)
    parts = []
    for start in progress(range(0, len(gold), CHUNK), "scores"):
        hidden, ids = states[start : start + CHUNK].to(lm.device), gold[start : start + CHUNK, None].to(lm.device)
        logits = lm.logits(hidden)
        raw = logits.gather(1, ids)
        next_token = NextToken(logits, mode)
        part = {
            "softmax": next_token.probability(ids),
            "logprob": next_token.log_probability(ids),
            "entropy": -next_token.entropy()[:, None],
            "boostedprob": next_token.boosted_probability(ids),
        }
        if baselines is not None:
            part["rescale"] = torch.sigmoid(baselines.scale * raw + baselines.shift)
            part["softmax-power"] = (baselines.power * part["logprob"]).exp()
        for sampler in samplers if unigram is not None else ():
            part[closed_form_name(sampler)] = closed_form(next_token, ids, unigram, sampler, count)
        parts.append(torch.cat([value.float() for value in part.values()], 1).cpu())
    table = pd.DataFrame(torch.cat(parts).numpy(), columns=list(part))
    for name, head in (heads or {}).items():
        table[name] = head_scores(head, states, gold)
    table.insert(0, "text", text_numbers(texts))
    table.insert(1, "token_id", gold.numpy())
    return table


@torch.no_grad()
def head_scores(head: SigmoidHead, states: Tensor, token_ids: Tensor, batch: int = 8192) -> np.ndarray:
    """sigmoid(z) of one token a position: a gather, nothing of the size of the vocabulary. (N, d), (N,) -> (N,)"""
    parts = []
    for start in range(0, len(states), batch):
        part = slice(start, start + batch)
        parts.append(head(states[part].to(head.bias.device), token_ids[part, None].to(head.bias.device)).sigmoid().cpu())
    return torch.cat(parts)[:, 0].numpy()


@torch.no_grad()
def softmax_head_scores(head: SigmoidHead, states: Tensor, token_ids: Tensor) -> np.ndarray:
    """log softmax(z) of one token a position under a head trained with softmax cross-entropy. (N, d), (N,) -> (N,)"""
    parts, device = [], head.bias.device
    for start in progress(range(0, len(states), CHUNK), "softmax head"):
        part = slice(start, start + CHUNK)
        logits = head.all_logits(states[part].to(device))
        parts.append((logits.gather(1, token_ids[part, None].to(device)) - logits.logsumexp(1, keepdim=True)).cpu())
    return torch.cat(parts)[:, 0].numpy()


def sequence_scores(scores: np.ndarray, text: np.ndarray, how: str = "mean") -> np.ndarray:
    """One score a text from those of its tokens. scores (N,), text (N,) numbers in rising order without gaps -> (T,)

    `mean`, `min`, `worst-5`; for scores in [0, 1] also `log-mean` and `product`, both as logarithms: the same order, no underflow.
    """
    starts = np.flatnonzero(np.r_[True, text[1:] != text[:-1]])
    if how == "min":
        return np.minimum.reduceat(scores, starts)
    if how == WORST:
        order = np.lexsort((scores, text))  # from the worst, text by text
        rank = np.arange(len(text)) - np.repeat(starts, np.diff(np.r_[starts, len(text)]))
        kept = order[rank < 5]
        return np.bincount(text[kept], scores[kept]) / np.bincount(text[kept])
    if how not in AGGREGATES:
        raise ValueError(f"unknown way {how!r} to score a sequence: choose from {', '.join((*AGGREGATES, WORST))}")
    values = np.asarray(scores, float)
    if how != "mean":
        values = np.log(np.maximum(values, 1e-30))
    sums = np.add.reduceat(values, starts)
    return sums if how == "product" else sums / np.diff(np.r_[starts, len(text)])
