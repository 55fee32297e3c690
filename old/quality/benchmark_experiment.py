"""The units of notebook 15: all scores on the benchmark tasks, heads learnt from further corpora on some, and the supervised probe."""

import pandas as pd

from old.parameters import check_names
from old.quality import experiment, supervised
from old.quality.training_corpora import CORPORA
from old.units import Unit

PROBED = ("mlqe-pe-en-de", "mlqe-pe-ro-en", "mlqe-pe-ru-en")  # sentence-level human judgements: the probe learns from each of them
PROBE_TESTS = (*PROBED, "hjqe-en-de")


def _runs(parameters: dict) -> list[dict]:
    """Parameters of every training corpus: the usual one on all tasks, the others, at `corpora_texts` texts, on `corpora_tasks`."""
    check_names("training corpus", parameters["corpora"], CORPORA)
    size = {"train_texts": parameters["corpora_texts"], "tasks": parameters["corpora_tasks"]}
    others = [{"trained_on": corpus, **size} for corpus in parameters["corpora"]]
    return [parameters | changed for changed in ({}, *others)]


def _probe(parameters: dict) -> tuple[list[str], list[str]]:
    """Tasks that the probe is trained and tested on, among those of the parameters."""
    return tuple([task for task in names if task in parameters["tasks"]] for names in (PROBED, PROBE_TESTS))


def plan(parameters: dict) -> list[Unit]:
    """All units for a notebook's parameters; ValueError for anything unknown, before anything is computed."""
    units = [unit for changed in _runs(parameters) for unit in experiment.plan(["scores"], changed)]
    return units + supervised.plan(*_probe(parameters), parameters)


def run(parameters: dict) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Result rows and items of all units: read where they are stored, computed where not."""
    plan(parameters)  # whatever is wrong shows before anything is computed
    parts = [experiment.run(["scores"], changed) for changed in _runs(parameters)]
    probe = _probe(parameters)
    parts += [supervised.run(*probe, parameters)] if probe[0] else []
    return tuple(pd.concat(tables, ignore_index=True) for tables in zip(*parts))
