"""Token scores of given outputs, all oriented so that higher means better, and ways to join them.

Untrained: `softmax` p(y), `logprob` log p(y), `entropy` (negated entropy of the prediction),
`boostedprob` (arXiv 2502.11115), `closed-form` (what a Sigmoid Head would learn if the model's p
were true). Two fitted numbers: `rescale` sigmoid(a z + c) of the raw logit, `softmax-power` p^a.
"""

from typing import NamedTuple

import numpy as np
import pandas as pd
import torch
from scipy.sparse import csr_array
from sklearn.linear_model import Ridge
from sklearn.model_selection import GridSearchCV, GroupKFold
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from torch import Tensor

from lib.quality.language_models import LanguageModel, Text, Unembedding
from lib.quality.training import NEGATIVES, Positions, gold_tokens, text_numbers
from lib.sampler import CHUNK, METHOD, NextToken, TokenFrequencies
from lib.sigmoid_head import SigmoidHead, fit_start
from lib.study.paths import progress

JOINS = ("mean", "log-mean", "product", "min")
WORST = "worst-5"  # a join: the mean of the five worst tokens
FITTED_ON = 4096  # validation positions that fit `rescale` and `softmax-power`
FOLDS, PENALTIES = 5, 10.0 ** np.arange(0, 7)  # of the rival, to choose from


def facts_of(next_token: NextToken, ids: Tensor, unigram: TokenFrequencies | None) -> dict:
    """Of given tokens, ids (C, n) -> tensors (C, n) by name: `probability` p, `logprob`; `dominant`
    (bool), `boostedprob`; `flattened` q and `flattened_rest`, q without the dominant tokens,
    renormalised; with frequencies `unigram` u and `unigram_rest`.
    """
    root, dominant = next_token.roots(ids), next_token.is_dominant(ids)
    out, total = next_token.dominant, next_token.root.sum(1, keepdim=True)
    p, mass = next_token.probability(ids), next_token.probability(out).sum(1, keepdim=True)
    rest = total - next_token.roots(out).sum(1, keepdim=True)
    facts = {
        "probability": p,
        "logprob": 2 * root.log() - next_token.total[:, None].log(),
        "dominant": dominant,
        "boostedprob": torch.where(dominant, mass, p),
        "flattened": root / total,
        "flattened_rest": torch.where(dominant, 0.0, root / rest.clamp(min=1e-12 * total)),
    }
    if unigram is not None:
        u = unigram.probabilities.to(p)
        left = 1 - (u[out.clamp(min=0)] * (out >= 0)).sum(1, keepdim=True)
        facts |= {"unigram": u[ids], "unigram_rest": u[ids] / left.clamp(min=1e-12)}
        even_rest = 1 / (next_token.vocabulary - (out >= 0).sum(1, keepdim=True)).clamp(min=1)
        facts["even"] = torch.full_like(p, 1 / next_token.vocabulary)
        facts["even_rest"] = even_rest.expand_as(p).to(p)
    return facts


@torch.no_grad()
def token_facts(lm: Unembedding, states, token_ids, unigram=None, mode="last") -> dict:
    """`facts_of`, `logit` and (the same for all tokens of a position) `entropy`, negated, in one
    pass over chunks of positions. states (N, d), token_ids (N, n) -> (N, n) on the CPU
    """
    chunks = []
    for start in progress(range(0, len(token_ids), CHUNK), "scores"):
        ids = token_ids[start : start + CHUNK].to(lm.device)
        logits = lm.logits(states[start : start + CHUNK].to(lm.device))
        raw = logits.gather(1, ids)
        next_token = NextToken(logits, mode)
        entropy = torch.special.entr(next_token.root.square() / next_token.total[:, None]).sum(1)
        facts = facts_of(next_token, ids, unigram)
        facts |= {"logit": raw, "entropy": -entropy[:, None].expand_as(raw)}
        chunks.append({name: value.cpu() for name, value in facts.items()})
    return {name: torch.cat([chunk[name] for chunk in chunks]) for name in chunks[0]}


def closed_form(facts: dict, unigram=5, flattened=5, excluded=True, uniform=0) -> Tensor:
    """The score that minimises the expected loss of a Sigmoid Head if the model's p is the truth:

        sigma(z_v) = p_v / (p_v + (1 - p_v) n_v),   n_v = K_u u_v + K_q q_v

    u, q renormalised after exclusion; that excluding gold rescales the draws a little is neglected.
    With exclusion a dominant token is never negative: its score is 1. Any shape.
    """
    rest = "_rest" if excluded else ""
    drawn = flattened * facts["flattened" + rest]
    for count, name in ((unigram, "unigram"), (uniform, "even")):
        if count:
            drawn = drawn + count * facts[name + rest]
    p = facts["probability"]
    score = (p / (p + (1 - p) * drawn)).nan_to_num(0.0)  # 0: neither ever right nor ever drawn
    return torch.where(facts["dominant"], 1.0, score) if excluded else score


def draws_of(sampler: str, count: int = NEGATIVES) -> dict:
    """Options of `closed_form`: where a sampler's `count` negatives come from."""
    kind, excluded = sampler.removesuffix("-excluded"), sampler.endswith("-excluded")
    unigram = {"mixed": count // 2, "unigram": count}.get(kind, 0)
    uniform = count if kind == "uniform" else 0
    flattened = count - unigram - uniform
    return dict(unigram=unigram, flattened=flattened, excluded=excluded, uniform=uniform)


def closed_form_name(sampler: str) -> str:
    """What results call the closed form of a sampler."""
    return "closed-form" if sampler == METHOD else f"closed-form:{sampler}"


# ---- scores of tokens --------------------------------------------------------------------------


class Fitted(NamedTuple):
    """The numbers of `rescale` and `softmax-power`."""

    scale: float
    shift: float
    power: float


def fit_scores(lm: Unembedding, held_out: Positions) -> Fitted:
    """Least binary cross-entropy on validation positions and their negatives: no task enters."""
    held_out = held_out[:FITTED_ON]
    ids, labels, present = held_out.candidates(METHOD)
    facts = token_facts(lm, held_out.hidden_states, ids)
    scale, shift = fit_start(facts["logit"][present], labels[present])
    log_p, right = facts["logprob"][present].double().clamp(max=-1e-9), labels[present].bool()
    powers = torch.logspace(-2, 0.5, 101, dtype=torch.float64)
    losses = [a * log_p[right].sum() + (-(a * log_p[~right]).exp()).log1p().sum() for a in powers]
    return Fitted(scale, shift, float(powers[int(torch.stack(losses).argmax())]))


def untrained_scores(
    lm, states, gold, unigram=None, fitted=None, samplers=(METHOD,), mode="last"
) -> pd.DataFrame:
    """Scores of one token a position, a column each, float32. states (N, d), gold (N,). Closed
    forms need `unigram` (TokenFrequencies), `rescale` and `softmax-power` need `fitted` (Fitted).
    """
    facts = token_facts(lm, states, gold[:, None], unigram, mode)
    columns = {"softmax": facts["probability"]}
    columns |= {name: facts[name] for name in ("logprob", "entropy", "boostedprob")}
    if fitted is not None:
        columns["rescale"] = torch.sigmoid(fitted.scale * facts["logit"] + fitted.shift)
        columns["softmax-power"] = (fitted.power * facts["logprob"]).exp()
    if unigram is not None:
        for sampler in samplers:
            columns[closed_form_name(sampler)] = closed_form(facts, **draws_of(sampler))
    return pd.DataFrame({name: value[:, 0].float().numpy() for name, value in columns.items()})


def token_scores(
    lm: LanguageModel, texts: list[Text], unigram=None, fitted=None, heads: dict | None = None
) -> pd.DataFrame:
    """Every output token: `text` (number), `token_id`, `untrained_scores`, a column a head."""
    states, gold = lm.hidden_states(texts), gold_tokens(texts)
    known = pd.DataFrame({"text": text_numbers(texts), "token_id": gold.numpy()})
    by_head = {name: head_scores(head, states, gold) for name, head in (heads or {}).items()}
    return known.join(untrained_scores(lm, states, gold, unigram, fitted)).assign(**by_head)


@torch.no_grad()
def head_scores(head: SigmoidHead, states: Tensor, token_ids: Tensor) -> np.ndarray:
    """sigmoid(z) of one token a position: a gather, nothing of the size of the vocabulary.
    (N, d), (N,) -> (N,)
    """
    batches = zip(states.split(8192), token_ids[:, None].split(8192))
    moved = ([x.to(head.bias.device) for x in batch] for batch in batches)
    return torch.cat([head(*batch).sigmoid().cpu() for batch in moved])[:, 0].numpy()


@torch.no_grad()
def softmax_head_scores(head: SigmoidHead, states: Tensor, token_ids: Tensor) -> np.ndarray:
    """log softmax(z) of one token a position, for a head trained as a softmax. -> (N,)"""
    values, device = [], head.bias.device
    for hidden, ids in zip(states.split(CHUNK), token_ids[:, None].split(CHUNK)):
        logits = head.all_logits(hidden.to(device))
        values.append((logits.gather(1, ids.to(device)) - logits.logsumexp(1, True)).cpu())
    return torch.cat(values)[:, 0].numpy()


# ---- scores of texts ---------------------------------------------------------------------------


def join(scores: np.ndarray, text: np.ndarray, how: str = "mean") -> np.ndarray:
    """One score a text from those of its tokens. scores (N,), text (N,) numbers in rising order
    without gaps -> (T,). `mean`, `min`, `worst-5`; for scores in [0, 1] also `log-mean` and
    `product`, both as logarithms: no underflow. ValueError for an unknown way.
    """
    scores = np.asarray(scores, float)
    starts = np.flatnonzero(np.r_[True, text[1:] != text[:-1]])
    size = np.diff(np.r_[starts, len(text)])
    if how == "min":
        return np.minimum.reduceat(scores, starts)
    if how == WORST:
        order = np.lexsort((scores, text))  # from the worst, text by text
        kept = order[np.arange(len(text)) - np.repeat(starts, size) < 5]
        return np.bincount(text[kept], scores[kept]) / np.bincount(text[kept])
    if how not in JOINS:
        raise ValueError(f"unknown way {how!r} to join: choose from {', '.join((*JOINS, WORST))}")
    sums = np.add.reduceat(scores if how == "mean" else np.log(np.maximum(scores, 1e-30)), starts)
    return sums if how == "product" else sums / size


def mean_states(states: Tensor, text: np.ndarray) -> np.ndarray:
    """Mean over the tokens of each text. states (N, d), text (N,) numbers from 0 -> (T, d)"""
    weights = 1 / np.bincount(text)[text]
    return csr_array((weights, (text, np.arange(len(text))))) @ np.asarray(states)


def fit_rival(features: np.ndarray, gold: np.ndarray, groups: np.ndarray) -> GridSearchCV:
    """The supervised rival: ridge regression on mean states, its penalty of least squared error on
    held-out groups; `predict` gives scores. features (N, d), gold (N,), groups (N,). ValueError for
    fewer than two groups.
    """
    pipeline, choices = make_pipeline(StandardScaler(), Ridge()), {"ridge__alpha": PENALTIES}
    search = GridSearchCV(pipeline, choices, scoring="neg_mean_squared_error", cv=_folds(groups))
    return search.fit(features, gold, groups=groups)


def cross_fitted(features: np.ndarray, gold: np.ndarray, groups: np.ndarray) -> np.ndarray:
    """Score of each text by a rival fitted, penalty and all, on the other folds of groups. (N,)"""
    scores = np.empty(len(gold))
    for train, test in _folds(groups).split(features, gold, groups):
        rival = fit_rival(features[train], gold[train], groups[train])
        scores[test] = rival.predict(features[test])
    return scores


def _folds(groups: np.ndarray) -> GroupKFold:
    count = len(np.unique(groups))
    if count < 2:
        raise ValueError(f"a rival needs at least two groups to learn from, not {count}")
    return GroupKFold(min(FOLDS, count))
