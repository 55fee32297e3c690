"""Negative examples for the Sigmoid Head: i.i.d. draws from exactly the stated distribution, never the gold token.

Samplers: `uniform`; `unigram` (frequencies of the training labels); `softmax-sampled` (q = softmax(log p / 2) of the frozen model);
`mixed` (half unigram, half softmax-sampled, the paper's). With the ending `-excluded` the dominant tokens are never drawn either; what
remains is renormalised, so that K draws are K negatives. (The official code draws without replacement within each half.)
"""

import copy
import hashlib

import torch
from torch import Tensor

from old.quality.distributions import NextToken

SAMPLERS = tuple(f"{kind}{ending}" for ending in ("", "-excluded") for kind in ("uniform", "unigram", "softmax-sampled", "mixed"))
NONE = -1  # stands where a position has no token left to draw
_RARE = 0.05  # share of the mass left below which rejection would take long


class TokenFrequencies:
    """One distribution for all positions. probabilities (V,), not necessarily normalised; ValueError where they are none."""

    def __init__(self, probabilities: Tensor):
        weights = probabilities.double()
        if weights.dim() != 1 or not weights.isfinite().all() or (weights < 0).any() or weights.sum() == 0:
            raise ValueError("token frequencies must be a vector of finite numbers, none negative, not all zero")
        self.probabilities = weights / weights.sum()
        self.cumulative = self.probabilities.cumsum(0)

    @classmethod
    def from_labels(cls, labels: Tensor, vocabulary: int) -> "TokenFrequencies":
        """The unigram frequencies of training labels (N,)."""
        return cls(torch.bincount(labels.flatten(), minlength=vocabulary))

    def to(self, device: torch.device) -> "TokenFrequencies":
        """The same frequencies on a device, bit for bit."""
        moved = copy.copy(self)
        moved.probabilities, moved.cumulative = self.probabilities.to(device), self.cumulative.to(device)
        return moved

    def fingerprint(self) -> str:
        """Content hash."""
        return hashlib.sha256(self.probabilities.cpu().numpy().tobytes()).hexdigest()[:16]

    def draw(self, excluded: Tensor, count: int, generator: torch.Generator) -> Tensor:
        """`count` i.i.d. draws a position from the frequencies without its excluded tokens.

        excluded (C, m) ids, each once, padded with -1 -> (C, count); NONE throughout where nothing is left.
        """
        left = 1 - torch.where(excluded >= 0, self.probabilities[excluded.clamp(min=0)], 0.0).sum(1)
        ids = self._inverse(torch.rand(len(excluded), count, generator=generator, dtype=torch.float64, device=generator.device))
        rare = left < _RARE
        for row in rare.nonzero().flatten().tolist():
            weights = self.probabilities.index_fill(0, excluded[row][excluded[row] >= 0], 0.0)
            ids[row] = (
                TokenFrequencies(weights)._inverse(torch.rand(count, generator=generator, dtype=torch.float64, device=generator.device))
                if weights.any()
                else NONE
            )
        while True:
            rejected = ((ids[:, :, None] == excluded[:, None, :]).any(2) & ~rare[:, None]).nonzero(as_tuple=True)
            if len(rejected[0]) == 0:
                return ids
            ids[rejected] = self._inverse(torch.rand(len(rejected[0]), generator=generator, dtype=torch.float64, device=generator.device))

    def _inverse(self, uniform: Tensor) -> Tensor:
        return torch.searchsorted(self.cumulative, uniform * self.cumulative[-1], right=True).clamp(max=len(self.cumulative) - 1)


class _Flattened:
    """Draws from q of a NextToken, block of tokens first, then token. Zeroes excluded tokens in `root`, which it takes over."""

    BLOCK = 256

    def __init__(self, root: Tensor):
        if root.shape[1] % self.BLOCK:  # padding copies, even by nothing
            root = torch.nn.functional.pad(root, (0, -root.shape[1] % self.BLOCK))
        self.blocks = root.view(len(root), -1, self.BLOCK)
        self.sums = self.blocks.sum(2)  # (C, blocks)

    def exclude(self, token_ids: Tensor) -> None:
        """token_ids (C, m), padded with -1."""
        row, column = (token_ids >= 0).nonzero(as_tuple=True)
        ids = token_ids[row, column]
        self.blocks[row, ids // self.BLOCK, ids % self.BLOCK] = 0.0
        self.sums[row, ids // self.BLOCK] = self.blocks[row, ids // self.BLOCK].sum(1)  # summed anew: a difference would cancel

    def draw(self, count: int, generator: torch.Generator) -> Tensor:
        """(C, count); NONE where nothing is left."""
        shape = (len(self.sums), count)
        block = _inverse_cdf(self.sums, torch.rand(shape, generator=generator, dtype=torch.float64, device=generator.device))
        content = self.blocks.gather(1, block[:, :, None].expand(-1, -1, self.BLOCK))  # (C, count, BLOCK)
        offset = _inverse_cdf(
            content.flatten(0, 1), torch.rand(shape, generator=generator, dtype=torch.float64, device=generator.device).view(-1, 1)
        )
        return torch.where(self.sums.sum(1, keepdim=True) > 0, block * self.BLOCK + offset.view(shape), NONE)


def _inverse_cdf(weights: Tensor, uniform: Tensor) -> Tensor:
    """weights (C, n), uniform (C, count) in [0, 1) -> (C, count) indices; a weight of 0 is never hit."""
    cumulative = weights.double().cumsum(1)
    return torch.searchsorted(cumulative, uniform * cumulative[:, -1:], right=True).clamp(max=weights.shape[1] - 1)


def sample(
    next_token: NextToken,
    gold: Tensor,
    unigram: TokenFrequencies,
    count: int,
    generator: torch.Generator,
    samplers: tuple[str, ...] = SAMPLERS,
    rounds: int = 1,
) -> dict[str, Tensor]:
    """`rounds` sets of `count` negatives a position from each of several samplers. Uses `next_token` up: its `root` is overwritten.

    gold (C,) -> {sampler: (C, rounds * count)}, one round after the other; NONE where the sampler has nothing left to draw. Of a `mixed`
    round, count // 2 are unigram draws, the rest softmax-sampled. Samplers share draws (`mixed` is made of the other two): compare heads,
    not pools of negatives.
    """
    if unknown := [name for name in samplers if name not in SAMPLERS]:
        raise ValueError(f"unknown sampler {unknown[0]!r}: choose from {', '.join(SAMPLERS)}")
    unigram, uniform = unigram.to(gold.device), TokenFrequencies(torch.ones(next_token.vocabulary, device=gold.device))
    flattened, drawn, total, half = None, {}, rounds * count, count // 2
    for ending in ("", "-excluded"):
        wanted = {name.removesuffix("-excluded") for name in samplers if name.endswith("-excluded") == bool(ending)}
        excluded = gold[:, None]
        if ending:
            others = next_token.dominant.masked_fill(next_token.dominant == gold[:, None], NONE)
            excluded = torch.cat([excluded, others], 1)
        if "uniform" in wanted:
            drawn["uniform" + ending] = uniform.draw(excluded, total, generator)
        if wanted & {"unigram", "mixed"}:
            drawn["unigram" + ending] = unigram.draw(excluded, total, generator)
        if wanted & {"softmax-sampled", "mixed"}:
            flattened = flattened or _Flattened(next_token.root)
            flattened.exclude(excluded)
            drawn["softmax-sampled" + ending] = flattened.draw(total, generator)
        if "mixed" in wanted:
            frequent, likely = (drawn[kind + ending].unflatten(1, (rounds, count)) for kind in ("unigram", "softmax-sampled"))
            drawn["mixed" + ending] = torch.cat([frequent[:, :, :half], likely[:, :, half:]], 2).flatten(1)
    return {name: drawn[name] for name in samplers}
