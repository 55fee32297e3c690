"""A head trained on more text than memory can hold hidden states of: they are computed block by block, used once, and forgotten.

`old.quality.training.fit` keeps them all, 4 d bytes a position. For 900,000 instructions, the first 96 tokens of each answer, that is
700 GB with OLMo-2 1B (d = 2048) and 1.4 TB with a model of 7B (d = 4096). Here it is `positions_per_block` positions at a time; the price
is a forward pass of the language model in every pass over the text, in return for new negatives in each.
"""

from collections.abc import Iterator

import numpy as np

from old.quality.head import SigmoidHead
from old.quality.language_models import LanguageModel, Text
from old.quality.negatives import TokenFrequencies
from old.quality.training import Batch, collect, learn, one_pass

POSITIONS_PER_BLOCK = 131_072  # 1 GB with d = 2048


def fit_streaming(
    head: SigmoidHead,
    lm: LanguageModel,
    texts: list[Text],
    unigram: TokenFrequencies,
    sampler: str,
    *,
    updates: int,
    learning_rate: float,
    positions_per_batch: int,
    count: int = 10,
    mode: str = "last",
    seed: int = 0,
    positions_per_block: int = POSITIONS_PER_BLOCK,
) -> list[float]:
    """Train a head in place for a fixed number of updates; return the loss of each. Loss, sampler and schedule are those of `fit`.

    Every pass takes the texts in a new order; positions are shuffled within a block. With one block for all texts, the first pass is that
    of `fit` on the same negatives. Raises ValueError without texts, RuntimeError under several processes.
    """
    if not texts:
        raise ValueError("nothing to train on: no texts were given")

    def batches() -> Iterator[Batch]:
        order, draws = np.random.default_rng(seed), np.random.default_rng((seed, 1))
        for block in blocks(texts, positions_per_block, seed):
            options = {"count": count, "mode": mode, "seed": int(draws.integers(2**62)), "samplers": (sampler,)}
            positions = collect(lm, block, unigram, **options)
            yield from one_pass(positions, sampler, order.permutation(len(positions.gold)), positions_per_batch, slice(count))

    return learn(head, batches(), updates=updates, learning_rate=learning_rate)


def blocks(texts: list[Text], positions_per_block: int, seed: int) -> Iterator[list[Text]]:
    """Passes over the texts without end, each in a new order, cut into blocks of at most that many output tokens, or one text."""
    rng = np.random.default_rng((seed, 2))
    while True:
        chosen, size = [], 0
        for number in rng.permutation(len(texts)):
            if chosen and size + len(texts[number].output) > positions_per_block:
                yield [texts[i] for i in sorted(chosen)]
                chosen, size = [], 0
            chosen.append(number)
            size += len(texts[number].output)
        yield [texts[i] for i in sorted(chosen)]
