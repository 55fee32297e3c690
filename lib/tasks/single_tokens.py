"""Right and wrong answers of one token: the rest of a longer one would follow from its beginning,
right or wrong. `is_token(" name")` tells which names are.
"""

import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
from babel import Locale
from babel.languages import get_official_languages

from lib.tasks import make_items

# facts of general knowledge: name of a set -> prompt, names, sibling (the set for wrong answers)
SETS = json.loads(Path(__file__).with_name("listing.json").read_text())
PHRASINGS = (
    "An official language of {} is",
    "In the schools and offices of {}, people use the official language,",
    "The government of {} publishes its laws in",
)
UNNAMED = "a country"


def listing(
    is_token: Callable[[str], bool], orders: int = 10, seed: int = 0, wrong_up_to: int = 2
) -> pd.DataFrame:
    """How many answers are right is known by construction: "The days of the week in any order:
    Monday, Thursday," leaves five.

    In each of `orders` random orders of every set, the last name is scored behind every number of
    listed names, at least one: the same answer, right each time, with k = 1, 2, ... right ones
    (`right`). Wrong answers at k = 1 ... wrong_up_to: a name already listed (`kind` listed), and
    one of the sibling set (sibling). Group: the set. ValueError where no name is a single token.
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
                listed = [name for name in before if name in scored]
                choices = {"right": [answer]}
                if k <= wrong_up_to:
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
