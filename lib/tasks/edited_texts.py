"""Texts with known errors of several types, by rules that are no sampler of negatives.

A text appears as it is (`edit` original, gold 1) and once with each type of error that it has room
for; gold is then the share of its words left as they were. Errors come in proportion to the length
of a text: otherwise long texts would be good texts. `random-words` (words drawn by frequency) is
the home ground of heads trained on unigram negatives: read it apart.

An edit is a function of words, the number of edits, randomness and the `error_pool`; it returns the
new words, and the places of those that are wrong.
"""

import re
from collections import Counter, defaultdict
from collections.abc import Callable

import numpy as np
import pandas as pd

from lib.corpora import pairs
from lib.tasks.measures import HOME_GROUND
from lib.tasks.own_items import make_items

DOCSTRING_WORDS, LEAST_WORDS = (12, 60), 6  # of a description; of a translation
SHARE = (0.05, 0.25)  # of the words that are edited, as far as the type finds room
PREFIX, CONTINUATION = 3, 4  # words, of attested alternatives
NUMBERS = ("zwei", "drei", "vier", "fünf", "sechs", "sieben", "acht", "neun", "zehn")
COLOURS = ("rot", "blau", "grün", "gelb", "schwarz", "weiß", "braun", "grau")

_IDENTIFIER = re.compile(
    r"^\W*(?!(?:e\.g|i\.e)\W)(?=\w*[a-z])"
    r"(\w+_\w+|\w+\.\w+|[a-z]+[A-Z]\w*|[A-Z][a-z]+[A-Z]\w*)\W*$"
)
_NEGATABLE = re.compile(r"^(is|are|was|were|will|can|should|must|may|does|do|has|have)$")
_NEGATION = re.compile(r"^(not|never|no)$")
_ATTRIBUTE = re.compile(
    rf"^(\W*)(?:({'|'.join(NUMBERS)})|({'|'.join(COLOURS)})(e[mnrs]?)?)(\W*)$", re.IGNORECASE
)


def _choose(places, edits: int, rng: np.random.Generator) -> list[int]:
    count = min(edits, len(places))
    return sorted(rng.choice(list(places), count, replace=False).tolist()) if count else []


def _replace(words: list[str], edits: int, rng, change: Callable[[str], str], only: str = ""):
    """`change` up to `edits` words, those in which a pattern is found; one that comes out as it was
    is no error.
    """
    new, places = list(words), [i for i, word in enumerate(words) if re.search(only, word)]
    for i in _choose(places, edits, rng):
        new[i] = change(words[i])
    return new, [i for i, (a, b) in enumerate(zip(new, words)) if a != b]


def word_swap(words, edits, rng, _pool):
    """Neighbours change places."""
    places = [i for i in range(0, len(words) - 1, 2) if words[i] != words[i + 1]]
    words, wrong = list(words), []
    for i in _choose(places, edits, rng):
        words[i : i + 2] = words[i + 1], words[i]
        wrong += [i, i + 1]
    return words, wrong


def deletion(words, edits, rng, _pool):
    """Words are missing; the word after each gap counts as wrong."""
    gone = _choose(range(len(words) - 1), edits, rng)
    left = [i for i in range(len(words)) if i not in gone]
    return [words[i] for i in left], [n for n, i in enumerate(left) if i - 1 in gone]


def other_text(words, edits, rng, pool):
    """Words are replaced by words of another text, one in the place of another."""
    other = pool["texts"][rng.integers(len(pool["texts"]))]
    return _replace(words, edits, rng, lambda _: other[rng.integers(len(other))])


def number(words, edits, rng, _pool):
    """Numbers are changed to others of as many digits."""

    def other(digit: re.Match) -> str:
        return str((int(digit.group()) + int(rng.integers(1, 10))) % 10)

    return _replace(words, edits, rng, lambda word: re.sub(r"\d", other, word), only=r"\d")


def identifier(words, edits, rng, pool):
    """Names of functions, arguments and classes are replaced by names from other texts; quotes and
    full stops around them stay.
    """

    def change(word: str) -> str:
        start, end = _IDENTIFIER.match(word).span(1)
        names = pool["identifiers"]
        return word[:start] + names[rng.integers(len(names))] + word[end:]

    return _replace(words, edits, rng, change, only=_IDENTIFIER)


def negation(words, _edits, rng, _pool):
    """ "not" is removed (the word behind it is wrong), or added behind a verb: one edit."""
    pairs = enumerate(zip(words, [*words[1:], "not"]))
    verbs = {i for i, (word, after) in pairs if _NEGATABLE.match(word) and after != "not"}
    places = [i for i, word in enumerate(words) if i in verbs or _NEGATION.match(word)]
    for i in _choose(places, 1, rng):
        if i in verbs:
            return [*words[: i + 1], "not", *words[i + 1 :]], [i + 1]
        return words[:i] + words[i + 1 :], [i]
    return words, []


def random_words(words, edits, rng, pool):
    """Words are replaced by words drawn by their frequency in the training texts."""
    new, p = pool["words"], pool["frequencies"]
    return _replace(words, edits, rng, lambda _: new[rng.choice(len(new), p=p)])


def attribute(words, edits, rng, pool):
    """A German number word or colour becomes another one with the same ending: still good German.

    The new one is drawn by how often each is in the training texts; where it is the same, nothing
    changes. So an edit from a common to a rare attribute is as likely as the reverse, and
    frequencies do not tell which is the original: that takes the source.
    """

    def change(word: str) -> str:
        before, number, colour, ending, after = _ATTRIBUTE.match(word).groups(default="")
        family = NUMBERS if number else COLOURS
        weights = np.array([pool["attributes"][name] for name in family], float)
        new = rng.choice(family, p=weights / weights.sum()) if weights.any() else ""
        if new in ("", (number or colour).lower()):
            return word
        return before + (new.capitalize() if word[len(before)].isupper() else new) + ending + after

    return _replace(words, edits, rng, change, only=_ATTRIBUTE)


TRANSLATION_EDITS = {"word-swap": word_swap, "deletion": deletion, "other-text": other_text}
DOCSTRING_EDITS = TRANSLATION_EDITS | {"number": number, "identifier": identifier}
DOCSTRING_EDITS |= {"negation": negation, HOME_GROUND: random_words}
TRANSLATION_EDITS |= {"attribute": attribute, HOME_GROUND: random_words}


def corruption(corpus: pd.DataFrame, texts: int = 150, seed: int = 0) -> pd.DataFrame:
    """Held-out docstring descriptions after their summary line: `texts` originals with their edits,
    further ones for types that few texts have room for, up to `texts` a type; and up to `texts`
    attested alternatives.

    `wrong_words` lists the places of wrong words, `text` numbers the originals.
    """
    rng, held_out = np.random.default_rng(seed), corpus[corpus["split"] == "test"]
    shuffled = held_out[held_out["target"].str.split().str.len().between(*DOCSTRING_WORDS)]
    shuffled = shuffled.sample(frac=1.0, random_state=seed)
    shuffled = shuffled.assign(prompt=shuffled["source"].map(pairs.docstring))
    pool = error_pool(held_out["target"], corpus[corpus["split"] == "train"]["target"])
    originals = shuffled[["group", "package", "prompt", "target"]]
    rows = graded(originals, DOCSTRING_EDITS, texts, pool, rng)
    return make_items(rows + attested(corpus, texts, rng))


def translation_errors(
    pairs: pd.DataFrame, training: pd.DataFrame, texts: int = 150, seed: int = 0
) -> pd.DataFrame:
    """References as they are and with errors; the source is the prompt. Columns of pairs: source,
    target, group; of training: target.
    """
    long_enough = pairs[pairs["target"].str.split().str.len() >= LEAST_WORDS]
    originals = long_enough.sample(frac=1.0, random_state=seed).rename(columns={"source": "prompt"})
    pool = error_pool(pairs["target"], training["target"])
    pool["attributes"] = attribute_counts(training["target"])
    originals, rng = originals[["group", "prompt", "target"]], np.random.default_rng(seed)
    return make_items(graded(originals, TRANSLATION_EDITS, texts, pool, rng))


def graded(originals: pd.DataFrame, edits: dict, texts: int, pool: dict, rng) -> list[dict]:
    """Rows of items: `texts` originals (column `target`; others are handed on) as they are and with
    each type of error, and further originals until there are `texts` of each type.
    """
    rows, count = [], Counter()
    for place, line in enumerate(originals.to_dict("records")):
        words = line.pop("target").split()
        common, edited = {**line, "text": place}, []
        for name, edit in edits.items():
            size = max(1, round(rng.uniform(*SHARE) * len(words)))
            changed, wrong = edit(words, size, rng, pool)
            if wrong and count[name] < texts:
                count[name] += 1
                edited.append((name, changed, wrong))
        if edited or place < texts:
            for name, changed, wrong in [("original", words, []), *edited]:
                text = {"output": " ".join(changed), "wrong_words": wrong}
                gold = 1 - len(wrong) / len(changed)
                rows.append({**common, "edit": name, **text, "gold": gold})
    return rows


def error_pool(texts: pd.Series, training: pd.Series) -> dict:
    """What errors are made of: other texts, their identifiers, and the words of the training texts
    by frequency.
    """
    counts = training.str.split().explode().value_counts(normalize=True).sort_index()
    names = texts.str.split().explode().str.extract(_IDENTIFIER)[0].dropna()
    pool = {"texts": texts.str.split().tolist(), "identifiers": sorted(set(names))}
    return pool | {"words": counts.index.tolist(), "frequencies": counts.to_numpy()}


def attribute_counts(texts: pd.Series) -> dict[str, int]:
    """How often each number word and colour occurs, in whatever form."""
    matches = (_ATTRIBUTE.match(word) for text in texts for word in text.split())
    counts = Counter((match[2] or match[3]).lower() for match in matches if match)
    return {name: counts[name] for name in (*NUMBERS, *COLOURS)}


def attested(corpus: pd.DataFrame, limit: int, rng: np.random.Generator) -> list[dict]:
    """Two held-out texts begin with the same words and go on differently: both ways are right
    (gold 1), those of other such texts wrong (gold 0), but for words that follow the prefix
    anywhere in the whole corpus. Group: the prefix.
    """
    ways: dict[str, dict] = defaultdict(dict)  # prefix: {continuation: group}, first words differ
    following = defaultdict(set)
    for line in corpus.itertuples():
        words = line.target.split()
        if len(words) < PREFIX + CONTINUATION:
            continue
        prefix, after = " ".join(words[:PREFIX]), words[PREFIX : PREFIX + CONTINUATION]
        known = ways[prefix].items()
        taken = any(way.split()[0] == after[0] or group == line.group for way, group in known)
        if line.split == "test" and not taken:
            ways[prefix][" ".join(after)] = line.group
        following[prefix].add(after[0])
    ambiguous = sorted(prefix for prefix, known in ways.items() if len(known) > 1)
    every, rows = sorted(way for prefix in ambiguous for way in ways[prefix]), []
    for prefix in rng.permutation(ambiguous)[:limit]:
        wrong = [way for way in every if way.split()[0] not in following[prefix]]
        common = {"group": f"prefix {prefix}", "edit": "attested", "package": "", "text": -1}
        common |= {"prompt": prefix, "wrong_words": []}
        for way in list(ways[prefix])[:2] if wrong else []:
            rows.append({**common, "output": f" {way}", "gold": 1.0})
            other = wrong[rng.integers(len(wrong))]
            rows.append({**common, "output": f" {other}", "gold": 0.0})
    return rows
