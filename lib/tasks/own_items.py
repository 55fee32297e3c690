"""Items that the study makes itself: right and wrong answers of one token (the rest of a longer one
would follow from its beginning); and a model's own outputs against references, none of them human
judgement (a good output that differs from the one reference gets little; group: its source).
"""

import json
import re
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
from babel import Locale
from babel.languages import get_official_languages
from sacrebleu.metrics import BLEU, CHRF

from lib.corpora import pairs
from lib.quality.language_models import LanguageModel
from lib.quality.translator import sample_translations, translate
from lib.study.sentence_embeddings import similarity

ITEM = ["id", "group", "prompt", "output", "gold"]  # see `lib.tasks.catalogue`
# facts of general knowledge: name of a set -> prompt, names, sibling (the set for wrong answers)
SETS = json.loads(Path(__file__).with_name("listing.json").read_text())
PHRASINGS = (
    "An official language of {} is",
    "In the schools and offices of {}, people use the official language,",
    "The government of {} publishes its laws in",
)
UNNAMED = "a country"
OPENING, DESCRIPTION = 4, (12, 40)  # words of the real description: given to the model; in all
SHORTEST = 5  # words of a continuation that is judged


def make_items(rows: list[dict] | pd.DataFrame) -> pd.DataFrame:
    """A table of items numbered from 0; further columns are kept behind those of ITEM."""
    table = pd.DataFrame(rows).reset_index(drop=True)
    table = table.assign(id=range(len(table)), group=table["group"].astype(str))
    return table[[*ITEM, *(name for name in table if name not in ITEM)]]


# ---- answers of one token; `is_token(" name")` tells which names are --------------------------


def listing(
    is_token: Callable[[str], bool], orders: int = 10, seed: int = 0, wrong_up_to: int = 2
) -> pd.DataFrame:
    """How many answers are right is known by construction: "The days of the week in any order:
    Monday, Thursday," leaves five.

    In each of `orders` random orders of every set (group), the last name is scored behind every
    number of listed names, at least one: the same answer, right each time, with k = 1, 2, ... right
    ones (`right`). Wrong answers at k = 1 ... wrong_up_to: a name already listed (`kind` listed),
    and one of the sibling set (sibling). ValueError where no name is a single token.
    """
    rng, rows = np.random.default_rng(seed), []
    for group, facts in SETS.items():
        names, sibling = facts["names"], SETS[facts["sibling"]]["names"]
        scored = [name for name in names if is_token(f" {name}")]
        strangers = [name for name in sibling if name not in names and is_token(f" {name}")]
        for order in range(orders if scored else 0):
            answer = scored[rng.integers(len(scored))]
            ordered = [*rng.permutation([name for name in names if name != answer]), answer]
            for k in range(1, len(names)):  # behind an empty list it is open whether one follows
                before, right = ordered[:-k], ordered[-k:]
                prompt = " ".join([facts["prompt"], *(f"{name}," for name in before)])
                choices = {"right": [answer]}
                if k <= wrong_up_to:
                    listed = [name for name in before if name in scored]
                    choices |= {"listed": listed, "sibling": strangers}
                for kind, among in choices.items():
                    if among:
                        name = answer if kind == "right" else among[rng.integers(len(among))]
                        rows.append((group, prompt, name, kind, k, order, right))
    return _single_tokens(rows, ["group", "prompt", "answer", "kind", "k", "order", "right"])


def languages(is_token: Callable[[str], bool], seed: int = 0, each: int = 60) -> pd.DataFrame:
    """Official languages of territories (Unicode CLDR): real facts with one or two right answers,
    of up to `each` territories either way (k; group: the territory).

    For every phrasing and right answer one wrong one, as common: official in about as many
    territories. `prior`: the same asked about "a country" shows how far a prior alone gets.
    ValueError where fewer than two names are single tokens.
    """
    rng, facts = np.random.default_rng(seed), official_languages()
    facts = {territory: names for territory, names in facts.items() if len(names) in (1, 2)}
    count = Counter(name for names in facts.values() for name in names if is_token(f" {name}"))
    used = official_languages(regional=True, de_facto=True)  # none of these is a wrong answer
    rows = []
    for k in (1, 2):
        there = (t for t, names in facts.items() if len(names) == k and set(names) & set(count))
        for territory in rng.permutation(sorted(there))[:each]:
            taken = {*facts[territory], *used.get(territory, [])}
            others = [name for name in count if name not in taken]
            for right in [name for name in facts[territory] if name in count and others]:
                distance = np.abs(np.log([count[name] / count[right] for name in others]))
                near = np.flatnonzero(distance <= np.sort(distance)[min(4, len(others) - 1)])
                answers = {"right": right, "wrong": others[rng.choice(near)]}
                for phrasing in PHRASINGS:
                    for prior in (False, True):
                        prompt = phrasing.format(UNNAMED if prior else territory)
                        for kind, name in answers.items():
                            rows.append((territory, prompt, name, kind, k, prior))
    return _single_tokens(rows, ["group", "prompt", "answer", "kind", "k", "prior"])


def official_languages(**standing: bool) -> dict[str, list[str]]:
    """By territory, in English names; `standing`: also those of regional or de facto status."""
    english, table = Locale("en"), {}
    for code, territory in sorted(english.territories.items()):
        if len(code) == 2 and code.isalpha():
            codes = get_official_languages(code, **standing)
            names = [english.languages.get(language.split("_")[0]) for language in codes]
            if all(names) and len(set(names)) == len(names):
                table[territory] = names
    return table


def _single_tokens(rows: list[tuple], columns: list[str]) -> pd.DataFrame:
    if not rows:
        raise ValueError("too few names are single tokens of this tokenizer")
    table = pd.DataFrame(rows, columns=columns)
    gold = (table["kind"] == "right").astype(float)
    return make_items(table.assign(output=" " + table["answer"], gold=gold))


# ---- a model's own texts ----------------------------------------------------------------------


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
    one by beam search (`decoding` beam), `samples` drawn from its distribution (sample), but for
    those without text. What is scored later are the tokens of an output's own tokenisation, which
    need not be the ones that were drawn.
    """
    chosen = pairs.sample(min(texts, len(pairs)), random_state=seed)
    repeated = chosen.iloc[np.repeat(np.arange(len(chosen)), samples)]
    drawn = sample_translations(lm, repeated["source"].tolist(), seed)
    found = translate(lm, chosen["source"].tolist())
    tables = chosen.assign(decoding="beam", output=found), repeated.assign(output=drawn)
    table = pd.concat(tables).fillna({"decoding": "sample"}).rename(columns={"source": "prompt"})
    table = table[table["output"] != ""].reset_index(drop=True)
    golds = translation_gold(table["output"].tolist(), table["target"].tolist())
    return make_items(table.drop(columns="target").join(golds))


def translation_gold(outputs: list[str], references: list[str]) -> pd.DataFrame:
    """1 for the reference itself: `gold` (chrF), `gold_bleu` (sentence BLEU, both by sacrebleu) and
    `gold_similarity`, the cosine of sentence embeddings by an English encoder, which is the weakest
    of the three on German. (N, 3)
    """
    table = pd.DataFrame({"gold_similarity": similarity(outputs, references)})
    for name, metric in (("gold_bleu", BLEU(effective_order=True)), ("gold", CHRF())):
        pairs = zip(outputs, references)  # BLEU: shorter n-grams, too
        golds = [metric.sentence_score(output, [one]).score / 100 for output, one in pairs]
        table.insert(0, name, golds)
    return table
