"""A progress bar with an estimate, where somebody can see it.

In a terminal or an interactive notebook the bar shows. `lib.study` runs notebooks in a kernel whose
output becomes part of the stored notebook: there it names a terminal or log file in STUDY_PROGRESS,
and the bar goes there instead, or nowhere when it is empty.
"""

import os
import sys
from collections.abc import Iterable

from tqdm import tqdm

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
