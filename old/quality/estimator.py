"""A language model with a Sigmoid Head as one thing: fit it on texts, score outputs."""

from pathlib import Path

import pandas as pd
import torch

from old.quality import scores
from old.quality.head import SigmoidHead
from old.quality.language_models import LanguageModel
from old.quality.negatives import TokenFrequencies
from old.quality.streaming import blocks, fit_streaming
from old.quality.training import collect, fit, fitted_start, gold_tokens

START = 4096  # positions that fit the start of a head


class QualityEstimator:
    """Token and text scores of outputs by a frozen language model and its head.

    >>> estimator = QualityEstimator.from_language_model("smollm2-135m-q4", head="data/heads/smollm2-135m-q4.safetensors")  # doctest: +SKIP
    >>> estimator.score(["The capital of France is"], [" Paris"])  # doctest: +SKIP
    """

    def __init__(self, lm: LanguageModel, head: SigmoidHead | None = None):
        self.lm, self.head = lm, head

    @classmethod
    def from_language_model(cls, model: str, head: Path | str | None = None) -> "QualityEstimator":
        """By name of the model and file of the head; ValueError where the head belongs to another model."""
        lm = LanguageModel.load(model)
        return cls(lm, None if head is None else SigmoidHead.load(head, lm.unembedding))

    def fit(
        self,
        prompts: list[str],
        outputs: list[str],
        *,
        rank: int | None = 32,
        sampler: str = scores.METHOD,
        updates: int = 400,
        learning_rate: float = 1e-2,
        positions_per_batch: int = 1024,
        seed: int = 0,
        chat: bool = False,
        positions_per_block: int | None = None,
    ) -> list[float]:
        """Train a head on good outputs; return the loss of every update. `rank=None` trains the paper's full head.

        `positions_per_block`: for more text than memory holds hidden states of (4 d bytes an output token), so many at a time, computed
        anew in every pass (see old.quality.streaming).
        """
        texts = self.lm.encode(prompts, outputs, chat)
        if not texts:
            raise ValueError("nothing to train on: no texts were given")
        unigram = TokenFrequencies.from_labels(gold_tokens(texts), len(self.lm.unembedding))
        first = texts if positions_per_block is None else next(blocks(texts, START, seed))
        positions = collect(self.lm, first, unigram, rounds=4, seed=seed, samplers=(sampler,))
        torch.manual_seed(seed)
        scale, shift = fitted_start(self.lm, positions, sampler)
        self.head = SigmoidHead(self.lm.unembedding, self.lm.bias, rank, scale, shift)
        options = {"updates": updates, "learning_rate": learning_rate, "positions_per_batch": positions_per_batch, "seed": seed}
        if positions_per_block is None:
            return fit(self.head, positions, sampler, **options)
        return fit_streaming(self.head, self.lm, texts, unigram, sampler, **options, positions_per_block=positions_per_block)

    def score(self, prompts: list[str], outputs: list[str], chat: bool = False) -> pd.DataFrame:
        """One row an output token: `text` (number), `token`, and the scores `sigmoid` (with a head), `softmax`, `logprob`, `entropy`,
        `boostedprob`. Mean over the tokens of a text is the text's score.
        """
        texts = self.lm.encode(prompts, outputs, chat)
        if not texts:
            return pd.DataFrame(columns=["text", "token", "softmax", "logprob", "entropy", "boostedprob"])
        table = scores.token_scores(self.lm, texts, heads={} if self.head is None else {"sigmoid": self.head})
        table.insert(1, "token", [self.lm.tokenizer.decode([token]) for token in table.pop("token_id")])
        return table
