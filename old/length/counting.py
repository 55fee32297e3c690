"""What a requested length counts other than tokens: words or characters, for budgets such as subtitles, headlines and snippets have.

The signals do not change. Their `step` is then the length written so far instead of the number of a token: the ratio is still the share of
the text that exists, and 1 at the input that must predict EOS.
"""

from functools import lru_cache

import torch
from torch import Tensor

COUNTED = ("tokens", "words", "characters")
TOKENS_PER_WORD = 4  # more than a word takes


class Counting:
    """How much each token adds to the length of a text, for one tokenizer and one of COUNTED but "tokens".

    `sizes` (V,): spaces of each token (words) or its characters. `start`: what is to be added so that a whole text adds up to its length.
    Raises ValueError for a tokenizer that is not byte-level (BART, GPT-2, Llama 3, ...): elsewhere tokens do not tell what text they make.
    """

    def __init__(self, tokenizer, counted: str):
        if counted not in COUNTED[1:]:
            raise ValueError(f"counted must be one of {', '.join(COUNTED)}, not {counted!r}")
        self.tokenizer, self.counted = tokenizer, counted
        self.sizes = torch.tensor([_size(text, counted) for text in _texts(tokenizer)])
        written = self.sizes[tokenizer("a", add_special_tokens=False)["input_ids"]].sum()  # some tokenizers put a space before it
        self.start = 1 - int(written)  # "a" is one word, and one character

    def written(self, token_ids: Tensor) -> Tensor:
        """Length of the text so far at every token. (B, T) -> (B, T)"""
        return self.start + self.sizes.to(token_ids.device)[token_ids].cumsum(-1)

    def length(self, token_ids: list[int]) -> int:
        """Length of a finished text, whatever it was made of: white space at its ends or in a row counts as nothing or one."""
        text = " ".join(self.tokenizer.decode(token_ids, skip_special_tokens=True).split())
        return len(text.split()) if self.counted == "words" else len(text)

    def most_tokens(self, length: int) -> int:
        """Tokens that a text of this length may take."""
        return TOKENS_PER_WORD * length if self.counted == "words" else length + 1


def _size(text: bytes, counted: str) -> int:
    """Spaces, or characters: a character in UTF-8 has one byte that is no continuation (10xxxxxx)."""
    return text.count(b" ") if counted == "words" else sum(byte >> 6 != 0b10 for byte in text)


def _texts(tokenizer) -> list[bytes]:
    """The text of every token; that of special tokens is empty."""
    special, added, byte = set(tokenizer.all_special_ids), tokenizer.get_added_vocab().values(), _bytes()
    texts = []
    for number, token in enumerate(tokenizer.convert_ids_to_tokens(range(len(tokenizer)))):
        if number in special:
            texts.append(b"")
        elif number in added:
            texts.append(token.encode())
        elif all(letter in byte for letter in token):
            texts.append(bytes(byte[letter] for letter in token))
        else:
            raise ValueError(f"token {token!r}: words and characters can be counted with byte-level tokenizers only (BART, GPT-2, Llama 3)")
    return texts


@lru_cache
def _bytes() -> dict[str, int]:
    """The letter that stands for each byte in byte-level BPE: itself where it prints, one from 256 on where not."""
    printed = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in printed]
    return {chr(byte): byte for byte in printed} | {chr(256 + i): byte for i, byte in enumerate(others)}
