"""Progress Ratio Embeddings (PRE): tell a decoder how far along it is, whatever the length.

    r = clip(t / l, 0, 1)                        t: index of the token to predict, l: target length
    ξ(r)_j = sin(ω x_j) for even j, cos(ω x_j) for odd j
    ω = r M,  M = d / 2,  x_j = 2 floor(j / 2) / d

l counts every token the decoder emits, EOS included: r = 1 at the input that must predict EOS. The
vector is added to the decoder's token embeddings. There is no limit on l.

>>> signal = ProgressRatio(d_model=8).eval()
>>> signal(torch.arange(1, 6), torch.tensor([5])).shape  # one text of five tokens
torch.Size([1, 5, 8])

Source: Botcazou et al., arXiv 2512.06938, section 3. This file imports only torch: copy it.
"""

import torch
from torch import Tensor, nn


class ProgressRatio(nn.Module):
    """ξ(r) of every step. In training r <- clip(r + δ), δ ~ N(0, (noise / M)^2), as printed."""

    def __init__(self, d_model: int, max_frequency: float | None = None, noise: float = 1.0):
        super().__init__()
        if d_model <= 0 or d_model % 2:
            raise ValueError(f"d_model must be a positive even number, not {d_model}")
        self.d_model, self.noise = d_model, noise
        self.max_frequency = d_model / 2 if max_frequency is None else max_frequency  # M

    def forward(self, step: Tensor, target_length: Tensor) -> Tensor:
        """step t (T,) or (B, T), target_length l (B,) -> (B, T, d), float32."""
        ratio = self.ratio(step.float(), target_length.float()[:, None])
        return self.encode(self.add_noise(ratio) if self.training else ratio)

    def ratio(self, step: Tensor, target_length: Tensor) -> Tensor:
        """r. (T,) or (B, T), (B, 1) -> (B, T)"""
        return (step / target_length).clamp(0, 1)

    def add_noise(self, ratio: Tensor) -> Tensor:
        """(B, T) -> (B, T)"""
        return (ratio + self.noise / self.max_frequency * torch.randn_like(ratio)).clamp(0, 1)

    def encode(self, ratio: Tensor) -> Tensor:
        """ξ(r). (B, T) -> (B, T, d)"""
        half = torch.arange(self.d_model // 2, device=ratio.device, dtype=torch.float32)
        x = 2 * half / self.d_model  # x_j, one for each pair of components (d/2,)
        return sin_cos(ratio[..., None] * self.max_frequency * x)  # ω x


def sin_cos(phase: Tensor) -> Tensor:
    """sin(phase) in even components, cos(phase) in odd ones. (..., d/2) -> (..., d)"""
    out = phase.new_empty(*phase.shape[:-1], 2 * phase.shape[-1])
    torch.sin(phase, out=out[..., 0::2])  # in place: stacking two halves would copy the tensor
    torch.cos(phase, out=out[..., 1::2])
    return out
