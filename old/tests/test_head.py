"""The Sigmoid Head: where it starts, what its losses are, what training touches, and the file it is kept in."""

import ast
import importlib.util
import sys
from pathlib import Path

import pytest
import torch
from helpers import language_model
from torch.nn import functional as F

from old.quality import head as head_module
from old.quality.head import SigmoidHead, fit_start, full_loss, sampled_loss, softmax_loss
from old.quality.training import Positions, fit, held_out_loss

VOCABULARY, WIDTH = 30, 8
RANDOM = torch.Generator().manual_seed(0)
UNEMBEDDING = torch.randn(VOCABULARY, WIDTH, generator=RANDOM)
BIAS = torch.randn(VOCABULARY, generator=RANDOM)
HIDDEN = torch.randn(20, WIDTH, generator=RANDOM)
GOLD = torch.randint(VOCABULARY, (20,), generator=RANDOM)
NEGATIVES = torch.randint(VOCABULARY, (20, 12), generator=RANDOM)

both_kinds = pytest.mark.parametrize("rank", [None, 3], ids=["full", "low-rank"])


def trained(rank: int | None, seed: int = 1, bias: torch.Tensor | None = BIAS) -> SigmoidHead:
    """A head with random parameters, as if it had been trained."""
    head = SigmoidHead(UNEMBEDDING, bias, rank, scale=0.5, shift=-1.0)
    random = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in head.parameters():
            parameter.add_(0.3 * torch.randn(parameter.shape, generator=random))
    return head


def positions(**changes) -> Positions:
    return Positions(**{"hidden_states": HIDDEN, "gold": GOLD, "negatives": {"uniform": NEGATIVES.int()}, **changes})


def train(head: SigmoidHead, data: Positions, sampler: str = "uniform", **options) -> list[float]:
    return fit(head, data, sampler, **{"updates": 8, "learning_rate": 0.05, "positions_per_batch": 10, "count": 4, **options})


# ---- logits --------------------------------------------------------------------------------------------------------------------------


@both_kinds
@pytest.mark.parametrize("bias", [None, BIAS], ids=["", "bias"])
@pytest.mark.parametrize(("scale", "shift"), [(1.0, 0.0), (0.16, -5.4)])
def test_starts_at_the_language_models_logits(rank, bias, scale, shift):
    """scale * logits + shift; the raw start (1, 0) is the logits themselves."""
    logits = F.linear(HIDDEN, UNEMBEDDING, bias)
    head = SigmoidHead(UNEMBEDDING, bias, rank, scale, shift)
    torch.testing.assert_close(head.all_logits(HIDDEN), scale * logits + shift, atol=1e-5, rtol=1e-5)


@both_kinds
def test_some_logits_are_those_of_all(rank):
    head = trained(rank)
    torch.testing.assert_close(head(HIDDEN, NEGATIVES), head.all_logits(HIDDEN).gather(1, NEGATIVES), atol=1e-5, rtol=1e-5)


def test_low_rank_formula():
    """z = W (scale h + up down h) + shift + b, with loops over tokens."""
    head = trained(3).requires_grad_(False)
    expected = [
        [
            float(row @ (head.scale * h + head.up @ (head.down @ h)) + head.shift + head.bias[token, 0])
            for token, row in enumerate(UNEMBEDDING)
        ]
        for h in HIDDEN
    ]
    torch.testing.assert_close(head.all_logits(HIDDEN), torch.tensor(expected), atol=1e-5, rtol=1e-5)


@both_kinds
def test_half_precision_base(rank):
    """A base in bfloat16 gets a head in float32: exactly that of the rounded weights."""
    rounded = UNEMBEDDING.bfloat16()
    head, same = (SigmoidHead(w, rank=rank, scale=0.3) for w in (rounded, rounded.float()))
    assert all(p.dtype == torch.float32 for p in head.parameters())
    torch.testing.assert_close(head(HIDDEN.bfloat16(), NEGATIVES), same(HIDDEN.bfloat16().float(), NEGATIVES))


@pytest.mark.parametrize("rank", [0, -1, WIDTH + 1])
def test_refuses_rank(rank):
    with pytest.raises(ValueError, match=f"rank must lie between 1 and the width {WIDTH}.* not {rank}"):
        SigmoidHead(UNEMBEDDING, rank=rank)


# ---- losses --------------------------------------------------------------------------------------------------------------------------


@both_kinds
def test_sampled_loss_is_binary_cross_entropy(rank):
    head = trained(rank)
    ids, labels = torch.cat([GOLD[:, None], NEGATIVES], 1), torch.zeros(20, 13)
    labels[:, 0] = 1
    expected = F.binary_cross_entropy_with_logits(head(HIDDEN, ids), labels, reduction="sum") / 20
    torch.testing.assert_close(sampled_loss(head, HIDDEN, GOLD, NEGATIVES), expected)


@both_kinds
def test_sampling_everything_is_the_full_loss(rank):
    """All tokens but gold as negatives: the sum over the vocabulary."""
    head = trained(rank)
    others = torch.stack([torch.tensor([v for v in range(VOCABULARY) if v != gold]) for gold in GOLD])
    torch.testing.assert_close(sampled_loss(head, HIDDEN, GOLD, others), full_loss(head, HIDDEN, GOLD), atol=1e-5, rtol=1e-5)


@both_kinds
def test_missing_negatives_contribute_nothing(rank):
    """-1 changes neither the loss nor a gradient."""
    head = trained(rank)
    few = sampled_loss(head, HIDDEN, GOLD, NEGATIVES[:, :3])
    expected = [g.to_dense() for g in torch.autograd.grad(few, list(head.parameters()))]
    padded = sampled_loss(head, HIDDEN, GOLD, torch.cat([torch.full((20, 2), -1), NEGATIVES[:, :3], torch.full((20, 1), -1)], 1))
    torch.testing.assert_close(padded, few)
    torch.testing.assert_close([g.to_dense() for g in torch.autograd.grad(padded, list(head.parameters()))], expected)


@both_kinds
def test_softmax_loss_is_cross_entropy(rank):
    """At the raw start, the language model's own loss."""
    expected = -(HIDDEN @ UNEMBEDDING.T).log_softmax(1)[torch.arange(20), GOLD].mean()
    torch.testing.assert_close(softmax_loss(SigmoidHead(UNEMBEDDING, rank=rank), HIDDEN, GOLD), expected)


@both_kinds
def test_gradients_touch_only_the_rows_asked_for(rank):
    """Sparse, and other than 0 in the rows of gold tokens and negatives alone."""
    head = trained(rank)
    gold, negatives = GOLD % 5, NEGATIVES % 5 + 10  # tokens 0-4 and 10-14
    sampled_loss(head, HIDDEN, gold, negatives).backward()
    touched = sorted({*gold.tolist(), *negatives.flatten().tolist()})
    for parameter in head.sparse_parameters():
        assert parameter.grad.is_sparse and parameter.shape[0] == VOCABULARY
        assert parameter.grad.to_dense().abs().sum(1).nonzero().flatten().tolist() == touched
    dense = [p for name, p in head.named_parameters() if name not in ("weight", "bias")]
    assert len(dense) == (0 if rank is None else 4) and all(p.grad.abs().sum() > 0 for p in dense)


# ---- the fitted start ----------------------------------------------------------------------------------------------------------------


def test_fit_start_recovers_the_two_numbers():
    """Labels drawn with sigmoid(0.4 z - 2): found within sampling error, and better than the raw logits."""
    random = torch.Generator().manual_seed(1)
    logits = torch.randn(40_000, generator=random) * 4 + 3
    labels = (torch.rand(40_000, generator=random) < torch.sigmoid(0.4 * logits - 2)).float()
    scale, shift = fit_start(logits, labels)
    assert scale == pytest.approx(0.4, abs=0.02) and shift == pytest.approx(-2, abs=0.08)  # about three standard errors
    fitted, raw = (F.binary_cross_entropy_with_logits(a * logits + c, labels) for a, c in ((scale, shift), (1.0, 0.0)))
    assert fitted < raw


def test_fit_start_is_a_minimum():
    """The gradient of the loss vanishes: mean residual, and mean of residual times logit."""
    random = torch.Generator().manual_seed(2)
    logits, labels = torch.randn(500, generator=random).double() * 5 - 20, (torch.rand(500, generator=random) < 0.1).double()
    scale, shift = fit_start(logits, labels)
    residual = torch.sigmoid(scale * logits + shift) - labels
    assert residual.mean().abs() < 1e-5 and (residual * (logits - logits.mean())).mean().abs() < 1e-4  # LBFGS stops at 1e-7 in its units


# ---- training ------------------------------------------------------------------------------------------------------------------------


@both_kinds
@pytest.mark.parametrize("loss", [sampled_loss, full_loss, softmax_loss])
def test_the_base_model_stays_bit_identical(rank, loss):
    """Embeddings are tied: a head that shared the storage of the unembedding would train the base model."""
    lm = language_model()
    before = {name: tensor.clone() for name, tensor in lm.model.state_dict().items()}
    head = SigmoidHead(lm.unembedding, lm.bias, rank)
    start = [p.detach().clone() for p in head.parameters()]
    train(head, positions(hidden_states=HIDDEN.repeat(1, 2)), loss=loss)
    assert lm.model.get_input_embeddings().weight is lm.model.get_output_embeddings().weight
    assert all(torch.equal(before[name], tensor) for name, tensor in lm.model.state_dict().items())
    assert not any(torch.equal(p, old) for p, old in zip(head.parameters(), start) if p is not getattr(head, "shift", None))


@both_kinds
@pytest.mark.parametrize("loss", [sampled_loss, full_loss, softmax_loss])
def test_loss_falls(rank, loss):
    head = SigmoidHead(UNEMBEDDING, BIAS, rank, scale=0.1)
    before = held_out_loss(head, positions(), "uniform", 4, limit=20, loss=loss)
    losses = train(head, positions(), updates=40, loss=loss)
    assert len(losses) == 40 and held_out_loss(head, positions(), "uniform", 4, limit=20, loss=loss) < 0.8 * before


@both_kinds
def test_the_seed_decides(rank):
    def run(seed: int) -> list[float]:
        torch.manual_seed(5)  # the low-rank start
        return train(SigmoidHead(UNEMBEDDING, BIAS, rank, scale=0.3), positions(), seed=seed)

    assert run(0) == run(0) and run(0) != run(1)


def test_the_asked_sampler_is_used():
    """Negatives of one sampler are all token 1, of the other all token 2: only that token's bias falls."""
    for sampler, token, other in (("a", 1, 2), ("b", 2, 1)):
        head = SigmoidHead(torch.zeros(VOCABULARY, WIDTH))
        negatives = {"a": torch.full((20, 4), 1, dtype=torch.int32), "b": torch.full((20, 4), 2, dtype=torch.int32)}
        train(head, positions(gold=torch.full((20,), 3), negatives=negatives), sampler)
        assert head.bias[token] < -0.1 and head.bias[3] > 0.1 and head.bias[other] == 0


def seen_in_training(size: int, rounds: int, **options) -> list[tuple[list[int], list[int]]]:
    """For each update, the positions and the rounds of negatives that it used: both are written into the numbers themselves."""
    seen = []

    def loss(head: SigmoidHead, hidden: torch.Tensor, gold: torch.Tensor, negatives: torch.Tensor) -> torch.Tensor:
        assert torch.equal(hidden[:, 0], gold.float()) and torch.equal(negatives // 10, gold[:, None].expand_as(negatives))
        seen.append((gold.tolist(), (negatives % 10).unique().tolist()))
        return head.bias.sum()

    ids = torch.arange(size)
    negatives = ids[:, None] * 10 + torch.arange(rounds).repeat_interleave(4)  # position * 10 + round
    data = Positions(ids[:, None].float().expand(-1, WIDTH), ids, {"uniform": negatives.int()})
    train(SigmoidHead(UNEMBEDDING, rank=1), data, loss=loss, **options)
    return seen


def test_every_pass_visits_every_position_once():
    seen = seen_in_training(20, rounds=1, updates=6)
    passes = [sum((gold for gold, _ in seen[start : start + 2]), []) for start in (0, 2, 4)]
    assert all(sorted(ids) == list(range(20)) for ids in passes) and passes[0] != passes[1] != passes[2]


def test_every_pass_uses_its_own_round_of_negatives():
    """One round within a pass, another in the next, all of them in turn."""
    rounds = [used for _, used in seen_in_training(20, rounds=3, updates=6)]
    assert all(len(used) == 1 for used in rounds)
    assert rounds[::2] == rounds[1::2] and sorted(rounds[::2]) == [[0], [1], [2]]


def test_seeds_start_with_different_negatives():
    first = {seen_in_training(20, rounds=3, updates=1, seed=seed)[0][1][0] for seed in range(12)}
    assert first == {0, 1, 2}


def test_a_batch_larger_than_the_data():
    assert [sorted(gold) for gold, _ in seen_in_training(5, rounds=2, updates=3)] == [list(range(5))] * 3


def test_watch_sees_every_update():
    seen = []
    train(SigmoidHead(UNEMBEDDING), positions(), updates=5, watch=seen.append)
    assert seen == [0, 1, 2, 3, 4, 5]


def test_refuses_no_positions():
    empty = Positions(torch.zeros(0, WIDTH), torch.zeros(0, dtype=torch.long), {"uniform": torch.zeros(0, 4, dtype=torch.int32)})
    with pytest.raises(ValueError, match="nothing to train on"):
        train(SigmoidHead(UNEMBEDDING), empty)


@pytest.mark.parametrize("batch", [1, 7, 100])
@pytest.mark.parametrize("limit", [15, 1000])
def test_held_out_loss_is_the_loss_of_the_first_positions(batch, limit):
    """Whatever the batch, and with the first round of negatives."""
    head = trained(3)
    expected = sampled_loss(head, HIDDEN[:limit], GOLD[:limit], NEGATIVES[:limit, :4]).item()
    assert held_out_loss(head, positions(), "uniform", 4, limit=limit, batch=batch) == pytest.approx(expected, abs=1e-5)


# ---- the file ------------------------------------------------------------------------------------------------------------------------


@both_kinds
def test_saved_is_loaded(rank, tmp_path):
    """Every parameter rounded to half precision, the same rank, and so nearly the same scores."""
    head = trained(rank)
    head.save(tmp_path / "a.safetensors", "some-model")
    loaded = SigmoidHead.load(tmp_path / "a.safetensors", UNEMBEDDING)
    assert loaded.rank == rank and not loaded.training
    before, after = dict(head.named_parameters()), dict(loaded.named_parameters())
    assert before.keys() == after.keys() and all(torch.equal(after[name], before[name].half().float()) for name in before)
    torch.testing.assert_close(loaded(HIDDEN, NEGATIVES).sigmoid(), head(HIDDEN, NEGATIVES).sigmoid(), atol=5e-3, rtol=0)  # half precision


@both_kinds
def test_file_holds_only_what_was_trained(rank, tmp_path):
    """Two bytes a number; the frozen unembedding is not in it."""
    head = trained(rank)
    head.save(tmp_path / "a.safetensors", "some-model")
    size = 2 * sum(p.numel() for p in head.parameters())
    assert size < (tmp_path / "a.safetensors").stat().st_size < size + 1000  # and a header


@both_kinds
def test_belongs_to_one_unembedding(rank, tmp_path):
    """One changed weight, or another shape of the same numbers, is another language model."""
    trained(rank).save(tmp_path / "a.safetensors", "some-model")
    changed = UNEMBEDDING.clone()
    changed[3, 4] += 1e-6
    for other in (changed, UNEMBEDDING.view(VOCABULARY // 2, -1)):
        with pytest.raises(ValueError, match="'some-model'"):
            SigmoidHead.load(tmp_path / "a.safetensors", other)


def test_missing_file(tmp_path):
    with pytest.raises(FileNotFoundError, match="no head .*gone.safetensors"):
        SigmoidHead.load(tmp_path / "gone.safetensors", UNEMBEDDING)


@pytest.mark.parametrize("broken", [lambda content: content[: len(content) // 2], lambda content: b"not a head", lambda content: b""])
def test_broken_file(broken, tmp_path):
    file = tmp_path / "a.safetensors"
    trained(3).save(file, "some-model")
    file.write_bytes(broken(file.read_bytes()))
    with pytest.raises(ValueError, match="not a readable safetensors file"):
        SigmoidHead.load(file, UNEMBEDDING)


# ---- head.py in another project ------------------------------------------------------------------------------------------------------


def test_file_imports_torch_and_safetensors_only():
    tree = ast.parse(Path(head_module.__file__).read_text())
    imported = {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    imported |= {node.module or "." for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    assert {name.split(".")[0] for name in imported} - set(sys.stdlib_module_names) == {"torch", "safetensors"}


def test_copied_file_works(tmp_path):
    """Loaded alone from another folder it makes the same head."""
    copy = tmp_path / "copied_head.py"
    copy.write_text(Path(head_module.__file__).read_text())
    spec = importlib.util.spec_from_file_location("copied_head", copy)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    trained(3).save(tmp_path / "a.safetensors", "some-model")
    ours, theirs = (cls.load(tmp_path / "a.safetensors", UNEMBEDDING) for cls in (SigmoidHead, module.SigmoidHead))
    assert type(theirs) is not SigmoidHead and torch.equal(ours(HIDDEN, NEGATIVES), theirs(HIDDEN, NEGATIVES))
