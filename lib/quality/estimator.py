"""A language model with a Sigmoid Head as one thing: fit it on texts, score outputs."""

from pathlib import Path

import pandas as pd
import torch

from lib.quality.language_models import LanguageModel
from lib.quality.scores import token_scores
from lib.quality.training import collect, fit, fitted_start, gold_tokens, shuffled
from lib.sampler import METHOD, TokenFrequencies
from lib.sigmoid_head import SigmoidHead


class QualityEstimator:
    """Token and text scores of outputs by a frozen language model and its head.

    >>> head = "data/heads/smollm2-135m-q4.sigmoid-lowrank.0.safetensors"
    >>> estimator = QualityEstimator.from_language_model("smollm2-135m-q4", head)  # doctest: +SKIP
    >>> estimator.score(["The capital of France is"], [" Paris"])  # doctest: +SKIP
    """

    def __init__(self, lm: LanguageModel, head: SigmoidHead | None = None):
        self.lm, self.head = lm, head

    @classmethod
    def from_language_model(cls, model: str, head: Path | str | None = None) -> "QualityEstimator":
        """By name of the model and file of the head; ValueError where it is another model's."""
        lm = LanguageModel.load(model)
        return cls(lm, None if head is None else SigmoidHead.load(head, lm.unembedding))

    def fit(
        self,
        prompts: list[str],
        outputs: list[str],
        *,
        rank: int | None = 32,
        updates: int = 400,
        learning_rate: float = 1e-2,
        positions_per_batch: int = 1024,
        seed: int = 0,
        chat: bool = False,
    ) -> list[float]:
        """Train a head by METHOD on good outputs; return the loss of every update. `rank=None`
        trains the paper's full head. Needs memory for 4 d bytes an output token.
        """
        texts = self.lm.encode(prompts, outputs, chat)
        if not texts:
            raise ValueError("nothing to train on: no texts were given")
        labels = gold_tokens(texts).to(self.lm.device)
        unigram = TokenFrequencies.from_labels(labels, len(self.lm.unembedding))
        positions = collect(self.lm, texts, unigram, rounds=4, seed=seed, samplers=(METHOD,))
        torch.manual_seed(seed)
        start = fitted_start(self.lm, positions[:4096], METHOD)
        self.head = SigmoidHead(self.lm.unembedding, self.lm.bias, rank, *start)
        batches = shuffled(positions, METHOD, positions_per_batch, seed)
        return fit(self.head, batches, updates, learning_rate)

    def score(self, prompts: list[str], outputs: list[str], chat: bool = False) -> pd.DataFrame:
        """One row an output token: `text` (number), `token`, and the scores softmax, logprob,
        entropy, boostedprob and, with a head, sigmoid. Their mean over a text is the text's score.
        """
        texts = self.lm.encode(prompts, outputs, chat)
        if not texts:
            return pd.DataFrame(columns=["text", "token", "softmax", "logprob"])
        heads = {} if self.head is None else {"sigmoid": self.head}
        table = token_scores(self.lm, texts, heads=heads)
        tokens = [self.lm.tokenizer.decode([token]) for token in table.pop("token_id")]
        table.insert(1, "token", tokens)
        return table
