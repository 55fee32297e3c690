"""The heads of the study: how each is trained, with the same care for all, and where it is kept."""

import hashlib
import json
import math
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

from old import paths
from old.quality import scores
from old.quality.data import RECIPE, Settings, language_model, positions, training_texts
from old.quality.head import SigmoidHead, full_loss, sampled_loss, softmax_loss
from old.quality.negatives import SAMPLERS, TokenFrequencies
from old.quality.training import Positions, fit, fitted_start, full_start, gold_tokens, held_out_loss
from old.results import write_atomically, write_json

LEARNING_RATES = (3e-5, 1e-4, 3e-4, 1e-3, 3e-3, 1e-2, 3e-2, 1e-1, 3e-1)  # each head's is searched among them, from START outwards
START = 3e-3
FULL_VOCABULARY_SHARE = 16  # a full-vocabulary loss sees 1 in so many positions: about the cost of a sampled one
RELEASED = "sigmoid-lowrank"  # the kind of head that is committed
WATCH_EVERY = 20  # updates between two points of a learning curve
HELD_OUT = 4096  # validation positions that judge a head in training: some choose its learning rate, as many others are reported


@dataclass(frozen=True)
class Head:
    """One way to train a head."""

    low_rank: bool = True  # of Settings.rank, or the paper's full head
    sampler: str = scores.METHOD
    fitted: bool = True  # start from two fitted scalars, or from the raw copy of the unembedding
    loss: str = "sampled"


HEADS: dict[str, Head] = {
    "sigmoid-lowrank": Head(),
    "sigmoid-full": Head(low_rank=False),
    **{name: Head(sampler=name) for name in SAMPLERS if name != scores.METHOD},
    "sigmoid-lowrank-raw": Head(fitted=False),
    "sigmoid-full-raw": Head(low_rank=False, fitted=False),
    "full-bce": Head(loss="full"),
    "softmax-ce": Head(loss="softmax", fitted=False),  # the model's own softmax is its start
}
LOSSES = {"sampled": sampled_loss, "full": full_loss, "softmax": softmax_loss}


def trained_head(settings: Settings, name: str, seed: int) -> SigmoidHead:
    """A head as it is kept (half precision), trained first where the cache lacks it."""
    file = head_file(settings, name, seed)
    if not file.exists():
        train_head(settings, name, seed)
    return SigmoidHead.load(file, language_model(settings.model).unembedding)


def train_head(settings: Settings, name: str, seed: int) -> list[dict]:
    """Train a head at its chosen learning rate and keep it. Returns its learning curve: `update`, `bce_own` (held-out loss with its own
    sampler's negatives; for a full-vocabulary loss, that loss, before the end on few positions) and `bce_common` (negatives of the paper's
    sampler, the same for all).
    """
    curve: list[dict] = []
    head = _train(settings, name, learning_rate(settings, name), seed, curve)
    write_atomically(head_file(settings, name, seed), lambda partial: head.save(partial, settings.model))
    return curve


def learning_rate(settings: Settings, name: str) -> float:
    """The best learning rate for this head, by its own held-out loss with seed 0; searched once, then read."""
    file = head_file(settings, name, 0).with_suffix(".rates.json")
    if not file.exists():
        chosen_by = held_out(settings, reported=False)
        losses = search(lambda rate: _own_loss(settings, name, _train(settings, name, rate, 0), chosen_by, own_limit(name)))
        write_json({str(rate): loss for rate, loss in losses.items()}, file)
    losses = json.loads(file.read_text())
    return float(min(losses, key=losses.get))


def search(loss_at: Callable[[float], float]) -> dict[float, float]:
    """Losses by learning rate: START and its neighbours, then on until the best has a worse neighbour on either side (or the grid ends).

    So the best is the edge of what was tried only where the grid ends. A loss that is not finite counts as the largest number.
    """
    losses: dict[float, float] = {}
    best = LEARNING_RATES.index(START)
    while untried := [rate for rate in LEARNING_RATES[max(0, best - 1) : best + 2] if rate not in losses]:
        for rate in untried:
            loss = loss_at(rate)
            losses[rate] = loss if math.isfinite(loss) else sys.float_info.max
        best = LEARNING_RATES.index(min(losses, key=losses.get))
    return losses


def head_file(settings: Settings, name: str, seed: int) -> Path:
    """Where a trained head is kept; its name says everything it depends on."""
    described = json.dumps([settings.of_heads(), settings.data(), RECIPE], sort_keys=True)
    key = hashlib.sha256(described.encode()).hexdigest()[:16]
    return paths.CACHE / "models" / f"head-{name}-{seed}-{key}.safetensors"


def _train(settings: Settings, name: str, rate: float, seed: int, curve: list[dict] | None = None) -> SigmoidHead:
    lm, recipe, training = language_model(settings.model), HEADS[name], positions(settings, "train")
    torch.manual_seed(seed)
    if not recipe.fitted:
        start = (1.0, 0.0)
    else:
        start = full_start(lm, training) if recipe.loss == "full" else fitted_start(lm, training, recipe.sampler, settings.negatives)
    head = SigmoidHead(lm.unembedding, lm.bias, settings.rank if recipe.low_rank else None, *start)

    def watch(update: int) -> None:
        if curve is not None and (update % WATCH_EVERY == 0 or update == settings.updates):
            reported = held_out(settings, reported=True)
            limit = own_limit(name) // (1 if recipe.loss == "sampled" or update == settings.updates else 8)
            common = held_out_loss(head, reported, scores.METHOD, settings.negatives, limit=HELD_OUT)
            curve.append({"update": update, "bce_own": _own_loss(settings, name, head, reported, limit), "bce_common": common})

    fit(
        head,
        training,
        recipe.sampler,
        updates=settings.updates,
        learning_rate=rate,
        positions_per_batch=max(1, settings.positions_per_batch // (1 if recipe.loss == "sampled" else FULL_VOCABULARY_SHARE)),
        count=settings.negatives,
        seed=seed,
        loss=LOSSES[recipe.loss],
        watch=watch,
    )
    return head.eval()


def held_out(settings: Settings, reported: bool) -> Positions:
    """Up to HELD_OUT validation positions: of the first half of the texts to choose learning rates, of the second half to report losses."""
    everything = positions(settings, "validation")
    middle = len(everything.gold) // 2
    start, end = (middle, len(everything.gold)) if reported else (0, middle)
    return everything.part(slice(start, min(end, start + HELD_OUT)))


def _own_loss(settings: Settings, name: str, head: SigmoidHead, held_out: Positions, limit: int) -> float:
    recipe = HEADS[name]
    return held_out_loss(head, held_out, recipe.sampler, settings.negatives, limit=limit, loss=LOSSES[recipe.loss])


def own_limit(name: str) -> int:
    """Held-out positions that a head's own loss is measured on: fewer where each costs a pass over the vocabulary."""
    return HELD_OUT if HEADS[name].loss == "sampled" else HELD_OUT // 2


def export(seeds: tuple[int, ...] = (0, 1, 2)) -> None:
    """Copy the small heads of the `cpu` profile, and the unigram counts of their training labels, to data/heads (committed)."""
    settings = Settings()
    paths.HEADS.mkdir(parents=True, exist_ok=True)
    for seed in seeds:
        trained_head(settings, RELEASED, seed).save(released_head(settings.model, seed), settings.model)
    counts = torch.bincount(gold_tokens(list(training_texts(settings, "train"))), minlength=len(language_model(settings.model).unembedding))
    save_file({"counts": counts.int()}, paths.HEADS / f"{settings.model}.unigram.safetensors")


def released_head(model: str, seed: int) -> Path:
    """File of a committed head."""
    return paths.HEADS / f"{model}.{RELEASED}.{seed}.safetensors"


def released_frequencies(model: str) -> TokenFrequencies:
    """Unigram frequencies of the labels that the committed heads were trained on."""
    return TokenFrequencies(load_file(paths.HEADS / f"{model}.unigram.safetensors")["counts"])


if __name__ == "__main__":
    export()
