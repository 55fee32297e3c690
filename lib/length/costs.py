"""What the length signal costs, against the stock model and against the least any sinusoidal signal could cost."""

from collections.abc import Callable

import pandas as pd
import torch
from transformers import BartConfig, BartForConditionalGeneration

from lib import small_bart
from lib.costs import interleaved, rows
from lib.length.models import LengthControlled
from lib.length.signals import ProgressRatio
from lib.seq2seq import seq2seq_loss
from lib.units import Unit

RECIPE = 1
# what is measured: (with the signal, against what, the bound set before measuring)
BOUNDS = {
    "signal": ("ξ, batch 64, 512 steps, d = 1024", "sin and cos of half the tensor each", 2.50),
    "training-step-d128": ("training step, tiny BART (d = 128), batch 32 × 40 tokens", "stock model", 1.10),
    "training-step-d512": ("training step, d = 512, batch 32 × 40 tokens", "stock model", 1.03),
    "generate": ("generate 64 tokens, tiny BART, batch 32", "stock model", 1.10),
    "decoding-step": ("decoder input at step 500, 50 calls, batch 256", "at step 5", 1.10),
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
    source, target = torch.randint(5, 2048, (32, 24)), torch.randint(5, 2048, (32, 40))
    lengths = {"stock": {}, "pre": {"target_length": torch.full((32,), 40)}}
    if part == "generate":
        fixed = {"max_new_tokens": 64, "min_new_tokens": 64, "do_sample": False}  # the same number of steps for both
        return "stock", {name: _generation(model.eval(), source, {**fixed, **lengths[name]}) for name, model in models.items()}
    batch = {"input_ids": source, "decoder_input_ids": target, "labels": target}
    return "stock", {name: _training_step(model.train(), batch | lengths[name]) for name, model in models.items()}


class _SeenTokens:
    """Stands in for a cache that holds `seen` tokens."""

    def __init__(self, seen: int):
        self.seen = seen

    def get_seq_length(self) -> int:
        return self.seen


def _models(d_model: int) -> dict[str, torch.nn.Module]:
    def config() -> BartConfig:
        return small_bart.configuration(vocabulary=2048, d_model=d_model)

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
