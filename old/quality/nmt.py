"""A small translation model, trained from scratch on Multi30k en-de (captions of photographs): the paper's own setting at laptop size.

    python -m old.quality.nmt

trains it (or finds it in the cache) and prints its quality on the validation split. Trained without label smoothing: that would buy a
little BLEU, but it moves a tenth of the probability to arbitrary tokens, which then appear in sampled translations and in every softmax
score.
"""

import dataclasses
import hashlib
import json
import time
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from sacrebleu.metrics import BLEU, CHRF
from torch import Tensor
from transformers import BartForConditionalGeneration

from old import paths
from old.corpora import benchmarks
from old.parameters import check_names
from old.pretrained import save_whole
from old.progress import progress
from old.quality.encoder_decoder import EncoderDecoder
from old.quality.language_models import SAMPLING
from old.results import make_table
from old.seq2seq import seq2seq_batch, source_batch
from old.small_bart import configuration, train_tokenizer
from old.training import train
from old.units import Unit
from old.units import run as run_units

RECIPE = 1  # bump when a change here, in small_bart or in training moves the weights
DATASET = "multi30k-en-de"
BEAMS = 5
MAX_TOKENS = 100  # of a translation; the longest reference of the training split has 63


@dataclass(frozen=True)
class Settings:
    """Everything the weights depend on, apart from the training pairs. 5.3 M parameters in about 35 minutes on two cores."""

    vocabulary: int = 4096  # joint; against 8,192 a tenth more tokens, but an eighth less time and more practice a token
    d_model: int = 256
    layers: int = 3  # of the encoder, and of the decoder
    ffn_dim: int = 512
    dropout: float = 0.2  # 29,000 pairs are soon known by heart
    translation_updates: int = 3200  # 10.5 epochs
    tokens_per_batch: int = 2048  # padded target tokens an update: about 95 pairs
    learning_rate: float = 1.5e-3
    warmup: int = 400  # updates

    def __post_init__(self) -> None:
        for name in ("vocabulary", "d_model", "layers", "ffn_dim", "translation_updates", "tokens_per_batch"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, not {getattr(self, name)}")
        if not (0 <= self.dropout < 1 and self.learning_rate > 0 and self.warmup >= 0):
            given = f"{self.dropout}, {self.learning_rate}, {self.warmup}"
            raise ValueError(f"dropout must lie in [0, 1), learning_rate above 0 and warmup not below 0, not {given}")


# by the name that results give them
MODELS = {
    "tiny-nmt": Settings(),
    "tiny-nmt-smoke": Settings(vocabulary=1024, d_model=64, layers=1, ffn_dim=128, translation_updates=60, warmup=20),  # translates nothing
}


def identity(name: str) -> str:
    """Hash of everything a translation model depends on; needs no data at hand."""
    described = json.dumps([dataclasses.asdict(MODELS[name]), benchmarks.fingerprint(DATASET), RECIPE], sort_keys=True)
    return hashlib.sha256(described.encode()).hexdigest()[:16]


@lru_cache(maxsize=3)
def pairs(split: str) -> pd.DataFrame:
    """Sentence pairs of Multi30k: `source` (English), `target` (German), and `group`, a number for each different source."""
    table = benchmarks.load(DATASET, split).to_pandas()
    table = pd.DataFrame({"source": table["en"].str.strip(), "target": table["de"].str.strip()})
    return table.assign(group=pd.factorize(table["source"])[0])


def fingerprint(split: str = "train") -> str:
    """Content hash of the sentence pairs of a split."""
    table = pairs(split)
    return hashlib.sha256("\n".join([*table["source"], *table["target"]]).encode()).hexdigest()[:16]


def model_folder(settings: Settings) -> Path:
    """Where the trained model is kept; the name says everything it depends on."""
    described = json.dumps([dataclasses.asdict(settings), fingerprint(), RECIPE], sort_keys=True)
    return paths.CACHE / "models" / f"tiny-nmt-{hashlib.sha256(described.encode()).hexdigest()[:16]}"


def trained_model(name: str) -> EncoderDecoder:
    """A translation model by its name in MODELS, from the cache or trained now; a run that was stopped goes on at its last checkpoint."""
    settings = MODELS[name]
    folder = model_folder(settings)
    if not folder.exists():
        table = pairs("train")
        tokenizer = train_tokenizer([*table["source"], *table["target"]], settings.vocabulary)
        model = _fit(settings, table, tokenizer, folder.with_suffix(".checkpoint"))
        save_whole(model, tokenizer, folder)
    lm = EncoderDecoder.load(str(folder))
    lm.name = name  # not that of the folder, which no result should carry
    return lm


def _fit(settings: Settings, table: pd.DataFrame, tokenizer, checkpoint: Path) -> BartForConditionalGeneration:
    sources, targets = (tokenizer(table[name].tolist())["input_ids"] for name in ("source", "target"))
    torch.manual_seed(0)
    size = {"d_model": settings.d_model, "layers": settings.layers, "ffn_dim": settings.ffn_dim}
    scale = settings.d_model**-0.5  # embeddings, which are scaled up, then have unit variance
    model = BartForConditionalGeneration(configuration(settings.vocabulary, **size, dropout=settings.dropout, init_std=scale))

    def collate(indices: np.ndarray, rng: np.random.Generator) -> dict[str, Tensor]:
        return seq2seq_batch(model, [sources[i] for i in indices], [targets[i] for i in indices])

    train(
        model,
        np.array([(len(target), len(source)) for target, source in zip(targets, sources)]),
        collate,
        updates=settings.translation_updates,
        learning_rate=settings.learning_rate,
        tokens_per_batch=settings.tokens_per_batch,
        seed=0,
        checkpoint=checkpoint,
        warmup=settings.warmup,
        description="translation model",
    )
    return model


# ---- translating -----------------------------------------------------------------------------------------------------------------------


def translate(lm: EncoderDecoder, sources: list[str], beams: int = BEAMS) -> list[str]:
    """The best translation of each source by beam search."""
    return _generate(lm, sources, num_beams=beams, do_sample=False)


def sample(lm: EncoderDecoder, sources: list[str], seed: int) -> list[str]:
    """One translation a source, drawn from the model's own distribution. May be empty. The same list and seed give the same samples."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return _generate(lm, sources, num_beams=1, **SAMPLING)


@torch.no_grad()
def _generate(lm: EncoderDecoder, sources: list[str], batch: int = 64, **options) -> list[str]:
    """Sources of similar length share a batch."""
    ids = lm.tokenizer(list(sources), verbose=False)["input_ids"] if sources else []
    longest_first, outputs = sorted(range(len(ids)), key=lambda i: -len(ids[i])), [""] * len(ids)
    for start in progress(range(0, len(ids), batch), "translating"):
        part = longest_first[start : start + batch]
        out = lm.model.generate(**source_batch(lm.model, [ids[i] for i in part]), max_new_tokens=MAX_TOKENS, **options)
        for number, text in zip(part, lm.tokenizer.batch_decode(out, skip_special_tokens=True)):
            outputs[number] = text.strip()
    return outputs


def corpus_quality(outputs: list[str], references: list[str]) -> dict[str, tuple[float, float, float]]:
    """`bleu` and `chrf` of a whole set, 0 to 100, as sacrebleu computes them by default: value and the ends of its 95 % interval
    (bootstrap over sentences).
    """
    found = {}
    for name, metric in (("bleu", BLEU()), ("chrf", CHRF())):
        score = metric.corpus_score(outputs, [references], n_bootstrap=1000)
        found[name] = tuple(float(value) for value in (score.score, score._mean - score._ci, score._mean + score._ci))
    return found


# ---- a unit of the study ---------------------------------------------------------------------------------------------------------------


def plan(parameters: dict) -> list[Unit]:
    """One unit: how good the model's translations are, on validation and test."""
    name = parameters["model"]
    check_names("translation model", [name], MODELS)
    return [Unit("quality", DATASET, name, "translation", "model", 0, {"beams": BEAMS}, identity(name), RECIPE)]


def run(parameters: dict) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Result rows and items: read where they are stored, computed where not."""
    return run_units(plan(parameters), compute, parameters["profile"])


def compute(unit: Unit) -> tuple[pd.DataFrame, pd.DataFrame]:
    """BLEU and chrF of both splits as rows; items: the length of every output in words."""
    lm, rows, items = trained_model(unit.model), [], []
    for split in ("validation", "test"):
        table = pairs(split)
        outputs = translate(lm, table["source"].tolist(), unit.parameters["beams"])
        for metric, (value, low, high) in corpus_quality(outputs, table["target"].tolist()).items():
            rows.append(
                {**unit.identity, "slice": split, "metric": metric, "value": value, "ci_low": low, "ci_high": high, "n": len(table)}
            )
        words = [len(output.split()) for output in outputs]
        items.append(pd.DataFrame({"id": range(len(table)), "slice": split, "group": table["group"].astype(str), "words": words}))
    return make_table(rows), pd.concat(items, ignore_index=True)


if __name__ == "__main__":
    started = time.perf_counter()
    lm, held_out = trained_model("tiny-nmt"), pairs("validation")
    trained, size = time.perf_counter(), sum(p.numel() for p in lm.model.parameters())
    print(f"{model_folder(MODELS[lm.name])}\n{size:,} parameters, trained or loaded in {(trained - started) / 60:.1f} minutes")
    found = corpus_quality(translate(lm, held_out["source"].tolist()), held_out["target"].tolist())
    print(f"validation: BLEU {found['bleu'][0]:.1f}, chrF {found['chrf'][0]:.1f}; translated in {time.perf_counter() - trained:.0f} s")
