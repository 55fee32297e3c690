"""`make verify`: one cheap combination of each family of experiments, computed from scratch and
compared with the stored rows. The cache is empty (see Makefile), so that nothing but code, corpus,
committed heads and arguments enters: this stops numbers and code from drifting apart.
"""

import sys
from collections.abc import Callable

import numpy as np
import pandas as pd

from lib.joint import texts_under_length
from lib.length.experiments import controlled_outputs
from lib.quality.experiments import RELEASED, released_head
from lib.quality.hidden_states import unembedding_of
from lib.quality.scores import head_scores as scores_of_head
from lib.quality.scores import join
from lib.sigmoid_head import SigmoidHead
from lib.study import paths
from lib.study.rows import RowStore
from lib.tasks.closed_forms import closed_form_grid
from lib.tasks.experiments import head_scores, output_states, task_items, untrained_scores

UNTRAINED, TRAINED = 0.02, 0.15  # another processor rounds differently, and training amplifies it


def scores_of_committed_head(head, seed, task, model, texts, training) -> pd.DataFrame:
    """What `head_scores` returns, without training the head."""
    known, unembedding = output_states(task, model, texts), unembedding_of(model).unembedding
    loaded = SigmoidHead.load(released_head(model, seed), unembedding)
    scores = scores_of_head(loaded, known["states"], known["gold"])
    return pd.DataFrame({"score": join(scores, known["text"].numpy())})


LISTING, PRE = {"task": "listing"}, {"signal": "pre", "seed": 0, "corpus": "docstrings"}
HEAD = {"head": RELEASED, "seed": 0, **LISTING}
SHORT = PRE | {"fault": None, "split": "test"}
# experiment; arguments that choose a combination; how far the mean of a column may be from the
# stored one, in standard deviations of its rows; how it is computed, if not by itself
FAMILIES = [
    (task_items, LISTING, UNTRAINED, task_items),
    (untrained_scores, LISTING, UNTRAINED, untrained_scores),
    (head_scores, HEAD, UNTRAINED, scores_of_committed_head),
    (closed_form_grid, LISTING, UNTRAINED, closed_form_grid),
    (controlled_outputs, SHORT, TRAINED, controlled_outputs),
    (texts_under_length, PRE, TRAINED, texts_under_length),
]


def verify(experiment, chosen: dict, tolerance: float, compute: Callable) -> pd.DataFrame:
    """Mean of each number that is stored, and now; how far apart they are; whether that is near.

    Of several stored combinations the one that took least time.
    """
    store = RowStore(paths.RESULTS, experiment)
    matching = [r for r in store.records.values() if chosen.items() <= r["arguments"].items()]
    record = min(matching, key=lambda record: record["seconds"] or 0)
    stored = store.rows([record["key"]])
    new = compute(**record["arguments"])
    numbers = new.select_dtypes([np.number, bool]).columns.intersection(stored.columns)
    before, now = stored[numbers].astype(float), new[numbers].astype(float)
    scale = before.std().clip(lower=1e-3 * before.abs().mean().clip(lower=1e-9))
    table = pd.DataFrame({"stored": before.mean(), "now": now.mean()})
    table["apart"] = (table["now"] - table["stored"]).abs() / scale
    return table.assign(rows=len(new), near=(table["apart"] <= tolerance))


def main() -> int:
    """0 where every number is near the stored one; prints the comparison."""
    fine = True
    for family in FAMILIES:
        table = verify(*family)
        print(f"{family[0].name}, {family[1]}\n{table.to_string()}\n", flush=True)
        fine &= bool(table["near"].all()) and not table.empty
    print("verified" if fine else "NOT reproduced: lines above with near = False")
    return 0 if fine else 1


if __name__ == "__main__":
    sys.exit(main())
