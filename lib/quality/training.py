"""Training one Sigmoid Head: hidden states and negatives are computed once, then every head learns
from them in seconds.
"""

import math
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from lib.quality.language_models import LanguageModel, Text, Unembedding
from lib.sampler import CHUNK, SAMPLERS, NextToken, sample
from lib.sigmoid_head import fit_start, sampled_loss
from lib.study.paths import progress
from lib.study.training import learning_rate_at

NEGATIVES = 10  # K
LEARNING_RATES = (3e-5, 1e-4, 3e-4, 1e-3, 3e-3, 1e-2, 3e-2, 1e-1, 3e-1)
FIRST_RATE = 3e-3  # the search goes on from here
Batch = tuple[Tensor, Tensor, Tensor]  # hidden_states (n, d), gold (n,), negatives (n, K)


@dataclass
class Positions:
    """The response positions of some texts, in the order of the texts."""

    hidden_states: Tensor  # (N, d) float32
    gold: Tensor  # (N,)
    negatives: dict[str, Tensor]  # by sampler (N, rounds * K) int32; -1: there is none

    def __len__(self) -> int:
        return len(self.gold)

    def __getitem__(self, where: slice) -> "Positions":
        negatives = {name: ids[where] for name, ids in self.negatives.items()}
        return Positions(self.hidden_states[where], self.gold[where], negatives)

    def candidates(self, sampler: str) -> tuple[Tensor, Tensor, Tensor]:
        """Gold (column 0) and the first round of negatives: ids, labels (1 for gold), and which
        there are. All (N, 1 + K)
        """
        ids = torch.cat([self.gold[:, None], self.negatives[sampler][:, :NEGATIVES].long()], 1)
        labels = (torch.arange(ids.shape[1]) == 0).float().expand_as(ids)
        return ids.clamp(min=0), labels, ids >= 0


def gold_tokens(texts: list[Text]) -> Tensor:
    """Output tokens of all texts in a row. (N,)"""
    return torch.tensor([token for text in texts for token in text.output])


def text_numbers(texts: list[Text]) -> np.ndarray:
    """The number of the text that each output token belongs to. (N,)"""
    return np.repeat(np.arange(len(texts)), [len(text.output) for text in texts])


def draw_negatives(
    lm, states, gold, unigram, rounds=1, mode="last", seed=0, samplers=SAMPLERS
) -> dict[str, Tensor]:
    """`rounds` sets of K negatives a position from every sampler, as in Positions: an Unembedding,
    states (N, d), gold (N,), TokenFrequencies.
    """
    generator = torch.Generator(lm.device).manual_seed(seed)
    shape = len(gold), rounds * NEGATIVES
    negatives = {name: torch.empty(shape, dtype=torch.int32) for name in samplers}
    for start in progress(range(0, len(gold), CHUNK), "negatives"):
        chunk = slice(start, start + CHUNK)
        next_token = NextToken(lm.logits(states[chunk].to(lm.device)), mode)
        right, how = gold[chunk].to(lm.device), (generator, samplers, rounds)
        for name, ids in sample(next_token, right, unigram, NEGATIVES, *how).items():
            negatives[name][chunk] = ids.cpu()
    return negatives


def collect(lm: LanguageModel, texts: list[Text], unigram, **options) -> Positions:
    """Hidden states and, with the options of `draw_negatives`, negatives of texts."""
    states, gold = lm.hidden_states(texts), gold_tokens(texts)
    return Positions(states, gold, draw_negatives(lm, states, gold, unigram, **options))


def fitted_start(lm: Unembedding, positions: Positions, sampler: str) -> tuple[float, float]:
    """scale and shift for a head: two scalars on the model's own logits, fitted to these positions
    and the first round of their negatives.
    """
    ids, labels, present = positions.candidates(sampler)
    rows = lm.unembedding[ids.to(lm.device)].float()  # (n, 1 + K, d)
    logits = (rows @ positions.hidden_states.to(lm.device)[:, :, None]).squeeze(-1)
    if lm.bias is not None:
        logits = logits + lm.bias[ids.to(lm.device)].float()
    return fit_start(logits.cpu()[present], labels[present])


def full_start(lm: Unembedding, positions: Positions) -> tuple[float, float]:
    """`fitted_start` where every other token is a negative: over the whole vocabulary."""
    logits = lm.logits(positions.hidden_states.to(lm.device)).cpu()
    labels = torch.zeros_like(logits).scatter_(1, positions.gold[:, None], 1.0)
    return fit_start(logits.flatten(), labels.flatten())


def shuffled(positions: Positions, sampler: str, size: int, seed: int = 0) -> Iterator[Batch]:
    """Batches of `size` positions without end. Every pass over them is shuffled by the seed and
    uses its own round of negatives; a rest that fills no batch is left out, fewer positions than a
    batch are one. ValueError where there is nothing to learn from.
    """
    rng, rounds = np.random.default_rng(seed), positions.negatives[sampler].shape[1] // NEGATIVES
    if len(positions) == 0 or rounds == 0:
        raise ValueError(f"nothing to train on: {len(positions)} positions, {rounds} negatives")
    order, turn = rng.permutation(len(positions)), int(rng.integers(rounds))
    while True:
        drawn = slice(turn * NEGATIVES, (turn + 1) * NEGATIVES)
        for start in range(0, max(1, len(order) - size + 1), size):
            index = torch.from_numpy(order[start : start + size])
            negatives = positions.negatives[sampler][index, drawn].long()
            yield positions.hidden_states[index], positions.gold[index], negatives
        order, turn = rng.permutation(len(positions)), (turn + 1) % rounds


def fit(
    head, batches, updates, learning_rate, loss=sampled_loss, watch=lambda update: None
) -> list[float]:
    """Train a head in place by a loss of `lib.sigmoid_head`, one update a batch; return the losses.
    `watch(update)` is called before each update and once after the last.
    """
    if torch.distributed.is_initialized() and torch.distributed.get_world_size() > 1:
        raise RuntimeError("a head is trained by one process: start it without `accelerate launch`")
    # a sampled loss touches some rows only, any other loss every row
    sparse = head.sparse_parameters() if loss is sampled_loss else []
    dense = [p for p in head.parameters() if all(p is not row for row in sparse)]
    kinds = ((torch.optim.SparseAdam, sparse), (torch.optim.Adam, dense))
    optimizers = [kind(parameters, lr=learning_rate) for kind, parameters in kinds if parameters]
    losses = []
    for update in progress(range(updates), "head"):
        watch(update)
        value = loss(head, *(tensor.to(head.bias.device) for tensor in next(batches)))
        value.backward()
        for optimizer in optimizers:
            for group in optimizer.param_groups:
                group["lr"] = learning_rate_at(update, updates, learning_rate, updates // 20)
            optimizer.step()
            optimizer.zero_grad()
        losses.append(value.item())
    watch(updates)
    return losses


@torch.no_grad()
def held_out_loss(head, positions: Positions, sampler: str, loss=sampled_loss) -> float:
    """Loss with the first round of a sampler's negatives. Nats a position."""
    negatives = positions.negatives[sampler][:, :NEGATIVES].long()
    total = 0.0
    for batch in zip(
        *(x.split(1024) for x in (positions.hidden_states, positions.gold, negatives))
    ):
        total += loss(head, *(x.to(head.bias.device) for x in batch)).item() * len(batch[0])
    return total / len(positions)


def best_learning_rate(loss_at: Callable[[float], float]) -> float:
    """The rate of the least loss: FIRST_RATE and its neighbours in LEARNING_RATES, then on until
    the best has a worse neighbour on either side (or the grid ends). A loss that is not finite
    counts as the largest number.
    """
    losses, best = {}, FIRST_RATE
    while True:
        place = LEARNING_RATES.index(best)
        near = LEARNING_RATES[max(0, place - 1) : place + 2]
        if not (untried := [rate for rate in near if rate not in losses]):
            return best
        for rate in untried:
            loss = loss_at(rate)
            losses[rate] = loss if math.isfinite(loss) else sys.float_info.max
        best = min(losses, key=losses.get)
