"""Every path of the study, from this file's place: nothing depends on the working directory."""

import os
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
NOTEBOOKS = ROOT / "notebooks"
RESULTS = ROOT / "data" / "results"  # rows of experiments, committed
HEADS = ROOT / "data" / "heads"  # small trained heads, committed
MODELS = ROOT / "data" / "models"  # a small trained model, committed
# figures and tables, committed; `lib.study` names another folder for runs with other values
FIGURES = Path(os.environ.get("STUDY_FIGURES", ROOT / "figures"))
CACHE = Path(os.environ.get("STUDY_CACHE", ROOT / ".cache")).expanduser()  # safe to delete
RUNS = CACHE / "runs"  # executed notebooks of every run but the stored one
