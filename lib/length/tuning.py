"""What the length experiment chose, tried on validation data with one seed and no test text: learning rate, and clip of a countdown.

python -m lib.length.tuning     # about 25 minutes; stored in data/results/tuning, shown in notebooks 21 and 22
"""

import dataclasses

import numpy as np
import pandas as pd

from lib.length import evaluation
from lib.length.corpora import DATASETS
from lib.length.experiment import RECIPE, control
from lib.length.finetuning import Data, Settings, prepare, signal_options, trained_model
from lib.parameters import settings_from
from lib.results import make_table, setting_name
from lib.units import Unit, default_jobs, run

PROFILE = "tuning"
LEARNING_RATES = (1e-3, 2e-3, 4e-3, 8e-3)
TRIED = ("none", "pre", "rpe")  # the plain model and the two methods of the paper; the choice then holds for every signal
MAX_COUNTDOWNS = (16, 32, 48, 63)  # 63: the longest countdown of a training target
CLIPPED = ("rpe-clipped", "rpe-random-clipped")


def plan() -> list[Unit]:
    """One unit a signal and value, seed 0, everything else as in the `cpu` profile."""
    settings = Settings()
    data, common = DATASETS[settings.dataset].fingerprint(), dataclasses.asdict(settings)
    tried = [(s, f"learning-rate-{v:g}", signal_options(s, settings) | {"learning_rate": v}) for s in TRIED for v in LEARNING_RATES]
    tried += [(s, f"max-countdown-{v}", {"max_countdown": v}) for s in CLIPPED for v in MAX_COUNTDOWNS]
    return [
        Unit("length", settings.dataset, settings.model, signal, part, 0, common | options, data, RECIPE) for signal, part, options in tried
    ]


def compute(unit: Unit) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Rows and items of one unit: perplexity for a learning rate, control of random lengths for a clip."""
    settings = settings_from(Settings, unit.parameters)
    data = prepare(settings)
    model = trained_model(unit, settings, data)
    if unit.part.startswith("learning-rate"):
        items = _perplexity(model, unit.method, settings, data)
    else:
        requests = control(model, unit.method, settings, data, split="validation")
        items = requests.assign(setting=setting_name(max_countdown=unit.parameters["max_countdown"]))
    identity = {"study": unit.study, "dataset": unit.dataset, "model": unit.model, "method": unit.method, "seed": unit.seed}
    return make_table(evaluation.summarise(items, identity, settings.max_train_length)), items


def _perplexity(model, method: str, settings: Settings, data: Data) -> pd.DataFrame:
    """Loss of the validation targets as short as in training, told their own length."""
    pairs = data.split("validation", high=settings.max_train_length)
    lengths = pairs["length"].to_numpy()
    told = lengths if method != "none" else None
    loss = evaluation.negative_log_likelihood(model, pairs["source_ids"].tolist(), pairs["target_ids"].tolist(), told)
    setting = setting_name(learning_rate=f"{settings.learning_rate:g}")
    return pairs[["id", "group"]].assign(slice="validation", setting=setting, target_length=lengths, generated_length=np.nan, **loss)


if __name__ == "__main__":
    prepare(Settings())  # corpus and base model, once, before units run side by side
    rows, _ = run(plan(), compute, PROFILE, default_jobs())
    for metric, part in (("ppl_content", "validation"), ("mae", "unseen"), ("outlier_rate", "unseen")):
        shown = rows[(rows["metric"] == metric) & (rows["slice"] == part)]
        print(f"\n{metric}\n{shown.pivot(index='method', columns='setting', values='value').round(3).to_string()}")
