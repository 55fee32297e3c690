"""The head: its start, its losses, what gets gradients, its file, and that it can be copied."""

import importlib.util
from pathlib import Path

import pytest
import torch
from torch.nn import functional as F

from lib import sigmoid_head
from lib.sigmoid_head import SigmoidHead, fit_start, full_loss, sampled_loss, softmax_loss

VOCABULARY, WIDTH = 30, 8
RANDOM = torch.Generator().manual_seed(0)
UNEMBEDDING = torch.randn(VOCABULARY, WIDTH, generator=RANDOM)
BIAS = torch.randn(VOCABULARY, generator=RANDOM)
HIDDEN = torch.randn(20, WIDTH, generator=RANDOM)
GOLD = torch.randint(VOCABULARY, (20,), generator=RANDOM)
NEGATIVES = torch.randint(VOCABULARY, (20, 12), generator=RANDOM)
both_kinds = pytest.mark.parametrize("rank", [None, 3], ids=["full", "low-rank"])


def trained(rank: int | None) -> SigmoidHead:
    """A head with every parameter moved."""
    head, random = SigmoidHead(UNEMBEDDING, BIAS, rank, 0.3, -1.0), torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in head.parameters():
            parameter.add_(0.3 * torch.randn(parameter.shape, generator=random))
    return head


@both_kinds
@pytest.mark.parametrize("bias", [None, BIAS], ids=["", "bias"])
@pytest.mark.parametrize(("scale", "shift"), [(1.0, 0.0), (0.16, -5.4)])
def test_starts_at_the_language_models_logits(rank, bias, scale, shift):
    """scale * logits + shift; the raw start (1, 0) is the logits themselves."""
    logits = F.linear(HIDDEN, UNEMBEDDING, bias)
    head = SigmoidHead(UNEMBEDDING, bias, rank, scale, shift)
    torch.testing.assert_close(head.all_logits(HIDDEN), scale * logits + shift)


@both_kinds
def test_some_logits_are_those_of_all(rank):
    head = trained(rank)
    torch.testing.assert_close(
        head(HIDDEN, NEGATIVES), head.all_logits(HIDDEN).gather(1, NEGATIVES)
    )


def test_low_rank_formula():
    """z = W (scale h + up down h) + shift + b, token by token."""
    head = trained(3).requires_grad_(False)
    moved = [head.scale * h + head.up @ (head.down @ h) for h in HIDDEN]
    expected = [
        [row @ h + head.shift + b for row, b in zip(UNEMBEDDING, head.bias[:, 0])] for h in moved
    ]
    torch.testing.assert_close(head.all_logits(HIDDEN), torch.tensor(expected))


@both_kinds
def test_half_precision_base(rank):
    """A base in bfloat16 gets a head in float32: exactly that of the rounded weights."""
    rounded = UNEMBEDDING.bfloat16()
    torch.manual_seed(0)
    head = SigmoidHead(rounded, rank=rank, scale=0.3)
    torch.manual_seed(0)
    same = SigmoidHead(rounded.float(), rank=rank, scale=0.3)
    assert all(p.dtype == torch.float32 for p in head.parameters())
    hidden = HIDDEN.bfloat16()
    torch.testing.assert_close(head(hidden, NEGATIVES), same(hidden.float(), NEGATIVES))


@pytest.mark.parametrize("rank", [0, -1, WIDTH + 1])
def test_refuses_rank(rank):
    with pytest.raises(ValueError, match=f"between 1 and the width {WIDTH}.* not {rank}"):
        SigmoidHead(UNEMBEDDING, rank=rank)


# ---- losses --------------------------------------------------------------------------------------


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
    others = torch.stack([torch.tensor([v for v in range(VOCABULARY) if v != y]) for y in GOLD])
    losses = sampled_loss(head, HIDDEN, GOLD, others), full_loss(head, HIDDEN, GOLD)
    torch.testing.assert_close(*losses)


def test_the_sampled_loss_is_unbiased():
    """Over many uniform draws its mean is gold's part of the full loss plus K times the mean of the
    others'.
    """
    head = trained(3).requires_grad_(False)
    logits = head.all_logits(HIDDEN)
    right = F.softplus(-logits.gather(1, GOLD[:, None])).mean()
    wrong = (full_loss(head, HIDDEN, GOLD) - right) / (VOCABULARY - 1)
    random, drawn = torch.Generator().manual_seed(0), []
    for _ in range(4000):
        step = torch.randint(1, VOCABULARY, (20, 5), generator=random)
        drawn.append(sampled_loss(head, HIDDEN, GOLD, (GOLD[:, None] + step) % VOCABULARY))
    drawn = torch.stack(drawn)
    assert abs(drawn.mean() - (right + 5 * wrong)) < 4 * drawn.std() / len(drawn) ** 0.5


@both_kinds
def test_missing_negatives_contribute_nothing(rank):
    """-1 changes neither the loss nor a gradient."""
    head, none = trained(rank), torch.full((20, 2), -1)
    few = sampled_loss(head, HIDDEN, GOLD, NEGATIVES[:, :3])
    padded = torch.cat([none, NEGATIVES[:, :3], none], 1)
    same = sampled_loss(head, HIDDEN, GOLD, padded)
    torch.testing.assert_close(same, few)
    gradients = [torch.autograd.grad(x, list(head.parameters())) for x in (few, same)]
    for one, other in zip(*gradients):
        torch.testing.assert_close(one.to_dense(), other.to_dense())


@both_kinds
def test_softmax_loss_is_cross_entropy(rank):
    """At the raw start, the language model's own loss."""
    expected = -(HIDDEN @ UNEMBEDDING.T).log_softmax(1)[torch.arange(20), GOLD].mean()
    head = SigmoidHead(UNEMBEDDING, rank=rank)
    torch.testing.assert_close(softmax_loss(head, HIDDEN, GOLD), expected)


@both_kinds
def test_gradients_touch_only_the_rows_asked_for(rank):
    """Sparse, and other than 0 in the rows of gold tokens and negatives alone."""
    head = trained(rank)
    gold, negatives = GOLD % 5, NEGATIVES % 5 + 10  # tokens 0-4 and 10-14
    sampled_loss(head, HIDDEN, gold, negatives).backward()
    touched = sorted({*gold.tolist(), *negatives.flatten().tolist()})
    for parameter in head.sparse_parameters():
        assert parameter.grad.is_sparse
        rows = parameter.grad.to_dense().abs().sum(1).nonzero()
        assert rows.flatten().tolist() == touched
    dense = [p for name, p in head.named_parameters() if name not in ("weight", "bias")]
    assert len(dense) == (0 if rank is None else 4)
    assert all(p.grad.abs().sum() > 0 for p in dense)


# ---- the fitted start ----------------------------------------------------------------------------


def test_fit_start_recovers_the_two_numbers():
    """Labels drawn with sigmoid(0.4 z - 2): found within sampling error; and it is a minimum."""
    random = torch.Generator().manual_seed(1)
    logits = torch.randn(40_000, generator=random) * 4 + 3
    labels = (torch.rand(40_000, generator=random) < torch.sigmoid(0.4 * logits - 2)).float()
    scale, shift = fit_start(logits, labels)
    assert scale == pytest.approx(0.4, abs=0.02) and shift == pytest.approx(-2, abs=0.08)
    residual = torch.sigmoid(scale * logits.double() + shift) - labels
    assert residual.mean().abs() < 1e-5
    assert (residual * (logits - logits.mean())).mean().abs() < 1e-4


# ---- the file ------------------------------------------------------------------------------------


@both_kinds
def test_saved_is_loaded(rank, tmp_path):
    """Every parameter rounded to half precision, the same rank; only what was trained is in it."""
    head, file = trained(rank), tmp_path / "a.safetensors"
    head.save(file, "some-model")
    loaded = SigmoidHead.load(file, UNEMBEDDING)
    assert loaded.rank == rank and not loaded.training
    before, after = dict(head.named_parameters()), dict(loaded.named_parameters())
    assert before.keys() == after.keys()
    assert all(torch.equal(after[name], before[name].half().float()) for name in before)
    size = 2 * sum(p.numel() for p in head.parameters())
    assert size < file.stat().st_size < size + 1000  # and a header


@both_kinds
def test_belongs_to_one_unembedding(rank, tmp_path):
    """One changed weight, or another shape of the same numbers, is another language model; the
    same numbers in half precision are not.
    """
    whole = UNEMBEDDING.bfloat16().float()
    head = SigmoidHead(whole, rank=rank)
    head.save(tmp_path / "a.safetensors", "some-model")
    changed = whole.clone()
    changed[3, 4] += 1e-6
    for other in (changed, whole.view(VOCABULARY // 2, -1)):
        with pytest.raises(ValueError, match="'some-model'"):
            SigmoidHead.load(tmp_path / "a.safetensors", other)
    assert SigmoidHead.load(tmp_path / "a.safetensors", whole.bfloat16()).rank == rank


def test_missing_and_broken_files(tmp_path):
    file = tmp_path / "a.safetensors"
    with pytest.raises(FileNotFoundError, match="no head .*a.safetensors"):
        SigmoidHead.load(file, UNEMBEDDING)
    trained(3).save(file, "some-model")
    for content in (file.read_bytes()[:200], b"not a head"):
        file.write_bytes(content)
        with pytest.raises(ValueError, match="not a readable safetensors file"):
            SigmoidHead.load(file, UNEMBEDDING)


@pytest.mark.parametrize("name", ["sigmoid_head", "sampler"])
def test_a_copied_file_works(name, tmp_path):
    """Alone in another folder; the head of one loads in the other."""
    copy = tmp_path / f"copied_{name}.py"
    copy.write_text((Path(sigmoid_head.__file__).parent / f"{name}.py").read_text())
    spec = importlib.util.spec_from_file_location(copy.stem, copy)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    if name == "sigmoid_head":
        trained(3).save(tmp_path / "a.safetensors", "some-model")
        kinds = (SigmoidHead, module.SigmoidHead)
        ours, theirs = (kind.load(tmp_path / "a.safetensors", UNEMBEDDING) for kind in kinds)
        assert type(theirs) is not SigmoidHead
        assert torch.equal(ours(HIDDEN, NEGATIVES), theirs(HIDDEN, NEGATIVES))
