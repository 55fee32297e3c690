"""Human judgements of translations (MLQE-PE): whole sentences by one NMT model a language pair, rated by people.

Gold: the mean of the ratings, each rater's standardised (`z_mean`). The file's own score stands beside those of this study: `nmt-logprob`,
the mean log-probability under the model that wrote the translation, which the judging model cannot know.
"""

import pandas as pd

from old.corpora import benchmarks
from old.quality.tasks import make_items
from old.quality.tasks.benchmark_rows import judged_translations


def items(pair: str, encoder: bool = False, limit: int | None = None) -> pd.DataFrame:
    """Every translation of a pair (en-de, ro-en, ru-en), or of `limit` sources: group the source; slices `prompt=none` and
    `prompt=source`, for an encoder-decoder (`encoder`) the latter only. Column `nmt-logprob`, named in attrs["scores"].

    Raises as `benchmarks.load` does; ValueError for a translation without text, or a limit below 1.
    """
    table = benchmarks.direct_assessments(pair)[["pair", "source", "translation", "z_mean", "model_score"]]
    table = table.rename(columns={"z_mean": "gold", "model_score": "nmt-logprob"}).assign(translation=table["translation"].str.strip())
    found = make_items(judged_translations(table, f"mlqe-pe-{pair}", encoder, limit))
    found.attrs["scores"] = ["nmt-logprob"]
    return found
