"""What the length signal costs, against the stock model and against the least any sinusoidal signal could cost."""

from collections.abc import Callable
from functools import partial

import pandas as pd
import torch
from transformers import BartConfig, BartForConditionalGeneration

from old import growth, small_bart
from old.costs import interleaved, rows
from old.growth import Thing
from old.length.models import LengthControlled
from old.length.signals import ProgressRatio, ReversePosition
from old.seq2seq import seq2seq_loss
from old.units import Unit

RECIPE = 1
# what is measured: (with the signal, against what, the bound set before measuring)
BOUNDS = {
    "signal": ("ξ, batch 64, 512 steps, d = 1024", "sin and cos of half the tensor each", 2.50),
    "training-step-d128": ("training step, tiny BART (d = 128), batch 32 × 40 tokens", "stock model", 1.10),
    "training-step-d512": ("training step, d = 512, batch 32 × 40 tokens", "stock model", 1.03),
    "generate": ("generate 64 tokens, tiny BART, batch 32", "stock model", 1.10),
    "decoding-step": ("decoder input at step 500, 50 calls, batch 256", "at step 5", 1.10),
}
# what grows how: a signal is one number a component of (batch, length, width); a model's products grow by the square of the width, its
# attention by the square of the length, its unembedding by the vocabulary, and everything else by less
_ONE, _LINEAR_TO_SQUARE, _UP_TO_LINEAR = (1.0, 1.0), (1.0, 2.0), (0.0, 1.0)
_MODEL = {"length": _LINEAR_TO_SQUARE, "batch": _ONE, "width": _LINEAR_TO_SQUARE, "vocabulary": _UP_TO_LINEAR}
_BOTH = {over: {"stock": theory, "pre": theory} for over, theory in _MODEL.items()}
_SMALL = {"length": 64, "batch": 8, "width": 128, "vocabulary": 2048}
GROWTH = {
    "signal": Thing(
        "signal", {"length": 128, "batch": 32, "width": 512}, {over: {"rpe": _ONE, "pre": _ONE} for over in ("length", "batch", "width")}
    ),
    "training-step": Thing("training step", _SMALL, _BOTH),
    "generate": Thing("generate", _SMALL, _BOTH),
}
BART_LARGE = {"length": 1024, "width": 1024, "vocabulary": 50265}  # facebook/bart-large: positions, d, V
# a measurement against a bound: the same thing at sizes that no sweep has measured together
CHECKS = {
    "signal": ("signal", {"batch": 64, "length": 512, "width": 1024}),
    "training-step-d128": ("training-step", {"batch": 32, "length": 40, "width": 128}),
    "training-step-d512": ("training-step", {"batch": 32, "length": 40, "width": 512}),
    "generate": ("generate", {"batch": 32, "length": 64, "width": 128}),
}


def plan(parameters: dict) -> list[Unit]:
    """One unit a measurement."""
    values = {"repeats": parameters["repeats"]}
    if values["repeats"] < 3:
        raise ValueError(f"repeats must be at least 3 for a median with an interval, not {values['repeats']}")
    return [Unit("costs", "synthetic", "random-bart", "pre", name, 0, values, "none", RECIPE) for name in BOUNDS]


def compute(unit: Unit) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Median seconds and the ratio to the baseline, with intervals; items are the single timings."""
    torch.manual_seed(0)
    baseline, candidates = _candidates(unit.part)
    seconds = interleaved(candidates, unit.parameters["repeats"])
    items = seconds.rename_axis("id").reset_index().melt("id", var_name="candidate", value_name="seconds")
    return rows(unit, seconds, baseline), items


def plan_growth(parameters: dict) -> list[Unit]:
    """One unit a thing and a size."""
    return growth.plan("random-bart", GROWTH, parameters)


def compute_growth(unit: Unit) -> tuple[pd.DataFrame, pd.DataFrame]:
    """See `lib.growth.compute`."""
    return growth.compute(unit, GROWTH[unit.method], _at_sizes)


def _at_sizes(what: str, sizes: dict[str, int]) -> growth.Functions:
    """The candidates of one thing: two signals, or the model without and with one."""
    batch, length, width = sizes["batch"], sizes["length"], sizes["width"]
    if what == "signal":
        step, lengths = torch.arange(1, length + 1), torch.randint(1, length + 1, (batch,))
        signals = {"rpe": ReversePosition(width).eval(), "pre": ProgressRatio(width).eval()}
        return {name: partial(signal, step, lengths) for name, signal in signals.items()}
    models = _models(width, sizes["vocabulary"], max(length, small_bart.POSITIONS))
    return _model_candidates(what, models, batch, length)


def _candidates(part: str) -> tuple[str, dict[str, Callable[[], object]]]:
    """Name of the baseline, and the functions to time; the signal's is called `pre`."""
    if part == "signal":
        signal, step, length = ProgressRatio(1024).eval(), torch.arange(1, 513), torch.randint(10, 512, (64,))
        half = torch.rand(64, 512, 512)
        return "floor", {"floor": lambda: (half.sin(), half.cos()), "pre": lambda: signal(step, length)}
    if part == "decoding-step":
        model = _models(d_model=128)["pre"]
        token, length = torch.zeros(256, 1, dtype=torch.long), torch.full((256,), 510)

        def step_after(seen: int) -> Callable[[], object]:
            cache = _SeenTokens(seen)
            return lambda: [model._controlled_embeddings(token, model._steps(token, cache, None), length) for _ in range(50)]

        return "step-5", {"step-5": step_after(4), "pre": step_after(499)}
    models = _models(d_model=512 if part.endswith("d512") else 128)
    if part == "generate":
        return "stock", _model_candidates("generate", models, 32, 64)
    return "stock", _model_candidates("training-step", models, 32, 40)


def _model_candidates(what: str, models: dict[str, torch.nn.Module], batch: int, length: int) -> dict[str, Callable[[], object]]:
    """Generating `length` tokens, or a training step on as many: without and with the signal, from sources of 24 tokens."""
    source, target = torch.randint(5, 2048, (batch, 24)), torch.randint(5, 2048, (batch, length))
    lengths = {"stock": {}, "pre": {"target_length": torch.full((batch,), length)}}
    if what == "generate":
        fixed = {"max_new_tokens": length, "min_new_tokens": length, "do_sample": False}  # the same number of steps for both
        return {name: _generation(model.eval(), source, {**fixed, **lengths[name]}) for name, model in models.items()}
    examples = {"input_ids": source, "decoder_input_ids": target, "labels": target}
    return {name: _training_step(model.train(), examples | lengths[name]) for name, model in models.items()}


class _SeenTokens:
    """Stands in for a cache that holds `seen` tokens."""

    def __init__(self, seen: int):
        self.seen = seen

    def get_seq_length(self) -> int:
        return self.seen


def _models(d_model: int, vocabulary: int = 2048, positions: int = small_bart.POSITIONS) -> dict[str, torch.nn.Module]:
    def config() -> BartConfig:
        return small_bart.configuration(vocabulary, d_model, positions=positions)

    return {"stock": BartForConditionalGeneration(config()), "pre": LengthControlled.from_config(config(), signal="pre")}


def _training_step(model: torch.nn.Module, batch: dict) -> Callable[[], object]:
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)

    def step() -> None:
        loss, tokens = seq2seq_loss(model, batch)
        (loss / tokens).backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def _generation(model: torch.nn.Module, source: torch.Tensor, options: dict) -> Callable[[], object]:
    return lambda: model.generate(source, attention_mask=torch.ones_like(source), **options)
