"""Every path of the study, from this file's place: nothing depends on the working directory; and a
progress bar, where somebody can see it.
"""

import os
import sys
from collections.abc import Iterable
from pathlib import Path

from tqdm import tqdm

ROOT = Path(__file__).resolve().parent.parent.parent
NOTEBOOKS = ROOT / "notebooks"
RESULTS = ROOT / "data" / "results"  # rows of experiments, committed
HEADS = ROOT / "data" / "heads"  # small trained heads, committed
MODELS = ROOT / "data" / "models"  # a small trained model, committed
# figures and tables, committed; `lib.study` names another folder for runs with other values
FIGURES = Path(os.environ.get("STUDY_FIGURES", ROOT / "figures"))
CACHE = Path(os.environ.get("STUDY_CACHE", ROOT / ".cache")).expanduser()  # safe to delete
RUNS = CACHE / "runs"  # executed notebooks of every run but the stored one


DESTINATION = "STUDY_PROGRESS"


def progress(iterable: Iterable | None, description: str, **options) -> tqdm:
    """tqdm over `iterable`; see the module's text for where it shows."""
    shown = {"desc": description, "leave": False, "dynamic_ncols": True, "mininterval": 1.0}
    destination = os.environ.get(DESTINATION)
    if destination:
        shown["file"] = open(destination, "a")  # noqa: SIM115 - lives as long as the bar
    visible = destination or sys.stderr.isatty() or "ipykernel" in sys.modules
    first = os.environ.get("RANK", "0") == "0"  # of several processes the first shows its bar
    hidden = destination == "" or not visible or not first
    return tqdm(iterable, disable=hidden, **(shown | options))
