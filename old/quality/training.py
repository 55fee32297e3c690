"""From texts to a trained Sigmoid Head: hidden states and negatives are computed once, then every head learns from them in seconds."""

import hashlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from old.device import processes
from old.progress import progress
from old.quality.distributions import CHUNK, NextToken
from old.quality.head import SigmoidHead, fit_start, sampled_loss
from old.quality.language_models import LanguageModel, Text, texts_hash
from old.quality.negatives import SAMPLERS, TokenFrequencies, sample
from old.results import write_atomically
from old.training import learning_rate_at

Batch = tuple[Tensor, Tensor, Tensor]  # hidden_states (n, d), gold (n,), negatives (n, K)
Loss = Callable[[SigmoidHead, Tensor, Tensor, Tensor], Tensor]  # of a head and a batch -> scalar


@dataclass
class Positions:
    """The response positions of some texts, in the order of the texts.

    hidden_states (N, d) float32; gold (N,); negatives: {sampler: (N, rounds * K) int32}, -1 where there is none.
    """

    hidden_states: Tensor
    gold: Tensor
    negatives: dict[str, Tensor]

    def part(self, where: slice) -> "Positions":
        """Some of the positions."""
        return Positions(self.hidden_states[where], self.gold[where], {name: ids[where] for name, ids in self.negatives.items()})

    def candidates(self, sampler: str, part: slice, count: int) -> tuple[Tensor, Tensor]:
        """Of some positions the gold token (column 0) and the first `count` negatives: ids, and which there are. Both (n, 1 + count)"""
        ids = torch.cat([self.gold[part, None], self.negatives[sampler][part, :count].long()], 1)
        return ids.clamp(min=0), ids >= 0


def labels_of(ids: Tensor) -> Tensor:
    """1 for the gold token, 0 for negatives. ids (n, 1 + K) of `Positions.candidates` -> (n, 1 + K)"""
    labels = torch.zeros(ids.shape)
    labels[:, 0] = 1
    return labels


def hidden_states(lm: LanguageModel, texts: list[Text], folder: Path | None = None) -> Tensor:
    """Hidden states of all response positions, in the order of the texts. (N, d) on the CPU

    With a `folder` they are kept there, in a file named by the hash of texts and model, and read where it exists.
    """
    if not texts:
        raise ValueError("no texts: there is no position to compute hidden states of")
    file = None if folder is None else states_file(lm, texts, folder)
    if file is not None and file.exists():
        return load_file(file)["hidden_states"]
    ends = np.cumsum([len(text.output) for text in texts])
    states = torch.empty(int(ends[-1]), lm.unembedding.shape[1])
    for number, part in lm.hidden_states(texts):
        states[int(ends[number]) - len(part) : int(ends[number])] = part.cpu()
    if file is not None:
        write_atomically(file, lambda partial: save_file({"hidden_states": states}, partial))
    return states


def states_file(lm: LanguageModel, texts: list[Text], folder: Path) -> Path:
    """Where `hidden_states` keeps those of these texts."""
    return folder / f"hidden-{texts_hash(texts)}-{lm.fingerprint()}.safetensors"


def share_states(lm: LanguageModel, texts: list[Text], others: list[list[Text]], folder: Path) -> None:
    """Keep the hidden states of `texts` in the folder, as `hidden_states` does, but take those of texts that are also among `others` from
    the files of these, where there are any: a corpus that grows, or is mixed of others, costs what is new in it.
    """
    if states_file(lm, texts, folder).exists():
        return
    known: dict[Text, Tensor] = {}
    for other in [other for other in others if states_file(lm, other, folder).exists()]:
        known |= zip(other, hidden_states(lm, other, folder).split([len(text.output) for text in other]))
    new = [text for text in dict.fromkeys(texts) if text not in known]
    if new:
        known |= zip(new, hidden_states(lm, new).split([len(text.output) for text in new]))
    states = torch.cat([known[text] for text in texts])
    write_atomically(states_file(lm, texts, folder), lambda partial: save_file({"hidden_states": states}, partial))


def gold_tokens(texts: list[Text]) -> Tensor:
    """Output tokens of all texts in a row. (N,)"""
    return torch.tensor([token for text in texts for token in text.output])


def text_numbers(texts: list[Text]) -> np.ndarray:
    """The number of the text that each output token belongs to. (N,)"""
    return np.repeat(np.arange(len(texts)), [len(text.output) for text in texts])


def collect(
    lm: LanguageModel,
    texts: list[Text],
    unigram: TokenFrequencies,
    *,
    count: int = 10,
    rounds: int = 1,
    mode: str = "last",
    seed: int = 0,
    samplers: tuple[str, ...] = SAMPLERS,
    folder: Path | None = None,
) -> Positions:
    """Hidden states of the texts' response positions and `rounds` sets of `count` negatives a position from every sampler.

    With a `folder` both are kept there and read where they exist, in files named by the hash of everything they depend on.
    Memory: 4 d bytes a position and 4 * rounds * count a sampler; nothing of the size of the vocabulary but one chunk.
    """
    states, gold = hidden_states(lm, texts, folder), gold_tokens(texts)
    described = f"{texts_hash(texts)} {lm.fingerprint()} {unigram.fingerprint()} {count} {rounds} {mode} {seed} {sorted(samplers)}"
    file = None if folder is None else folder / f"negatives-{hashlib.sha256(described.encode()).hexdigest()[:16]}.safetensors"
    if file is not None and file.exists():
        return Positions(states, gold, load_file(file))
    generator = torch.Generator(lm.device).manual_seed(seed)
    negatives = {name: torch.empty(len(gold), rounds * count, dtype=torch.int32) for name in samplers}
    for start in progress(range(0, len(gold), CHUNK), "negatives"):
        part = slice(start, start + CHUNK)
        next_token = NextToken(lm.logits(states[part].to(lm.device)), mode)
        drawn = sample(next_token, gold[part].to(lm.device), unigram, count, generator, samplers, rounds)
        for name, ids in drawn.items():
            negatives[name][part] = ids.cpu()
    if file is not None:
        write_atomically(file, lambda partial: save_file(negatives, partial))
    return Positions(states, gold, negatives)


def fitted_start(lm: LanguageModel, positions: Positions, sampler: str, count: int = 10, limit: int = 4096) -> tuple[float, float]:
    """scale and shift for a head: two scalars on the model's own logits, fitted on the first `limit` positions and their first round."""
    hidden = positions.hidden_states[:limit].to(lm.device)
    ids, present = positions.candidates(sampler, slice(limit), count)
    ids = ids.to(lm.device)
    rows = lm.unembedding[ids].float()  # (n, 1 + K, d)
    logits = (rows @ hidden[:, :, None]).squeeze(-1) + (0.0 if lm.bias is None else lm.bias[ids].float())
    return fit_start(logits.cpu()[present], labels_of(ids)[present])


def full_start(lm: LanguageModel, positions: Positions, limit: int = 128) -> tuple[float, float]:
    """`fitted_start` for the loss over the whole vocabulary: every other token is a negative at each of the first `limit` positions."""
    logits = lm.logits(positions.hidden_states[:limit].to(lm.device)).cpu()
    labels = torch.zeros_like(logits).scatter_(1, positions.gold[:limit, None], 1.0)
    return fit_start(logits.flatten(), labels.flatten())


def optimizers_of(head: SigmoidHead, learning_rate: float, sparse: bool) -> list[torch.optim.Optimizer]:
    """SparseAdam for the rows that a sampled loss touches, Adam for the rest. Not `sparse`: the loss touches every row."""
    rows = head.sparse_parameters() if sparse else []
    others = [p for p in head.parameters() if all(p is not row for row in rows)]
    return [kind(part, lr=learning_rate) for kind, part in ((torch.optim.SparseAdam, rows), (torch.optim.Adam, others)) if part]


def fit(
    head: SigmoidHead,
    positions: Positions,
    sampler: str,
    *,
    updates: int,
    learning_rate: float,
    positions_per_batch: int,
    count: int = 10,
    seed: int = 0,
    loss: Loss = sampled_loss,
    watch: Callable[[int], None] | None = None,
) -> list[float]:
    """Train a head in place for a fixed number of updates; return the loss of each.

    Every pass over the positions is shuffled by the seed and uses its own round of negatives, round after round. `loss` other than
    `sampled_loss` ignores the negatives. `watch(update)` is called before each update and once after the last.
    """
    size, rng = len(positions.gold), np.random.default_rng(seed)
    if size == 0:
        raise ValueError("nothing to train on: the texts have no response position")
    rounds = positions.negatives[sampler].shape[1] // count
    if rounds == 0:
        raise ValueError(f"{count} negatives a position are asked for, but only {positions.negatives[sampler].shape[1]} were drawn")

    def batches() -> Iterator[Batch]:
        order, turn = rng.permutation(size), int(rng.integers(rounds))  # seeds start from different negatives
        while True:
            yield from one_pass(positions, sampler, order, positions_per_batch, slice(turn * count, (turn + 1) * count))
            order, turn = rng.permutation(size), (turn + 1) % rounds

    return learn(head, batches(), updates=updates, learning_rate=learning_rate, loss=loss, watch=watch)


def one_pass(positions: Positions, sampler: str, order: np.ndarray, positions_per_batch: int, drawn: slice) -> Iterator[Batch]:
    """The positions in this order (N,), in batches, with some columns of a sampler's negatives. A rest that fills no batch is left out."""
    shuffled = torch.from_numpy(order)
    for start in range(0, max(1, len(order) - positions_per_batch + 1), positions_per_batch):  # fewer than a batch are a batch
        index = shuffled[start : start + positions_per_batch]
        yield positions.hidden_states[index], positions.gold[index], positions.negatives[sampler][index, drawn].long()


def learn(
    head: SigmoidHead,
    batches: Iterator[Batch],
    *,
    updates: int,
    learning_rate: float,
    loss: Loss = sampled_loss,
    watch: Callable[[int], None] | None = None,
) -> list[float]:
    """One update of a head a batch, under the schedule of the study; return the loss of each. `watch` as in `fit`.

    Raises RuntimeError under several processes: the sparse gradients of a head are not shared between them, and one process is enough.
    """
    if processes() > 1:
        raise RuntimeError("a head is trained by one process, on one GPU: start it without `accelerate launch` or `torchrun`")
    optimizers, device, losses = optimizers_of(head, learning_rate, sparse=loss is sampled_loss), head.bias.device, []
    for update in progress(range(updates), "head"):
        if watch is not None:
            watch(update)
        value = loss(head, *(tensor.to(device) for tensor in next(batches)))
        value.backward()
        for optimizer in optimizers:
            for group in optimizer.param_groups:
                group["lr"] = learning_rate_at(update, updates, learning_rate, warmup=updates // 20)
            optimizer.step()
            optimizer.zero_grad()
        losses.append(value.item())
    if watch is not None:
        watch(updates)
    return losses


@torch.no_grad()
def held_out_loss(
    head: SigmoidHead, positions: Positions, sampler: str, count: int = 10, *, limit: int, loss: Loss = sampled_loss, batch: int = 1024
) -> float:
    """Loss on the first `limit` of positions that the head never saw, with the first round of a sampler's negatives. Nats a position."""
    total, device, limit = 0.0, head.bias.device, min(limit, len(positions.gold))
    for start in range(0, limit, batch):
        part = slice(start, min(start + batch, limit))
        tensors = (positions.hidden_states[part], positions.gold[part], positions.negatives[sampler][part, :count].long())
        total += loss(head, *(tensor.to(device) for tensor in tensors)).item() * len(tensors[1])
    return total / limit
