"""What length control is for every model of transformers: a signal, a checked request, room for it;
and what a requested length counts other than tokens: words or characters, as budgets do.

The signals do not change then: `step` is the length written so far instead of a token's number.
"""

import sys
from collections.abc import Callable

import torch
from torch import Tensor, nn
from transformers import GenerationConfig, PretrainedConfig
from transformers.convert_slow_tokenizer import bytes_to_unicode

from lib.length.signals import make_signal

ALLOWANCE = 100  # tokens an output may run past its requested length before it is cut
COUNTED = ("tokens", "words", "characters")
TOKENS_PER_WORD = 4  # more than a word takes


class Counting:
    """How much each token adds to the length of a text, for one tokenizer, in words or characters.

    `sizes` (V,): spaces of each token, or its characters; `start` makes a text add up to its
    length. ValueError for a tokenizer that is not byte-level (BART, GPT-2, Llama 3 are).
    """

    def __init__(self, tokenizer, counted: str):
        if counted not in COUNTED[1:]:
            raise ValueError(f"counted must be one of {', '.join(COUNTED)}, not {counted!r}")
        self.tokenizer, self.counted = tokenizer, counted
        texts = _texts(tokenizer)
        if counted == "words":
            sizes = [text.count(b" ") for text in texts]
        else:  # bytes that are no continuation (10xxxxxx) of a character in UTF-8
            sizes = [sum(byte >> 6 != 0b10 for byte in text) for text in texts]
        self.sizes = torch.tensor(sizes)
        one = tokenizer("a", add_special_tokens=False)["input_ids"]  # some put a space before it
        self.start = 1 - int(self.sizes[one].sum())  # "a" is one word, and one character

    def written(self, token_ids: Tensor) -> Tensor:
        """Length of the text so far at every token. (B, T) -> (B, T)"""
        return self.start + self.sizes.to(token_ids.device)[token_ids].cumsum(-1)

    def length(self, token_ids: list[int]) -> int:
        """Length of a finished text; white space counts nothing at its ends, and one in a row."""
        words = self.tokenizer.decode(token_ids, skip_special_tokens=True).split()
        return len(words) if self.counted == "words" else len(" ".join(words))

    def most_tokens(self, length: int) -> int:
        """Tokens that a text of this length may take."""
        return TOKENS_PER_WORD * length if self.counted == "words" else length + 1


def _texts(tokenizer) -> list[bytes]:
    """The text of every token; special tokens have none."""
    byte = {letter: number for number, letter in bytes_to_unicode().items()}
    known = {token: token.encode() for token in tokenizer.get_added_vocab()}
    known |= dict.fromkeys(tokenizer.all_special_tokens, b"")
    texts = []
    for token in tokenizer.convert_ids_to_tokens(range(len(tokenizer))):
        if token not in known and not byte.keys() >= set(token):
            raise ValueError(f"token {token!r}: words and characters need a byte-level tokenizer")
        texts.append(known[token] if token in known else bytes(byte[letter] for letter in token))
    return texts


def check_target_length(target_length: Tensor, batch_size: int, max_length=None) -> None:
    """Raise ValueError unless `target_length` is (B,) positive integers that positions can hold."""
    integers = getattr(target_length, "dtype", None) in (torch.int32, torch.int64)
    if not integers or target_length.shape != (batch_size,) or (target_length <= 0).any():
        needed = (
            f"a tensor of positive integers (EOS counts), one for each of {batch_size} examples"
        )
        raise ValueError(f"target_length must be {needed}, not {target_length}")
    if max_length is not None and (longest := int(target_length.max())) > max_length:
        raise ValueError(f"target_length {longest} is beyond the model's {max_length} positions")


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
        """Stock `generate`; `target_length` (B,) asks for that many tokens (words, characters) an
        example. Unless the caller sets a limit, outputs may run ALLOWANCE tokens past the longest.
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
        """Tokens at which an output is cut: ALLOWANCE more than it may take, if positions do."""
        most = self.counting.most_tokens(target_length) if self.counting else target_length
        return min(most + ALLOWANCE, self.most_target_tokens(source_width) or sys.maxsize)


def plain_generation(habits: GenerationConfig, eos_token_id: int | None = None) -> GenerationConfig:
    """Greedy, with a checkpoint's special tokens (`eos_token_id` in place of its own, if given):
    other habits (beams, least lengths, penalties) would move lengths.
    """
    kept = ("bos", "pad", "eos", "decoder_start", "forced_bos")
    special = {f"{name}_token_id": getattr(habits, f"{name}_token_id") for name in kept}
    if eos_token_id is not None:
        special["eos_token_id"] = eos_token_id
    if special["pad_token_id"] is None:  # it only fills up what has ended
        special["pad_token_id"] = special["eos_token_id"]
    return GenerationConfig(**special)
