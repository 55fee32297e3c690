"""Wrong words in translations: words that people marked (HJQE), or would have to change to correct the translation (MLQE-PE).

Gold of an item: the share of its words tagged OK; `wrong_words` lists the places of those tagged BAD, so that single words can be judged.
"""

from collections.abc import Callable
from functools import partial

import numpy as np
import pandas as pd

from old.corpora import benchmarks
from old.quality.tasks import make_items
from old.quality.tasks.benchmark_rows import judged_translations

DATASETS: dict[str, Callable[[], pd.DataFrame]] = {
    "hjqe-en-de": benchmarks.hjqe,
    "mlqe-pe-tags-en-de": partial(benchmarks.post_edits, "en-de"),
    "mlqe-pe-tags-ro-en": partial(benchmarks.post_edits, "ro-en"),
}


def items(name: str, encoder: bool = False, limit: int | None = None) -> pd.DataFrame:
    """Every translation of a data set in DATASETS, or of `limit` sources, in the slices of `judged_translations`; group: the source.

    Splitting an output at its spaces gives the tagged words. ValueError for an unknown name, an empty word (its row is named), or a limit
    below 1; otherwise as `benchmarks.load`.
    """
    if name not in DATASETS:
        raise ValueError(f"no words are tagged in {name!r}: choose from {', '.join(DATASETS)}")
    table = DATASETS[name]()
    for number, output in enumerate(table["translation"], 1):
        if "" in output.split(" "):
            raise ValueError(f"{name}, row {number}: the translation {output!r} has an empty word")
    wrong = [[place for place, tag in enumerate(tags) if tag == "BAD"] for tags in table["tags"]]
    gold = [1 - len(places) / len(tags) for places, tags in zip(wrong, table["tags"])]
    table = table[["pair", "source", "translation"]].assign(gold=gold, wrong_words=wrong)
    return make_items(judged_translations(table, name, encoder, limit))


def word_numbers(tokenizer, output: str) -> np.ndarray:
    """For each token of an output (tokenised as LanguageModel.encode does) the number of its word. (T,)

    A token belongs to the word that it begins in; one that begins with the space before a word, or is that space, to the word behind it. So
    each belongs to one word, whose score is the mean over its tokens. ValueError where a word is empty or has no token.
    """
    words = output.split(" ")
    if "" in words:
        raise ValueError(f"an output must be words with single spaces between them, not {output!r}")
    ends = np.cumsum([len(word) + 1 for word in words]) - 1  # behind each word, where the space is
    tokens = tokenizer(text_target=output, add_special_tokens=False, return_offsets_mapping=True, verbose=False)
    numbers = np.searchsorted(ends, [start for start, _ in tokens["offset_mapping"]], side="right")
    if wrong := set(range(len(words))) ^ set(numbers.tolist()):
        what = f"no token begins in word {min(wrong)}" if min(wrong) < len(words) else "a token begins behind the last word"
        raise ValueError(f"words cannot be told apart with this tokenizer: {what} of {output!r}")
    return numbers
