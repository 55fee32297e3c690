"""`make verify`: compute one cheap unit of each family from scratch and compare it with the committed rows.

An empty cache is used, so that nothing but code, corpus, committed heads and parameters enters; this is what stops numbers and code from
drifting apart.
"""

import os
import shutil
import sys
import tempfile
from pathlib import Path

import pandas as pd

# metric: tolerance (absolute). Another processor rounds differently, and training amplifies it; these bounds hold for such changes only.
LENGTH = {"mae": 0.2, "exact_rate": 0.06, "outlier_rate": 0.03, "capped_rate": 0.03, "rouge1": 0.02, "rougeL": 0.02, "bleu": 0.6}
LENGTH |= {"repetition": 0.08, "ppl_content": 2.0, "ppl_eos": 0.05}
SCORES = {"p_high_above_low": 0.02, "gap_kept": 0.05, "auroc": 0.01, "mean_score": 0.01}  # no training in between
PROFILE = "cpu"


def main() -> int:
    """Return 0 where every compared row lies within its tolerance; print the comparison."""
    with tempfile.TemporaryDirectory() as folder:
        os.environ["STUDY_CACHE"] = folder  # read by old.paths at import
        from old import paths  # noqa: PLC0415

        wheels = paths.ROOT / ".cache" / "wheels"
        if wheels.exists():
            shutil.copytree(wheels, Path(folder) / "wheels")  # checked by SHA-256 when read
        verified = [_compare(*_scores(), SCORES), _compare(*_length(), LENGTH)]
    print("verified" if all(verified) else "NOT reproduced: rows above with within = False")
    return 0 if all(verified) else 1


def _scores() -> tuple[object, pd.DataFrame]:
    """The listing task, scored again by the committed head of seed 0."""
    from old.parameters import settings_from  # noqa: PLC0415
    from old.quality import evaluation, experiment, scores  # noqa: PLC0415
    from old.quality.data import Settings, language_model, task_states  # noqa: PLC0415
    from old.quality.head import SigmoidHead  # noqa: PLC0415
    from old.quality.heads import RELEASED, released_head  # noqa: PLC0415
    from old.quality.training import gold_tokens  # noqa: PLC0415

    unit = experiment.plan(["scores"], _parameters("10_ambiguity") | {"seeds": [0], "tasks": ["listing"]})[1]
    settings = settings_from(Settings, unit.parameters)
    items, texts, states = task_states(settings, unit.dataset)
    head = SigmoidHead.load(released_head(settings.model, 0), language_model(settings.model).unembedding)
    found = evaluation.statistics(unit.dataset, items, scores.head_scores(head, states, gold_tokens(texts)))
    return unit, pd.DataFrame(evaluation.rows(found, {"method": RELEASED, "setting": ""}))


def _length() -> tuple[object, pd.DataFrame]:
    """PRE in the trained range, seed 0: pretraining, fine-tuning and evaluation, about ten minutes."""
    from old.length import experiment  # noqa: PLC0415

    unit = experiment.plan(["in-distribution"], _parameters("21_length_control") | {"signals": ["pre"], "seeds": [0]})[0]
    rows, _ = experiment.compute_alone(unit)
    return unit, rows[rows["setting"] != "length=wrong"]


def _parameters(notebook: str) -> dict:
    from old import paths  # noqa: PLC0415
    from old.parameters import declared_parameters  # noqa: PLC0415

    return declared_parameters(paths.NOTEBOOKS / f"{notebook}.ipynb")


def _compare(unit, rows: pd.DataFrame, tolerance: dict[str, float]) -> bool:
    """Print new beside stored rows of one unit; whether all lie within their tolerance."""
    from old import storage  # noqa: PLC0415

    ((record, stored, _),) = storage.load([storage.index(PROFILE)[unit.name]])
    print(f"{unit.name}: committed from {record['commit']} on {record['device']}", flush=True)
    key = ["method", "slice", "setting", "metric"]
    table = rows[rows["metric"].isin(tolerance)].merge(stored, "left", key, suffixes=("_new", "_stored"))
    table["difference"] = (table["value_new"] - table["value_stored"]).abs()
    table["within"] = table["difference"] <= table["metric"].map(tolerance)
    with pd.option_context("display.width", 200):
        print(table[[*key, "value_stored", "value_new", "difference", "within"]].to_string(index=False))
    return bool(table["within"].all()) and not table.empty


if __name__ == "__main__":
    sys.exit(main())
