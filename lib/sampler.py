"""Negative examples for the Sigmoid Head: i.i.d. draws from exactly the stated distribution, never
the gold token. Needs only torch: copy this file into your project.

Samplers: `uniform`; `unigram` (frequencies of the training labels); `softmax-sampled` (q =
softmax(log p / 2) of the frozen model); `mixed` (half unigram, half softmax-sampled). With the
ending `-excluded` dominant tokens are never drawn either, and what remains is renormalised.
"""

import torch
from torch import Tensor

KINDS = ("uniform", "unigram", "softmax-sampled", "mixed")
SAMPLERS = (*KINDS, *(f"{kind}-excluded" for kind in KINDS))
METHOD = "mixed-excluded"  # the paper's
CHUNK = 128  # positions at a time: their (CHUNK, V) block stays in the processor's cache
JUMP, EPSILON = 0.3, 0.005  # a step down by more than 30 % and by more than 0.005
NONE = -1  # stands where a position has no token left to draw
_BLOCK, _DRAW_BLOCK = 64, 256  # tokens
_RARE = 0.05  # share of the mass left below which rejection would take long


# ---- what is meant, for one position: p (V,) probabilities -------------------------------------


def dominant_tokens(p: Tensor, mode: str = "last") -> Tensor:
    """Ids of the tokens before the last (or first) large step down, most probable first; none
    where there is no such step (arXiv 2502.11115, "difference jump").

    >>> dominant_tokens(torch.tensor([0.5, 0.2, 0.15, 0.1, 0.03, 0.02])).tolist()
    [0, 1, 2, 3, 4]
    """
    falling, ids = p.sort(descending=True)
    step = falling[:-1] - falling[1:]
    (cuts,) = ((step > JUMP * falling[:-1]) & (step > EPSILON)).nonzero(as_tuple=True)
    if len(cuts) == 0:
        return ids[:0]
    return ids[: cuts[-1 if mode == "last" else 0] + 1]


def plain_negatives(p: Tensor, gold: int, unigram: Tensor, count: int, mode="last") -> Tensor:
    """`count` negatives of METHOD: half from unigram frequencies (V,), half from the flattened p,
    neither gold nor a dominant token. (count,)
    """
    allowed = torch.ones_like(p)
    allowed[gold] = 0
    allowed[dominant_tokens(p, mode)] = 0
    half = count // 2
    frequent = torch.multinomial(unigram * allowed, half, replacement=True)
    likely = torch.multinomial(p.sqrt() * allowed, count - half, replacement=True)
    return torch.cat([frequent, likely])


# ---- the same for C positions at once ----------------------------------------------------------


class NextToken:
    """The distributions softmax(logits) of C positions. Overwrites `logits` (C, V).

    `root` (C, >= V): square roots of the unnormalised probabilities, padded with zeros; `total`
    (C,): their squares' sum; `dominant` (C, D): ids of the dominant tokens, most probable first,
    padded with -1. Raises ValueError for NaN or infinite logits, or an unknown mode.
    """

    def __init__(self, logits: Tensor, mode: str = "last"):
        if mode not in ("last", "first"):
            raise ValueError(f"unknown mode {mode!r} of the dominant set: last or first")
        count, self.vocabulary = logits.shape
        if padding := -self.vocabulary % _BLOCK:
            logits = torch.nn.functional.pad(logits, (0, padding), value=-torch.inf)
        largest = logits.view(count, -1, _BLOCK).amax(2)  # (C, blocks)
        shift = largest.amax(1, keepdim=True)
        if not shift.isfinite().all():
            raise ValueError("the logits hold NaN or infinity: hidden states or weights are broken")
        self.root = logits.sub_(shift).mul_(0.5).exp_()
        self.total = torch.linalg.vector_norm(self.root, dim=1).square()
        ids, p = self._top(largest.sub_(shift).mul_(0.5).exp_())
        place, step = torch.arange(1, p.shape[1], device=ids.device), p[:, :-1] - p[:, 1:]
        cut = (step > JUMP * p[:, :-1]) & (step > EPSILON) & (place < self.vocabulary)
        last, first = (cut * place).amax(1), cut.int().argmax(1) + 1
        size = last if mode == "last" else torch.where(cut.any(1), first, 0)
        ids = ids[:, : int(size.max())]
        outside = torch.arange(ids.shape[1], device=ids.device) >= size[:, None]
        self.dominant = ids.masked_fill(outside, NONE)

    def roots(self, token_ids: Tensor) -> Tensor:
        """`root` of given tokens, as `probability`."""
        return self.root.gather(1, token_ids.clamp(min=0)) * (token_ids >= 0)

    def probability(self, token_ids: Tensor) -> Tensor:
        """p of given tokens; 0 for the padding id -1. (C, n) -> (C, n)"""
        return self.roots(token_ids).square() / self.total[:, None]

    def is_dominant(self, token_ids: Tensor) -> Tensor:
        """Which of the given tokens are dominant. (C, n) -> (C, n)"""
        return (token_ids[:, :, None] == self.dominant[:, None, :]).any(2)

    def _top(self, largest: Tensor) -> tuple[Tensor, Tensor]:
        """Ids and probabilities of all tokens above EPSILON and some below, in falling order, from
        the blocks with the `largest` roots (C, blocks).
        """
        threshold = (EPSILON * self.total).sqrt()[:, None]  # as a root
        most = int((largest > threshold).sum(1).max()) + 1  # the next token below is in these, too
        _, blocks = largest.topk(min(most, largest.shape[1]), 1)  # (C, m)
        content = self.root.view(*largest.shape, _BLOCK)
        content = content.gather(1, blocks[:, :, None].expand(-1, -1, _BLOCK)).flatten(1)
        width = int((content > threshold).sum(1).max()) + 2  # a step needs a token after it
        roots, place = content.topk(min(width, content.shape[1]), 1)
        ids = blocks.gather(1, place // _BLOCK) * _BLOCK + place % _BLOCK
        return ids, roots.square() / self.total[:, None]


class TokenFrequencies:
    """One distribution for all positions, on their device: weights (V,); ValueError for none."""

    def __init__(self, probabilities: Tensor):
        weights = probabilities.double()
        if not ((weights >= 0) & weights.isfinite()).all() or not weights.any():
            raise ValueError("token frequencies must be finite, none negative, not all zero")
        self.probabilities = weights / weights.sum()
        self.cumulative = self.probabilities.cumsum(0)

    @classmethod
    def from_labels(cls, labels: Tensor, vocabulary: int) -> "TokenFrequencies":
        """The unigram frequencies of training labels (N,)."""
        return cls(torch.bincount(labels.flatten(), minlength=vocabulary))

    def draw(self, excluded: Tensor, count: int, generator: torch.Generator) -> Tensor:
        """`count` i.i.d. draws a position from the frequencies without its excluded tokens.

        excluded (C, m) ids, each once, padded with -1 -> (C, count); NONE where nothing is left.
        """
        known = torch.where(excluded >= 0, self.probabilities[excluded.clamp(min=0)], 0.0)
        rare = 1 - known.sum(1) < _RARE
        ids = self._inverse(_uniform((len(excluded), count), generator))
        for row in rare.nonzero().flatten().tolist():
            out = excluded[row][excluded[row] >= 0]
            weights = self.probabilities.index_fill(0, out, 0.0)
            ids[row] = NONE
            if weights.any():
                ids[row] = TokenFrequencies(weights)._inverse(_uniform((count,), generator))
        while True:
            wrong = (ids[:, :, None] == excluded[:, None, :]).any(2) & ~rare[:, None]
            if not wrong.any():
                return ids
            ids[wrong] = self._inverse(_uniform((int(wrong.sum()),), generator))

    def _inverse(self, uniform: Tensor) -> Tensor:
        ids = torch.searchsorted(self.cumulative, uniform * self.cumulative[-1], right=True)
        return ids.clamp(max=len(self.cumulative) - 1)


def _draw_flattened(root: Tensor, excluded: Tensor, count: int, generator) -> Tensor:
    """Draws from weights `root` (C, n * _DRAW_BLOCK), in which it zeroes excluded tokens (C, m):
    first a block of tokens, then one in it. (C, count); NONE where nothing is left.
    """
    row, column = (excluded >= 0).nonzero(as_tuple=True)
    root[row, excluded[row, column]] = 0.0
    blocks = root.view(len(root), -1, _DRAW_BLOCK)
    sums, shape = blocks.sum(2), (len(root), count)
    block = _inverse_cdf(sums, _uniform(shape, generator))
    content = blocks.gather(1, block[:, :, None].expand(-1, -1, _DRAW_BLOCK))  # (C, count, block)
    offset = _inverse_cdf(content.flatten(0, 1), _uniform(shape, generator).view(-1, 1))
    ids = block * _DRAW_BLOCK + offset.view(shape)
    return torch.where(sums.sum(1, keepdim=True) > 0, ids, NONE)


def _uniform(shape, generator: torch.Generator) -> Tensor:
    return torch.rand(shape, generator=generator, dtype=torch.float64, device=generator.device)


def _inverse_cdf(weights: Tensor, uniform: Tensor) -> Tensor:
    """weights (C, n), uniform (C, count) in [0, 1) -> (C, count) ids, none of weight 0."""
    cumulative = weights.double().cumsum(1)
    ids = torch.searchsorted(cumulative, uniform * cumulative[:, -1:], right=True)
    return ids.clamp(max=weights.shape[1] - 1)


def sample(
    next_token, gold: Tensor, unigram, count: int, generator, samplers=SAMPLERS, rounds=1
) -> dict[str, Tensor]:
    """`rounds` sets of `count` negatives a position from each of several samplers. Uses
    `next_token` up: its `root` is overwritten. gold (C,) -> {sampler: (C, rounds * count)}.

    Of a `mixed` round, count // 2 are unigram draws, the rest softmax-sampled. Samplers share draws
    (`mixed` is made of the other two): compare heads, not pools of negatives.
    """
    for name in set(samplers) - set(SAMPLERS):
        raise ValueError(f"unknown sampler {name!r}: choose from {', '.join(SAMPLERS)}")
    drawn, total = {}, rounds * count
    uniform = TokenFrequencies(torch.ones(next_token.vocabulary, device=gold.device))
    root = next_token.root
    if padding := -root.shape[1] % _DRAW_BLOCK:  # copies, even by nothing
        root = torch.nn.functional.pad(root, (0, padding))
    for ending in ("", "-excluded"):
        wanted = {kind for kind in KINDS if kind + ending in samplers}
        excluded = gold[:, None]
        if ending:
            dominant = next_token.dominant
            excluded = torch.cat([excluded, dominant.masked_fill(dominant == excluded, NONE)], 1)
        if "uniform" in wanted:
            drawn["uniform" + ending] = uniform.draw(excluded, total, generator)
        if wanted & {"unigram", "mixed"}:
            drawn["unigram" + ending] = unigram.draw(excluded, total, generator)
        if wanted & {"softmax-sampled", "mixed"}:
            drawn["softmax-sampled" + ending] = _draw_flattened(root, excluded, total, generator)
        if "mixed" in wanted:
            u, q = (drawn[kind + ending].unflatten(1, (rounds, count)) for kind in KINDS[1:3])
            both = torch.cat([u[..., : count // 2], q[..., count // 2 :]], 2)
            drawn["mixed" + ending] = both.flatten(1)
    return {name: drawn[name] for name in samplers}
