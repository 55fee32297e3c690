"""A model's own outputs against references, none of them human judgement: a good output that
differs from the one reference gets little. Group: all outputs of one source.
"""

import re

import numpy as np
import pandas as pd
from sacrebleu.metrics import BLEU, CHRF

from lib.corpora import pairs
from lib.quality.language_models import LanguageModel
from lib.quality.translator import sample_translations, translate
from lib.study.sentence_embeddings import similarity
from lib.tasks import make_items

OPENING = 4  # words of the real description that the model is given
DESCRIPTION = (12, 40)  # words of a real description in this task
SHORTEST = 5  # words of a continuation that is judged


def self_generation(
    lm: LanguageModel, corpus: pd.DataFrame, texts: int = 100, samples: int = 4, seed: int = 0
) -> pd.DataFrame:
    """`samples` continuations of each of `texts` held-out docstring descriptions, sampled at
    temperature 1 from the whole distribution. Gold: chrF (sacrebleu, 0 to 1) with the real one.

    A continuation ends with its first line, or with as many words as the reference has, which is
    cut to as many too: otherwise the longer one would be the better one. Those shorter than
    SHORTEST words are left out.
    """
    words = corpus["target"].str.split()
    there = (corpus["split"] == "test") & words.str.len().between(*DESCRIPTION)
    chosen = corpus[there].sample(min(texts, int(there.sum())), random_state=seed)
    words = words[chosen.index]
    opening = chosen["source"].map(pairs.docstring) + words.str[:OPENING].str.join(" ")
    table = chosen[["group", "package"]].assign(prompt=opening, reference=words.str[OPENING:])
    table = table.loc[np.repeat(table.index, samples)]
    written = lm.continuations(table["prompt"].tolist(), max_tokens=40, seed=seed)
    chrf, rows = CHRF(), []
    for line, output in zip(table.to_dict("records"), written):
        text, reference = output.split("\n")[0], line.pop("reference")
        size = min(len(text.split()), len(reference))
        if size >= SHORTEST:
            cut = re.match(rf"(\s*\S+){{{size}}}", text).group()
            gold = chrf.sentence_score(cut.strip(), [" ".join(reference[:size])]).score / 100
            rows.append({**line, "output": cut, "gold": gold})
    return make_items(rows)


def own_translations(
    lm, pairs: pd.DataFrame, texts: int = 500, samples: int = 3, seed: int = 0
) -> pd.DataFrame:
    """A translation model's outputs for `texts` sources of pairs (columns source, target, group):
    one by beam search (`decoding` beam), `samples` drawn from its distribution (sample).

    Outputs without text are left out. What is scored later are the tokens of an output's own
    tokenisation, which need not be the ones that were drawn.
    """
    chosen = pairs.sample(min(texts, len(pairs)), random_state=seed)
    repeated = chosen.iloc[np.repeat(np.arange(len(chosen)), samples)]
    drawn = sample_translations(lm, repeated["source"].tolist(), seed)
    table = pd.concat(
        [
            chosen.assign(decoding="beam", output=translate(lm, chosen["source"].tolist())),
            repeated.assign(decoding="sample", output=drawn),
        ]
    ).rename(columns={"source": "prompt"})
    table = table[table["output"] != ""].reset_index(drop=True)
    golds = translation_gold(table["output"].tolist(), table["target"].tolist())
    return make_items(pd.concat([table.drop(columns="target"), golds], axis=1))


def translation_gold(outputs: list[str], references: list[str]) -> pd.DataFrame:
    """1 for the reference itself: `gold` (chrF), `gold_bleu` (sentence BLEU, both by sacrebleu) and
    `gold_similarity`, the cosine of sentence embeddings by an English encoder, which is the weakest
    of the three on German. (N, 3)
    """
    pairs = list(zip(outputs, references))
    metrics = {"gold": CHRF(), "gold_bleu": BLEU(effective_order=True)}  # shorter n-grams, too
    golds = {
        name: [
            metric.sentence_score(output, [reference]).score / 100 for output, reference in pairs
        ]
        for name, metric in metrics.items()
    }
    return pd.DataFrame(golds).assign(gold_similarity=similarity(outputs, references))
