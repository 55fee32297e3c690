"""The length-control experiment: fine-tune one base model per (signal, seed) on short targets, then measure control and quality.

Three parts, each a unit of its own on the same trained model (kept in the cache, trained again where it is missing):
- `in-distribution`: test pairs with natural targets as short as in training;
- `unseen`: requested lengths in buckets of 32 tokens up to 256, on random sources (control), and long natural references (quality);
- `faults`: the faults of the official code switched on at inference.
"""

import dataclasses
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np
import pandas as pd
import torch
import transformers
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from transformers import AutoTokenizer, BartForConditionalGeneration, GenerationConfig

from lib import paths
from lib.corpora import docstrings
from lib.length import evaluation, tiny_bart
from lib.length.models import LengthControlled
from lib.length.signals import SIGNALS, LengthSignal
from lib.results import make_table
from lib.seq2seq import seq2seq_batch
from lib.training import train
from lib.units import Unit, default_jobs, one_threaded, pending
from lib.units import run as run_units

transformers.utils.logging.disable_progress_bar()  # a bar for loading a megabyte would only clutter outputs,
transformers.utils.logging.set_verbosity_error()  # and so would the report that a learned signal is not in the base checkpoint

RECIPE = 1  # bump when a change here, in signals, models, evaluation or training moves the numbers
DATASETS = {"docstrings": docstrings}
FAULTY = ("pre", "rpe")  # signals whose published code had the faults
FAULTS = ("noise-at-inference", "no-signal-at-first-step")
MAX_SOURCE = 64  # tokens; longer sources (1 % of the summary lines) are cut


@dataclass(frozen=True)
class Settings:
    """Everything the numbers of a unit depend on, apart from signal, seed and data. Lengths in tokens, EOS included."""

    dataset: str = "docstrings"
    model: str = "tiny-bart"
    max_train_length: int = 64  # training targets are shorter than this
    pretrain_updates: int = 600
    finetune_updates: int = 500
    tokens_per_batch: int = 2048  # padded target tokens an update
    learning_rate: float = 4.0e-3  # chosen on validation text, the same for every signal
    items: int = 200  # targets a bucket, and half the references of each quality test

    def __post_init__(self) -> None:
        if self.dataset not in DATASETS:
            raise ValueError(f"unknown data set {self.dataset!r}: choose one of {', '.join(DATASETS)}")
        if self.model != "tiny-bart" and not Path(self.model).is_dir() and self.model.count("/") != 1:
            raise ValueError(f"unknown model {self.model!r}: 'tiny-bart', a folder, or a hub name such as 'facebook/bart-large'")
        for name in ("max_train_length", "finetune_updates", "tokens_per_batch", "items"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, not {getattr(self, name)}")
        if self.learning_rate <= 0 or self.pretrain_updates < 0:
            raise ValueError(
                f"learning_rate must be above 0 and pretrain_updates not below, not {self.learning_rate}, {self.pretrain_updates}"
            )


def plan(parts: list[str], parameters: dict) -> list[Unit]:
    """The units of these parts for a notebook's parameters (`signals`, `seeds` and the fields of Settings; others are ignored).

    Raises ValueError for anything unknown or out of range, naming the valid choices, before anything is computed.
    """
    signals, seeds = parameters["signals"], parameters["seeds"]
    for what, chosen in (("signals", signals), ("seeds", seeds)):
        if not chosen or len(set(chosen)) < len(chosen):
            raise ValueError(f"{what} must name at least one and none twice, not {chosen}")
    if min(seeds) < 0:
        raise ValueError(f"seeds must not be negative: {seeds}")
    if unknown := [s for s in signals if s not in SIGNALS]:
        raise ValueError(f"unknown signal {unknown[0]!r}: choose from {', '.join(SIGNALS)}")
    names = [f.name for f in dataclasses.fields(Settings)]
    settings = Settings(**{name: parameters[name] for name in names if name in parameters})
    data, values = DATASETS[settings.dataset].fingerprint(), dataclasses.asdict(settings)
    model = Path(settings.model).name if Path(settings.model).is_dir() else settings.model  # no path of a machine in a unit's name
    return [
        Unit("length", settings.dataset, model, signal, part, seed, values | signal_options(signal, settings), data, RECIPE)
        for part in parts
        for seed in seeds
        for signal in (FAULTY if part == "faults" else signals)
        if signal in signals
    ]


def signal_options(signal: str, settings: Settings) -> dict:
    """What a signal needs beside its width. A clipped countdown stops at half the longest training target: "this many or more" is then
    itself seen in training, for long stretches. Clipped at the longest target it would stand at a value that training hardly ever showed.
    """
    return {"max_countdown": settings.max_train_length // 2} if signal.endswith("-clipped") else {}


def settings_of(unit: Unit) -> Settings:
    """The settings among a unit's parameters."""
    return Settings(**{f.name: unit.parameters[f.name] for f in dataclasses.fields(Settings)})


def run(parts: list[str], parameters: dict) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Result rows and items of a notebook's units: read where they are stored, computed where not (see lib.units)."""
    units = plan(parts, parameters)
    todo = pending(units, parameters["profile"])
    if todo:
        prepare(settings_of(todo[0]))  # corpus and base model, once, before units run side by side
    return run_units(units, compute, parameters["profile"], default_jobs())


def compute_alone(unit: Unit) -> tuple[pd.DataFrame, pd.DataFrame]:
    """`compute` for one unit with everything it needs (corpus, base model), as a stored unit was computed: in one thread."""
    prepare(settings_of(unit))
    return one_threaded(compute, unit)


def compute(unit: Unit) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Rows and items of one unit; trains the model first where the cache lacks it."""
    settings = settings_of(unit)
    data = prepare(settings)
    model = trained_model(unit, settings, data)
    items = {"in-distribution": _in_distribution, "unseen": _unseen, "faults": _faults}[unit.part](model, unit.method, settings, data)
    identity = {"study": unit.study, "dataset": unit.dataset, "model": unit.model, "method": unit.method, "seed": unit.seed}
    return make_table(evaluation.summarise(items, identity)), items


# ---- data and base model -------------------------------------------------------------------------------------------------------------


@dataclass
class Data:
    """Tokenised pairs of one corpus (columns source_ids, target_ids, source, target, group, split, length) and the tokenizer."""

    pairs: pd.DataFrame
    tokenizer: object
    base: Path | str  # folder or hub name of the model to fine-tune

    def split(self, name: str, low: int = 1, high: int | None = None) -> pd.DataFrame:
        """Pairs of a split whose target has low <= length < high tokens."""
        length = self.pairs["length"]
        return self.pairs[(self.pairs["split"] == name) & (length >= low) & (length < (high or np.inf))].reset_index(drop=True)


@lru_cache(maxsize=1)
def prepare(settings: Settings) -> Data:
    """Load the corpus, make (or find) the base model, tokenise. Raises ValueError where no training pair is short enough."""
    table = DATASETS[settings.dataset].load().to_pandas()
    base = _tiny_bart(settings, table) if settings.model == "tiny-bart" else settings.model
    tokenizer = AutoTokenizer.from_pretrained(base)
    if (table["source"].str.strip() == "").any():
        raise ValueError("empty source: every example needs at least one input token")
    source_ids = [row if len(row) <= MAX_SOURCE else [*row[: MAX_SOURCE - 1], row[-1]] for row in _encode(tokenizer, table["source"])]
    target_ids = _encode(tokenizer, table["target"])
    pairs = table.assign(source_ids=source_ids, target_ids=target_ids, length=[len(row) for row in target_ids])
    data = Data(pairs, tokenizer, base)
    if data.split("train", high=settings.max_train_length).empty:
        raise ValueError(f"no usable row: no training target of {settings.dataset} is shorter than {settings.max_train_length} tokens")
    return data


def _encode(tokenizer, texts: pd.Series) -> list[list[int]]:
    return tokenizer(texts.tolist(), verbose=False)["input_ids"]


def _tiny_bart(settings: Settings, table: pd.DataFrame) -> Path:
    """Folder of the pretrained tiny BART; built once for each corpus and length of pretraining, before any unit needs it."""
    fingerprint = DATASETS[settings.dataset].fingerprint()
    folder = paths.CACHE / "models" / f"tiny-bart-{settings.dataset}-{fingerprint}-{settings.pretrain_updates}-r{RECIPE}"
    if not (folder / "config.json").exists():
        training = table[table["split"] == "train"]
        tokenizer = tiny_bart.train_tokenizer((training["source"] + "\n" + training["target"]).tolist(), vocabulary=2048)
        torch.manual_seed(0)
        model = BartForConditionalGeneration(tiny_bart.configuration(vocabulary=2048))
        texts = _encode(tokenizer, training["source"] + " " + training["target"])
        tiny_bart.pretrain(
            model, texts, updates=settings.pretrain_updates, tokens_per_batch=4096, seed=0, checkpoint=folder.with_suffix(".safetensors")
        )
        partial = folder.with_suffix(".partial")
        model.save_pretrained(partial)
        tokenizer.save_pretrained(partial)
        partial.rename(folder)
    return folder


def trained_model(unit: Unit, settings: Settings, data: Data) -> nn.Module:
    """The base model fine-tuned with the unit's signal and seed, from the cache or trained now. In eval mode."""
    torch.manual_seed(unit.seed)  # a learned signal starts from the seed
    model = LengthControlled.from_pretrained(str(data.base), signal=unit.method, signal_options=signal_options(unit.method, settings))
    special = ("bos_token_id", "pad_token_id", "eos_token_id", "decoder_start_token_id", "forced_bos_token_id")
    model.generation_config = GenerationConfig(
        **{name: getattr(model.config, name, None) for name in special}
    )  # no checkpoint's own habits
    needed = evaluation.BUCKETS[-1][1] + evaluation.ALLOWANCE  # what the longest request may run to
    if model.max_target_length is not None and model.max_target_length < needed:
        raise ValueError(f"{settings.model} has {model.max_target_length} decoder positions, but the requested lengths need {needed}")
    identity = dataclasses.replace(unit, part="model")
    stored = paths.CACHE / "models" / f"{identity.name}-{identity.key}.safetensors"
    if stored.exists():
        model.load_state_dict(load_file(stored), strict=False)
        return model.eval()
    fine_tune(
        model, data.split("train", high=settings.max_train_length), settings, seed=unit.seed, checkpoint=stored.with_suffix(".checkpoint")
    )
    partial = stored.with_suffix(".partial")
    partial.parent.mkdir(parents=True, exist_ok=True)
    save_file({name: parameter.detach().contiguous() for name, parameter in model.named_parameters()}, partial)
    partial.replace(stored)
    return model


def fine_tune(model: nn.Module, pairs: pd.DataFrame, settings: Settings, *, seed: int, checkpoint: Path | None = None) -> list[float]:
    """Cross-entropy fine-tuning of a LengthControlled model on `pairs` (source_ids, target_ids), each target's own length as l."""
    sources, targets = pairs["source_ids"].tolist(), pairs["target_ids"].tolist()
    lengths = np.array([len(t) for t in targets])
    limit = model.max_target_length
    if limit is not None and lengths.max() > limit:
        raise ValueError(f"a training target has {lengths.max()} tokens, beyond the model's {limit} decoder positions")

    def collate(indices: np.ndarray, rng: np.random.Generator) -> dict[str, Tensor]:
        batch = seq2seq_batch(model, [sources[i] for i in indices], [targets[i] for i in indices])
        return {**batch, "target_length": torch.as_tensor(lengths[indices], device=model.device)}

    return train(
        model,
        np.stack([lengths, [len(s) for s in sources]], 1),
        collate,
        updates=settings.finetune_updates,
        learning_rate=settings.learning_rate,
        tokens_per_batch=settings.tokens_per_batch,
        seed=seed,
        checkpoint=checkpoint,
        description="fine-tuning",
    )


# ---- the three parts -----------------------------------------------------------------------------------------------------------------


def _in_distribution(model, method: str, settings: Settings, data: Data) -> pd.DataFrame:
    pairs = _sample(data.split("test", high=settings.max_train_length), 2 * settings.items)
    return _quality(model, method, pairs, "in-distribution", data)


def _unseen(model, method: str, settings: Settings, data: Data) -> pd.DataFrame:
    longest = evaluation.BUCKETS[-1][1]
    references = _sample(data.split("test", low=settings.max_train_length, high=longest), 2 * settings.items)
    return pd.concat(
        [_control(model, method, settings, data), _quality(model, method, references, "long-references", data)], ignore_index=True
    )


def _faults(model, method: str, settings: Settings, data: Data) -> pd.DataFrame:
    signal, parts = model.length_signal, []
    for fault in FAULTS:
        if fault == "noise-at-inference":
            signal.train()
        else:
            model.length_signal = _FirstStepFault(signal)
        torch.manual_seed(0)
        parts.append(_control(model, method, settings, data).assign(setting=f"fault={fault}"))
        model.length_signal = signal.eval()
    return pd.concat(parts, ignore_index=True)


class _FirstStepFault(nn.Module):
    """The official code's first generation step: no signal (RPE: the signal for one token left). Its cache entry stays."""

    def __init__(self, signal: LengthSignal):
        super().__init__()
        self.signal = signal

    def forward(self, step: Tensor, target_length: Tensor) -> Tensor:
        embedding = self.signal(step, target_length)
        one_left = (
            self.signal(step, step[:1] + 1 + torch.zeros_like(target_length))
            if self.signal.__class__.__name__.endswith("ReversePosition")
            else 0
        )
        return torch.where((step == 1)[:, None], one_left, embedding)


def _sample(pairs: pd.DataFrame, count: int) -> pd.DataFrame:
    return pairs.sample(min(count, len(pairs)), random_state=0).reset_index(drop=True)


def _control(model, method: str, settings: Settings, data: Data) -> pd.DataFrame:
    """Random requested lengths on random test sources, `items` a bucket; the same ones for every signal and seed."""
    rng = np.random.default_rng(0)
    pairs = data.split("test")
    parts = []
    for low, high in evaluation.BUCKETS:
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
    decodings = {"": {}, "decoding=forced": {"forced": True}}
    if not controlled:
        decodings |= {"decoding=beams-4": {"beams": 4}, "decoding=forced-beams-4": {"forced": True, "beams": 4}}
    parts = []
    for setting, options in decodings.items():
        out = evaluation.generate(model, sources, lengths, controlled=controlled, **options)
        texts = [text.strip() for text in data.tokenizer.batch_decode(out["tokens"].tolist(), skip_special_tokens=True)]
        quality = evaluation.text_quality(texts, pairs["target"].tolist())
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
