"""The Sigmoid Head: a second unembedding on a frozen language model, whose sigmoid says how good each token is (arXiv 2601.00680).

Needs only torch (and safetensors for saving): copy this file into your own project.
"""

import hashlib
from pathlib import Path

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.nn import functional as F


class SigmoidHead(nn.Module):
    """Scores tokens independently: p_i(v) = sigmoid(z_i[v]) with z_i = W_qe h_i + b_qe, h_i the last hidden state after the final norm.

    `rank=None` is the paper's full head: W_qe starts as scale * W, b_qe as scale * b + shift, W and b copies of the language
    model's (a tied embedding is not touched). With a rank r the head is small: W stays frozen and shared,
    z = W (scale * h + up (down h)) + shift + b_qe, with down (r, d), up (d, r) = 0 at the start, and b_qe one number a token.
    scale = 1, shift = 0 is the paper's raw start; `fit_start` finds better ones. Only rows of the tokens asked for get gradients (sparse).

    Shapes: hidden_states (N, d), token_ids (N, K) -> logits (N, K).

    >>> head = SigmoidHead(torch.eye(3), rank=1)
    >>> head(torch.tensor([[1.0, 2.0, 3.0]]), torch.tensor([[0, 2]])).detach()
    tensor([[1., 3.]])
    """

    def __init__(self, unembedding: Tensor, bias: Tensor | None = None, rank: int | None = None, scale: float = 1.0, shift: float = 0.0):
        super().__init__()
        vocabulary, width = unembedding.shape
        if rank is not None and not 0 < rank <= width:
            raise ValueError(f"rank must lie between 1 and the width {width} of the unembedding, or be None for the full head, not {rank}")
        self.rank = rank
        self.unembedding_hash = unembedding_hash(unembedding)
        start = torch.zeros(vocabulary, device=unembedding.device) if bias is None else scale * bias.detach().float()
        self.bias = nn.Parameter((start + (shift if rank is None else 0.0))[:, None])  # (V, 1): looked up like a row of the weight
        if rank is None:
            self.weight = nn.Parameter(scale * unembedding.detach().float())  # (V, d); a product, so never the base's own storage
        else:
            self.register_buffer("unembedding", unembedding.detach(), persistent=False)
            self.scale = nn.Parameter(torch.tensor(float(scale), device=unembedding.device))
            self.shift = nn.Parameter(torch.tensor(float(shift), device=unembedding.device))
            self.down = nn.Parameter(torch.randn(rank, width, device=unembedding.device) / width**0.5)
            self.up = nn.Parameter(torch.zeros(width, rank, device=unembedding.device))

    def forward(self, hidden_states: Tensor, token_ids: Tensor) -> Tensor:
        """Logits of the given tokens only. (N, d), (N, K) -> (N, K)"""
        rows = F.embedding(token_ids, self.weight, sparse=True) if self.rank is None else F.embedding(token_ids, self.unembedding).float()
        bias = F.embedding(token_ids, self.bias, sparse=True).squeeze(-1)
        return (rows @ self._input(hidden_states)[:, :, None]).squeeze(-1) + bias + self._shift()

    def all_logits(self, hidden_states: Tensor) -> Tensor:
        """Logits of the whole vocabulary. (N, d) -> (N, V)"""
        weight = self.weight if self.rank is None else self.unembedding.float()
        return F.linear(self._input(hidden_states), weight, self.bias[:, 0]) + self._shift()

    def _input(self, hidden_states: Tensor) -> Tensor:
        """What meets the rows of the unembedding. (N, d) -> (N, d)"""
        hidden = hidden_states.float()
        return hidden if self.rank is None else self.scale * hidden + F.linear(F.linear(hidden, self.down), self.up)

    def _shift(self) -> Tensor | float:
        return 0.0 if self.rank is None else self.shift

    def sparse_parameters(self) -> list[nn.Parameter]:
        """Those whose gradients are sparse in `forward` (torch.optim.SparseAdam); the others are dense."""
        return [self.bias] if self.rank is not None else [self.weight, self.bias]

    def save(self, file: Path | str, model: str) -> None:
        """Write the trained tensors in half precision, with the name of the language model and a hash of its unembedding."""
        metadata = {"model": model, "unembedding_hash": self.unembedding_hash, "rank": str(self.rank or "full")}
        save_file({name: p.detach().half().contiguous() for name, p in self.named_parameters()}, file, metadata=metadata)

    @classmethod
    def load(cls, file: Path | str, unembedding: Tensor) -> "SigmoidHead":
        """Read a saved head for the language model with this unembedding.

        Raises FileNotFoundError, or ValueError where the file is broken or belongs to another language model.
        """
        if not Path(file).is_file():
            raise FileNotFoundError(f"no head {file}: train one with notebook 11")
        try:
            with safe_open(file, framework="pt") as stored:
                metadata = stored.metadata() or {}
                tensors = {name: stored.get_tensor(name) for name in stored.keys()}  # noqa: SIM118 - not a dict
        except Exception as error:
            raise ValueError(f"{file} is not a readable safetensors file ({error}): restore or train it again") from error
        if metadata.get("unembedding_hash") != unembedding_hash(unembedding):
            raise ValueError(
                f"{Path(file).name} was trained on the unembedding of {metadata.get('model', 'an unnamed model')!r}, not on this one"
            )
        head = cls(unembedding, rank=None if metadata["rank"] == "full" else int(metadata["rank"]))
        head.load_state_dict({name: tensor.float() for name, tensor in tensors.items()})
        return head.eval()


def sampled_loss(head: SigmoidHead, hidden_states: Tensor, gold: Tensor, negatives: Tensor) -> Tensor:
    """Binary cross-entropy: the gold token as positive, K sampled negatives; summed over them, mean over positions (nats a position).

    hidden_states (N, d), gold (N,), negatives (N, K) with -1 where there is none.
    """
    logits = head(hidden_states, torch.cat([gold[:, None], negatives.clamp(min=0)], 1))
    return (F.softplus(-logits[:, 0]) + (F.softplus(logits[:, 1:]) * (negatives >= 0)).sum(1)).mean()


def full_loss(head: SigmoidHead, hidden_states: Tensor, gold: Tensor, _negatives: Tensor | None = None) -> Tensor:
    """Binary cross-entropy over the whole vocabulary, every token but gold a negative. (N, d), (N,) -> nats a position"""
    logits = head.all_logits(hidden_states)
    right = logits.gather(1, gold[:, None])
    return (F.softplus(logits).sum(1, keepdim=True) - right).mean()  # softplus(z) - z = softplus(-z)


def softmax_loss(head: SigmoidHead, hidden_states: Tensor, gold: Tensor, _negatives: Tensor | None = None) -> Tensor:
    """Softmax cross-entropy of the same head: the control that shares data and capacity but not the objective."""
    return F.cross_entropy(head.all_logits(hidden_states), gold)


def fit_start(logits: Tensor, labels: Tensor, steps: int = 50) -> tuple[float, float]:
    """scale and shift that minimise the binary cross-entropy of sigmoid(scale * logits + shift): the start of a head.

    logits, labels (M,): the language model's raw logits of gold tokens (label 1) and of negatives (0).
    """
    logits, labels = logits.double(), labels.double()
    spread = logits.std().clamp(min=1e-6)
    parameters = torch.zeros(2, dtype=torch.float64, requires_grad=True)
    optimizer = torch.optim.LBFGS([parameters], max_iter=steps, line_search_fn="strong_wolfe")

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = F.binary_cross_entropy_with_logits(parameters[0] * (logits - logits.mean()) / spread + parameters[1], labels)
        loss.backward()
        return loss

    optimizer.step(closure)
    slope, offset = parameters.detach().tolist()
    return slope / float(spread), offset - slope * float(logits.mean() / spread)


def unembedding_hash(unembedding: Tensor) -> str:
    """Short SHA-256 of an unembedding's values, the same in any precision that holds them: a head belongs to exactly one."""
    data = unembedding.detach().float().cpu().contiguous().view(torch.uint8).numpy()
    return hashlib.sha256(data.tobytes() + str(tuple(unembedding.shape)).encode()).hexdigest()[:16]
