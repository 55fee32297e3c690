"""`make verify`: compute one cheap unit of each family from scratch and compare it with the committed rows.

An empty cache is used, so that nothing but code, corpus and parameters enters; this is what stops numbers and code from drifting apart.
"""

import json
import os
import shutil
import sys
import tempfile
from pathlib import Path

import pandas as pd

# metric: tolerance (absolute). Another processor rounds differently, and training amplifies it; these bounds hold for such changes only.
TOLERANCE = {"mae": 0.5, "outlier_rate": 0.03, "capped_rate": 0.03, "rouge1": 0.02, "rougeL": 0.02, "repetition": 0.08, "ppl_content": 3.0}
PROFILE = "cpu"


def main() -> int:
    """Return 0 where every compared row lies within its tolerance; print the comparison."""
    with tempfile.TemporaryDirectory() as folder:
        os.environ["STUDY_CACHE"] = folder  # read by lib.paths at import
        from lib import paths  # noqa: PLC0415
        from lib.length import experiment  # noqa: PLC0415
        from lib.results import read_table  # noqa: PLC0415
        from lib.study import declared_parameters  # noqa: PLC0415

        wheels = paths.ROOT / ".cache" / "wheels"
        if wheels.exists():
            shutil.copytree(wheels, Path(folder) / "wheels")  # checked by SHA-256 when read
        parameters = declared_parameters(paths.NOTEBOOKS / "21_length_control.ipynb") | {"signals": ["pre"], "seeds": [0]}
        unit = experiment.plan(["in-distribution"], parameters)[0]
        record = json.loads(unit.path(PROFILE, "json").read_text())
        print(f"{unit.name}: committed from {record['commit']} on {record['device']}; computing again, about ten minutes ...", flush=True)
        rows, _ = experiment.compute_alone(unit)
        key = ["slice", "setting", "metric"]
        table = read_table(unit.path(PROFILE, "csv")).merge(rows, on=key, suffixes=("_stored", "_new"), how="outer")
    table = table[table["metric"].isin(TOLERANCE) & (table["setting"] != "length=wrong")]
    table["difference"] = (table["value_new"] - table["value_stored"]).abs()
    table["within"] = table["difference"] <= table["metric"].map(TOLERANCE)
    with pd.option_context("display.width", 200):
        print(table[[*key, "value_stored", "value_new", "difference", "within"]].to_string(index=False))
    print("verified" if table["within"].all() else "NOT reproduced: rows above with within = False")
    return 0 if table["within"].all() else 1


if __name__ == "__main__":
    sys.exit(main())
