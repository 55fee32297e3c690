"""Listing: how many answers are right is known by construction. "The days of the week in any order: Monday, Thursday," leaves five.

For one random order of a set, the last name is scored after every number of names listed before it, at least one: the same answer, right
each time, with k = 1, 2, ... right ones. Wrong answers: a name already listed, and a name of a sibling set.
"""

from collections.abc import Callable

import numpy as np
import pandas as pd

from old.quality.tasks import make_items

# set: (prompt, names, sibling set for wrong answers). Facts of general knowledge.
SETS: dict[str, tuple[str, str, str]] = {
    "days": ("The days of the week in any order:", "Monday Tuesday Wednesday Thursday Friday Saturday Sunday", "months"),
    "months": (
        "The months of the year in any order:",
        "January February March April May June July August September October November December",
        "days",
    ),
    "planets": ("The planets of the solar system in any order:", "Mercury Venus Earth Mars Jupiter Saturn Uranus Neptune", "elements"),
    "continents": ("The continents in any order:", "Africa|Antarctica|Asia|Europe|Australia|North America|South America", "oceans"),
    "oceans": ("The oceans in any order:", "Atlantic Pacific Indian Arctic Southern", "continents"),
    "seasons": ("The seasons of the year in any order:", "spring summer autumn winter", "senses"),
    "suits": ("The suits of playing cards in any order:", "hearts diamonds clubs spades", "rainbow"),
    "senses": ("The five human senses in any order:", "sight hearing smell taste touch", "seasons"),
    "rainbow": ("The colors of the rainbow in any order:", "red orange yellow green blue indigo violet", "suits"),
    "directions": ("The main directions of the compass in any order:", "north south east west", "seasons"),
    "lakes": ("The Great Lakes in any order:", "Superior Michigan Huron Erie Ontario", "oceans"),
    "numbers": ("The numbers from one to ten in any order:", "one two three four five six seven eight nine ten", "tens"),
    "tens": ("Multiples of ten below one hundred in any order:", "ten twenty thirty forty fifty sixty seventy eighty ninety", "numbers"),
    "vowels": ("The vowels of the English alphabet in any order:", "A E I O U", "notes"),
    "notes": ("The white keys of a piano octave, by their letters, in any order:", "C D E F G A B", "vowels"),
    "elements": ("The noble gases in any order:", "helium neon argon krypton xenon radon", "planets"),
    "greek": ("The first eight Greek letters in any order:", "alpha beta gamma delta epsilon zeta eta theta", "numbers"),
    "moons": ("The four largest moons of Jupiter in any order:", "Io Europa Ganymede Callisto", "planets"),
    "states": (
        "The states of the United States that start with the letter M, in any order:",
        "Maine Maryland Massachusetts Michigan Minnesota Mississippi Missouri Montana",
        "lakes",
    ),
    "primes": (
        "The prime numbers below twenty, as words, in any order:",
        "two three five seven eleven thirteen seventeen nineteen",
        "evens",
    ),
    "evens": (
        "The even numbers from two to twenty, as words, in any order:",
        "two four six eight ten twelve fourteen sixteen eighteen twenty",
        "primes",
    ),
}


def names_of(name: str) -> list[str]:
    """The members of a set."""
    names = SETS[name][1]
    return names.split("|") if "|" in names else names.split()


def items(single_token: Callable[[str], bool], orders: int = 10, seed: int = 0, wrong_up_to: int = 2) -> pd.DataFrame:
    """`orders` random orders of every set; slice `k=3`, gold 1 for right and 0 for wrong; columns `answer`, `order`, `kind` and `right`
    (all names that are right there) besides.

    Only names for which `single_token(" name")` holds are scored: the rest of a longer name would follow from its beginning, whatever k is.
    Group: the set. Wrong answers (`kind` listed, sibling) at k = 1 ... wrong_up_to. ValueError where no name is a single token.
    """
    rng, rows = np.random.default_rng(seed), []
    for group, (prompt, _, sibling) in SETS.items():
        names = names_of(group)
        scored = [name for name in names if single_token(f" {name}")]
        strangers = [name for name in names_of(sibling) if name not in names and single_token(f" {name}")]
        for order in range(orders if scored else 0):
            answer = scored[rng.integers(len(scored))]
            listed = [*rng.permutation([name for name in names if name != answer]), answer]
            for k in range(1, len(names)):  # where nothing is listed yet, it is open whether a bare list follows at all
                before = listed[: len(names) - k]
                text = " ".join([prompt, *(f"{name}," for name in before)])
                common = {"group": group, "slice": f"k={k}", "prompt": text, "order": order, "right": listed[len(names) - k :]}
                wrong = {"listed": [name for name in before if name in scored], "sibling": strangers}
                rows.append({**common, "output": f" {answer}", "gold": 1.0, "answer": answer, "kind": "right"})
                for kind, choices in wrong.items():
                    if choices and k <= wrong_up_to:
                        name = choices[rng.integers(len(choices))]
                        rows.append({**common, "output": f" {name}", "gold": 0.0, "answer": name, "kind": kind})
    if not rows:
        raise ValueError("no name of any set is a single token of this tokenizer: the listing task needs some")
    return make_items(rows)
