"""Every signal against its formula, transcribed in float64 with plain loops, and the identities
its definition implies.
"""

import ast
import doctest
import math
import sys
from pathlib import Path

import pytest
import torch

from lib import progress_ratio, reverse_position
from lib.length.signals import SIGNALS, make_signal

RATIO = ["pre", "pre-official", "linear", "bucket"]
COUNTDOWN = ["rpe", "rpe-clipped", "rpe-random", "rpe-random-clipped"]


def make(name: str, d: int = 16):
    options = {"max_countdown": 10} if name.endswith("-clipped") else {}
    return make_signal(name, d, **options).eval()


def at(signal, step: int, length: int) -> torch.Tensor:
    """The vector of one step. (d,)"""
    return signal(torch.tensor([[step]]), torch.tensor([length]))[0, 0]


def waves(phases: list[float]) -> torch.Tensor:
    """sin of each phase in even components, cos in odd ones. (d,)"""
    return torch.tensor(
        [f(phase) for phase in phases for f in (math.sin, math.cos)], dtype=torch.float64
    )


def pre(t, l, d):
    ratio = min(max(t / l, 0.0), 1.0)
    return waves([ratio * (d / 2) * (2 * k / d) for k in range(d // 2)])


def pre_official(t, l, d):
    ratio = 1.0 if l == 1 else min(max((t - 1) / (l - 1), 0.0), 1.0)
    return waves([ratio * k for k in range(d // 2)]).reshape(-1, 2).flip(-1).flatten()


def rpe(t, l, d, clip=math.inf):
    return waves([min(max(l - t, 0), clip) / 10000 ** (2 * k / d) for k in range(d // 2)])


def lrpe(t, l, d):
    return waves([min(t, l) / max(l - 1, 1) * l ** (1 - 2 * k / d) for k in range(d // 2)])


def pre_nyquist(t, l, d):
    ratio = min(max(t / l, 0.0), 1.0)
    return waves([ratio * math.pi * k for k in range(d // 2)])  # M x = (π d / 2) (2 k / d)


def pre_countdown(t, l, d):
    ratio = waves([min(max(t / l, 0.0), 1.0) * k for k in range(d // 4)])
    return torch.cat([ratio, rpe(t, l, d // 2, clip=16)])


ZEROS = ("none", "number-in-prompt")
FORMULAS = {
    "pre-nyquist": pre_nyquist,
    "pre-countdown": pre_countdown,
    "pre": pre,
    "pre-official": pre_official,
    "rpe": rpe,
    "rpe-clipped": lambda t, l, d: rpe(t, l, d, clip=10),
    "lrpe": lrpe,
}


@pytest.mark.parametrize("d", [4, 8, 64])
@pytest.mark.parametrize("name", FORMULAS)
def test_equals_its_formula(name, d):
    """signal(t, l) = the direct transcription, before, at and past l, for l = 1 too."""
    signal = make(name, d)
    for t, l in [
        (1, 1),
        (3, 1),
        (1, 2),
        (2, 2),
        (1, 7),
        (4, 7),
        (7, 7),
        (12, 7),
        (1, 40),
        (29, 40),
        (40, 40),
    ]:
        torch.testing.assert_close(
            at(signal, t, l).double(), FORMULAS[name](t, l, d), atol=1e-5, rtol=0
        )


def test_max_frequency_scales_the_phase():
    """With M times as high the phase at r is that of M r: ξ(r; 3 M) = ξ(3 r; M)."""
    fast, plain = make_signal("pre", 16, max_frequency=24), make("pre")
    torch.testing.assert_close(at(fast.eval(), 2, 9), at(plain, 6, 9), atol=1e-5, rtol=0)


@pytest.mark.parametrize("name", SIGNALS)
def test_shape_and_type(name):
    """(B, T), (B,) -> (B, T, d), float32 and finite, and the batch is the single cases stacked."""
    signal, step, length = make(name), torch.tensor([[1, 2, 9], [4, 5, 6]]), torch.tensor([5, 60])
    out = signal(step, length)
    assert out.shape == (2, 3, 16) and out.dtype == torch.float32 and out.isfinite().all()
    single = torch.stack(
        [
            torch.stack([at(signal, t, l) for t in row])
            for row, l in zip(step.tolist(), length.tolist())
        ]
    )
    torch.testing.assert_close(out, single, atol=1e-6, rtol=0)


@pytest.mark.parametrize("name", SIGNALS)
def test_shared_steps(name):
    """step (T,) = step (B, T) with equal rows."""
    signal, step, length = make(name), torch.arange(1, 12), torch.tensor([1, 5, 60])
    assert torch.equal(signal(step, length), signal(step.expand(3, -1), length))


@pytest.mark.parametrize("name", SIGNALS)
def test_saturates_past_the_target(name):
    """Past l every signal stays what it was at l."""
    signal = make(name)
    for l in (1, 2, 30):
        assert torch.equal(at(signal, l + 1, l), at(signal, l, l))
        assert torch.equal(at(signal, l + 300, l), at(signal, l, l))


@pytest.mark.parametrize("name", SIGNALS)
def test_no_limit_on_the_length(name):
    """No table ends anywhere: finite up to l = 100,000, and (but for those of zeros) still moving
    near the end.
    """
    signal, l = make(name), 100_000
    out = signal(torch.tensor([[1, l // 2, l - 5, l, l + 1]]), torch.tensor([l]))[0]
    assert out.isfinite().all()
    assert (not torch.equal(out[1], out[3])) == (name not in ZEROS)


@pytest.mark.parametrize(
    "name", ["pre", "pre-official", "pre-nyquist", "rpe", "rpe-clipped", "lrpe"]
)
def test_norm(name):
    """sin and cos of the same phases: the norm is sqrt(d / 2) everywhere."""
    out = make(name, 64)(torch.arange(1, 50), torch.tensor([1, 2, 17, 40]))
    torch.testing.assert_close(
        out.norm(dim=-1), torch.full((4, 49), math.sqrt(32)), atol=1e-5, rtol=0
    )


def test_share_of_the_aliasing_bound():
    """The share 1/π is the paper's M; at 1 neighbouring components differ by exactly π at r = 1;
    more is refused.
    """
    step, length = torch.arange(1, 12), torch.tensor([11])
    assert torch.allclose(
        make_signal("pre-nyquist", 64, share=1 / math.pi).eval()(step, length),
        make("pre", 64)(step, length),
        atol=1e-5,
    )
    end = at(make("pre-nyquist", 64), 5, 5)
    torch.testing.assert_close(end[1::2], torch.tensor([1.0, -1.0]).repeat(16), atol=1e-4, rtol=0)
    for share in (0, 1.01):
        with pytest.raises(ValueError, match=r"share must lie in \(0, 1\]"):
            make_signal("pre-nyquist", 64, share=share)


def test_halves_and_sum():
    """Each half of the dimensions is one of the two signals, of that width; or both are added at
    the norm of one. No third way.
    """
    step, length = torch.arange(1, 20), torch.tensor([3, 17])
    out = make_signal("pre-countdown", 32, window=5).eval()(step, length)
    assert torch.allclose(out[..., :16], make("pre", 16)(step, length), atol=1e-5)
    assert torch.equal(
        out[..., 16:], make_signal("rpe-clipped", 16, max_countdown=5).eval()(step, length)
    )
    out = make_signal("pre-countdown", 32, window=5, combine="sum").eval()(step, length)
    countdown = make_signal("countdown", 32, window=5).eval()(step, length)
    assert torch.allclose(
        out, (make("pre", 32)(step, length) + countdown) / math.sqrt(2), atol=1e-5
    )
    with pytest.raises(ValueError, match="'sum' or 'split'"):
        make_signal("pre-countdown", 32, combine="both")


@pytest.mark.parametrize("noise", [0.0, 1.0])
def test_noise_of_ratio_and_countdown(noise):
    """In training each has its own; the countdown's can be switched off."""
    signal = make_signal("pre-countdown", 32, combine="split", noise=noise).train()
    clean = make_signal("pre-countdown", 32, combine="split").eval()
    step, length = torch.arange(1, 200), torch.tensor([200])
    noisy, plain = signal(step, length), clean(step, length)
    assert not torch.allclose(noisy[..., :16], plain[..., :16])
    assert torch.equal(noisy[..., 16:], plain[..., 16:]) == (noise == 0)


def test_buckets():
    """One vector for each range of r, one of its own for r = 1; all learned, with the norm of ξ
    at the start.
    """
    signal = make_signal("bucket", 256, buckets=4).eval()
    out = signal(torch.arange(1, 9), torch.tensor([8]))[0]  # r = 1/8 ... 8/8
    numbers = [0, 1, 1, 2, 2, 3, 3, 4]
    assert torch.equal(out, signal.table[numbers]) and signal.table.requires_grad
    assert signal.table.norm(dim=1).mean().item() == pytest.approx(math.sqrt(128), rel=0.1)


@pytest.mark.parametrize("name", [*RATIO, *COUNTDOWN, "pre-nyquist", "pre-countdown", "countdown"])
def test_same_end_for_every_length(name):
    """The input that must predict EOS always carries the same vector: r = 1, or no token left."""
    signal = make(name)
    ends = torch.stack([at(signal, l, l) for l in (1, 2, 3, 17, 300)])
    assert torch.equal(ends, ends[:1].expand_as(ends))
    assert not torch.allclose(ends[0], at(signal, 2, 17), atol=0.1)


def test_official_variant_is_the_shifted_and_swapped_one():
    """pre-official(t, l) = pre(t - 1, l - 1) with sin and cos exchanged."""
    ours, theirs = make("pre"), make("pre-official")
    for t, l in [(2, 2), (2, 5), (5, 5), (20, 31)]:
        torch.testing.assert_close(
            at(theirs, t, l), at(ours, t - 1, l - 1).reshape(-1, 2).flip(-1).flatten()
        )
    torch.testing.assert_close(
        at(theirs, 1, 9), torch.tensor([1.0, 0.0]).repeat(8)
    )  # r = 0 at the first step


def test_linear_is_proportional_to_the_ratio():
    """signal(t, l) = t / l times the vector, whose norm starts near sqrt(d / 2)."""
    signal = make("linear", 256)
    torch.testing.assert_close(at(signal, 3, 12), 0.25 * signal.vector.detach(), atol=1e-6, rtol=0)
    assert signal.vector.norm().item() == pytest.approx(math.sqrt(128), rel=0.2)
    assert signal.vector.requires_grad


@pytest.mark.parametrize("name", ["rpe", "rpe-random"])
def test_clipped_countdown(name):
    """-clipped equals the plain signal while l - t <= clip and is constant above."""
    plain, clipped, l = make(name), make(f"{name}-clipped"), 40
    for left in range(11):
        assert torch.equal(at(clipped, l - left, l), at(plain, l - left, l))
    for left in range(11, 40):
        assert torch.equal(at(clipped, l - left, l), at(plain, l - 10, l))
        assert not torch.equal(at(plain, l - left, l), at(plain, l - 10, l))


@pytest.mark.parametrize("name", ["rpe", "rpe-random"])
def test_countdown_alone_counts(name):
    """The same number of tokens left gives the same vector whatever (t, l); another number gives
    another vector.
    """
    signal = make(name)
    assert torch.equal(at(signal, 3, 10), at(signal, 93, 100))
    vectors = signal(torch.arange(1, 2001), torch.tensor([2000]))[0]
    assert len(torch.unique(vectors, dim=0)) == 2000


def test_random_countdown_is_noise():
    """rpe-random: entries ~ N(0, 1/2); neighbouring countdowns and neighbouring components are
    uncorrelated.
    """
    table = make("rpe-random", 64)(torch.arange(1, 5001), torch.tensor([5000]))[
        0
    ].double()  # (5000, 64): 320,000 entries
    assert table.mean().abs() < 0.01
    assert (table.square().mean() - 0.5).abs() < 0.01
    assert (table.pow(4).mean() / table.square().mean() ** 2 - 3).abs() < 0.1  # a normal's kurtosis
    assert (table[1:] * table[:-1]).mean().abs() < 0.01
    assert (table[:, 1:] * table[:, :-1]).mean().abs() < 0.01
    assert torch.equal(
        make("rpe-random", 64)(torch.tensor([1, 2]), torch.tensor([5000]))[0].double(), table[:2]
    )  # and fixed


@pytest.mark.parametrize("name", [n for n in SIGNALS if n not in (*ZEROS, "lrpe", "countdown")])
def test_noise_in_training_only(name):
    """Two calls agree in eval mode; `signal.train()` alone makes them differ."""
    signal, step, length = make(name, 64), torch.arange(1, 21), torch.tensor([20, 40])
    assert torch.equal(signal(step, length), signal(step, length))
    signal.train()
    assert not torch.equal(signal(step, length), signal(step, length))


@pytest.mark.parametrize("name", [*ZEROS, "lrpe", "countdown"])
def test_no_noise_by_definition(name):
    signal, step, length = make(name), torch.arange(1, 21), torch.tensor([20, 40])
    clean = signal(step, length)
    assert torch.equal(signal.train()(step, length), clean)


@pytest.mark.parametrize("name", ["pre", "rpe"])
def test_noise_can_be_switched_off(name):
    step, length = torch.arange(1, 30), torch.tensor([29])
    assert torch.equal(
        make_signal(name, 16, noise=0.0).train()(step, length), make(name)(step, length)
    )


def test_noise_is_matched_to_the_frequency():
    """δ ~ N(0, 1/M^2): as far in phase as PRE's."""
    signal, ratio = make("pre-nyquist", 16), torch.full((100_000,), 0.5)
    assert (signal.add_noise(ratio) - ratio).std().item() == pytest.approx(
        2 / (16 * math.pi), rel=0.05
    )


@pytest.mark.parametrize("name", RATIO)
def test_noise_of_the_ratio(name):
    """r <- clip(r + δ, 0, 1) with δ ~ N(0, (2/d)^2)."""
    signal, ratio = make(name, 16), torch.linspace(0, 1, 5).repeat(20_000, 1)
    noisy = signal.add_noise(ratio)
    assert noisy.min() == 0 and noisy.max() == 1
    assert (noisy - ratio)[:, 2].std().item() == pytest.approx(2 / 16, rel=0.05)


@pytest.mark.parametrize("name", COUNTDOWN)
def test_noise_of_the_countdown(name):
    """k <- |round(k + N(0, 1))|: still a number of tokens."""
    signal = make(name)
    noisy = signal.add_noise(torch.full((20_000,), 9.0))
    assert torch.equal(noisy, noisy.round()) and signal.add_noise(torch.zeros(1000)).min() == 0
    assert noisy.std().item() == pytest.approx(
        math.sqrt(1 + 1 / 12), rel=0.05
    )  # rounding adds 1/12


@pytest.mark.parametrize("d", [0, -2, 7])
def test_refuses_odd_dimension(d):
    with pytest.raises(ValueError, match="positive even"):
        make_signal("pre", d)


def test_refuses_unknown_signal():
    with pytest.raises(ValueError, match="'prr'.*pre.*rpe.*lrpe"):
        make_signal("prr", 16)


@pytest.mark.parametrize("name", [n for n in SIGNALS if n.endswith("-clipped")])
def test_clipping_needs_its_bound(name):
    with pytest.raises(ValueError, match="max_countdown"):
        make_signal(name, 16)


@pytest.mark.parametrize("module", [progress_ratio, reverse_position])
def test_file_stands_alone(module):
    """Each can be copied: torch is all it imports beyond the standard library."""
    tree = ast.parse(Path(module.__file__).read_text())
    nodes = list(ast.walk(tree))
    imported = {alias.name for n in nodes if isinstance(n, ast.Import) for alias in n.names}
    imported |= {node.module or "." for node in nodes if isinstance(node, ast.ImportFrom)}
    outside = {name.split(".")[0] for name in imported} - set(sys.stdlib_module_names)
    assert outside == {"torch"}


@pytest.mark.parametrize("module", [progress_ratio, reverse_position])
def test_examples_in_the_docstrings(module):
    outcome = doctest.testmod(module)
    assert outcome.attempted and not outcome.failed
