"""Signals that tell a decoder how far along it is: Progress Ratio Embeddings and every baseline, behind one call.

    signal(step (B, T), target_length (B,)) -> (B, T, d)

`step` t = 1, 2, ... is the index of the token the decoder input must predict; `target_length` l counts every token the decoder
emits, EOS included, so t = l at the input that must predict EOS. No signal has a limit on l.
This file imports only torch; copy it into your own project.

Sources: PRE - Botcazou et al., arXiv 2512.06938. RPE - the countdown baseline of the same paper. LRPE - Takase & Okazaki 2019.
`pre-nyquist`, `pre-countdown`, `countdown`, `linear`, `bucket` and `number-in-prompt` are this study's.
"""

import math

import torch
from torch import Tensor, nn


def interleave(phase: Tensor) -> Tensor:
    """sin(phase) in even components, cos(phase) in odd ones. (..., d/2) -> (..., d)"""
    out = phase.new_empty(*phase.shape[:-1], 2 * phase.shape[-1])
    torch.sin(phase, out=out[..., 0::2])  # written in place: stacking two halves would copy the tensor once more
    torch.cos(phase, out=out[..., 1::2])
    return out


class LengthSignal(nn.Module):
    """Base of all signals. Subclasses say what is counted (`quantity`) and how it becomes a vector (`encode`).

    Training noise is added to the quantity in training mode only (`model.eval()` switches it off, `signal.train()` alone on).
    """

    in_prompt = False  # whether the length is asked for in the prompt instead

    def __init__(self, d_model: int):
        super().__init__()
        if d_model <= 0 or d_model % 2:
            raise ValueError(f"d_model must be a positive even number, not {d_model}")
        self.d_model = d_model

    def quantity(self, step: Tensor, target_length: Tensor) -> Tensor:
        """What the signal counts at each step: a ratio or a number of tokens. (B, T), (B, 1) -> (B, T)"""
        raise NotImplementedError

    def add_noise(self, quantity: Tensor) -> Tensor:
        """Training noise; none unless the method defines one. (B, T) -> (B, T)"""
        return quantity

    def encode(self, quantity: Tensor) -> Tensor:
        """(B, T) -> (B, T, d)"""
        raise NotImplementedError

    def forward(self, step: Tensor, target_length: Tensor) -> Tensor:
        """step (B, T) or (T,), target_length (B,) -> (B, T, d); float32."""
        step = step.expand(len(target_length), -1) if step.dim() == 1 else step
        quantity = self.quantity(step.float(), target_length.float()[:, None])  # (B, T)
        return self.encode(self.add_noise(quantity) if self.training else quantity)

    def half_dimensions(self, device: torch.device) -> Tensor:
        """floor(j/2) of each pair of components j. (d/2,)"""
        return torch.arange(self.d_model // 2, device=device, dtype=torch.float32)


class NoSignal(LengthSignal):
    """Zeros: the model without length control."""

    def quantity(self, step: Tensor, target_length: Tensor) -> Tensor:
        return torch.zeros_like(step)

    def encode(self, quantity: Tensor) -> Tensor:
        return quantity.new_zeros(*quantity.shape, self.d_model)


class NumberInPrompt(NoSignal):
    """Zeros: the prompt of a decoder-only model says the number instead, as people do who ask for a length (see old.length.prompts)."""

    in_prompt = True


class ProgressRatio(LengthSignal):
    """Progress Ratio Embeddings ξ(r) (PRE, section 3), r = clip(t / l, 0, 1).

    ξ(r)_j = sin(ω x_j) for even j, cos(ω x_j) for odd j, with ω = r M, M = d/2 and x_j = 2 floor(j/2) / d.
    Noise in training: r <- clip(r + δ, 0, 1), δ ~ N(0, (noise / M)^2); with M = d/2 and noise = 1 the paper's N(0, (2/d)^2).
    """

    def __init__(self, d_model: int, max_frequency: float | None = None, noise: float = 1.0):
        super().__init__(d_model)
        self.max_frequency = d_model / 2 if max_frequency is None else max_frequency  # M
        self.noise = noise

    def quantity(self, step: Tensor, target_length: Tensor) -> Tensor:
        return (step / target_length).clamp(0, 1)

    def add_noise(self, quantity: Tensor) -> Tensor:
        return (quantity + self.noise / self.max_frequency * torch.randn_like(quantity)).clamp(0, 1)

    def encode(self, quantity: Tensor) -> Tensor:
        x = 2 * self.half_dimensions(quantity.device) / self.d_model  # x_j, (d/2,)
        return interleave(quantity[..., None] * self.max_frequency * x)  # ω x


class OfficialProgressRatio(ProgressRatio):
    """ξ as in the authors' code: r = (t - 1) / (l - 1), sin and cos swapped. l = 1 needs a case of its own: r = 1."""

    def quantity(self, step: Tensor, target_length: Tensor) -> Tensor:
        ratio = (step - 1) / (target_length - 1).clamp(min=1)
        return torch.where(target_length > 1, ratio, torch.ones_like(ratio)).clamp(0, 1)

    def encode(self, quantity: Tensor) -> Tensor:
        return super().encode(quantity).unflatten(-1, (-1, 2)).flip(-1).flatten(-2)


class LinearRatio(ProgressRatio):
    """r times a learned vector: does the trigonometric form matter? Noise as in PRE. Starts at the norm of ξ, sqrt(d/2)."""

    def __init__(self, d_model: int):
        super().__init__(d_model)
        self.vector = nn.Parameter(torch.empty(d_model))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.normal_(self.vector, std=math.sqrt(0.5))

    def encode(self, quantity: Tensor) -> Tensor:
        return quantity[..., None] * self.vector


class NyquistRatio(ProgressRatio):
    """ξ(r) with M = `share` of π d / 2. There neighbouring components reach a phase difference of π, and beyond they would alias. The
    paper's M is the share 1/π. Noise as in PRE, N(0, 1/M^2).
    """

    def __init__(self, d_model: int, share: float = 1.0, noise: float = 1.0):
        if not 0 < share <= 1:
            raise ValueError(f"share must lie in (0, 1], not {share}: beyond 1 the components alias")
        super().__init__(d_model, share * math.pi * d_model / 2, noise)


class BucketRatio(ProgressRatio):
    """A learned vector for each of `buckets` equal ranges of r, and one for r = 1: is a closed form needed? Noise as in PRE."""

    def __init__(self, d_model: int, buckets: int = 64):
        super().__init__(d_model)
        self.table = nn.Parameter(torch.empty(buckets + 1, d_model))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.normal_(self.table, std=math.sqrt(0.5))

    def encode(self, quantity: Tensor) -> Tensor:
        return self.table[(quantity * (len(self.table) - 1)).long()]


class ReversePosition(LengthSignal):
    """RPE: sinusoidal embedding (base 10000) of the number of tokens still to come, max(l - t, 0).

    `max_countdown` clips the countdown: it then says "this many or more", and never leaves the range seen in training.
    Noise in training: |round(k + N(0, `noise`^2))|.
    """

    def __init__(self, d_model: int, max_countdown: int | None = None, noise: float = 1.0):
        super().__init__(d_model)
        self.max_countdown, self.noise = max_countdown, noise

    def quantity(self, step: Tensor, target_length: Tensor) -> Tensor:
        return (target_length - step).clamp(min=0, max=self.max_countdown)

    def add_noise(self, quantity: Tensor) -> Tensor:
        return (quantity + self.noise * torch.randn_like(quantity)).round().abs()

    def encode(self, quantity: Tensor) -> Tensor:
        rates = 10000.0 ** (-2 * self.half_dimensions(quantity.device) / self.d_model)  # (d/2,)
        return interleave(quantity[..., None] * rates)


class Countdown(ReversePosition):
    """The number of the last `window` tokens still to come, min(l - t, window), as a sinusoid: a clipped RPE, without training noise."""

    def __init__(self, d_model: int, window: int = 16, noise: float = 0.0):
        super().__init__(d_model, window, noise)


class RatioAndCountdown(LengthSignal):
    """ξ(r) and the countdown of the last `window` tokens.

    Every value of both is seen in training whatever the length, so neither is new on a longer text; the ratio says how far along the text
    is, the countdown when to stop. `combine`: "sum" adds the two at the norm of one, "split" gives each half of the dimensions. `share`:
    M of the ratio, as in NyquistRatio; `noise`: of the countdown in training.
    """

    def __init__(self, d_model: int, window: int = 16, combine: str = "split", share: float = 1 / math.pi, noise: float = 0.0):
        if combine not in ("sum", "split"):
            raise ValueError(f"combine must be 'sum' or 'split', not {combine!r}")
        super().__init__(d_model)
        self.combine = combine
        width = d_model // 2 if combine == "split" else d_model
        self.ratio, self.countdown = NyquistRatio(width, share), Countdown(width, window, noise)

    def forward(self, step: Tensor, target_length: Tensor) -> Tensor:
        parts = self.ratio(step, target_length), self.countdown(step, target_length)
        return torch.cat(parts, -1) if self.combine == "split" else (parts[0] + parts[1]) * math.sqrt(0.5)


class RandomReversePosition(ReversePosition):
    """RPE with a frozen random vector for each countdown value instead of a sinusoid (very likely what the published RPE ran with).

    Entry (k, j) ~ N(0, 1/2), hence the expected norm of a sinusoid, sqrt(d/2). It is computed from a hash of (k, j), not stored:
    every k has its own vector, the same on every machine.
    """

    def encode(self, quantity: Tensor) -> Tensor:
        index = quantity.long()[..., None] * self.d_model + torch.arange(self.d_model, device=quantity.device)
        return math.sqrt(0.5) * hashed_normal(index)


class LengthRatioPosition(LengthSignal):
    """LRPE (Takase & Okazaki 2019): phase (t / (l - 1)) l^(1 - 2 floor(j/2) / d). No training noise; t saturates at l."""

    def quantity(self, step: Tensor, target_length: Tensor) -> Tensor:
        return torch.minimum(step, target_length) / (target_length - 1).clamp(min=1)

    def forward(self, step: Tensor, target_length: Tensor) -> Tensor:
        step = step.expand(len(target_length), -1) if step.dim() == 1 else step
        length = target_length.float()[:, None]  # (B, 1)
        rates = length ** (1 - 2 * self.half_dimensions(length.device) / self.d_model)  # (B, d/2): they depend on l, so no `encode`
        return interleave(self.quantity(step.float(), length)[..., None] * rates[:, None])


def hashed_normal(index: Tensor) -> Tensor:
    """Standard normal numbers that are a fixed function of an integer index (SplitMix64 finaliser, Box-Muller). Same shape."""

    def uniform(x: Tensor) -> Tensor:  # (0, 1)
        for multiplier, shift in ((-4658895280553007687, 30), (-7723592293110705685, 27)):
            x = (x ^ ((x >> shift) & ((1 << (64 - shift)) - 1))) * multiplier  # logical shift; int64 wraps around
        return (((x >> 31) & 0xFFFFFF).double() + 0.5) / 0x1000000

    first, second = uniform(2 * index + 1), uniform(2 * index + 2)
    return ((-2 * first.log()).sqrt() * (2 * math.pi * second).cos()).float()


SIGNALS = {
    "none": NoSignal,
    "number-in-prompt": NumberInPrompt,
    "pre": ProgressRatio,
    "pre-official": OfficialProgressRatio,
    "pre-nyquist": NyquistRatio,
    "pre-countdown": RatioAndCountdown,
    "countdown": Countdown,
    "linear": LinearRatio,
    "bucket": BucketRatio,
    "rpe": ReversePosition,
    "rpe-clipped": ReversePosition,
    "rpe-random": RandomReversePosition,
    "rpe-random-clipped": RandomReversePosition,
    "lrpe": LengthRatioPosition,
}


def make_signal(name: str, d_model: int, **options: float) -> LengthSignal:
    """The signal called `name`; the `-clipped` ones need `max_countdown`. Raises ValueError for an unknown name, naming the valid ones."""
    if name not in SIGNALS:
        raise ValueError(f"unknown signal {name!r}: choose one of {', '.join(SIGNALS)}")
    if name.endswith("-clipped") and "max_countdown" not in options:
        raise ValueError(f"{name!r} needs max_countdown, a number of tokens that training targets often have left")
    return SIGNALS[name](d_model, **options)
