"""What a requested length counts other than tokens: words or characters, as budgets of subtitles,
headlines and snippets do.

The signals do not change. Their `step` is the length written so far instead of a token's number:
the ratio is still the share of the text that exists, and 1 at the input that must predict EOS.
"""

import torch
from torch import Tensor
from transformers.convert_slow_tokenizer import bytes_to_unicode

COUNTED = ("tokens", "words", "characters")
TOKENS_PER_WORD = 4  # more than a word takes


class Counting:
    """How much each token adds to the length of a text, for one tokenizer, in words or characters.

    `sizes` (V,): spaces of each token (words), or its characters. `start`: added so that a whole
    text adds up to its length. Raises ValueError for a tokenizer that is not byte-level (BART,
    GPT-2, Llama 3 are): elsewhere tokens do not tell what text they make.
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
