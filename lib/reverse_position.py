"""Reverse Position Embeddings (RPE): tell a decoder how many tokens are still to come.

    k = max(l - t, 0)                            t: index of the token to predict, l: target length
    RPE(k)_j = sin(k 10000^(-2 floor(j / 2) / d)) for even j, cos of the same for odd j

l counts every token the decoder emits, EOS included: k = 0 at the input that must predict EOS.

>>> signal = ReversePosition(d_model=8).eval()
>>> signal(torch.arange(1, 6), torch.tensor([5])).shape  # one text of five tokens
torch.Size([1, 5, 8])

Sources: the countdown baseline of Botcazou et al., arXiv 2512.06938: as printed
(`ReversePosition`), and very likely as run (`RandomReversePosition`). This file imports only
torch: copy it.
"""

import math

import torch
from torch import Tensor, nn


class ReversePosition(nn.Module):
    """RPE as printed. `max_countdown` clips k, which then says "this many or more" and never leaves
    the range of training. In training: |round(k + N(0, noise^2))|.
    """

    def __init__(self, d_model: int, max_countdown: int | None = None, noise: float = 1.0):
        super().__init__()
        if d_model <= 0 or d_model % 2:
            raise ValueError(f"d_model must be a positive even number, not {d_model}")
        self.d_model, self.max_countdown, self.noise = d_model, max_countdown, noise

    def forward(self, step: Tensor, target_length: Tensor) -> Tensor:
        """step t (T,) or (B, T), target_length l (B,) -> (B, T, d), float32."""
        left = (target_length[:, None] - step).float().clamp(min=0, max=self.max_countdown)  # k
        return self.encode(self.add_noise(left) if self.training else left)

    def add_noise(self, left: Tensor) -> Tensor:
        """(B, T) -> (B, T), still numbers of tokens"""
        return (left + self.noise * torch.randn_like(left)).round().abs()

    def encode(self, left: Tensor) -> Tensor:
        """(B, T) -> (B, T, d)"""
        half = torch.arange(self.d_model // 2, device=left.device, dtype=torch.float32)
        phase = left[..., None] * 10000.0 ** (-2 * half / self.d_model)  # (B, T, d/2)
        return torch.stack([phase.sin(), phase.cos()], -1).flatten(-2)


class RandomReversePosition(ReversePosition):
    """RPE with a frozen random vector for each k: entry (k, j) ~ N(0, 1/2), hence the norm of a
    sinusoid, computed from a hash of (k, j), not stored: the same on every machine, for every k.
    """

    def encode(self, left: Tensor) -> Tensor:
        components = torch.arange(self.d_model, device=left.device)
        return math.sqrt(0.5) * hashed_normal(left.long()[..., None] * self.d_model + components)


def hashed_normal(index: Tensor) -> Tensor:
    """Standard normal numbers, a fixed function of an index: SplitMix64, then Box-Muller."""

    def uniform(x: Tensor) -> Tensor:  # (0, 1)
        for multiplier, shift in ((-4658895280553007687, 30), (-7723592293110705685, 27)):
            logical_shift = (x >> shift) & ((1 << (64 - shift)) - 1)
            x = (x ^ logical_shift) * multiplier  # int64 wraps around
        return (((x >> 31) & 0xFFFFFF).double() + 0.5) / 0x1000000

    first, second = uniform(2 * index + 1), uniform(2 * index + 2)
    return ((-2 * first.log()).sqrt() * (2 * math.pi * second).cos()).float()
