"""The signals that the study compares with Progress Ratio Embeddings and RPE, all behind one call:

    signal(step (T,) or (B, T), target_length (B,)) -> (B, T, d)

`step` t: index (from 1) of the token that an input must predict, or the length so far; t = l at the
input that must predict EOS. Sources: PRE, Botcazou et al., arXiv 2512.06938; LRPE, Takase & Okazaki
2019; nyquist, the countdowns, linear, bucket and number-in-prompt are this study's.
"""

import math

import torch
from torch import Tensor, nn

from lib.progress_ratio import ProgressRatio, sin_cos
from lib.reverse_position import RandomReversePosition, ReversePosition


class NoSignal(nn.Module):
    """Zeros: the model without length control."""

    def __init__(self, d_model: int):
        super().__init__()
        self.d_model = d_model

    def forward(self, step: Tensor, target_length: Tensor) -> Tensor:
        return target_length.new_zeros(
            (len(target_length), step.shape[-1], self.d_model), dtype=torch.float32
        )


class OfficialProgressRatio(ProgressRatio):
    """ξ as in the authors' code: r = (t - 1) / (l - 1), sin and cos swapped. At l = 1, r = 1."""

    def ratio(self, step: Tensor, target_length: Tensor) -> Tensor:
        ratio = (step - 1) / (target_length - 1).clamp(min=1)
        return torch.where(target_length > 1, ratio, torch.ones_like(ratio)).clamp(0, 1)

    def encode(self, ratio: Tensor) -> Tensor:
        return super().encode(ratio).unflatten(-1, (-1, 2)).flip(-1).flatten(-2)


class NyquistRatio(ProgressRatio):
    """ξ(r) with M = `share` of π d / 2, where neighbouring components reach a phase difference π:
    beyond they would alias. The paper's M is the share 1/π. Noise as in PRE.
    """

    def __init__(self, d_model: int, share: float = 1.0, noise: float = 1.0):
        if not 0 < share <= 1:
            raise ValueError(f"share must lie in (0, 1], not {share}: beyond 1 components alias")
        super().__init__(d_model, share * math.pi * d_model / 2, noise)


class LinearRatio(ProgressRatio):
    """r times a learned vector: does the form matter? Noise as in PRE; starts at the norm of ξ."""

    def __init__(self, d_model: int):
        super().__init__(d_model)
        self.vector = nn.Parameter(torch.empty(d_model))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        for parameter in self.parameters():
            nn.init.normal_(parameter, std=math.sqrt(0.5))

    def encode(self, ratio: Tensor) -> Tensor:
        return ratio[..., None] * self.vector


class BucketRatio(ProgressRatio):
    """A learned vector for each of `buckets` equal ranges of r and for r = 1; as LinearRatio."""

    def __init__(self, d_model: int, buckets: int = 64):
        super().__init__(d_model)
        self.table = nn.Parameter(torch.empty(buckets + 1, d_model))
        self.reset_parameters()

    reset_parameters = LinearRatio.reset_parameters

    def encode(self, ratio: Tensor) -> Tensor:
        return self.table[(ratio * (len(self.table) - 1)).long()]


class Countdown(ReversePosition):
    """The last `window` tokens counted down, min(l - t, window): a clipped RPE, without noise."""

    def __init__(self, d_model: int, window: int = 16, noise: float = 0.0):
        super().__init__(d_model, window, noise)


class RatioAndCountdown(nn.Module):
    """ξ(r) and the countdown of the last `window` tokens: how far along, and when to stop. Every
    value of both is met in training, whatever the length.

    `combine`: "sum" adds the two at the norm of one, "split" gives each half of the dimensions.
    `share`: M, as in NyquistRatio; `noise`: of the countdown.
    """

    def __init__(self, d_model: int, window=16, combine="split", share=1 / math.pi, noise=0.0):
        if combine not in ("sum", "split"):
            raise ValueError(f"combine must be 'sum' or 'split', not {combine!r}")
        super().__init__()
        self.combine = combine
        width = d_model // 2 if combine == "split" else d_model
        self.ratio = NyquistRatio(width, share)
        self.countdown = Countdown(width, window, noise)

    def forward(self, step: Tensor, target_length: Tensor) -> Tensor:
        ratio, countdown = self.ratio(step, target_length), self.countdown(step, target_length)
        if self.combine == "split":
            return torch.cat([ratio, countdown], -1)
        return (ratio + countdown) * math.sqrt(0.5)


class LengthRatioPosition(NoSignal):
    """LRPE: phase (t / (l - 1)) l^(1 - 2 floor(j/2) / d). No training noise; t saturates at l."""

    def forward(self, step: Tensor, target_length: Tensor) -> Tensor:
        length = target_length.float()[:, None]  # (B, 1)
        half = torch.arange(self.d_model // 2, device=length.device)
        rates = length ** (1 - 2 * half / self.d_model)  # (B, d/2)
        ratio = torch.minimum(step.float(), length) / (length - 1).clamp(min=1)  # (B, T)
        return sin_cos(ratio[..., None] * rates[:, None])


SIGNALS = {
    "none": NoSignal,
    "number-in-prompt": NoSignal,  # the prompt of a decoder-only model says it, as people do
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


def make_signal(name: str, d_model: int, **options: float) -> nn.Module:
    """The signal called `name`; ValueError for an unknown one. `-clipped` needs `max_countdown`."""
    if name not in SIGNALS:
        raise ValueError(f"unknown signal {name!r}: choose one of {', '.join(SIGNALS)}")
    if name.endswith("-clipped") and "max_countdown" not in options:
        raise ValueError(f"{name!r} needs max_countdown, which training targets often have left")
    return SIGNALS[name](d_model, **options)
