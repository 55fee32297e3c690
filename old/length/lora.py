"""LoRA (Hu et al., arXiv 2106.09685) by `peft`: low-rank updates of every linear layer, for base models too large to train whole.

Of every one, not of attention alone: whether a text must end now stands in the signal at its own position, which feed-forward layers read
directly and attention has to look up among all positions.
"""

from peft import LoraConfig, inject_adapter_in_model
from torch import nn
from transformers.pytorch_utils import Conv1D

RANK, ALPHA = 16, 32  # an update is (ALPHA / RANK) B A; B starts at 0


def add_lora(model: nn.Module) -> None:
    """Add LoRA to all linear layers of a length-controlled model but the unembedding, in place: from now on LoRA, gate and signal are
    trained, nothing else. At its start LoRA changes nothing.
    """
    of_gpt2 = any(isinstance(module, Conv1D) for module in model.modules())  # weights stored transposed
    inject_adapter_in_model(LoraConfig(r=RANK, lora_alpha=ALPHA, target_modules="all-linear", fan_in_fan_out=of_gpt2), model)
    for module in (model.length_signal, model.gate):
        if module is not None:
            module.requires_grad_(True)
