"""Official languages of territories (Unicode CLDR through `babel`): real facts with one or two right answers.

Wrong answers are matched for how common they are: a language that is official in about as many territories. A prompt that names no
territory shows how far a prior alone gets (column `prior`: the same item asked about "a country"). Names are single tokens of the model:
the rest of a longer one would follow from its beginning, right or wrong.
"""

from collections import Counter
from collections.abc import Callable

import numpy as np
import pandas as pd
from babel import Locale
from babel.languages import get_official_languages

from old.quality.tasks import make_items

PHRASINGS = (
    "An official language of {} is",
    "In the schools and offices of {}, people use the official language,",
    "The government of {} publishes its laws in",
)
UNNAMED = "a country"


def facts() -> dict[str, list[str]]:
    """English names of the official languages of each territory: of those with one or two."""
    return {name: languages for name, languages in _languages().items() if len(languages) in (1, 2)}


def _languages(**standing: bool) -> dict[str, list[str]]:
    """Official languages by territory, all in English names; `standing`: also those with regional or de facto status."""
    english, table = Locale("en"), {}
    for code, territory in sorted(english.territories.items()):
        if len(code) == 2 and code.isalpha():
            names = [english.languages.get(language.split("_")[0]) for language in get_official_languages(code, **standing)]
            if all(names) and len(set(names)) == len(names):
                table[territory] = names
    return table


def items(single_token: Callable[[str], bool], seed: int = 0, each: int = 60) -> pd.DataFrame:
    """Up to `each` territories with one official language, and all with two (up to `each`); slice `k=1` or `k=2`, group the territory.

    For every phrasing and right answer one wrong answer, matched for frequency; `kind` right or wrong, `prior` False or True. Only names
    for which `single_token(" name")` holds are used. ValueError where there are fewer than two.
    """
    rng, table = np.random.default_rng(seed), facts()
    frequency = Counter(name for names in table.values() for name in names if single_token(f" {name}"))
    used = _languages(regional=True, de_facto=True)  # none of these is a wrong answer
    rows = []
    for k in (1, 2):
        territories = sorted(t for t, names in table.items() if len(names) == k and set(names) & set(frequency))
        for territory in rng.permutation(territories)[:each]:
            for right in [name for name in table[territory] if name in frequency]:
                others = [name for name in frequency if name not in {*table[territory], *used.get(territory, [])}]
                if not others:
                    continue
                distance = np.array([abs(np.log(frequency[name] / frequency[right])) for name in others])
                wrong = others[rng.choice(np.flatnonzero(distance <= np.sort(distance)[min(4, len(others) - 1)]))]
                for phrasing in PHRASINGS:
                    for prior in (False, True):
                        prompt = phrasing.format(UNNAMED if prior else territory)
                        common = {"group": territory, "slice": f"k={k}", "prompt": prompt, "prior": prior}
                        for kind, name in (("right", right), ("wrong", wrong)):
                            rows.append({**common, "output": f" {name}", "gold": float(kind == "right"), "kind": kind, "answer": name})
    if not rows:
        raise ValueError("fewer than two names of languages are single tokens of this tokenizer: the languages task needs some")
    return make_items(rows)
