"""The length-control experiment: fine-tune one base model per (signal, seed) on short targets, then measure control and quality.

Three parts, each a unit of its own on the same trained model (kept in the cache, trained again where it is missing):
- `in-distribution`: test pairs with natural targets as short as in training;
- `unseen`: requested lengths in buckets up to four times the training cut, on random sources (control), and long natural references
  (quality);
- `faults`: the faults of the official code switched on at inference.
And `targets`, one unit a data set: how long its natural targets are. No model is asked.
"""

import dataclasses

import numpy as np
import pandas as pd
import torch
from torch import Tensor, nn

from old.length import evaluation
from old.length.corpora import DATASETS
from old.length.decoder_only import GATES
from old.length.finetuning import Data, Settings, prepare, signal_options, trained_model
from old.length.models import is_decoder_only
from old.length.signals import SIGNALS, LengthSignal
from old.parameters import check_names, check_seeds, model_label, settings_from
from old.results import make_table
from old.sentence_embeddings import bertscore
from old.units import Unit, default_jobs, one_threaded, pending
from old.units import run as run_units

RECIPE = 2  # bump when a change here or in the evaluation moves the numbers of the same trained models
FAULTY = ("pre", "rpe")  # signals whose published code had the faults
FAULTS = ("noise-at-inference", "no-signal-at-first-step")


def plan(parts: list[str], parameters: dict) -> list[Unit]:
    """The units of these parts for a notebook's parameters (`signals`, `seeds`, the fields of Settings, and `gate`, of decoder-only models,
    where a notebook has it; others are ignored).

    Needs no data at hand. Raises ValueError for anything unknown or out of range, naming the valid choices, before anything is computed.
    """
    signals, seeds = parameters["signals"], parameters["seeds"]
    check_names("signal", signals, SIGNALS)
    check_seeds(seeds)
    if not signals:
        raise ValueError("signals must name at least one")
    settings = settings_from(Settings, parameters)
    data, values = DATASETS[settings.dataset].fingerprint(), dataclasses.asdict(settings)
    model, study = model_label(settings.model), "length"
    if "gate" in parameters:
        check_names("gate", [parameters["gate"]], GATES)
        values |= {"gate": parameters["gate"]}
        study = "decoder-only"  # of its own: the same data sets and signals, but another kind of model

    def runs(part: str) -> list[tuple[str, int]]:
        """Signal and seed of each unit of a part."""
        if part == "targets":
            return [("none", 0)]
        return [(signal, seed) for seed in seeds for signal in (FAULTY if part == "faults" else signals) if signal in signals]

    return [
        Unit(study, settings.dataset, model, signal, part, seed, values | signal_options(signal, settings), data, RECIPE)
        for part in parts
        for signal, seed in runs(part)
    ]


def for_each_dataset(parameters: dict) -> dict[str, dict]:
    """Parameters of one run a data set, for a notebook that names several (`datasets`): each with the training cut of its own."""
    names = parameters["datasets"]
    check_names("data set", names, DATASETS)
    return {name: parameters | {"dataset": name, "max_train_length": DATASETS[name].max_train_length} for name in names}


def plan_each(parts: list[str], parameters: dict) -> list[Unit]:
    """`plan` for every data set of such a notebook."""
    return [unit for one in for_each_dataset(parameters).values() for unit in plan(parts, one)]


def run(parts: list[str], parameters: dict) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Result rows and items of a notebook's units: read where they are stored, computed where not (see old.units)."""
    units = plan(parts, parameters)
    todo = pending(units, parameters["profile"])
    if todo:
        prepare(settings_from(Settings, todo[0].parameters))  # corpus and base model, once, before units run side by side
    return run_units(units, compute, parameters["profile"], default_jobs())


def compute_alone(unit: Unit) -> tuple[pd.DataFrame, pd.DataFrame]:
    """`compute` for one unit with everything it needs (corpus, base model), as a stored unit was computed: in one thread."""
    prepare(settings_from(Settings, unit.parameters))
    return one_threaded(compute, unit)


def compute(unit: Unit) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Rows and items of one unit; trains the model first where the cache lacks it."""
    settings = settings_from(Settings, unit.parameters)
    data = prepare(settings)
    if unit.part == "targets":
        return _targets(unit.identity, settings, data)
    model = trained_model(unit, settings, data)
    items = {"in-distribution": _in_distribution, "unseen": _unseen, "faults": _faults}[unit.part](model, unit.method, settings, data)
    rows = evaluation.summarise(items, unit.identity, settings.max_train_length)
    if model.gate is not None:
        rows.append({**unit.identity, "slice": "all", "n": 1, "metric": "gate", "value": model.gate.g.tanh().item()})
    return make_table(rows), items


# ---- the parts -----------------------------------------------------------------------------------------------------------------------


def _targets(identity: dict, settings: Settings, data: Data) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Rows: length of the targets of each split, and the share that is as short as in training. Items: pairs of each length."""
    rows = []
    for split, lengths in data.pairs.groupby("split")["length"]:
        values = {
            "median_length": lengths.median(),
            "max_length": lengths.max(),
            "share_below_cut": (lengths < settings.max_train_length).mean(),
        }
        rows += [{**identity, "slice": split, "n": len(lengths), "metric": name, "value": value} for name, value in values.items()]
    counts = data.pairs.rename(columns={"split": "slice", "length": "target_length"}).value_counts(["slice", "target_length"], sort=False)
    return make_table(rows), counts.reset_index(name="pairs")


def _in_distribution(model, method: str, settings: Settings, data: Data) -> pd.DataFrame:
    pairs = _sample(data.split("test", high=settings.max_train_length), 2 * settings.items)
    return _quality(model, method, pairs, "in-distribution", data)


def _unseen(model, method: str, settings: Settings, data: Data) -> pd.DataFrame:
    longest = evaluation.buckets(settings.max_train_length)[-1][1]
    references = _sample(data.split("test", low=settings.max_train_length, high=longest), 2 * settings.items)
    return pd.concat(
        [control(model, method, settings, data), _quality(model, method, references, "long-references", data)], ignore_index=True
    )


def _faults(model, method: str, settings: Settings, data: Data) -> pd.DataFrame:
    signal, parts = model.length_signal, []
    for fault in FAULTS:
        if fault == "noise-at-inference":
            signal.train()
        else:
            model.length_signal = _FirstStepFault(signal)
        torch.manual_seed(0)
        parts.append(control(model, method, settings, data).assign(setting=f"fault={fault}"))
        model.length_signal = signal.eval()
    return pd.concat(parts, ignore_index=True)


class _FirstStepFault(nn.Module):
    """The official code's first generation step: no signal (RPE: the signal for one token left). Its cache entry stays."""

    def __init__(self, signal: LengthSignal):
        super().__init__()
        self.signal = signal

    def forward(self, step: Tensor, target_length: Tensor) -> Tensor:
        embedding = self.signal(step, target_length)
        one_left = self.signal(step, torch.full_like(target_length, 2)) if self.signal.__class__.__name__.endswith("ReversePosition") else 0
        return torch.where((step == 1)[:, None], one_left, embedding)


def _sample(pairs: pd.DataFrame, count: int) -> pd.DataFrame:
    return pairs.sample(min(count, len(pairs)), random_state=0).reset_index(drop=True)


def control(model, method: str, settings: Settings, data: Data, split: str = "test") -> pd.DataFrame:
    """Random requested lengths on random sources of a split, `items` a bucket; the same ones for every signal and seed."""
    rng = np.random.default_rng(0)
    pairs = data.split(split)
    parts = []
    for low, high in evaluation.buckets(settings.max_train_length):
        chosen = pairs.iloc[rng.choice(len(pairs), settings.items, replace=len(pairs) < settings.items)]
        lengths = rng.integers(max(low, 2), high, settings.items)
        parts.append(chosen[["id", "group", "source_ids"]].assign(slice=evaluation.bucket_name(low, high), target_length=lengths))
    requests = pd.concat(parts, ignore_index=True)
    lengths = requests["target_length"].to_numpy()
    out = evaluation.generate(model, requests["source_ids"].tolist(), lengths, controlled=method != "none")
    items = requests.drop(columns="source_ids").assign(setting="", **out[["generated_length", "capped"]])
    return items.assign(id=np.arange(len(items)), repetition=[evaluation.repetition(t) for t in out["tokens"]])


def _quality(model, method: str, pairs: pd.DataFrame, name: str, data: Data) -> pd.DataFrame:
    """Outputs at the length of the reference, free and forced, compared with the reference; and the reference's own perplexity."""
    sources, targets, lengths = pairs["source_ids"].tolist(), pairs["target_ids"].tolist(), pairs["length"].to_numpy()
    controlled = method != "none"
    decodings = {"": {}}
    if model.counting is None:  # forced decoding counts tokens
        decodings |= {"decoding=forced": {"forced": True}}
    if not controlled and model.counting is None and not is_decoder_only(model.config):  # the paper's, for its encoder-decoder
        decodings |= {"decoding=beams-4": {"beams": 4}, "decoding=forced-beams-4": {"forced": True, "beams": 4}}
    parts = []
    for setting, options in decodings.items():
        out = evaluation.generate(model, sources, lengths, controlled=controlled, **options)
        texts = [text.strip() for text in data.tokenizer.batch_decode(out["tokens"].tolist(), skip_special_tokens=True)]
        quality = evaluation.text_quality(texts, pairs["target"].tolist())
        if data.corpus.bertscore:
            quality["bertscore"] = bertscore(texts, pairs["target"].tolist())
        repeated = [evaluation.repetition(t) for t in out["tokens"]]
        parts.append(_items(pairs, name, setting).assign(**out[["generated_length", "capped"]], **quality, repetition=repeated))
    loss = evaluation.negative_log_likelihood(model, sources, targets, lengths if controlled else None)
    parts[0] = parts[0].assign(**loss)
    if controlled:  # another item's length: what does the model lose when it is told the wrong one?
        wrong = np.roll(lengths, 1)
        parts.append(_items(pairs, name, "length=wrong").assign(**evaluation.negative_log_likelihood(model, sources, targets, wrong)))
    return pd.concat(parts, ignore_index=True)


def _items(pairs: pd.DataFrame, name: str, setting: str) -> pd.DataFrame:
    return pairs[["id", "group"]].assign(slice=name, setting=setting, target_length=pairs["length"])
