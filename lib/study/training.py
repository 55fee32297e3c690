"""One training loop for everything the study trains: one process, several, or GPUs (`accelerate`).

Batches are planned ahead from the seed, and every update draws its randomness (dropout, noise) from
(seed, update) alone: a killed run resumes exactly where its checkpoint stands.
"""

from collections.abc import Callable, Iterator
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
    loss: Callable[[nn.Module, dict[str, Tensor]], tuple[Tensor, Tensor]] = seq2seq_loss,
    description: str = "training",
) -> list[float]:
    """Train `model` in place with AdamW; return the loss of each update (nats a token).

    lengths (N,) or (N, 2): see `token_budget_batches`. `collate(indices, rng)` makes a batch;
    `loss(model, batch)` returns its summed loss and the number of terms. Several processes share
    each batch: their sums are divided by the global number of terms, so an update stays the same.
    On a GPU with bfloat16 arithmetic the forward passes run in it; the rest stays in float32.
    """
    # accelerate's own mixed precision would leave the model's `forward` changed
    accelerator = Accelerator(mixed_precision="no")
    trained = {name: p for name, p in model.named_parameters() if p.requires_grad}
    decayed = [p for p in trained.values() if p.dim() > 1]  # not biases, norms, signal vectors
    others = [p for p in trained.values() if p.dim() <= 1]
    groups = [
        {"params": decayed, "weight_decay": WEIGHT_DECAY},
        {"params": others, "weight_decay": 0.0},
    ]
    optimizer = torch.optim.AdamW(groups, lr=learning_rate, betas=(0.9, 0.98), eps=1e-8)
    wrapped, optimizer = accelerator.prepare(model, optimizer)
    losses, device = [], accelerator.device
    if checkpoint and checkpoint.exists():
        state = torch.load(checkpoint, map_location="cpu", weights_only=True)
        with torch.no_grad():
            for name, parameter in trained.items():
                parameter.copy_(state["model"][name])
        optimizer.load_state_dict(state["optimizer"])
        losses = state["losses"]
    if len(accelerator.gather(torch.tensor([len(losses)], device=device)).unique()) > 1:
        raise RuntimeError("processes have different checkpoints: STUDY_CACHE must be common")
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
        made = collate(batch[:1] if idle else share, rng)
        inputs = {name: value.to(device) for name, value in made.items()}
        bfloat16 = computes_in_bfloat16(device)
        with torch.autocast(device.type, torch.bfloat16, enabled=bfloat16):
            loss_sum, terms = (value * (not idle) for value in loss(wrapped, inputs))
        divisor = accelerator.reduce(terms, reduction="sum").clamp(min=1)
        # times processes: gradients are averaged over them
        accelerator.backward(loss_sum * processes / divisor)
        total = accelerator.reduce(loss_sum.detach(), reduction="sum")
        losses.append((total / divisor).item())
        accelerator.clip_grad_norm_(model.parameters(), CLIP_NORM)
        for group in optimizer.param_groups:
            group["lr"] = learning_rate_at(update, updates, learning_rate, warmup)
        optimizer.step()
        optimizer.zero_grad()
        due = (update + 1) % CHECKPOINT_EVERY == 0 and update + 1 < updates
        if checkpoint and due and accelerator.is_main_process:
            state = {"model": trained, "optimizer": optimizer.state_dict(), "losses": losses}
            write_atomically(checkpoint, lambda partial: torch.save(state, partial))  # noqa: B023
    model.eval()
    if checkpoint and accelerator.is_main_process:
        checkpoint.unlink(missing_ok=True)  # the caller keeps the model: this is for resuming only
    return losses


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
            first, longest = 0, 0
            for end, index in enumerate(some):
                longest = max(longest, target[index])
                if end > first and (end - first + 1) * longest > tokens_per_batch:
                    batches.append(some[first:end])
                    first, longest = end, target[index]
            batches.append(some[first:])
        yield from (batches[i] for i in rng.permutation(len(batches)))


def learning_rate_at(update: int, updates: int, peak: float, warmup: int) -> float:
    """Linear warm-up to `peak`, then linear decay to 0 at the end."""
    return peak * min((update + 1) / max(1, warmup), (updates - update) / max(1, updates - warmup))
