"""A frozen causal language model, and the hidden states of its response positions."""
# SKELETON: signatures are final, bodies follow

from typing import NamedTuple


class Text(NamedTuple):
    """Token ids of a prompt and the output that follows; positions from `start` on are the output's."""

    ids: tuple
    start: int
    source: tuple = ()

    @property
    def output(self):
        return self.ids[self.start :]


class Unembedding:
    """Last layer of a frozen model: unembedding (V, d), bias (V,) or None; logits(hidden), device."""


class LanguageModel(Unembedding):
    """load(name), encode(prompts, outputs, chat), hidden_states(texts) -> (N, d), logits(hidden),
    continuations(prompts, max_tokens, seed, greedy), is_token(text), name, model, tokenizer, context.
    """
