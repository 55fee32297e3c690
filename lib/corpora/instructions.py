"""Instructions and good responses, nearer to the tasks of the benchmarks than docstrings are.

Equal shares of three training splits: a word problem and its solution (GSM8K), a caption and its
German translation (Multi30k), a sentence with a question about it and the answer (SQuAD). The first
two are in the words of the tasks that judge them (`wording`). No test text is among them.
"""

import pandas as pd

from lib.corpora import benchmarks, wording

SOURCES = ("gsm8k", "multi30k-en-de", "squad-sentences")
HELD_OUT = 0.1  # share of the problems, captions and sentences that make the validation split


def load() -> pd.DataFrame:
    """Columns source (the prompt), target (the response), dataset, group (one problem, caption
    or sentence), split (train, validation).

    Within a split the data sets take turns, so that the first rows have equal shares too. Raises
    ValueError where a row has no text, otherwise as `benchmarks.load`.
    """
    read = {name: _read(name) for name in SOURCES}
    splits = [_in_turns(read, split) for split in ("train", "validation")]
    table = pd.concat(splits, ignore_index=True)
    table["group"] = pd.factorize(table.pop("key"))[0]
    return table


def _read(name: str) -> pd.DataFrame:
    """One data set: `source`, `target`, `key` (what stays on one side of the split), `split`."""
    table = benchmarks.load(name, "train")
    if name == "gsm8k":
        table["key"], table["source"] = (
            table["question"],
            table["question"].map(wording.word_problem),
        )
        solutions = wording.steps_and_numbers(table["answer"], name)
        table["target"] = [wording.conclusion(*row) for row in solutions.to_numpy()]
    elif name == "multi30k-en-de":
        table["key"], table["target"] = table["en"].str.strip(), table["de"].str.strip()
        table["source"] = [wording.translation(text, "en-de") for text in table["key"]]
    else:
        answers = [answers["text"][0].strip() for answers in table["answers"]]
        closed = ("", ".", "!", "?")
        table["key"] = table["context"]
        table["source"] = [
            wording.reading(*row) for row in zip(table["question"], table["context"])
        ]
        table["target"] = [text if text[-1:] in closed else f"{text}." for text in answers]
    table = wording.with_texts(table, ["key", "target"], name)
    keys = table["key"].drop_duplicates().sample(frac=1.0, random_state=0)
    held_out = table["key"].isin(keys.head(round(HELD_OUT * len(keys))))
    table["split"] = held_out.map({True: "validation", False: "train"})
    return table[["source", "target", "key", "split"]].assign(dataset=name)


def _in_turns(read: dict[str, pd.DataFrame], split: str) -> pd.DataFrame:
    """Shuffled rows of a split, as many of each data set as the smallest has."""
    shuffled = [t[t["split"] == split].sample(frac=1.0, random_state=0) for t in read.values()]
    size = min(map(len, shuffled))
    turns = pd.concat([table.head(size).assign(turn=range(size)) for table in shuffled])
    return turns.sort_values("turn", kind="stable").drop(columns="turn")
