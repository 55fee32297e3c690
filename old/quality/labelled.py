"""Stored items whose gold is right or wrong, with all scores of theirs, every seed of a trained head by itself."""

from typing import NamedTuple

import numpy as np
import pandas as pd

from old import units
from old.figures import in_order
from old.parameters import model_label

PARTS = ("scores", "ablation")  # ablation: further heads on the same items. Heads that learnt from other corpora are in neither


class Labelled(NamedTuple):
    """Items of one task."""

    gold: np.ndarray  # (N,) 1 right, 0 wrong
    groups: np.ndarray  # (N,) what is drawn, and resampled, as a whole
    scores: dict[str, np.ndarray]  # by method (S, N), higher = better; a line a seed, one line where nothing is trained


def stored_scores(profiles: list[str], model: str, parts: tuple[str, ...] = PARTS) -> pd.DataFrame:
    """Items of the tasks of quality estimation that these profiles hold for a model; column `profile` says which. Empty where none does."""
    found = []
    for profile in profiles:
        for study in ("ambiguity", "quality"):
            try:
                _, items = units.read_stored(study, profile)
            except FileNotFoundError:  # a profile may hold other studies only
                continue
            found.append(items[(items["model"] == model_label(model)) & items["part"].isin(parts)].assign(profile=profile))
    return pd.concat(found, ignore_index=True) if found else pd.DataFrame(columns=["dataset", "profile"])


def labelled_tasks(items: pd.DataFrame, tasks: list[str], methods: list[str]) -> dict[str, Labelled]:
    """Those of the tasks that `items` (of `stored_scores`) has, each from the first profile that holds it; scores in the study's order.

    ValueError for gold other than 0 and 1, and for a score that some items lack.
    """
    return {task: _labelled(items[items["dataset"] == task], task, methods) for task in tasks if (items["dataset"] == task).any()}


def _labelled(items: pd.DataFrame, task: str, methods: list[str]) -> Labelled:
    items = items[items["profile"] == items["profile"].iloc[0]].dropna(axis=1, how="all")
    judged = items.drop_duplicates("id").set_index("id").sort_index()
    if not judged["gold"].isin((0, 1)).all():
        raise ValueError(f"{task}: gold must be 0 or 1")
    judged = judged[_is_judged(judged, task)]
    scores = {}
    for method in in_order(set(methods) & set(items)):
        by_seed = items.pivot_table(index="id", columns="seed", values=method).reindex(judged.index).to_numpy().T
        if not np.isfinite(by_seed).all():
            raise ValueError(f"{task}: not every item has the score {method!r}")
        scores[method] = by_seed
    return Labelled(judged["gold"].to_numpy(float), judged["group"].to_numpy(), scores)


def _is_judged(items: pd.DataFrame, task: str) -> np.ndarray:
    """All but controls that name no territory (languages), and numbers of right answers for which there is no wrong one (listing)."""
    asked = ~items["prior"].astype(bool) if "prior" in items else pd.Series(True, items.index)
    decided = items.groupby("slice")["gold"].transform("min") == 0 if task == "listing" else True
    return (asked & decided).to_numpy()
