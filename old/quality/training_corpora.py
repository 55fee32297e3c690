"""What heads learn from: good outputs after their prompts, by the name of a corpus (`trained_on` in Settings)."""

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial

import numpy as np
import pandas as pd

from old import paths
from old.corpora import benchmarks, docstrings, instructions
from old.quality import nmt
from old.quality.language_models import LanguageModel, Text
from old.quality.tasks.corruption import prompt_of
from old.quality.tasks.self_generation import sample
from old.results import write_atomically

MAX_TOKENS = 96  # of a training text; longer ones are cut
RECIPE = 1  # bump when a change moves the model's own samples, which are kept


@dataclass(frozen=True)
class Corpus:
    """`pairs(lm, split, count)` gives up to `count` prompts and outputs of a split (train, validation), the same ones every time."""

    pairs: Callable[[LanguageModel, str, int], pd.DataFrame]
    fingerprint: Callable[[], str]  # of what the corpus is made of; needs no data at hand
    chat: bool = False  # prompts are the user's turn of the model's chat template, where it has one


@lru_cache(maxsize=1)
def docstring_table() -> pd.DataFrame:
    """The docstring corpus, read once a process."""
    return docstrings.load().to_pandas()


def _some(table: pd.DataFrame, count: int) -> pd.DataFrame:
    return table.sample(min(count, len(table)), random_state=0).reset_index(drop=True)


def _docstrings(_lm: LanguageModel, split: str, count: int) -> pd.DataFrame:
    """Summary line as prompt, description as output."""
    table = docstring_table()
    part = _some(table[table["split"] == split], count)
    return pd.DataFrame({"prompt": part["source"].map(prompt_of), "output": part["target"].str.split().str.join(" ")})


def _translations(_lm: LanguageModel, split: str, count: int) -> pd.DataFrame:
    """What the translation model itself was trained on."""
    return _some(nmt.pairs(split), count).rename(columns={"source": "prompt", "target": "output"})[["prompt", "output"]]


def _instructions(_lm: LanguageModel, split: str, count: int) -> pd.DataFrame:
    return _some(instructions.pairs(split), count)[["prompt", "output"]]


def _own_samples(lm: LanguageModel, split: str, count: int) -> pd.DataFrame:
    """The prompts of `instructions`, answered by the model itself: sampled from its whole distribution, kept in the cache."""
    prompts = _instructions(lm, split, count)["prompt"].tolist()
    described = f"{lm.fingerprint()} {split} {count} {MAX_TOKENS} {RECIPE} {instructions.fingerprint()}"
    file = paths.CACHE / "items" / f"own-samples-{hashlib.sha256(described.encode()).hexdigest()[:16]}.parquet"
    if not file.exists():
        outputs = sample(lm, lm.as_turns(prompts) if lm.has_turns else prompts, MAX_TOKENS, seed=0 if split == "train" else 1)
        table = pd.DataFrame({"prompt": prompts, "output": outputs})
        table = table[table["output"].str.strip() != ""].reset_index(drop=True)
        write_atomically(file, lambda partial: table.to_parquet(partial, index=False))
    return pd.read_parquet(file)


@dataclass(frozen=True)
class Mixture:
    """Texts of other corpora by turns, an equal number of each, up to as many positions as the largest of them has alone."""

    of: tuple[str, ...]

    def fingerprint(self) -> str:
        """As that of a `Corpus`."""
        return "-".join(CORPORA[name].fingerprint() for name in self.of)

    def mixed(self, parts: list[Sequence[Text]]) -> tuple[Text, ...]:
        """From the texts of each corpus; a rest that has no partner is left out."""
        by_turns = [text for turn in zip(*parts) for text in turn]
        ends = np.cumsum([len(text.output) for text in by_turns])
        budget = max(sum(len(text.output) for text in part) for part in parts)
        return tuple(by_turns[: int(np.searchsorted(ends, budget)) + 1])


CORPORA: dict[str, Corpus | Mixture] = {
    "docstrings": Corpus(_docstrings, docstrings.fingerprint),
    "instructions": Corpus(_instructions, instructions.fingerprint, chat=True),
    "own-samples": Corpus(_own_samples, instructions.fingerprint, chat=True),
    "both": Mixture(("docstrings", "own-samples")),
    nmt.DATASET: Corpus(_translations, partial(benchmarks.fingerprint, nmt.DATASET)),
}
