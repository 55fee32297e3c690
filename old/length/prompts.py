"""Prompts and responses of decoder-only models: "Summary: {source}\\nDescription:", then " {target}" and EOS.

Their parts are tokenised apart, so that the tokens of one do not depend on the others, and a source can be cut without losing what follows.
"""

from functools import lru_cache

from old.quality.language_models import start_of_text, unspaced

_END = ":"


def prompt_ids(tokenizer, sources: list[str], labels: tuple[str, str], max_source: int) -> list[list[int]]:
    """Token ids of a prompt for each source: what starts a text, if anything, and no EOS.

    `labels`: what a source and a target are, such as ("Summary", "Description"). Sources are cut to `max_source` tokens.
    """
    first, last = labels
    head = start_of_text(tokenizer) + _ids(tokenizer, f"{first}{_END}")
    tail = _ids(tokenizer, f"\n{last}") + _ids(tokenizer, _END)
    return [head + row[:max_source] + tail for row in _rows(tokenizer, sources)]


def response_ids(tokenizer, targets: list[str]) -> list[list[int]]:
    """Token ids of each target behind a space, EOS at the end. Raises ValueError for a tokenizer that has none."""
    if tokenizer.eos_token_id is None:
        raise ValueError("the tokenizer has no EOS token: nothing would tell the model where a response ends")
    return [[*row, tokenizer.eos_token_id] for row in _rows(tokenizer, targets)]


class NumberedPrompt:
    """Puts the requested number of tokens into a prompt of `prompt_ids`: "...\\nDescription (12 tokens):"."""

    def __init__(self, tokenizer):
        self._end = _ids(tokenizer, _END)
        self._number = lru_cache(None)(lambda length: _ids(tokenizer, f" ({length} tokens)"))

    def __call__(self, prompt: list[int], length: int) -> list[int]:
        """The prompt with the number before its final colon. Raises ValueError where a prompt has none."""
        start = len(prompt) - len(self._end)
        if prompt[start:] != self._end:
            raise ValueError(f"a prompt must end with {_END!r}, before which the number goes")
        return prompt[:start] + self._number(length) + self._end


def _rows(tokenizer, texts: list[str]) -> list[list[int]]:
    return tokenizer([unspaced(tokenizer, f" {text}") for text in texts], add_special_tokens=False, verbose=False)["input_ids"]


def _ids(tokenizer, text: str) -> list[int]:
    return tokenizer(text, add_special_tokens=False)["input_ids"]
