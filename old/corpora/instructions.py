"""Instructions and good responses, nearer to the tasks of the benchmarks than docstrings are: a training corpus for heads.

Three sources in equal shares, all from training splits: `gsm8k` (a word problem, its solution), `multi30k-en-de` (a caption, its German
translation) and `squad-sentences` (a sentence with a question about it, the answer). The first is in the words of the task `gsm8k`, the
second in those of the judged translations (see `wording.py`). Nothing of the test splits is in it (checked by a test).
"""

import pandas as pd

from old.corpora import benchmarks, wording

SOURCES = ("gsm8k", "multi30k-en-de", "squad-sentences")
SPLITS = ("train", "validation")
HELD_OUT = 0.1  # share of the problems, captions and sentences that make the validation split
RECIPE = 1  # bump when a change here or in wording.py moves a pair


def fingerprint() -> str:
    """Hash of what the corpus is made of; needs no data at hand."""
    return f"{benchmarks.fingerprint(*SOURCES)}-r{RECIPE}"


def pairs(split: str) -> pd.DataFrame:
    """Columns `prompt`, `output` and `source`, the name of the data set; sources take turns, so that the first rows have equal shares too.

    The splits are disjoint by problem, caption and sentence. KeyError for another split than train and validation; ValueError where a row
    has no text; otherwise as `benchmarks.load` (`squad-sentences` is in the local mirror only).
    """
    if split not in SPLITS:
        raise KeyError(f"instructions have the splits {list(SPLITS)}, not {split!r}")
    parts = [_split(_read(name), split).assign(source=name) for name in SOURCES]
    size = min(map(len, parts))
    turns = pd.concat([part.head(size).assign(turn=range(size)) for part in parts])
    return turns.sort_values("turn", kind="stable", ignore_index=True)[["prompt", "output", "source"]]


def _read(name: str) -> pd.DataFrame:
    """One source: `prompt`, `output`, and `key`, the text that stays on one side of the split."""
    table = benchmarks.load(name, "train").to_pandas()
    if name == "gsm8k":
        table["key"], table["prompt"] = table["question"], table["question"].map(wording.word_problem)
        table["output"] = [wording.conclusion(*row) for row in wording.steps_and_numbers(table["answer"], name).to_numpy()]
    elif name == "multi30k-en-de":
        table["key"], table["output"] = table["en"].str.strip(), table["de"].str.strip()
        table["prompt"] = [wording.translation(source, "en-de") for source in table["key"]]
    else:
        answers = table["answers"].map(lambda answers: answers["text"][0].strip())
        table["key"] = table["context"]
        table["prompt"] = [wording.reading(*row) for row in zip(table["question"], table["context"])]
        table["output"] = [answer if answer.endswith((".", "!", "?")) or not answer else f"{answer}." for answer in answers]
    return wording.with_texts(table, ["key", "output"], name)[["prompt", "output", "key"]]


def _split(table: pd.DataFrame, split: str) -> pd.DataFrame:
    """The rows of a split, shuffled; always the same ones."""
    keys = table["key"].drop_duplicates().sample(frac=1.0, random_state=0)
    held_out = table["key"].isin(keys.head(round(HELD_OUT * len(keys))))
    return table[held_out == (split == "validation")].sample(frac=1.0, random_state=0)
