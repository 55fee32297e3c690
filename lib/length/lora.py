"""LoRA (Hu et al., arXiv 2106.09685) by `peft`: low-rank updates of the attention projections, for base models too large to train whole."""

from peft import LoraConfig, inject_adapter_in_model
from torch import nn
from transformers.pytorch_utils import Conv1D

RANK, ALPHA = 16, 32  # an update is (ALPHA / RANK) B A; B starts at 0
ATTENTION = ("attn", "attention")  # endings of the names of attention modules
PROJECTIONS = {  # names in transformers: of queries, keys, values and output one by one; then of the first three together
    *("q_proj", "k_proj", "v_proj", "o_proj", "out_proj", "dense", "c_proj"),
    *("qkv_proj", "query_key_value", "c_attn"),
}


def attention_projections(model: nn.Module) -> list[str]:
    """Names of the linear layers that project queries, keys, values and the output of every attention module."""
    found = []
    for name, module in model.named_modules():
        parent, _, own = name.rpartition(".")
        if isinstance(module, nn.Linear | Conv1D) and own in PROJECTIONS and parent.endswith(ATTENTION):
            found.append(name)
    return found


def add_lora(model: nn.Module) -> None:
    """Add LoRA to a length-controlled model, in place: from now on LoRA, gate and signal are trained, nothing else.

    At its start LoRA changes nothing. Raises ValueError where no attention projection is found.
    """
    names = attention_projections(model)
    if not names:
        raise ValueError(f"{model.config.model_type}: no attention projection found; known names are {', '.join(sorted(PROJECTIONS))}")
    of_gpt2 = isinstance(model.get_submodule(names[0]), Conv1D)  # weights stored transposed
    inject_adapter_in_model(LoraConfig(r=RANK, lora_alpha=ALPHA, target_modules=names, fan_in_fan_out=of_gpt2), model)
    for module in (model.length_signal, model.gate):
        if module is not None:
            module.requires_grad_(True)
