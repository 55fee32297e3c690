"""Data, base model and fine-tuning of the length-control experiment: from its settings to a trained model, each made once and cached."""

import dataclasses
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np
import pandas as pd
import torch
import transformers
from accelerate import PartialState
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from transformers import AutoConfig, AutoTokenizer, BartForConditionalGeneration

from old import paths, small_bart
from old.device import best_device
from old.length import evaluation, tiny_bart
from old.length.corpora import DATASETS, Corpus
from old.length.counting import Counting
from old.length.lora import add_lora
from old.length.models import LengthControlled, is_decoder_only, plain_generation
from old.length.prompts import prompt_ids, response_ids
from old.pretrained import save_whole
from old.quality.language_models import SMOLLM2, smollm2_folder
from old.results import write_atomically
from old.training import train
from old.units import Unit

transformers.utils.logging.disable_progress_bar()  # a bar for loading a megabyte would only clutter outputs,
transformers.utils.logging.set_verbosity_error()  # and so would the report that a learned signal is not in the base checkpoint

RECIPE = 1  # bump when a change here, in signals, models or training moves the weights: everything is then trained again
LEARNED = ("train", "continuation")  # splits to fine-tune on; the second where a corpus has it


@dataclass(frozen=True)
class Settings:
    """Everything the numbers of a unit depend on, apart from signal, seed and data. Lengths in tokens, EOS included, or in what the data
    set counts.
    """

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
        if self.model not in ("tiny-bart", SMOLLM2) and not Path(self.model).is_dir() and self.model.count("/") != 1:
            raise ValueError(
                f"unknown model {self.model!r}: 'tiny-bart', {SMOLLM2!r}, a folder, or a hub name such as 'facebook/bart-large'"
            )
        least = {"max_train_length": 6, "finetune_updates": 1, "tokens_per_batch": 1, "items": 1}  # 6: requests start at 2
        for name, value in least.items():
            if getattr(self, name) < value:
                raise ValueError(f"{name} must be at least {value}, not {getattr(self, name)}")
        if self.learning_rate <= 0 or self.pretrain_updates < 0:
            raise ValueError(
                f"learning_rate must be above 0 and pretrain_updates not below, not {self.learning_rate}, {self.pretrain_updates}"
            )


# of the study's own signals: chosen on validation text (`old.length.tuning`, notebook 25)
CHOSEN = {
    "pre-nyquist": {"share": 0.5, "noise": 0.0},
    "pre-countdown": {"window": 8, "combine": "split", "noise": 0.0},
    "countdown": {"window": 32},
    "bucket": {"buckets": 256},
}


def signal_options(signal: str, settings: Settings) -> dict:
    """What a signal needs beside its width. A clipped countdown stops at half the longest training target: "this many or more" is then
    itself seen in training, for long stretches. Clipped at the longest target it would stand at a value that training hardly ever showed.
    """
    return {"max_countdown": settings.max_train_length // 2} if signal.endswith("-clipped") else CHOSEN.get(signal, {})


@dataclass
class Data:
    """Tokenised pairs of one corpus (columns source_ids, target_ids, source, target, group, split, length) and the tokenizer."""

    pairs: pd.DataFrame
    tokenizer: object
    base: Path | str  # folder or hub name of the model to fine-tune
    corpus: Corpus

    def split(self, *names: str, low: int = 1, high: int | None = None) -> pd.DataFrame:
        """Pairs of one or more splits whose target has low <= length < high."""
        length = self.pairs["length"]
        return self.pairs[self.pairs["split"].isin(names) & (length >= low) & (length < (high or np.inf))].reset_index(drop=True)


@lru_cache(maxsize=1)
def prepare(settings: Settings) -> Data:
    """Load the corpus, make (or find) the base model, tokenise. Raises ValueError where no training pair is short enough."""
    corpus = DATASETS[settings.dataset]
    table = corpus.load().to_pandas()
    base = _base_model(settings, table)
    tokenizer = AutoTokenizer.from_pretrained(base)
    if (table["source"].str.strip() == "").any():
        raise ValueError("empty source: every example needs at least one input token")
    limit = corpus.max_source
    if is_decoder_only(AutoConfig.from_pretrained(base)):
        source_ids = prompt_ids(tokenizer, table["source"].tolist(), corpus.labels, limit)
        target_ids = response_ids(tokenizer, table["target"].tolist())
    else:
        source_ids = [row if len(row) <= limit else [*row[: limit - 1], row[-1]] for row in _encode(tokenizer, table["source"])]
        target_ids = _encode(tokenizer, table["target"])
    length = len if corpus.counted == "tokens" else Counting(tokenizer, corpus.counted).length
    pairs = table.assign(source_ids=source_ids, target_ids=target_ids, length=[length(row) for row in target_ids])
    data = Data(pairs, tokenizer, base, corpus)
    if data.split(*LEARNED, high=settings.max_train_length).empty:
        raise ValueError(
            f"no usable row: no training target of {settings.dataset} is shorter than {settings.max_train_length} {corpus.counted}"
        )
    return data


def _encode(tokenizer, texts: pd.Series) -> list[list[int]]:
    return tokenizer(texts.tolist(), verbose=False)["input_ids"]


def _base_model(settings: Settings, table: pd.DataFrame) -> Path | str:
    """Folder or hub name of the model to fine-tune; those of the study are made where the cache lacks them."""
    if settings.model == "tiny-bart":
        return _tiny_bart(settings, table)
    return smollm2_folder() if settings.model == SMOLLM2 else settings.model


def _tiny_bart(settings: Settings, table: pd.DataFrame) -> Path:
    """Folder of the pretrained tiny BART; built once for each corpus and length of pretraining, before any unit needs it."""
    corpus = DATASETS[settings.dataset]
    folder = (
        paths.CACHE / "models" / f"tiny-bart-{corpus.base or settings.dataset}-{corpus.fingerprint()}-{settings.pretrain_updates}-r{RECIPE}"
    )
    if not (folder / "config.json").exists():
        training = table[table["split"] == "train"]
        tokenizer = small_bart.train_tokenizer(
            (training["source"] + "\n" + training["target"]).tolist(), corpus.vocabulary, corpus.positions
        )
        torch.manual_seed(0)
        model = BartForConditionalGeneration(small_bart.configuration(corpus.vocabulary, positions=corpus.positions))
        texts = _encode(tokenizer, training["source"] + " " + training["target"])
        tiny_bart.pretrain(
            model, texts, updates=settings.pretrain_updates, tokens_per_batch=4096, seed=0, checkpoint=folder.with_suffix(".safetensors")
        )
        save_whole(model, tokenizer, folder)
    return folder


def trained_model(unit: Unit, settings: Settings, data: Data) -> nn.Module:
    """The base model fine-tuned with the unit's signal and seed, from the cache or trained now. In eval mode.

    Encoder-decoders are trained whole; of decoder-only models LoRA, gate and signal, which is then all that the cache holds. Their gate is
    "tanh", unless the unit's parameters have another `gate`.
    """
    torch.manual_seed(unit.seed)  # a learned signal starts from the seed, and so does LoRA
    options = {name: value for name, value in unit.parameters.items() if name not in dataclasses.asdict(settings)}
    gate = options.pop("gate", None)
    model = LengthControlled.from_pretrained(
        str(data.base), signal=unit.method, signal_options=options, counted=data.corpus.counted, gate=gate
    )
    model.config.eos_token_id = data.tokenizer.eos_token_id  # what ends the targets; chat models have several that may end a turn
    model.generation_config = plain_generation(model.generation_config, model.config.eos_token_id)
    if model.counting is None:  # what the longest request may run to
        check_room(
            model, data.pairs["source_ids"], evaluation.buckets(settings.max_train_length)[-1][1] + evaluation.ALLOWANCE, settings.model
        )
    if is_decoder_only(model.config):
        add_lora(model)
    stored = model_file(unit)
    if stored.exists():
        found = model.load_state_dict(load_file(stored), strict=False)
        if found.unexpected_keys:
            raise ValueError(f"{stored.name} is of another model: it holds {found.unexpected_keys[0]}; remove it to train again")
        return model.eval().to(best_device())
    pairs = data.split(*LEARNED, high=settings.max_train_length)
    fine_tune(model, pairs, settings, seed=unit.seed, checkpoint=stored.with_suffix(".checkpoint"))
    weights = {name: parameter.detach().contiguous() for name, parameter in model.named_parameters() if parameter.requires_grad}
    if PartialState().is_main_process:
        write_atomically(stored, lambda partial: save_file(weights, partial))
    return model


def check_room(model: nn.Module, sources: Iterable[list[int]], tokens: int, name: str = "the model") -> None:
    """Raise ValueError unless an output of that many tokens fits the positions of a model, behind the longest of these sources."""
    batch = model.source_batch([max(sources, key=len)], torch.tensor([tokens]))  # with the number asked for, where prompts have it
    width = batch["input_ids"].shape[1]
    room = model.most_target_tokens(width)
    if room is not None and room < tokens:
        where = f" behind a prompt of {width} tokens" if model.prompt_length(batch) == width else ""
        raise ValueError(f"{name} has {room} decoder positions{where}, but the requested lengths need {tokens}")


def model_file(unit: Unit) -> Path:
    """Where the trained model of a unit is kept; the units of all parts with the same signal, seed and settings share it."""
    identity = dataclasses.replace(unit, part="model", recipe=RECIPE)
    return paths.CACHE / "models" / f"{identity.name}-{identity.key}.safetensors"


def fine_tune(model: nn.Module, pairs: pd.DataFrame, settings: Settings, *, seed: int, checkpoint: Path | None = None) -> list[float]:
    """Cross-entropy fine-tuning of a LengthControlled model on `pairs` (source_ids, target_ids, length), each target's own length as l."""
    sources, targets, counted = pairs["source_ids"].tolist(), pairs["target_ids"].tolist(), pairs["length"].to_numpy()
    lengths = np.array([len(t) for t in targets])  # in tokens
    check_room(model, sources, int(lengths.max()))

    def collate(indices: np.ndarray, rng: np.random.Generator) -> dict[str, Tensor]:
        return model.pair_batch([sources[i] for i in indices], [targets[i] for i in indices], torch.as_tensor(counted[indices]))

    return train(
        model,
        np.stack([lengths, model.widest_input(np.array([len(s) for s in sources]), lengths)], 1),
        collate,
        updates=settings.finetune_updates,
        learning_rate=settings.learning_rate,
        tokens_per_batch=settings.tokens_per_batch,
        seed=seed,
        checkpoint=checkpoint,
        description="fine-tuning",
    )
