"""Translation: outputs to judge of the study's own translation model, and references with known errors; captions, English to German.

Three gold values, each computed against the one reference and none of them human: `gold` chrF, `gold_bleu` sentence BLEU (both sacrebleu,
0 to 1), `gold_similarity` cosine of sentence embeddings (lib.sentence_embeddings: an English encoder, the weakest of the three on German).
A good translation that differs from the reference gets little from all of them.
"""

import re
from collections import Counter

import numpy as np
import pandas as pd
from sacrebleu.metrics import BLEU, CHRF

from old.quality.encoder_decoder import EncoderDecoder
from old.quality.nmt import sample, translate
from old.quality.tasks import make_items
from old.quality.tasks.corruption import (
    HOME_GROUND,
    Edit,
    Edited,
    deletion,
    error_pool,
    graded,
    other_text,
    random_words,
    replace_words,
    word_swap,
)
from old.sentence_embeddings import similarity

MIN_WORDS = 6  # of a reference that gets errors
COLOURS = ("rot", "blau", "grün", "gelb", "schwarz", "weiß", "braun", "grau")
NUMBERS = ("zwei", "drei", "vier", "fünf", "sechs", "sieben", "acht", "neun", "zehn")

_ATTRIBUTE = re.compile(rf"^(\W*)(?:({'|'.join(NUMBERS)})|({'|'.join(COLOURS)})(e[mnrs]?)?)(\W*)$", re.IGNORECASE)


def gold(outputs: list[str], references: list[str]) -> pd.DataFrame:
    """`gold` (chrF), `gold_bleu` and `gold_similarity` of each output, (N, 3): 1 for the reference itself."""
    chrf, bleu = CHRF(), BLEU(effective_order=True)  # an output of fewer than four words is judged by shorter n-grams
    scores = [[metric.sentence_score(a, [b]).score / 100 for metric in (chrf, bleu)] for a, b in zip(outputs, references)]
    return pd.DataFrame(scores, columns=["gold", "gold_bleu"]).assign(gold_similarity=similarity(outputs, references))


def own_items(lm: EncoderDecoder, pairs: pd.DataFrame, texts: int = 500, samples: int = 3, seed: int = 0) -> pd.DataFrame:
    """The model's translations of `texts` sources: one by beam search (slice `decoding=beam`), `samples` drawn from its distribution
    (`decoding=sample`). pairs: columns source, target, group (the cluster: all translations of one source).

    An output without text is left out and counted (attrs["empty"]). Outputs are texts: what is scored later are the tokens of their own
    tokenisation, which need not be the ones that were drawn.
    """
    chosen = pairs.sample(min(texts, len(pairs)), random_state=seed)
    repeated = chosen.iloc[np.repeat(np.arange(len(chosen)), samples)]
    outputs = [*translate(lm, chosen["source"].tolist()), *sample(lm, repeated["source"].tolist(), seed)]
    decoding = ["beam"] * len(chosen) + ["sample"] * len(repeated)
    table = pd.concat([chosen, repeated], ignore_index=True).rename(columns={"source": "prompt"})
    table = table.assign(output=outputs, slice=[f"decoding={name}" for name in decoding])
    written = table[table["output"] != ""].reset_index(drop=True)
    judged = gold(written["output"].tolist(), written["target"].tolist())
    items = make_items(pd.concat([written.drop(columns="target"), judged], axis=1))
    items.attrs["empty"] = len(table) - len(written)
    return items


def attribute(words: list[str], edits: int, rng: np.random.Generator, pool: dict) -> Edited:
    """A number word or a colour becomes another one with the same ending: still good German.

    The new one is drawn by how often each is in the training texts; where the same is drawn, nothing changes. So an edit from a common to a
    rare attribute is as likely as the reverse, and frequencies alone do not tell which is the original: that takes the source.
    """

    def change(word: str) -> str:
        before, number, colour, ending, after = _ATTRIBUTE.match(word).groups(default="")
        family = NUMBERS if number else COLOURS
        weights = np.array([pool["attributes"][name] for name in family], float)
        if not weights.any():
            return word
        new = family[rng.choice(len(family), p=weights / weights.sum())]
        if new == (number or colour).lower():
            return word
        return before + (new.capitalize() if word[len(before)].isupper() else new) + ending + after

    return replace_words(words, [i for i, word in enumerate(words) if _ATTRIBUTE.match(word)], edits, rng, change)


def attribute_counts(texts: pd.Series) -> dict[str, int]:
    """How often each number word and colour occurs, in whatever form."""
    found = [match for text in texts for word in text.split() if (match := _ATTRIBUTE.match(word))]
    counts = Counter((match[2] or match[3]).lower() for match in found)
    return {name: counts[name] for name in (*NUMBERS, *COLOURS)}


TYPES: dict[str, Edit] = {
    "word-swap": word_swap,
    "deletion": deletion,
    "other-text": other_text,
    "attribute": attribute,
    HOME_GROUND: random_words,
}


def error_items(pairs: pd.DataFrame, training: pd.DataFrame, texts: int = 150, seed: int = 0) -> pd.DataFrame:
    """References as they are (`type=original`) and with errors of each of TYPES, as in the corruption task; the source is the prompt.

    pairs, training: columns source, target (and group, in pairs). `gold` is the share of words left as they were, `wrong_words` the places
    of the others.
    """
    long_enough = pairs[pairs["target"].str.split().str.len() >= MIN_WORDS]
    originals = long_enough.sample(frac=1.0, random_state=seed).rename(columns={"source": "prompt"})
    pool = error_pool(pairs["target"], training["target"]) | {"attributes": attribute_counts(training["target"])}
    return make_items(graded(originals[["group", "prompt", "target"]], TYPES, texts, pool, np.random.default_rng(seed)))
