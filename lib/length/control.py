"""What length control is for every model of transformers, encoder-decoder or decoder-only: a
signal, a checked request, room for it.
"""

import sys
from collections.abc import Callable

import torch
from torch import Tensor, nn
from transformers import GenerationConfig, PretrainedConfig

from lib.length.counting import Counting
from lib.length.signals import make_signal

ALLOWANCE = 100  # tokens an output may run past its requested length before it is cut


def check_target_length(target_length: Tensor, batch_size: int, max_length=None) -> None:
    """Raise ValueError, saying what to do, unless `target_length` is (B,) positive integers that
    the model's positions can hold.
    """
    if not isinstance(target_length, Tensor) or target_length.dtype == torch.bool:
        raise ValueError("target_length must be an integer tensor of shape (batch,)")
    if target_length.is_floating_point() or target_length.shape != (batch_size,):
        raise ValueError(
            f"target_length must be integers, one length (EOS included) for each of {batch_size} "
            f"examples, not {target_length.dtype} of shape {tuple(target_length.shape)}"
        )
    if (target_length <= 0).any():
        raise ValueError(f"target_length must be at least 1 (EOS), not {target_length.min()}")
    if max_length is not None and (target_length > max_length).any():
        raise ValueError(
            f"target_length {target_length.max()} is beyond the model's {max_length} positions"
        )


class LengthControl:
    """Mixed in before a stock class: the signal, and `target_length` in `generate`."""

    decoded_at_once = 256  # outputs: small models wait for each step, whatever the batch

    def __init__(self, config: PretrainedConfig, *args, **kwargs):
        super().__init__(config, *args, **kwargs)
        name, options = config.length_signal["name"], config.length_signal["options"]
        width = self.get_input_embeddings().embedding_dim
        self.length_signal = make_signal(name, width, **options)
        self.counting: Counting | None = None  # what lengths count other than tokens
        self.gate: nn.Module | None = None  # learned, scales the signal

    def _init_weights(self, module: nn.Module) -> None:
        """transformers calls this for weights that a checkpoint lacks."""
        if module is not getattr(self, "length_signal", None):
            super()._init_weights(module)
        elif hasattr(module, "reset_parameters"):
            module.reset_parameters()

    def complete(self, tokenizer: Callable[[], object]) -> None:
        """Add what weights and configuration do not give. `tokenizer` loads the checkpoint's."""

    def most_target_tokens(self, source_width: int) -> int | None:
        """Tokens that an output may have behind a source padded to this many, or None: no limit."""
        raise NotImplementedError

    def generate(self, inputs=None, *, target_length: Tensor | None = None, **kwargs):
        """Stock `generate` (greedy, beams, sampling; cache on or off); `target_length` (B,) asks
        for that many tokens (words, characters) an example.

        Unless the caller sets a limit, outputs may run ALLOWANCE tokens past the longest request.
        """
        source = inputs if inputs is not None else kwargs.get("input_ids")
        if source is not None and source.shape[-1] == 0:
            raise ValueError("empty source: every example needs at least one input token")
        if target_length is not None:
            width = source.shape[-1] if source is not None else 0
            if source is not None:
                room = self.most_target_tokens(width) if self.counting is None else None
                check_target_length(target_length, len(source), room)
            kwargs["target_length"] = target_length
            limits = {"max_new_tokens", "max_length", "generation_config", "stopping_criteria"}
            if not kwargs.keys() & limits:
                kwargs["max_new_tokens"] = self.most_new_tokens(int(target_length.max()), width)
        return super().generate(inputs, **kwargs)

    def most_new_tokens(self, target_length: int, source_width: int = 0) -> int:
        """Tokens at which an output of that request is cut: ALLOWANCE more than it may take, as far
        as positions go.
        """
        most = target_length
        if self.counting is not None:
            most = self.counting.most_tokens(target_length)
        return min(most + ALLOWANCE, self.most_target_tokens(source_width) or sys.maxsize)


def plain_generation(habits: GenerationConfig, eos_token_id: int | None = None) -> GenerationConfig:
    """Greedy, with a checkpoint's special tokens: its other habits (beams, least lengths,
    penalties) would move lengths. `eos_token_id`: the one that ends an output, unless it is the
    checkpoint's.
    """
    kept = ("bos", "pad", "eos", "decoder_start", "forced_bos")
    special = {f"{name}_token_id": getattr(habits, f"{name}_token_id") for name in kept}
    if eos_token_id is not None:
        special["eos_token_id"] = eos_token_id
    if special["pad_token_id"] is None:  # it only fills up what has ended
        special["pad_token_id"] = special["eos_token_id"]
    return GenerationConfig(**special)
