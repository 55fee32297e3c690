"""The Sigmoid Head: a second unembedding on a frozen language model, whose sigmoid says how good
each token is (arXiv 2601.00680). Needs only torch and safetensors: copy it into your project.
"""

import hashlib
from pathlib import Path

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.nn import functional as F


class SigmoidHead(nn.Module):
    """Scores tokens independently: p_i(v) = sigmoid(z_i[v]) with z_i = W_qe h_i + b_qe, h_i the
    last hidden state after the final norm.

    `rank=None` is the paper's full head: W_qe starts as scale * W, b_qe as scale * b + shift, W
    (V, d) and b (V,) copies of the language model's. With a rank r W stays frozen and shared: z =
    W (scale * h + up (down h)) + shift + b_qe, with down (r, d), up (d, r) = 0 at the start, b_qe
    (V,). scale = 1, shift = 0 is the paper's raw start; `fit_start` finds better ones. Only rows of
    tokens asked for get gradients (sparse). ValueError for a rank that W cannot have.

    >>> head = SigmoidHead(torch.eye(3), rank=1)
    >>> head(torch.tensor([[1.0, 2.0, 3.0]]), torch.tensor([[0, 2]])).detach()
    tensor([[1., 3.]])
    """

    def __init__(self, unembedding: Tensor, bias=None, rank=None, scale=1.0, shift=0.0):
        super().__init__()
        vocabulary, width = unembedding.shape
        if rank is not None and not 0 < rank <= width:
            raise ValueError(f"rank must lie between 1 and the width {width}, not {rank}")
        self.rank, self.unembedding_hash = rank, unembedding_hash(unembedding)
        device = unembedding.device
        start = scale * bias.detach().float() if bias is not None else torch.zeros(vocabulary)
        if rank is None:
            start, self.shift = start + shift, 0.0
            # (V, d): a product, so never the base's own storage
            self.weight = nn.Parameter(scale * unembedding.detach().float())
        else:
            self.register_buffer("unembedding", unembedding.detach(), persistent=False)
            self.scale = nn.Parameter(torch.tensor(float(scale), device=device))
            self.shift = nn.Parameter(torch.tensor(float(shift), device=device))
            self.down = nn.Parameter(torch.randn(rank, width, device=device) / width**0.5)
            self.up = nn.Parameter(torch.zeros(width, rank, device=device))
        self.bias = nn.Parameter(start[:, None].to(device))  # (V, 1), looked up like the weight

    def forward(self, hidden_states: Tensor, token_ids: Tensor) -> Tensor:
        """Logits of the given tokens only. (N, d), (N, K) -> (N, K)"""
        full = self.rank is None
        rows = F.embedding(token_ids, self.weight if full else self.unembedding, sparse=full)
        bias = F.embedding(token_ids, self.bias, sparse=True).squeeze(-1)
        products = (rows.float() @ self._input(hidden_states)[:, :, None]).squeeze(-1)
        return products + bias + self.shift

    def all_logits(self, hidden_states: Tensor) -> Tensor:
        """Logits of the whole vocabulary. (N, d) -> (N, V)"""
        weight = self.weight if self.rank is None else self.unembedding.float()
        return F.linear(self._input(hidden_states), weight, self.bias[:, 0]) + self.shift

    def _input(self, hidden_states: Tensor) -> Tensor:
        """What meets the rows of the unembedding. (N, d) -> (N, d)"""
        hidden = hidden_states.float()
        if self.rank is None:
            return hidden
        return self.scale * hidden + F.linear(F.linear(hidden, self.down), self.up)

    def sparse_parameters(self) -> list[nn.Parameter]:
        """Those whose gradients in `forward` are sparse (torch.optim.SparseAdam)."""
        return [self.bias] if self.rank is not None else [self.weight, self.bias]

    def save(self, file: Path | str, model: str) -> None:
        """Write the trained tensors in half precision, with model name and unembedding hash."""
        metadata = {"model": model, "unembedding_hash": self.unembedding_hash}
        tensors = {name: p.detach().half().contiguous() for name, p in self.named_parameters()}
        save_file(tensors, file, metadata=metadata | {"rank": str(self.rank or "full")})

    @classmethod
    def load(cls, file: Path | str, unembedding: Tensor) -> "SigmoidHead":
        """Read a saved head of the model with this unembedding. FileNotFoundError, or ValueError
        where the file is broken or of another model.
        """
        if not Path(file).is_file():
            raise FileNotFoundError(f"no head {file}: train and save one first")
        try:
            with safe_open(file, framework="pt") as stored:
                metadata = stored.metadata() or {}
                tensors = {name: stored.get_tensor(name) for name in stored.keys()}  # noqa: SIM118
        except Exception as error:
            raise ValueError(f"{file} is not a readable safetensors file ({error})") from error
        if metadata.get("unembedding_hash") != unembedding_hash(unembedding):
            name = metadata.get("model", "an unnamed model")
            raise ValueError(f"{Path(file).name} belongs to the unembedding of {name!r}, not this")
        return cls.from_tensors(tensors, unembedding)

    @classmethod
    def from_tensors(cls, tensors: dict[str, Tensor], unembedding: Tensor) -> "SigmoidHead":
        """A head from its trained tensors by name (`named_parameters`), in float32."""
        rank = tensors["down"].shape[0] if "down" in tensors else None
        head = cls(unembedding, rank=rank)
        head.load_state_dict({name: tensor.float() for name, tensor in tensors.items()})
        return head.eval()


# ---- losses: all take a head, hidden_states (N, d), gold (N,), negatives (N, K) -> scalar --------


def sampled_loss(head: SigmoidHead, hidden: Tensor, gold: Tensor, negatives: Tensor) -> Tensor:
    """Binary cross-entropy of gold and sampled negatives (-1: none). Nats a position."""
    logits = head(hidden, torch.cat([gold[:, None], negatives.clamp(min=0)], 1))
    wrong = F.softplus(logits[:, 1:]) * (negatives >= 0)
    return (F.softplus(-logits[:, 0]) + wrong.sum(1)).mean()


def full_loss(head: SigmoidHead, hidden: Tensor, gold: Tensor, _negatives=None) -> Tensor:
    """Binary cross-entropy over the whole vocabulary, every token but gold a negative."""
    logits = head.all_logits(hidden)
    right = logits.gather(1, gold[:, None])  # softplus(z) - z = softplus(-z)
    return (F.softplus(logits).sum(1, keepdim=True) - right).mean()


def softmax_loss(head: SigmoidHead, hidden: Tensor, gold: Tensor, _negatives=None) -> Tensor:
    """Softmax cross-entropy of the same head: a control with the same data and capacity."""
    return F.cross_entropy(head.all_logits(hidden), gold)


def fit_start(logits: Tensor, labels: Tensor) -> tuple[float, float]:
    """scale and shift with the least binary cross-entropy of sigmoid(scale * logits + shift): raw
    logits (M,) of gold tokens (labels (M,) 1) and negatives (0).
    """
    logits, labels = logits.double(), labels.double()
    spread = logits.std().clamp(min=1e-6)
    parameters = torch.zeros(2, dtype=torch.float64, requires_grad=True)
    optimizer = torch.optim.LBFGS([parameters], max_iter=50, line_search_fn="strong_wolfe")

    def closure() -> Tensor:
        optimizer.zero_grad()
        scaled = parameters[0] * (logits - logits.mean()) / spread + parameters[1]
        loss = F.binary_cross_entropy_with_logits(scaled, labels)
        loss.backward()
        return loss

    optimizer.step(closure)
    slope, offset = parameters.detach().tolist()
    return slope / float(spread), offset - slope * float(logits.mean() / spread)


def unembedding_hash(unembedding: Tensor) -> str:
    """Short SHA-256 of an unembedding's values, the same in any precision that holds them."""
    data = unembedding.detach().float().cpu().contiguous().view(torch.uint8).numpy()
    return hashlib.sha256(data.tobytes() + str(tuple(unembedding.shape)).encode()).hexdigest()[:16]
