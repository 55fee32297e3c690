"""Heads of the study and the experiments over tasks, on a tiny model and a few texts."""

import numpy as np
import pandas as pd
import pytest
import standins
import torch

from lib import corpora
from lib.quality import experiments
from lib.quality.experiments import HEADS, head_learning_curve, load_head, untrained_losses
from lib.quality.hidden_states import corpus_states, positions, unembedding_of, unigram
from lib.quality.training import held_out_loss
from lib.sampler import METHOD
from lib.study import paths
from lib.tasks import experiments as tasks

TRAINING = {"corpus": "docstrings", "train_texts": 12, "validation_texts": 6, "updates": 3}
TRAINING |= {"positions_per_batch": 16, "rank": 2, "dominant": "last"}


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> str:
    """A folder; what is cached goes to a folder of the tests, and no corpus is fetched."""
    folder = tmp_path_factory.mktemp("experiments")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(paths, "CACHE", folder / "cache")
        patch.setattr(corpora, "examples", _examples)
        yield str(standins.olmo2(folder / "olmo2"))


def _examples(_corpus: str, split: str, count: int) -> pd.DataFrame:
    prompts = [f"Return {split} number {i}\n" for i in range(count)]
    return pd.DataFrame(
        {"prompt": prompts, "output": ["the list of items is not empty there"] * count}
    )


@pytest.mark.parametrize("head", HEADS)
def test_every_head_is_trained_watched_and_kept(head, model):
    """Its curve ends with the held-out loss of the head as it was before rounding; read again from
    the cache it is the same.
    """
    curve = head_learning_curve(head, 0, model, TRAINING)
    assert curve["update"].tolist() == [0, 3] and np.isfinite(curve.to_numpy()).all()
    assert curve["learning_rate"].nunique() == 1
    kept, again = (load_head(head, 0, model, TRAINING) for _ in range(2))
    assert all(torch.equal(a, b) for a, b in zip(kept.parameters(), again.parameters()))
    assert kept.rank == (2 if HEADS[head].low_rank else None)
    reported = experiments._held_out(model, TRAINING, reported=True)
    loss = held_out_loss(kept, reported, METHOD)
    assert loss == pytest.approx(curve["bce_common"].iloc[-1], rel=0.02)


def test_untrained_losses_are_those_of_their_scores(model):
    """softmax over the whole vocabulary, closed forms on their own and on common negatives."""
    rows = untrained_losses(model, TRAINING)
    loss = rows.set_index(["score", "negatives"])["loss"]
    assert len(loss) == 18 and loss.index.is_unique and np.isfinite(loss).all()
    reported, lm = experiments._held_out(model, TRAINING, reported=True), unembedding_of(model)
    p, gold = lm.logits(reported.hidden_states).softmax(-1).double(), reported.gold[:, None]
    assert loss["softmax", "cross-entropy"] == pytest.approx(-p.gather(1, gold).log().mean().item())
    labels = torch.zeros_like(p).scatter_(1, gold, 1.0)
    full = torch.nn.functional.binary_cross_entropy(p, labels, reduction="sum").item() / len(gold)
    assert loss["softmax", "full"] == pytest.approx(full, abs=1e-4)
    assert loss["closed-form", "own"] == loss["closed-form", "common"]


def test_held_out_halves_do_not_meet(model):
    """Positions that choose learning rates and those that report losses."""
    halves = [experiments._held_out(model, TRAINING, reported) for reported in (False, True)]
    together = torch.cat([half.hidden_states for half in halves])
    assert torch.equal(together, positions(model, TRAINING, "validation").hidden_states)


def test_a_mixture_takes_turns(model):
    """Equal numbers of texts of each corpus, up to as many positions as the largest has alone."""
    one, both = (corpus_states(name, "train", 8, model) for name in ("docstrings", "both"))
    own = corpus_states("own-samples", "train", 8, model)
    size = int((one["text"] == 0).sum())
    assert torch.equal(both["gold"][:size], one["gold"][:size])
    second = both["gold"][both["text"] == 1]
    assert torch.equal(second, own["gold"][own["text"] == 0])
    largest = max(len(one["gold"]), len(own["gold"]))
    last = (both["text"] == both["text"].max()).sum()
    assert len(both["gold"]) >= min(largest, 2 * min(len(one["gold"]), len(own["gold"]))) - last
    counts = unigram("docstrings", 12, model).probabilities
    assert counts.sum() == pytest.approx(1.0) and counts.count_nonzero() > 5


def test_scores_of_a_task(model):
    """Items without texts, a column a score; heads by seed or averaged; joins agree with both."""
    where = {"task": "languages", "model": model, "texts": 8}
    items = tasks.task_items(**where)
    assert not {"prompt", "output"} & set(items) and items["id"].tolist() == list(range(len(items)))
    untrained = tasks.untrained_scores(**where, training=TRAINING)
    np.testing.assert_allclose(np.exp(untrained["logprob"]), untrained["softmax"], rtol=1e-4)
    heads = []
    for head in ("sigmoid-lowrank", "softmax-ce"):
        for seed in (0, 1):
            rows = tasks.head_scores(head, seed, **where, training=TRAINING)
            heads.append(rows.assign(head=head, seed=seed, **where))
    tables = [items.assign(**where), untrained.assign(**where), pd.concat(heads)]
    one, each = (tasks.scored_items(*tables, by_seed=by_seed) for by_seed in (False, True))
    assert len(one) == len(items) and len(each) == 2 * len(items)
    mean = each.groupby("id")["sigmoid-lowrank"].mean()
    np.testing.assert_allclose(one["sigmoid-lowrank"], mean)
    np.testing.assert_allclose(each["softmax-ce"], np.exp(each["softmax-ce-logprob"]), rtol=1e-4)
    joins = tasks.join_agreement("sigmoid-lowrank", 0, **where, training=TRAINING)
    assert joins["join"].tolist() == ["mean", "log-mean", "product", "min"]
    assert joins["value"].nunique() == 1  # outputs are single tokens
