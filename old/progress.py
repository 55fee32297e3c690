"""A plain progress bar with an estimate, where somebody can see it.

In a terminal or an interactive notebook the bar shows. `old.study` runs notebooks in a kernel of their own, whose output becomes part of
the stored notebook: there it names a terminal (or log file) in STUDY_PROGRESS, and the bar goes there instead, or nowhere when it is empty.
"""

import os
import sys
from collections.abc import Iterable

from tqdm import tqdm

DESTINATION = "STUDY_PROGRESS"


def progress(iterable: Iterable, description: str, **options) -> tqdm:
    """tqdm over `iterable`; see the module's text for where it shows."""
    common = {"desc": description, "leave": False, "dynamic_ncols": True, "mininterval": 1.0, **options}
    if os.environ.get(DESTINATION) == "" or os.environ.get("RANK", "0") != "0":  # RANK: of several processes the first shows its bar
        return tqdm(iterable, disable=True, **common)
    if DESTINATION in os.environ:
        return tqdm(iterable, file=open(os.environ[DESTINATION], "a"), **common)  # noqa: SIM115 - lives as long as the bar
    interactive = sys.stderr.isatty() or "ipykernel" in sys.modules
    return tqdm(iterable, disable=not interactive, **common)
