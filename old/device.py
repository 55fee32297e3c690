"""Where models run and in which precision, and how many processes work together: one rule for the whole study."""

import os

import torch


def best_device() -> torch.device:
    """A GPU where there is one (the current one of the process), otherwise the CPU."""
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def computes_in_bfloat16(device: torch.device) -> bool:
    """Whether bfloat16 is what large models run in on this device: on GPUs with bfloat16 arithmetic of their own. Never on a CPU."""
    return device.type == "cuda" and torch.cuda.is_bf16_supported(including_emulation=False)


def processes() -> int:
    """Number of processes that `accelerate launch` or `torchrun` started together; 1 in an ordinary run."""
    return torch.distributed.get_world_size() if torch.distributed.is_initialized() else int(os.environ.get("WORLD_SIZE", "1"))
