"""What the length experiment chose, tried on validation data with one seed and no test text: learning rate, and clip of a countdown.

python -m old.length.tuning     # about 25 minutes; stored in data/results/tuning, shown in notebooks 21 and 22
"""

import dataclasses

import numpy as np
import pandas as pd

from old.length import evaluation, experiment
from old.length.corpora import DATASETS
from old.length.experiment import RECIPE, control
from old.length.finetuning import Data, Settings, prepare, signal_options, trained_model
from old.parameters import model_label, settings_from
from old.results import make_table, setting_name
from old.units import Unit, default_jobs, pending, run

PROFILE = "tuning"
LEARNING_RATES = (1e-3, 2e-3, 4e-3, 8e-3)
TRIED = ("none", "pre", "rpe")  # the plain model and the two methods of the paper; the choice then holds for every signal
MAX_COUNTDOWNS = (16, 32, 48, 63)  # 63: the longest countdown of a training target
CLIPPED = ("rpe-clipped", "rpe-random-clipped")


# every value tried of the study's own signals (notebook 25)
PAST_THE_PAPER = (
    [("pre", {}), ("pre", {"noise": 0.0})]
    + [("pre-nyquist", {"share": share}) for share in (0.5, 0.65, 0.8, 0.9, 1.0)]
    + [("pre-nyquist", {"share": share, "noise": 0.0}) for share in (0.5, 0.9)]
    + [("pre-countdown", {"window": window, "combine": c, "noise": 1.0}) for c in ("sum", "split") for window in (8, 16, 24, 32)]
    + [("pre-countdown", {"window": 16, "combine": c, "noise": 1.0, "share": 0.8}) for c in ("sum", "split")]
    + [("pre-countdown", {"window": 16, "combine": "sum", "noise": 0.0})]
    + [("pre-countdown", {"window": window, "combine": "split", "noise": 0.0}) for window in (8, 16, 24, 32)]
    + [("countdown", {"window": window}) for window in (8, 16, 24, 32)]
    + [("bucket", {"buckets": number}) for number in (64, 256)]
)


def plan() -> list[Unit]:
    """The choices behind the `cpu` profile: one unit a signal and value, seed 0, everything else as there."""
    tried = [(s, f"learning-rate-{v:g}", signal_options(s, Settings()) | {"learning_rate": v}) for s in TRIED for v in LEARNING_RATES]
    return _units(tried + [(s, f"max-countdown-{v}", {"max_countdown": v}) for s in CLIPPED for v in MAX_COUNTDOWNS], Settings())


def plan_past_the_paper(parameters: dict) -> list[Unit]:
    """The choices behind `pre-nyquist`, `pre-countdown` and `bucket`, for a notebook's parameters."""
    named = [(s, "-".join(["options", *(f"{name}-{value}" for name, value in o.items())]), o) for s, o in PAST_THE_PAPER]
    return _units(named, settings_from(Settings, parameters))


def plan_better_signals(parameters: dict) -> list[Unit]:
    """What notebook 25 computes: the values tried, if it asks for them, and its own signals. Those it compares with are read."""
    tried = plan_past_the_paper(parameters) if parameters["sweep"] else []
    return tried + experiment.plan(["in-distribution", "unseen"], parameters)


def run_past_the_paper(parameters: dict) -> pd.DataFrame:
    """Result rows of `plan_past_the_paper`; the setting of a row names the options."""
    units = plan_past_the_paper(parameters)
    if pending(units, parameters["profile"]):
        prepare(settings_from(Settings, parameters))
    return run(units, compute, parameters["profile"], default_jobs())[0]


def _units(tried: list[tuple[str, str, dict]], settings: Settings) -> list[Unit]:
    data, common = DATASETS[settings.dataset].fingerprint(), dataclasses.asdict(settings)
    model = model_label(settings.model)
    return [Unit("length", settings.dataset, model, signal, part, 0, common | options, data, RECIPE) for signal, part, options in tried]


def compute(unit: Unit) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Rows and items of one unit, on validation text: perplexity for a learning rate, control of random lengths for a clip, both for the
    options of the study's own signals.
    """
    settings = settings_from(Settings, unit.parameters)
    data = prepare(settings)
    model = trained_model(unit, settings, data)
    of_training = unit.part.startswith("learning-rate")
    options = {name: value for name, value in unit.parameters.items() if name not in dataclasses.asdict(settings)}
    parts = []
    if not of_training:
        parts.append(control(model, unit.method, settings, data, split="validation"))
    if not unit.part.startswith("max-countdown"):
        parts.append(_perplexity(model, unit.method, data, settings.max_train_length))
    setting = setting_name(learning_rate=f"{settings.learning_rate:g}") if of_training else setting_name(**options)
    items = pd.concat(parts, ignore_index=True).assign(setting=setting)
    rows = make_table(evaluation.summarise(items, unit.identity, settings.max_train_length))
    return rows, items.iloc[:0] if unit.part.startswith("options") else items  # their rows say it all


def _perplexity(model, method: str, data: Data, longest: int) -> pd.DataFrame:
    """Loss of the validation targets as short as in training, told their own length."""
    pairs = data.split("validation", high=longest)
    lengths = pairs["length"].to_numpy()
    told = lengths if method != "none" else None
    loss = evaluation.negative_log_likelihood(model, pairs["source_ids"].tolist(), pairs["target_ids"].tolist(), told)
    return pairs[["id", "group"]].assign(slice="validation", target_length=lengths, generated_length=np.nan, **loss)


if __name__ == "__main__":
    prepare(Settings())  # corpus and base model, once, before units run side by side
    rows, _ = run(plan(), compute, PROFILE, default_jobs())
    for metric, part in (("ppl_content", "validation"), ("mae", "unseen"), ("outlier_rate", "unseen")):
        shown = rows[(rows["metric"] == metric) & (rows["slice"] == part)]
        print(f"\n{metric}\n{shown.pivot(index='method', columns='setting', values='value').round(3).to_string()}")
