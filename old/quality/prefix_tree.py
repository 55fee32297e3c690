"""Hidden states of many texts behind the same prompts, every shared beginning computed once.

A causal model's state at a token depends on the tokens up to it only. So texts with a common beginning - the prompt, and for texts cut at
different lengths nearly everything - are one tree of tokens: each token attends to its ancestors, and stands where it stands in its text.
For the texts of notebook 30 that is less than half of the work.
"""

import torch
from torch import Tensor

from old.progress import progress
from old.quality.language_models import LanguageModel, Text


class Tree:
    """Tokens of some texts, each beginning once: `token_ids`, `parents` (-1: none) and `depths`, one a node; parents come first."""

    def __init__(self):
        self.token_ids: list[int] = []
        self.parents: list[int] = []
        self.depths: list[int] = []
        self._children: dict[tuple[int, int], int] = {}

    def add(self, ids: tuple[int, ...]) -> list[int]:
        """The node of each token of a text."""
        path, parent = [], -1
        for depth, token in enumerate(ids):
            node = self._children.get((parent, token))
            if node is None:
                node = self._children[parent, token] = len(self.token_ids)
                self.token_ids.append(token)
                self.parents.append(parent)
                self.depths.append(depth)
            path.append(node)
            parent = node
        return path

    def ancestors(self) -> Tensor:
        """Which nodes each node attends to: itself and all before it in its text. (N, N) bool"""
        sees = torch.eye(len(self.token_ids), dtype=torch.bool)
        for node, parent in enumerate(self.parents):
            if parent >= 0:
                sees[node] |= sees[parent]
        return sees


@torch.no_grad()
def hidden_states(lm: LanguageModel, texts: list[Text]) -> Tensor:
    """As `old.quality.training.hidden_states`, of a causal model: states of all response positions, in the order of the texts. (N, d)"""
    together: dict[tuple[int, ...], list[int]] = {}
    for number, text in enumerate(texts):
        together.setdefault(text.ids[: text.start], []).append(number)
    parts: list[Tensor | None] = [None] * len(texts)
    for numbers in progress(list(together.values()), "language model"):
        tree = Tree()
        paths = [tree.add(texts[number].ids[:-1]) for number in numbers]  # the last token predicts nothing that is asked for
        mask = torch.zeros(len(tree.token_ids), len(tree.token_ids)).masked_fill(~tree.ancestors(), torch.finfo(torch.float32).min)
        states = lm.model.base_model(
            input_ids=torch.tensor([tree.token_ids], device=lm.device),
            position_ids=torch.tensor([tree.depths], device=lm.device),
            attention_mask=mask[None, None].to(lm.device, lm.unembedding.dtype),
            use_cache=False,
        )[0][0].float()
        for number, path in zip(numbers, paths):
            parts[number] = states[path[texts[number].start - 1 :]].cpu()
    return torch.cat(parts)
