"""The training loop: batches, schedule, exact resume after SIGKILL; several processes = one,
bfloat16 on a GPU.
"""

import itertools
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from small_models import controlled, pairs_of, train_tiny
from torch.optim.optimizer import register_optimizer_step_pre_hook

from lib.study import paths, training
from lib.study.models import seq2seq_batch, seq2seq_loss
from lib.study.paths import progress
from lib.study.training import learning_rate_at, token_budget_batches

LENGTHS = np.random.default_rng(0).integers(1, 40, 300)
BOTH = np.stack([LENGTHS, np.random.default_rng(1).integers(1, 40, 300)], 1)  # targets and sources


def one_epoch(lengths: np.ndarray, budget: int, seed: int = 0, chunk: int = 5) -> list[np.ndarray]:
    """Batches until every example was seen as often as its first repetition allows: exactly the
    first epoch.
    """
    batches, count = [], 0
    for batch in token_budget_batches(lengths, budget, seed, chunk):
        batches.append(batch)
        count += len(batch)
        if count >= len(lengths):
            return batches
    raise AssertionError("batches are endless")


@pytest.mark.parametrize("lengths", [LENGTHS, BOTH], ids=["targets", "targets and sources"])
@pytest.mark.parametrize("budget", [40, 128, 100_000])
def test_batches_cover_an_epoch_within_budget(lengths, budget):
    """Every example once an epoch; padded targets within the budget."""
    batches = one_epoch(lengths, budget)
    assert sorted(np.concatenate(batches)) == list(range(300))
    assert max(len(batch) * LENGTHS[batch].max() for batch in batches) <= budget


def test_batches_use_their_budget():
    """Similar lengths together: little padding, and no more batches than needed by far."""
    batches = one_epoch(LENGTHS, 128, chunk=50)
    padded = sum(len(batch) * LENGTHS[batch].max() for batch in batches)
    assert LENGTHS.sum() / padded > 0.8
    assert len(batches) < 1.4 * LENGTHS.sum() / 128


def test_batches_follow_the_seed():
    """The same seed plans the same batches; another seed, or the next epoch, others."""
    first, again, other = (
        [b.tolist() for b in one_epoch(LENGTHS, 128, seed)] for seed in (0, 0, 1)
    )
    assert first == again and first != other
    endless = token_budget_batches(LENGTHS, 128, 0, 5)
    both = [b.tolist() for b in itertools.islice(endless, 2 * len(first))]
    assert both[: len(first)] == first and both[len(first) :] != first


def test_longer_than_the_budget_is_a_batch_of_its_own():
    assert sorted(sorted(b.tolist()) for b in one_epoch(np.array([100, 3, 3]), 10, chunk=50)) == [
        [0],
        [1, 2],
    ]


def test_learning_rate():
    """Linear to the peak over the warm-up, linear to zero at the end; never above the peak or
    below zero, whatever the warm-up.
    """
    rates = [learning_rate_at(u, 100, 2.0, 20) for u in range(101)]
    assert (
        rates[0] == pytest.approx(0.1)
        and rates[19] == pytest.approx(2.0)
        and rates[20] == pytest.approx(2.0)
    )
    assert rates[60] == pytest.approx(1.0) and rates[100] == 0
    assert np.diff(rates[:20]) == pytest.approx(0.1) and np.diff(rates[20:]) == pytest.approx(
        -2 / 80
    )
    for warmup in (0, 1, 10, 50):
        assert all(0 <= learning_rate_at(u, 10, 2.0, warmup) <= 2.0 for u in range(11))


def test_loss_is_a_sum_over_real_tokens():
    """seq2seq_loss = the model's own mean loss times its number of labels; padding counts
    nothing.
    """
    model = controlled("bart")
    batch = seq2seq_batch(model, *pairs_of([5, 9, 3]))
    with torch.no_grad():
        loss, tokens = seq2seq_loss(model, batch)
        torch.testing.assert_close(loss, model(**batch).loss * tokens, atol=1e-5, rtol=1e-6)
    assert tokens == 17


def test_batch_of_ragged_rows():
    """Padding is masked and has no label; a token that happens to be the padding's id is text
    like any other.
    """
    model = controlled("bart")
    batch = seq2seq_batch(
        model, [[5, 1, 2], [7, 2]], [[8, 2], [1, 9, 2]]
    )  # the model pads with 1 and starts with 2
    assert batch["input_ids"].tolist() == [[5, 1, 2], [7, 2, 1]]
    assert batch["attention_mask"].tolist() == [[1, 1, 1], [1, 1, 0]]
    assert batch["labels"].tolist() == [[8, 2, -100], [1, 9, 2]]
    assert batch["decoder_input_ids"].tolist() == [[2, 8, 2], [2, 1, 9]]


def test_training_learns():
    """The loss of forty pairs falls, and a learned signal vector learns too."""
    before = controlled("bart", "linear").length_signal.vector
    after, losses = train_tiny(None, signal="linear", updates=60)
    assert np.mean(losses[-5:]) < 0.9 * np.mean(losses[:5])
    assert not torch.equal(before, after["length_signal.vector"])


def test_update_is_adamw_on_the_clipped_mean_loss():
    """One update, done by hand: gradient of the mean loss a token, clipped, then AdamW without
    decay of vectors.
    """
    lengths = np.full(4, 6)
    ours, theirs = (
        controlled("bart", "none", tie_word_embeddings=True, dropout=0.0) for _ in range(2)
    )
    batch = seq2seq_batch(ours, *pairs_of(lengths.tolist()))
    training.train(
        ours,
        lengths,
        lambda i, rng: batch,
        updates=1,
        learning_rate=1e-2,
        tokens_per_batch=24,
        seed=0,
        warmup=1,
        loss=steep,
    )
    (1000 * theirs(**batch).loss).backward()
    matrices, vectors = (
        [p for p in theirs.parameters() if (p.dim() > 1) == wanted] for wanted in (True, False)
    )
    torch.nn.utils.clip_grad_norm_(theirs.parameters(), 1.0)
    groups = [{"params": matrices, "weight_decay": 0.01}, {"params": vectors, "weight_decay": 0.0}]
    torch.optim.AdamW(groups, lr=1e-2, betas=(0.9, 0.98)).step()
    for (name, a), b in zip(ours.named_parameters(), theirs.parameters()):
        torch.testing.assert_close(a, b, atol=1e-5, rtol=0, msg=name)


def steep(model, batch):
    """The usual loss a thousand times as steep: its gradient must be clipped."""
    loss, tokens = seq2seq_loss(model, batch)
    return 1000 * loss, tokens


# ---- gradients, other arithmetic -----------------------------------------------------------


def test_gradient_is_that_of_the_mean_loss_a_label(monkeypatch):
    """To 1e-5, of targets of unequal lengths."""
    lengths = np.array([19, 4, 11, 3])
    sources, targets = pairs_of(lengths.tolist())
    whole = controlled("bart", "none", tie_word_embeddings=True, dropout=0.0)
    whole(**seq2seq_batch(whole, sources, targets)).loss.backward()
    monkeypatch.setattr(training, "CLIP_NORM", float("inf"))
    model, gradients = controlled("bart", "none", tie_word_embeddings=True, dropout=0.0), {}

    def keep(optimizer, *_):
        gradients.update({name: p.grad.clone() for name, p in model.named_parameters()})

    hook = register_optimizer_step_pre_hook(keep)
    try:
        training.train(
            model,
            lengths,
            lambda indices, rng: seq2seq_batch(
                model, [sources[i] for i in indices], [targets[i] for i in indices]
            ),
            updates=1,
            learning_rate=1e-3,
            tokens_per_batch=100,
            seed=0,
        )
    finally:
        hook.remove()
    for name, parameter in whole.named_parameters():
        torch.testing.assert_close(gradients[name], parameter.grad, atol=1e-5, rtol=0, msg=name)


def test_bfloat16_where_the_device_computes_in_it(monkeypatch):
    """Passes in bfloat16, weights in float32, nearly the same loss; and the trained model is an
    ordinary float32 model again.
    """
    seen = []
    exact, losses = train_tiny(None, signal="pre", updates=1)
    monkeypatch.setattr(training, "computes_in_bfloat16", lambda device: True)
    monkeypatch.setattr(
        torch.nn.functional,
        "scaled_dot_product_attention",
        watched(torch.nn.functional.scaled_dot_product_attention, seen),
    )
    half, half_losses = train_tiny(None, signal="pre", updates=1)
    assert seen and set(seen) == {torch.bfloat16}
    assert half_losses != losses and half_losses == pytest.approx(losses, rel=1e-2)
    assert all(value.dtype == torch.float32 for value in half.values())
    model = controlled("bart", "pre")
    forward = type(model).forward
    training.train(
        model,
        np.array([5]),
        lambda i, rng: seq2seq_batch(model, *pairs_of([5])),
        updates=1,
        learning_rate=1e-3,
        tokens_per_batch=9,
        seed=0,
    )
    assert model.forward.__func__ is forward
    with torch.no_grad():
        assert model(**seq2seq_batch(model, *pairs_of([5]))).logits.dtype == torch.float32


def watched(function, seen: list):
    """A function that notes the type of what it is given first."""

    def call(query, *rest, **options):
        seen.append(query.dtype)
        return function(query, *rest, **options)

    return call


def close(parameters: dict[str, torch.Tensor], others: dict[str, torch.Tensor]) -> None:
    """Equal to 1e-5, but for biases that softmax cancels: their gradient is rounding error, which
    Adam would blow up.
    """
    for name, value in others.items():
        if not name.endswith("k_proj.bias"):
            torch.testing.assert_close(parameters[name], value, atol=1e-5, rtol=0, msg=name)


# ---- other processes -------------------------------------------------------------------------


def start(code: str, **environment: str) -> subprocess.Popen:
    """A Python process beside this file."""
    return subprocess.Popen(
        [sys.executable, "-c", f"from small_models import train_tiny\n{code}"],
        cwd=Path(__file__).parent,
        env={**os.environ, "PYTHONPATH": str(paths.ROOT), **environment},
        stderr=subprocess.PIPE,
        text=True,
    )


def test_killed_run_resumes_bit_for_bit(tmp_path):
    """SIGKILL in update 7, resume from the checkpoint of update 6: parameters and losses of an
    uninterrupted run, exactly.

    Dropout and training noise are on: their randomness must be that of the update, not of the
    process.
    """
    straight, losses = train_tiny(None)
    checkpoint = tmp_path / "run.checkpoint"
    killed = start(f"from pathlib import Path; train_tiny(Path({str(checkpoint)!r}), kill_at=7)")
    _, errors = killed.communicate()
    assert killed.returncode == -signal.SIGKILL, errors
    assert checkpoint.exists()
    calls = []
    resumed, resumed_losses = train_tiny(checkpoint, on_batch=calls.append)
    assert len(calls) == 4  # updates 6 to 9: the six before came from the checkpoint
    assert resumed_losses == losses
    assert all(torch.equal(resumed[name], straight[name]) for name in straight)
    assert not any(tmp_path.iterdir())  # a finished run leaves no checkpoint behind


def together(code: str, **environment: str) -> list[subprocess.Popen]:
    """Two processes that train together on CPUs (gloo), as `accelerate launch --cpu
    --num_processes 2` would start them.
    """
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    common = {
        "WORLD_SIZE": "2",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": port,
        "ACCELERATE_USE_CPU": "true",
        **environment,
    }
    processes = [start(code, RANK=str(rank), LOCAL_RANK=str(rank), **common) for rank in range(2)]
    try:
        for process in processes:
            process.errors = process.communicate(timeout=600)[1]
    finally:
        for process in processes:
            process.kill()  # one must not wait for ever for the other
    return processes


@pytest.mark.parametrize(("rank", "hidden"), [("0", False), ("1", True)])
def test_of_several_processes_the_first_shows_its_bar(rank, hidden, tmp_path, monkeypatch):
    monkeypatch.setenv("STUDY_PROGRESS", str(tmp_path / "terminal"))
    monkeypatch.setenv("RANK", rank)
    assert progress(range(3), "training").disable == hidden


CASES = {"shared": 80, "some batches of one example": 20}  # tokens a batch


def test_two_processes_are_one(tmp_path):
    """Two processes that share each batch end with the parameters and losses of one process.
    Dropout and noise off.

    One has nothing to do where a batch has one example.
    """
    code = f"""
import os, torch
for name, batch in {CASES}.items():
    seen = []
    options = dict(signal="none", dropout=0.0, tokens_per_batch=batch)
    result = train_tiny(None, on_batch=lambda i: seen.append(i.tolist()), **options)
    torch.save((*result, seen), os.environ["OUT"] + name + os.environ["RANK"])
"""
    processes = together(code, OUT=str(tmp_path / "of "))
    assert all(process.returncode == 0 for process in processes), (
        processes[0].errors[-2000:] + processes[1].errors[-2000:]
    )
    for name, batch in CASES.items():
        whole = []
        one, losses = train_tiny(
            None,
            signal="none",
            dropout=0.0,
            tokens_per_batch=batch,
            on_batch=lambda i, seen=whole: seen.append(i.tolist()),
        )
        ranks = [torch.load(tmp_path / f"of {name}{rank}") for rank in range(2)]
        first, second = ranks[0][2], ranks[1][2]
        # in turn; where there is one example, the second process computes it along
        assert all(
            a == both[::2] and b == (both[1::2] or both)
            for a, b, both in zip(first, second, whole, strict=True)
        )
        assert any(len(both) == 1 for both in whole) == (batch == 20)
        for parameters, shared_losses, _ in ranks:
            assert shared_losses == pytest.approx(losses, abs=1e-5)
            close(parameters, one)


def test_two_processes_resume_exactly(tmp_path):
    """Both are killed in update 7; two others go on from the checkpoint that the first one wrote,
    to the bit as if nothing had happened.
    """
    file = tmp_path / "run.checkpoint"
    killed = together(f"from pathlib import Path; train_tiny(Path({str(file)!r}), kill_at=7)")
    assert any(process.returncode == -signal.SIGKILL for process in killed) and [
        f.name for f in tmp_path.iterdir()
    ] == [file.name]
    code = f"""
import os, torch
from pathlib import Path
seen = []
resumed = train_tiny(Path({str(file)!r}), on_batch=seen.append)
torch.save([resumed, train_tiny(None), len(seen)], {str(tmp_path / "rank")!r} + os.environ["RANK"])
"""
    processes = together(code)
    assert all(process.returncode == 0 for process in processes), (
        processes[0].errors[-2000:] + processes[1].errors[-2000:]
    )
    for rank in range(2):
        (resumed, resumed_losses), (straight, losses), computed = torch.load(
            tmp_path / f"rank{rank}"
        )
        assert computed == 4  # updates 6 to 9
        assert resumed_losses == losses and all(
            torch.equal(resumed[name], straight[name]) for name in straight
        )
    assert not file.exists()
