"""The heads of the study: how each is trained, with the same care for all, and kept.

What they learn, and how long, is one argument of everything built on them, `training`:

    {"corpus": "docstrings", "train_texts": 2000, "validation_texts": 300, "updates": 400,
     "positions_per_batch": 1024, "rank": 32, "dominant": "last"}
"""

from pathlib import Path
from typing import NamedTuple

import pandas as pd
import torch
from safetensors.torch import load_file
from torch import Tensor

from lib.quality import hidden_states as of_model
from lib.quality import scores
from lib.quality import training as heads
from lib.quality.hidden_states import corpus_negatives, last_layer, unembedding_of
from lib.sampler import METHOD, SAMPLERS, TokenFrequencies
from lib.sigmoid_head import SigmoidHead, full_loss, sampled_loss, softmax_loss
from lib.study import paths
from lib.study.cache import cached, experiment

FULL_VOCABULARY_SHARE = 16  # a full-vocabulary loss sees 1 in so many positions: at about the cost
WATCH_EVERY = 20  # updates between two points of a learning curve
HELD_OUT = 4096  # validation positions: some choose learning rates, as many others report losses
RELEASED = "sigmoid-lowrank"  # the kind of head that is committed


class Recipe(NamedTuple):
    """One way to train a head."""

    low_rank: bool = True  # of training["rank"], or the paper's full head
    sampler: str = METHOD
    fitted: bool = True  # start from two fitted scalars, or from the raw copy of the unembedding
    loss: str = "sampled"


HEADS = {
    "sigmoid-lowrank": Recipe(),
    "sigmoid-full": Recipe(low_rank=False),
    **{name: Recipe(sampler=name) for name in SAMPLERS if name != METHOD},
    "sigmoid-lowrank-raw": Recipe(fitted=False),
    "sigmoid-full-raw": Recipe(low_rank=False, fitted=False),
    "full-bce": Recipe(loss="full"),
    "softmax-ce": Recipe(loss="softmax", fitted=False),  # the model's own softmax is its start
}
LOSSES = {"sampled": sampled_loss, "full": full_loss, "softmax": softmax_loss}


@cached(version=1, built_on=[corpus_negatives, last_layer])
def head_learning_rate(head: str, model: str, training: dict) -> float:
    """The best for this head, by its own held-out loss with seed 0."""
    chosen_by = _held_out(model, training, reported=False)

    def loss_at(rate: float) -> float:
        return _own_loss(HEADS[head], _train(head, 0, model, training, rate), chosen_by)

    return heads.best_learning_rate(loss_at)


@cached(version=1, built_on=[head_learning_rate])
def trained_head(head: str, seed: int, model: str, training: dict) -> dict[str, Tensor]:
    """The tensors of a head in half precision, trained at its learning rate; and its `curve`
    (n, 3): update, held-out loss with its own sampler's negatives (or over the vocabulary, before
    the end on few positions), held-out loss with those of METHOD, the same for all.
    """
    recipe, rate = HEADS[head], head_learning_rate(head, model, training)
    held_out, curve = _held_out(model, training, reported=True), []

    def watch(trained: SigmoidHead, update: int) -> None:
        last = update == training["updates"]
        if last or update % WATCH_EVERY == 0:
            few = recipe.loss != "sampled" and not last
            own = _own_loss(recipe, trained, held_out, 8 if few else 1)
            curve.append((update, own, heads.held_out_loss(trained, held_out, METHOD)))

    trained = _train(head, seed, model, training, rate, watch)
    tensors = {name: p.detach().half() for name, p in trained.named_parameters()}
    return tensors | {"curve": torch.tensor(curve, dtype=torch.float64)}


def _train(head, seed, model, training, rate, watch=lambda head, update: None) -> SigmoidHead:
    recipe, lm = HEADS[head], unembedding_of(model)
    positions, size = of_model.positions(model, training, "train"), training["positions_per_batch"]
    start = (1.0, 0.0)
    if recipe.fitted and recipe.loss == "full":
        start = heads.full_start(lm, positions[:128])
    elif recipe.fitted:
        start = heads.fitted_start(lm, positions[:4096], recipe.sampler)
    torch.manual_seed(seed)
    trained = SigmoidHead(
        lm.unembedding, lm.bias, training["rank"] if recipe.low_rank else None, *start
    )
    size = max(1, size // (1 if recipe.loss == "sampled" else FULL_VOCABULARY_SHARE))
    batches = heads.shuffled(positions, recipe.sampler, size, seed)
    loss, see = LOSSES[recipe.loss], lambda update: watch(trained, update)
    heads.fit(trained, batches, training["updates"], rate, loss, see)
    return trained.eval()


def _held_out(model: str, training: dict, reported: bool) -> heads.Positions:
    """Up to HELD_OUT validation positions: of the first half of the texts to choose learning rates,
    of the second half to report losses.
    """
    everything = of_model.positions(model, training, "validation")
    middle = len(everything) // 2
    return (everything[middle:] if reported else everything[:middle])[:HELD_OUT]


def _own_loss(recipe: Recipe, head: SigmoidHead, held_out: heads.Positions, share=1) -> float:
    """Where each costs a pass over the vocabulary, on half of the positions."""
    size = HELD_OUT // (1 if recipe.loss == "sampled" else 2) // share
    return heads.held_out_loss(head, held_out[:size], recipe.sampler, LOSSES[recipe.loss])


def load_head(head: str, seed: int, model: str, training: dict) -> SigmoidHead:
    """A head as it is kept (half precision), trained first where the cache lacks it."""
    tensors = trained_head(head, seed, model, training)
    tensors.pop("curve")
    return SigmoidHead.from_tensors(tensors, unembedding_of(model).unembedding)


def fitted_scores(model: str, training: dict) -> scores.Fitted:
    """The numbers of `rescale` and `softmax-power`, fitted to validation positions."""
    held_out = of_model.positions(model, training, "validation")
    return scores.fit_scores(unembedding_of(model), held_out)


def released_head(model: str, seed: int) -> Path:
    """File of a committed head, of the kind RELEASED."""
    return paths.HEADS / f"{model}.{RELEASED}.{seed}.safetensors"


def released_frequencies(model: str) -> TokenFrequencies:
    """Unigram frequencies of the labels that the committed heads learnt from."""
    return TokenFrequencies(load_file(paths.HEADS / f"{model}.unigram.safetensors")["counts"])


# ---- experiments -------------------------------------------------------------------------------


@experiment(version=1, built_on=[trained_head])
def head_learning_curve(head: str, seed: int, model: str, training: dict) -> pd.DataFrame:
    """Held-out losses (nats a position) of a head in training: update, bce_own, bce_common (see
    `trained_head`), learning_rate.
    """
    curve = trained_head(head, seed, model, training)["curve"].numpy()
    rows = pd.DataFrame(curve, columns=["update", "bce_own", "bce_common"]).astype({"update": int})
    return rows.assign(learning_rate=head_learning_rate(head, model, training))


@experiment(version=1, built_on=[corpus_negatives, last_layer])
def untrained_losses(model: str, training: dict) -> pd.DataFrame:
    """Losses (nats a position) of scores that need no training, where those of heads are reported.
    score: the closed form of a sampler, or softmax; negatives: own (of that sampler), common (of
    METHOD), full (p as every token's probability of being right, over the vocabulary) or
    cross-entropy.
    """
    held_out, lm = _held_out(model, training, reported=True), unembedding_of(model)
    frequencies = of_model.unigram(training["corpus"], training["train_texts"], model)
    rows, states = [], held_out.hidden_states
    for negatives in SAMPLERS:
        ids, labels, present = held_out.candidates(negatives)
        facts = scores.token_facts(lm, states, ids, frequencies, training["dominant"])
        for sampler in SAMPLERS if negatives == METHOD else (negatives,):
            score = scores.closed_form(facts, **scores.draws_of(sampler)).double()
            score = score.clamp(1e-12, 1 - 1e-12)
            loss = torch.where(labels == 1, -score.log(), -(-score).log1p()) * present
            kinds = ["own"] * (sampler == negatives) + ["common"] * (negatives == METHOD)
            name, value = scores.closed_form_name(sampler), float(loss.sum()) / len(held_out)
            rows += [(name, kind, value) for kind in kinds]
    full, entropy = 0.0, 0.0
    for hidden, gold in zip(states.split(128), held_out.gold.split(128)):
        log_p = lm.logits(hidden.to(lm.device)).log_softmax(-1).double()
        right = log_p.gather(1, gold[:, None].to(lm.device))
        wrong = [torch.log1p(-x.exp().clamp(max=1 - 1e-12)).sum() for x in (log_p, right)]
        entropy -= float(right.sum())
        full -= float(right.sum() + wrong[0] - wrong[1])
    for kind, total in (("full", full), ("cross-entropy", entropy)):
        rows.append(("softmax", kind, total / len(held_out)))
    return pd.DataFrame(rows, columns=["score", "negatives", "loss"])
