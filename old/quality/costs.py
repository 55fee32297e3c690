"""What the Sigmoid Head's parts cost against the obvious alternative, side by side in one process; random tensors of SmolLM2's sizes."""

from collections.abc import Callable
from functools import partial

import boostedprob
import pandas as pd
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from old import growth
from old.costs import interleaved, peak_mb, rows
from old.growth import Thing
from old.quality.distributions import CHUNK, NextToken
from old.quality.head import SigmoidHead, full_loss, sampled_loss
from old.quality.language_models import LanguageModel, Text
from old.quality.negatives import TokenFrequencies, sample
from old.quality.scores import METHOD, token_scores
from old.quality.training import optimizers_of
from old.units import Unit

RECIPE = 2
VOCABULARY, WIDTH, K = 49_152, 576, 10
# what is measured: (description, against what, the bound on the ratio set before measuring)
BOUNDS = {
    "negatives": ("negatives: dominant sets and 10 draws a position", "find_dominant and two torch.multinomial", 0.10),
    "negatives-log-softmax": ("negatives, against the least work on logits", "one log_softmax of the logits", 4.0),
    "negatives-memory": ("negatives: extra memory", "find_dominant and two torch.multinomial", 0.10),
    "boostedprob": ("BoostedProb of given tokens", "boostedprob.calculate_boostedprob", 0.20),
    "head-step": ("head training step, sampled loss", "full-vocabulary loss", 0.05),
    "head-training": ("head training step", "the forward passes of its positions", 0.10),
    "scores": ("language model and all scores of a text", "language model with log_softmax", 1.25),
}
# what grows how: both samplers look at every logit; a head's own way looks at the tokens asked for, whatever the vocabulary, the plain one
# at all of it, and its optimiser at every weight, whatever the positions
_ZERO, _ONE, _UP_TO_LINEAR = (0.0, 0.0), (1.0, 1.0), (0.0, 1.0)
_LOGITS, _HEAD = {"positions": 512, "vocabulary": 32_768}, {"positions": 256, "vocabulary": 32_768, "width": 256}
_LINEAR, _NO_VOCABULARY = {"plain": _ONE, "ours": _ONE}, {"plain": _ONE, "ours": _ZERO}
GROWTH = {
    "negatives": Thing("negatives", _LOGITS, {"positions": _LINEAR, "vocabulary": _LINEAR}),
    "negatives-memory": Thing(
        "negatives, memory", _LOGITS, {"positions": {"plain": _ONE, "ours": _ZERO}, "vocabulary": _LINEAR}, "peak_mb"
    ),
    "head-scores": Thing("head, scores", _HEAD, {"positions": _LINEAR, "vocabulary": _NO_VOCABULARY, "width": _LINEAR}),
    "head-step": Thing(
        "head, training step",
        _HEAD,
        {"positions": {"plain": _UP_TO_LINEAR, "ours": _ONE}, "vocabulary": _NO_VOCABULARY, "width": _LINEAR},
    ),
}
# hub configurations of allenai/OLMo-2-* (V) and Unbabel/TowerInstruct-7B-v0.2; d of the 1B as in old.quality.streaming
PAPER = {"OLMo-2 1B": {"vocabulary": 100_352, "width": 2048}, "TowerInstruct 7B": {"vocabulary": 32_007, "width": 4096}}
PAPER_POSITIONS = 1024  # the cost is of so many


def checks(positions: int) -> dict[str, tuple[str, dict[str, int]]]:
    """A measurement against a bound (with its `positions`): the same thing at sizes that no sweep has measured together."""
    sizes = {"vocabulary": VOCABULARY, "width": WIDTH}
    return {
        "negatives": ("negatives", {"positions": positions, "vocabulary": VOCABULARY}),
        "head-step": ("head-step", {"positions": 256, **sizes}),
    }


def plan(parameters: dict) -> list[Unit]:
    """One unit a measurement: `head_repeats` rounds; `positions` for the samplers, whose logits take 200 kB a position."""
    values = {"repeats": parameters["head_repeats"], "positions": parameters["positions"]}
    if values["repeats"] < 3 or values["positions"] < 64:
        raise ValueError(f"head_repeats must be at least 3 and positions at least 64, not {values['repeats']} and {values['positions']}")
    return [Unit("costs", "synthetic", "random-llama", "ours", name, 0, values, "none", RECIPE) for name in BOUNDS]


def compute(unit: Unit) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Medians (seconds, or MB) and the ratio to the baseline, with intervals; items are the single measurements."""
    torch.manual_seed(0)
    repeats, positions = unit.parameters["repeats"], unit.parameters["positions"]
    if unit.part == "negatives-memory":
        ways = {"plain": plain_negatives, "ours": our_negatives}
        values = pd.DataFrame({name: [peak_mb(partial(_fresh, work), positions)] for name, work in ways.items()})
    else:
        values = interleaved(_candidates(unit.part, positions), repeats)
    table = rows(unit, values, "plain", "peak_mb" if unit.part == "negatives-memory" else "seconds")
    return table, values.rename_axis("id").reset_index().melt("id", var_name="candidate", value_name="measured")


def plan_growth(parameters: dict) -> list[Unit]:
    """One unit a thing and a size."""
    return growth.plan("random-llama", GROWTH, parameters)


def compute_growth(unit: Unit) -> tuple[pd.DataFrame, pd.DataFrame]:
    """See `lib.growth.compute`."""
    return growth.compute(unit, GROWTH[unit.method], _at_sizes)


def _at_sizes(what: str, sizes: dict[str, int]) -> growth.Functions:
    """`ours` and `plain` of one thing; those of the memory measure it and return MB."""
    positions, vocabulary = sizes["positions"], sizes["vocabulary"]
    ways = {"plain": plain_negatives, "ours": our_negatives}
    if what == "negatives-memory":
        return {name: partial(peak_mb, partial(_fresh, work, vocabulary=vocabulary), positions) for name, work in ways.items()}
    if what == "negatives":
        inputs = _inputs(positions, vocabulary)
        return {name: partial(work, *inputs) for name, work in ways.items()}
    if what == "head-step":
        return _head_steps(positions, vocabulary, sizes["width"])
    hidden, tokens = torch.randn(positions, sizes["width"]), torch.randint(vocabulary, (positions, 1))
    head = SigmoidHead(torch.randn(vocabulary, sizes["width"])).requires_grad_(False)
    return {"plain": lambda: head.all_logits(hidden).gather(1, tokens), "ours": lambda: head(hidden, tokens)}


def _candidates(part: str, positions: int) -> dict[str, Callable[[], object]]:
    """What is timed: `ours` against `plain`."""
    if part.startswith("negatives"):
        logits, gold, unigram = _inputs(positions)
        plain = (lambda: logits.log_softmax(-1)) if part.endswith("log-softmax") else (lambda: plain_negatives(logits, gold, unigram))
        return {"plain": plain, "ours": lambda: our_negatives(logits, gold, unigram)}
    if part == "boostedprob":
        logits = _logits(positions)
        gold = logits.argmax(1)
        return {
            "plain": lambda: boostedprob.calculate_boostedprob(logits.log_softmax(-1), gold),
            "ours": lambda: [
                NextToken(logits[i : i + CHUNK].clone()).boosted_probability(gold[i : i + CHUNK, None]) for i in range(0, positions, CHUNK)
            ],
        }
    if part == "head-step":
        return _head_steps(256, VOCABULARY, WIDTH)
    count = min(16, positions // 64)
    lm, texts = _language_model(), [Text(tuple(torch.randint(VOCABULARY, (72,)).tolist()), 8) for _ in range(count)]
    size = sum(len(text.output) for text in texts)
    if part == "head-training":
        hidden, gold, negatives = torch.randn(size, WIDTH), torch.randint(VOCABULARY, (size,)), torch.randint(VOCABULARY, (size, K))
        head = SigmoidHead(lm.unembedding, rank=32)
        step = _step(head, lambda head: sampled_loss(head, hidden, gold, negatives), sparse=True)
        return {"plain": lambda: list(lm.hidden_states(texts)), "ours": step}
    head, unigram = SigmoidHead(lm.unembedding, rank=32), _frequencies()
    return {
        "plain": lambda: [lm.logits(states).log_softmax(-1).max() for _, states in lm.hidden_states(texts)],
        "ours": lambda: token_scores(lm, texts, unigram, heads={"sigmoid": head}),
    }


def _head_steps(positions: int, vocabulary: int, width: int) -> dict[str, Callable[[], object]]:
    hidden, gold, negatives = torch.randn(positions, width), *(torch.randint(vocabulary, shape) for shape in ((positions,), (positions, K)))
    unembedding = torch.randn(vocabulary, width) / width**0.5
    heads = {"plain": SigmoidHead(unembedding), "ours": SigmoidHead(unembedding)}
    return {
        "plain": _step(heads["plain"], lambda head: full_loss(head, hidden, gold), sparse=False),
        "ours": _step(heads["ours"], lambda head: sampled_loss(head, hidden, gold, negatives), sparse=True),
    }


def our_negatives(logits: torch.Tensor, gold: torch.Tensor, unigram: TokenFrequencies) -> None:
    """Chunk by chunk, in one buffer, as `NextToken` overwrites its logits and these are kept."""
    generator, buffer = torch.Generator().manual_seed(0), torch.empty(CHUNK, logits.shape[1])
    for i in range(0, len(logits), CHUNK):
        part = buffer[: len(logits[i : i + CHUNK])].copy_(logits[i : i + CHUNK])
        sample(NextToken(part), gold[i : i + CHUNK], unigram, K, generator, (METHOD,))


def plain_negatives(logits: torch.Tensor, gold: torch.Tensor, unigram: TokenFrequencies) -> None:
    """The straightforward way: dominant tokens by the package, then multinomial draws from two full matrices, 1,024 positions at once."""
    for i in range(0, len(logits), 1024):
        log_p = logits[i : i + 1024].log_softmax(-1)
        dominant = boostedprob.find_dominant(log_p.clone())
        excluded = torch.zeros_like(log_p, dtype=torch.bool).scatter_(1, gold[i : i + 1024, None], True)
        excluded |= torch.zeros_like(excluded).scatter_(1, dominant.clamp(min=0), dominant >= 0)
        for weights in ((log_p / 2).softmax(-1), unigram.probabilities.float().expand(len(log_p), -1)):
            torch.multinomial(weights.masked_fill(excluded, 0.0), K // 2, replacement=True)


def _fresh(work: Callable[[torch.Tensor, torch.Tensor, TokenFrequencies], None], positions: int, vocabulary: int = VOCABULARY):
    """One of the two ways with its inputs made, for a process of its own."""
    return partial(work, *_inputs(positions, vocabulary))


def _inputs(positions: int, vocabulary: int = VOCABULARY) -> tuple[torch.Tensor, torch.Tensor, TokenFrequencies]:
    """Logits, noise with a few plausible tokens a position, about as a language model's (N, V); gold (N,); unigram frequencies."""
    logits = torch.randn(positions, vocabulary).mul_(2.5)  # in place: the peak of the preparation must not hide that of the work
    logits.scatter_add_(1, torch.randint(vocabulary, (positions, 30)), 12 * torch.rand(positions, 30))
    return logits, torch.randint(vocabulary, (positions,)), _frequencies(vocabulary)


def _logits(positions: int) -> torch.Tensor:
    return _inputs(positions)[0]


def _frequencies(vocabulary: int = VOCABULARY) -> TokenFrequencies:
    return TokenFrequencies(1 / torch.arange(1, vocabulary + 1))


def _step(head: SigmoidHead, loss: Callable[[SigmoidHead], torch.Tensor], sparse: bool) -> Callable[[], None]:
    optimizers = optimizers_of(head, 1e-4, sparse)

    def step() -> None:
        loss(head).backward()
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()

    return step


def _language_model() -> LanguageModel:
    """SmolLM2-135M's shape with random weights."""
    shape = {"hidden_size": WIDTH, "intermediate_size": 1536, "num_hidden_layers": 30, "num_attention_heads": 9, "num_key_value_heads": 3}
    config = LlamaConfig(vocab_size=VOCABULARY, tie_word_embeddings=True, **shape)
    return LanguageModel("random-llama", LlamaForCausalLM(config), None)
