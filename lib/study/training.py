"""One training loop for everything the study trains: one process, several, or GPUs (`accelerate`).

Batches are planned ahead from the seed, and every update draws its randomness (dropout, noise) from
(seed, update) alone: a killed run resumes exactly where its checkpoint stands.

What a machine can do does not change an update, but for rounding: several processes share its
batch, and each computes its share in passes of at most STUDY_TOKENS_PER_PASS padded tokens, where
this variable is set, whose gradients add up. On a GPU with bfloat16 arithmetic the passes run in
it; weights, optimizer and loss stay in float32.
"""

import os
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path

import numpy as np
import torch
from accelerate import Accelerator
from torch import Tensor, nn

from lib.study.models import computes_in_bfloat16, seq2seq_loss
from lib.study.paths import progress
from lib.study.rows import write_atomically

WEIGHT_DECAY, CLIP_NORM = 0.01, 1.0
CHECKPOINT_EVERY = 200  # updates
PASS = "STUDY_TOKENS_PER_PASS"  # most padded tokens that a process computes at once


def train(
    model: nn.Module,
    lengths: np.ndarray,
    collate: Callable[[np.ndarray, np.random.Generator], dict[str, Tensor]],
    *,
    updates: int,
    learning_rate: float,
    tokens_per_batch: int,
    seed: int,
    checkpoint: Path | None = None,
    warmup: int = 50,
    accelerator: Accelerator | None = None,
    loss: Callable[[nn.Module, dict[str, Tensor]], tuple[Tensor, Tensor]] = seq2seq_loss,
    description: str = "training",
) -> list[float]:
    """Train `model` in place with AdamW; return the loss of each update (nats a token).

    lengths (N,) or (N, 2): see `token_budget_batches`. `collate(indices, rng)` makes a batch;
    `loss(model, batch)` returns its summed loss and the number of terms. Sums of all processes and
    passes are divided by the global number, so neither changes an update. On several machines a
    `checkpoint` must lie in a folder common to all.
    """
    # accelerate's own mixed precision would leave the model's `forward` changed
    accelerator = accelerator or Accelerator(mixed_precision="no")
    optimizer = torch.optim.AdamW(
        _decay_groups(model), lr=learning_rate, betas=(0.9, 0.98), eps=1e-8
    )
    wrapped, optimizer = accelerator.prepare(model, optimizer)
    losses = _resume(checkpoint, model, optimizer) if checkpoint and checkpoint.exists() else []
    start = torch.tensor([len(losses)], device=accelerator.device)
    if len(accelerator.gather(start).unique()) > 1:
        raise RuntimeError(
            "processes have different checkpoints: STUDY_CACHE must be common to all"
        )
    size = np.asarray(lengths).reshape(len(lengths), -1).max(1)
    pass_budget = float(os.environ.get(PASS) or "inf")
    batches = token_budget_batches(lengths, tokens_per_batch, seed)
    for _ in losses:
        next(batches)

    model.train()
    rank, processes = accelerator.process_index, accelerator.num_processes
    todo = range(len(losses), updates)
    for update in progress(todo, description, initial=len(losses), total=updates):
        batch = next(batches)
        share = batch[rank::processes]
        idle = len(share) == 0  # fewer examples than processes: compute one along, uncounted
        mixed = np.random.SeedSequence((seed, update, rank)).generate_state(1, np.uint64)[0]
        torch.manual_seed(int(mixed >> 1))
        rng = np.random.default_rng((seed, update, rank))
        passes = within_budget(batch[:1] if idle else share, size, pass_budget)
        made = (collate(some, rng) for some in passes)
        losses.append(_backward(wrapped, made, len(passes), loss, accelerator, weight=1 - idle))
        accelerator.clip_grad_norm_(model.parameters(), CLIP_NORM)
        for group in optimizer.param_groups:
            group["lr"] = learning_rate_at(update, updates, learning_rate, warmup)
        optimizer.step()
        optimizer.zero_grad()
        due = (update + 1) % CHECKPOINT_EVERY == 0 and update + 1 < updates
        if checkpoint and due and accelerator.is_main_process:
            state = {"model": _trained(model), "optimizer": optimizer.state_dict()}
            state["losses"] = losses
            write_atomically(checkpoint, lambda partial: torch.save(state, partial))  # noqa: B023
    model.eval()
    if checkpoint and accelerator.is_main_process:
        checkpoint.unlink(missing_ok=True)  # the caller keeps the model: this is for resuming only
    return losses


def _backward(
    model: nn.Module,
    batches: Iterator[dict[str, Tensor]],
    passes: int,
    loss: Callable,
    accelerator: Accelerator,
    weight: int,
) -> float:
    """Leave in the model the gradients of the mean loss a term, over all passes of all processes,
    and return that mean. `weight` 0: the passes of this process do not count.

    Processes may differ in their number of passes: they meet in the last one only.
    """
    bfloat16, device = computes_in_bfloat16(accelerator.device), accelerator.device
    loss_sum, terms, divisor = 0.0, 0, 1
    for number, batch in enumerate(batches, 1):
        inputs = {name: value.to(device) for name, value in batch.items()}
        last = number == passes
        with nullcontext() if last else accelerator.no_sync(model):
            with torch.autocast(device.type, torch.bfloat16, enabled=bfloat16):
                pass_sum, pass_terms = (value * weight for value in loss(model, inputs))
            loss_sum, terms = loss_sum + pass_sum.detach(), terms + pass_terms
            if last:  # only now the divisor is known, which the gradients of earlier passes lack
                divisor = accelerator.reduce(terms, reduction="sum").clamp(min=1)
                for gradient in (p.grad for p in model.parameters() if p.grad is not None):
                    gradient.div_(divisor)
            # times processes: gradients are averaged over them
            accelerator.backward(pass_sum * accelerator.num_processes / divisor)
    return (accelerator.reduce(loss_sum, reduction="sum") / divisor).item()


def token_budget_batches(
    lengths: np.ndarray, tokens_per_batch: int, seed: int, chunk: int = 50
) -> Iterator[np.ndarray]:
    """Endless batches of example indices: shuffled epochs, similar lengths together, little
    padding.

    lengths (N,) tokens an example, or (N, 2) target and source tokens. Within `chunk` batches'
    worth of shuffled examples, targets are sorted in steps of 8 tokens and, within a step, by
    source. A batch's padded targets stay within `tokens_per_batch`; it holds at least one example.
    """
    if len(lengths) == 0:
        raise ValueError("nothing to train on: the training set is empty")
    lengths = np.asarray(lengths).reshape(len(lengths), -1)
    target, rng = lengths[:, 0], np.random.default_rng(seed)
    size = max(1, int(chunk * tokens_per_batch / target.mean()))
    while True:
        order, batches = rng.permutation(len(target)), []
        for start in range(0, len(order), size):
            some = order[start : start + size]
            some = some[np.lexsort((lengths[some, -1], -(-target[some] // 8)))]
            batches += within_budget(some, target, tokens_per_batch)
        yield from (batches[i] for i in rng.permutation(len(batches)))


def within_budget(indices: np.ndarray, lengths: np.ndarray, budget: float) -> list[np.ndarray]:
    """Examples in their order, cut so that the padded tokens of each piece stay within `budget`;
    each holds at least one. indices (n,) of examples, lengths (N,) tokens of every example.
    """
    pieces, first, longest = [], 0, 0
    for end, index in enumerate(indices):
        longest = max(longest, lengths[index])
        if end > first and (end - first + 1) * longest > budget:
            pieces.append(indices[first:end])
            first, longest = end, lengths[index]
    return [*pieces, indices[first:]]


def learning_rate_at(update: int, updates: int, peak: float, warmup: int) -> float:
    """Linear warm-up to `peak`, then linear decay to 0 at the end."""
    return peak * min((update + 1) / max(1, warmup), (updates - update) / max(1, updates - warmup))


def _decay_groups(model: nn.Module) -> list[dict]:
    """Weight decay for matrices only: biases, norms and learned signal vectors go without."""
    trained = list(_trained(model).values())
    return [
        {"params": [p for p in trained if p.dim() > 1], "weight_decay": WEIGHT_DECAY},
        {"params": [p for p in trained if p.dim() <= 1], "weight_decay": 0.0},
    ]


def _trained(model: nn.Module) -> dict[str, Tensor]:
    return {name: p for name, p in model.named_parameters() if p.requires_grad}


def _resume(checkpoint: Path, model: nn.Module, optimizer) -> list[float]:
    """Put weights and optimizer back to where the checkpoint stands; return the losses so far."""
    state = torch.load(checkpoint, map_location="cpu", weights_only=True)
    with torch.no_grad():
        for name, parameter in _trained(model).items():
            parameter.copy_(state["model"][name])
    optimizer.load_state_dict(state["optimizer"])
    return state["losses"]
