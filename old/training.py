"""One short training loop for everything the study trains: one process, several, or GPUs through `accelerate`.

The batches of a run are planned ahead from the seed, and every update draws its randomness (dropout, noise) from (seed, update) alone.
So a run that was killed resumes exactly where its last checkpoint stands, and the same seed gives the same numbers.

What a machine is able to do does not change an update, but for rounding (and for which example gets which random draw): several processes
share its batch, and where the environment variable STUDY_TOKENS_PER_PASS is set, each computes its share in passes of at most that many
padded tokens, whose gradients add up. On a GPU with bfloat16 arithmetic the passes run in it (autocast); weights, optimizer and loss stay
in float32.
"""

import json
import os
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path

import numpy as np
import torch
from accelerate import Accelerator
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from old.device import computes_in_bfloat16
from old.progress import progress
from old.results import write_atomically
from old.seq2seq import seq2seq_loss

WEIGHT_DECAY, CLIP_NORM = 0.01, 1.0
CHECKPOINT_EVERY = 200  # updates
PASS = "STUDY_TOKENS_PER_PASS"  # environment variable: most padded tokens that a process computes at once, for want of memory


def token_budget_batches(lengths: np.ndarray, tokens_per_batch: int, seed: int, chunk: int = 50) -> Iterator[np.ndarray]:
    """Endless batches of example indices: shuffled epochs, examples of similar length together, little padding.

    lengths (N,) tokens an example, or (N, 2) target and source tokens. Within `chunk` batches' worth of shuffled examples, targets are
    sorted in steps of 8 tokens and, within a step, by source. A batch's padded targets stay within `tokens_per_batch`; it holds at least
    one example.
    """
    if len(lengths) == 0:
        raise ValueError("nothing to train on: the training set is empty")
    lengths = np.asarray(lengths).reshape(len(lengths), -1)
    target = lengths[:, 0]
    rng = np.random.default_rng(seed)
    while True:
        order = rng.permutation(len(target))
        size = max(1, int(chunk * tokens_per_batch / target.mean()))
        batches = []
        for start in range(0, len(order), size):
            part = order[start : start + size]
            part = part[np.lexsort((lengths[part, -1], -(-target[part] // 8)))]
            batches += within_budget(part, target, tokens_per_batch)
        yield from (batches[i] for i in rng.permutation(len(batches)))


def within_budget(indices: np.ndarray, lengths: np.ndarray, budget: float) -> list[np.ndarray]:
    """Examples, in their order, cut into parts whose padded tokens stay within `budget`; each part holds at least one.

    indices (n,) of examples, lengths (N,) tokens of every example.
    """
    parts, first, longest = [], 0, 0
    for end, index in enumerate(indices):
        longest = max(longest, lengths[index])
        if end > first and (end - first + 1) * longest > budget:
            parts.append(indices[first:end])
            first, longest = end, lengths[index]
    return [*parts, indices[first:]]


def learning_rate_at(update: int, updates: int, peak: float, warmup: int) -> float:
    """Linear warm-up to `peak`, then linear decay to 0 at the end."""
    return peak * min((update + 1) / max(1, warmup), (updates - update) / max(1, updates - warmup))


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
    """Train `model` in place with AdamW for a fixed number of updates; return the loss of each update (nats a token).

    `collate(indices, rng)` makes one batch; `loss(model, batch)` returns its summed loss and the number of terms in the sum. Sums of all
    processes and passes are divided by the global number, so neither number changes an update.
    Several processes come from `accelerate launch` (on CPUs with `--cpu`); on several machines they need a common cache folder.
    With `checkpoint` (a safetensors file) an interrupted run continues from it, bit for bit.
    """
    accelerator = accelerator or Accelerator(mixed_precision="no")  # ours is below: accelerate would leave the model's `forward` changed
    optimizer = torch.optim.AdamW(_decay_groups(model), lr=learning_rate, betas=(0.9, 0.98), eps=1e-8)
    wrapped, optimizer = accelerator.prepare(model, optimizer)
    names = [name for name, parameter in model.named_parameters() if parameter.requires_grad]
    start, losses = _load(checkpoint, model, optimizer, names) if checkpoint is not None and checkpoint.exists() else (0, [])
    if checkpoint is not None and len(accelerator.gather(torch.tensor([start], device=accelerator.device)).unique()) > 1:
        raise RuntimeError("the processes see different checkpoints: on several machines STUDY_CACHE must name a folder common to all")
    size, pass_budget = np.asarray(lengths).reshape(len(lengths), -1).max(1), float(os.environ.get(PASS) or "inf")
    batches = token_budget_batches(lengths, tokens_per_batch, seed)
    for _ in range(start):
        next(batches)

    model.train()
    rank, processes = accelerator.process_index, accelerator.num_processes
    for update in progress(range(start, updates), description, initial=start, total=updates):
        batch = next(batches)
        share = batch[rank::processes]
        idle = len(share) == 0  # fewer examples than processes: this one computes an example along, without counting it
        torch.manual_seed(_mix(seed, update, rank))
        rng = np.random.default_rng((seed, update, rank))
        passes = within_budget(batch[:1] if idle else share, size, pass_budget)
        losses.append(_backward(wrapped, (collate(part, rng) for part in passes), len(passes), loss, accelerator, weight=1 - idle))
        accelerator.clip_grad_norm_(model.parameters(), CLIP_NORM)
        for group in optimizer.param_groups:
            group["lr"] = learning_rate_at(update, updates, learning_rate, warmup)
        optimizer.step()
        optimizer.zero_grad()
        if checkpoint is not None and (update + 1) % CHECKPOINT_EVERY == 0 and update + 1 < updates and accelerator.is_main_process:
            _save(checkpoint, model, optimizer, names, losses)
    model.eval()
    if checkpoint is not None and accelerator.is_main_process:
        checkpoint.unlink(missing_ok=True)  # the caller keeps the trained model; a checkpoint is only for resuming
    return losses


def _backward(
    model: nn.Module, batches: Iterator[dict[str, Tensor]], passes: int, loss: Callable, accelerator: Accelerator, weight: int
) -> float:
    """Leave in the model the gradients of the mean loss a term over all passes of all processes, and return that mean.

    Processes may differ in their number of passes: they meet in the last one only. `weight` 0: this process's passes do not count.
    """
    loss_sum, terms, divisor = 0.0, 0, 1
    for number, batch in enumerate(batches, 1):
        inputs = {name: value.to(accelerator.device) for name, value in batch.items()}
        with nullcontext() if number == passes else accelerator.no_sync(model):
            with torch.autocast(accelerator.device.type, torch.bfloat16, enabled=computes_in_bfloat16(accelerator.device)):
                pass_sum, pass_terms = (value * weight for value in loss(model, inputs))
            loss_sum, terms = loss_sum + pass_sum.detach(), terms + pass_terms
            if number == passes:  # only now the number to divide by is known; the gradients of earlier passes still lack it
                divisor = accelerator.reduce(terms, reduction="sum").clamp(min=1)
                for gradient in (p.grad for p in model.parameters() if p.grad is not None):
                    gradient.div_(divisor)
            accelerator.backward(pass_sum * accelerator.num_processes / divisor)  # times processes: gradients are averaged over them
    return (accelerator.reduce(loss_sum, reduction="sum") / divisor).item()


def _decay_groups(model: nn.Module) -> list[dict]:
    """Weight decay for matrices only: biases, norms and learned signal vectors go without."""
    trained = [p for p in model.parameters() if p.requires_grad]
    return [
        {"params": [p for p in trained if p.dim() > 1], "weight_decay": WEIGHT_DECAY},
        {"params": [p for p in trained if p.dim() <= 1], "weight_decay": 0.0},
    ]


def _mix(*numbers: int) -> int:
    """One torch seed from several integers."""
    return int(np.random.SeedSequence(numbers).generate_state(1, np.uint64)[0] >> 1)


def _state(model: nn.Module, optimizer, names: list[str]) -> dict[str, Tensor]:
    tensors = {f"model.{name}": dict(model.named_parameters())[name].detach() for name in names}
    for name in names:
        for key, value in optimizer.state[dict(model.named_parameters())[name]].items():
            tensors[f"optimizer.{key}.{name}"] = value
    return {name: value.contiguous() for name, value in tensors.items()}


def _save(checkpoint: Path, model: nn.Module, optimizer, names: list[str], losses: list[float]) -> None:
    """Write weights, optimizer moments and the losses so far; atomic, so a kill leaves the previous checkpoint whole."""
    state, metadata = _state(model, optimizer, names), {"losses": json.dumps(losses)}
    write_atomically(checkpoint, lambda partial: save_file(state, partial, metadata=metadata))


def _load(checkpoint: Path, model: nn.Module, optimizer, names: list[str]) -> tuple[int, list[float]]:
    parameters = dict(model.named_parameters())
    with safe_open(checkpoint, framework="pt") as stored, torch.no_grad():
        for key in stored.keys():  # noqa: SIM118 - not a dict
            kind, rest = key.split(".", 1)
            if kind == "model":
                parameters[rest].copy_(stored.get_tensor(key))
            else:
                moment, name = rest.split(".", 1)
                value = stored.get_tensor(key)
                optimizer.state[parameters[name]][moment] = value if moment == "step" else value.to(parameters[name].device)
        losses = json.loads(stored.metadata()["losses"])
    return len(losses), losses
