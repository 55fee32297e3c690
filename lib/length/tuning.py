"""How the learning rate of the length experiment was chosen: validation perplexity at several rates, one seed, no test text.

python -m lib.length.tuning     # about 15 minutes; stored in data/results/tuning, shown in notebook 21
"""

import dataclasses

import numpy as np
import pandas as pd

from lib.length import evaluation
from lib.length.experiment import RECIPE, settings_of
from lib.length.finetuning import DATASETS, Settings, prepare, signal_options, trained_model
from lib.results import make_table, setting_name
from lib.units import Unit, default_jobs, run

PROFILE = "tuning"
LEARNING_RATES = (1e-3, 2e-3, 4e-3, 8e-3)
TRIED = ("none", "pre", "rpe")  # the plain model and the two methods of the paper; the choice then holds for every signal


def plan() -> list[Unit]:
    """One unit a signal and learning rate, seed 0, everything else as in the `cpu` profile."""
    settings = Settings()
    data = DATASETS[settings.dataset].fingerprint()
    return [
        Unit(
            "length",
            settings.dataset,
            settings.model,
            signal,
            f"learning-rate-{rate:g}",
            0,
            dataclasses.asdict(settings) | {"learning_rate": rate} | signal_options(signal, settings),
            data,
            RECIPE,
        )
        for signal in TRIED
        for rate in LEARNING_RATES
    ]


def compute(unit: Unit) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Perplexity of the validation targets as short as in training, told their own length."""
    settings = settings_of(unit)
    data = prepare(settings)
    model = trained_model(unit, settings, data)
    pairs = data.split("validation", high=settings.max_train_length)
    lengths = pairs["length"].to_numpy()
    loss = evaluation.negative_log_likelihood(
        model, pairs["source_ids"].tolist(), pairs["target_ids"].tolist(), lengths if unit.method != "none" else None
    )
    setting = setting_name(learning_rate=f"{settings.learning_rate:g}")
    items = pairs[["id", "group"]].assign(slice="validation", setting=setting, target_length=lengths, generated_length=np.nan, **loss)
    identity = {"study": unit.study, "dataset": unit.dataset, "model": unit.model, "method": unit.method, "seed": unit.seed}
    return make_table(evaluation.summarise(items, identity, settings.max_train_length)), items


if __name__ == "__main__":
    prepare(Settings())  # corpus and base model, once, before units run side by side
    rows, _ = run(plan(), compute, PROFILE, default_jobs())
    print(rows[rows["metric"] == "ppl_content"].pivot(index="method", columns="setting", values="value").round(2).to_string())
