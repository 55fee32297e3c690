"""Next-token distributions of a few positions at once: what both the samplers and the scores need, in few passes over the logits.

Work in chunks of CHUNK positions: a [chunk, vocabulary] block then stays in the processor's cache, and no larger one is ever made.
"""

import torch
from torch import Tensor

CHUNK = 128  # positions
JUMP, EPSILON = 0.3, 0.005  # a cut: the next probability is lower by more than 30 % and by more than 0.005 (arXiv 2502.11115)
MODES = ("last", "first")
_BLOCK = 64  # tokens; sums and maxima of blocks let most of the vocabulary be skipped later


class NextToken:
    """The distributions softmax(logits) of C positions. Overwrites `logits` (C, V).

    Attributes: `root` (C, >= V), the square roots of the unnormalised probabilities (padded with zeros); `total` (C,), their squares' sum;
    `dominant` (C, D), ids of the dominant tokens, most probable first, padded with -1 (see `dominant_count`).
    Raises ValueError for NaN or infinite logits.

    >>> p = torch.tensor([[0.5, 0.2, 0.15, 0.1, 0.03, 0.02]])
    >>> NextToken(p.log()).dominant, NextToken(p.log(), mode="first").dominant
    (tensor([[0, 1, 2, 3, 4]]), tensor([[0]]))
    """

    def __init__(self, logits: Tensor, mode: str = "last"):
        count, self.vocabulary = logits.shape
        if self.vocabulary % _BLOCK:
            logits = torch.nn.functional.pad(logits, (0, -self.vocabulary % _BLOCK), value=-torch.inf)
        largest = logits.view(count, -1, _BLOCK).amax(2)  # (C, blocks)
        shift = largest.amax(1, keepdim=True)
        if not shift.isfinite().all():
            raise ValueError("the logits hold NaN or infinity: the hidden states or the unembedding are broken")
        self.root = logits.sub_(shift).mul_(0.5).exp_()
        self.total = torch.linalg.vector_norm(self.root, dim=1).square()
        ids, probabilities = self._top(largest.sub_(shift).mul_(0.5).exp_())
        dominant = dominant_count(probabilities, mode, self.vocabulary)  # (C,)
        width = int(dominant.max())
        self.dominant = ids[:, :width].masked_fill(torch.arange(width, device=ids.device) >= dominant[:, None], -1)

    def probability(self, token_ids: Tensor) -> Tensor:
        """p of given tokens; 0 for the padding id -1. (C, n) -> (C, n)"""
        return self._root_of(token_ids).square() / self.total[:, None]

    def log_probability(self, token_ids: Tensor) -> Tensor:
        """log p of given tokens. (C, n) -> (C, n)"""
        return 2 * self._root_of(token_ids).log() - self.total[:, None].log()

    def flattened_probability(self, token_ids: Tensor, exclude_dominant: bool = True) -> Tensor:
        """q = softmax(log p / 2) of given tokens, renormalised without the dominant ones (0 for those), or as it is. (C, n) -> (C, n)"""
        total = self.root.sum(1, keepdim=True)
        if not exclude_dominant:
            return self._root_of(token_ids) / total
        rest = total - self._root_of(self.dominant).sum(1, keepdim=True)
        return torch.where(self.is_dominant(token_ids), 0.0, self._root_of(token_ids) / rest.clamp(min=1e-12 * total))

    def is_dominant(self, token_ids: Tensor) -> Tensor:
        """Which of the given tokens are dominant. (C, n) -> (C, n)"""
        return (token_ids[:, :, None] == self.dominant[:, None, :]).any(2)

    def dominant_mass(self) -> Tensor:
        """Summed probability of the dominant tokens. (C,)"""
        return self.probability(self.dominant).sum(1)

    def boosted_probability(self, token_ids: Tensor) -> Tensor:
        """BoostedProb (arXiv 2502.11115): the mass of all dominant tokens for each of them, p for the others. (C, n) -> (C, n)"""
        return torch.where(self.is_dominant(token_ids), self.dominant_mass()[:, None], self.probability(token_ids))

    def entropy(self) -> Tensor:
        """Entropy in nats. (C,)"""
        return torch.special.entr(self.root.square() / self.total[:, None]).sum(1)

    def _root_of(self, token_ids: Tensor) -> Tensor:
        return self.root.gather(1, token_ids.clamp(min=0)) * (token_ids >= 0)

    def _top(self, largest: Tensor) -> tuple[Tensor, Tensor]:
        """Ids and probabilities of all tokens above EPSILON and of the next one below, in falling order, padded with -1 and 0.

        largest (C, blocks): the maximum of `root` in each block; only blocks that reach the threshold are looked into.
        """
        count = len(self.root)
        threshold = (EPSILON * self.total).sqrt()[:, None]  # as a root
        rows, blocks = (largest > threshold).nonzero(as_tuple=True)
        content = self.root.view(count, -1, _BLOCK)[rows, blocks]  # (n, _BLOCK)
        above = content > threshold[rows]
        below = torch.where(largest > threshold, 0.0, largest).amax(1)  # the largest root below the threshold, block by block
        below = below.scatter_reduce(0, rows, content.masked_fill(above, 0.0).amax(1), "amax")
        block, offset = above.nonzero(as_tuple=True)  # in rising order of row
        row = rows[block]
        found = torch.bincount(row, minlength=count)
        column = torch.arange(len(row), device=row.device) - (found.cumsum(0) - found)[row]
        ids = torch.full((count, int(found.max()) + 1), -1, device=row.device)
        roots = torch.zeros(ids.shape, device=row.device)
        ids[row, column], roots[row, column] = blocks[block] * _BLOCK + offset, content[block, offset]
        roots[torch.arange(count, device=row.device), found] = below
        roots, order = roots.sort(1, descending=True)
        return ids.gather(1, order), roots.square() / self.total[:, None]


def dominant_count(probabilities: Tensor, mode: str, vocabulary: int) -> Tensor:
    """How many tokens are dominant: those before the last (or the first) large step down; 0 where there is no such step.

    probabilities (C, m): the largest ones in falling order, at least all above EPSILON and one more (0 after the last of the vocabulary).
    -> (C,). The rule of `boostedprob.find_dominant` (arXiv 2502.11115, "difference jump").
    """
    if mode not in MODES:
        raise ValueError(f"unknown mode {mode!r} of the dominant set: choose from {', '.join(MODES)}")
    before, after = probabilities[:, :-1], probabilities[:, 1:]
    position = torch.arange(1, probabilities.shape[1], device=probabilities.device)  # number of tokens before the step
    cut = (before - after > JUMP * before) & (before - after > EPSILON) & (position < vocabulary)
    if cut.shape[1] == 0:  # no probability reaches EPSILON
        return position.new_zeros(len(cut))
    return (cut * position).amax(1) if mode == "last" else torch.where(cut.any(1), cut.int().argmax(1) + 1, 0)
