"""What length control is for every model of transformers, encoder-decoder or decoder-only: a signal, a checked request, room for it."""

import sys
from collections.abc import Callable

import torch
from torch import Tensor, nn
from transformers import PretrainedConfig

from old.length.counting import Counting
from old.length.signals import LengthSignal, make_signal

ALLOWANCE = 100  # tokens an output may run past its requested length before it is cut


def check_target_length(target_length: Tensor, batch_size: int, max_length: int | None = None) -> None:
    """Raise ValueError, saying what to do, unless `target_length` is (B,) positive integers that the model's positions can hold."""
    if not isinstance(target_length, Tensor) or target_length.is_floating_point() or target_length.dtype == torch.bool:
        raise ValueError("target_length must be an integer tensor of shape (batch,), one number of tokens (EOS included) an example")
    if target_length.shape != (batch_size,):
        raise ValueError(
            f"target_length has shape {tuple(target_length.shape)}, but the batch has {batch_size} examples: give one length each"
        )
    if (target_length <= 0).any():
        raise ValueError(f"target_length must be at least 1 (EOS alone), not {target_length.min().item()}")
    if max_length is not None and (target_length > max_length).any():
        raise ValueError(f"target_length {target_length.max().item()} is beyond the model's {max_length} decoder positions")


class LengthControl:
    """Mixed in before a stock class, by way of LengthControlMixin or DecoderOnlyMixin: the signal, and `target_length` in `generate`."""

    decoded_at_once = 256  # outputs of a batch that does not hurt: small models wait for each step, whatever the batch

    def __init__(self, config: PretrainedConfig, *args, **kwargs):
        super().__init__(config, *args, **kwargs)
        name, options = config.length_signal["name"], config.length_signal["options"]
        self.length_signal = make_signal(name, self.get_input_embeddings().embedding_dim, **options)
        self.counting: Counting | None = None  # what lengths count other than tokens
        self.gate: nn.Module | None = None  # learned, scales the signal

    def _init_weights(self, module: nn.Module) -> None:
        if isinstance(module, LengthSignal):  # transformers calls this for weights that a checkpoint lacks
            if hasattr(module, "reset_parameters"):
                module.reset_parameters()
        else:
            super()._init_weights(module)

    def complete(self, tokenizer: Callable[[], object]) -> None:
        """Add what weights and configuration alone do not give, once they are there. `tokenizer` loads the checkpoint's own, if needed."""

    def most_target_tokens(self, source_width: int) -> int | None:
        """Tokens that an output may have behind a source (padded) to this many tokens, or None without a limit."""
        raise NotImplementedError

    def generate(self, inputs: Tensor | None = None, *, target_length: Tensor | None = None, **kwargs):
        """Stock `generate` (greedy, beams, sampling; cache on or off); `target_length` (B,) asks for that many tokens (words, characters)
        an example.

        Unless the caller sets a limit, outputs may run ALLOWANCE tokens past the longest request.
        """
        source = inputs if inputs is not None else kwargs.get("input_ids")
        if source is not None and source.shape[-1] == 0:
            raise ValueError("empty source: every example needs at least one input token")
        if target_length is not None:
            width = source.shape[-1] if source is not None else 0
            if source is not None:
                check_target_length(target_length, len(source), self.most_target_tokens(width) if self.counting is None else None)
            kwargs["target_length"] = target_length
            if not kwargs.keys() & {"max_new_tokens", "max_length", "generation_config", "stopping_criteria"}:
                kwargs["max_new_tokens"] = self.most_new_tokens(int(target_length.max()), width)
        return super().generate(inputs, **kwargs)

    def most_new_tokens(self, target_length: int, source_width: int = 0) -> int:
        """Tokens at which an output of that request is cut: ALLOWANCE more than it may take, as far as positions go."""
        most = target_length if self.counting is None else self.counting.most_tokens(target_length)
        return min(most + ALLOWANCE, self.most_target_tokens(source_width) or sys.maxsize)
