"""Corruption: held-out docstrings with known errors of several types, by rules that are no sampler of negatives.

A text appears as it is (`type=original`, gold 1) and once with each type of error that it has room for; gold is then the share of its words
left as they were. Errors come in proportion to the length of a text: otherwise long texts would be good texts.
`type=random-words` (words drawn by frequency) is the home ground of heads trained on unigram negatives: read it apart.
`type=attested` has no errors: two texts begin with the same words and go on differently; both ways are right, that of a third text is not.
"""

import re
from collections import Counter, defaultdict
from collections.abc import Callable

import numpy as np
import pandas as pd

from old.quality.tasks import make_items

MIN_WORDS, MAX_WORDS = 12, 60  # a text in this task
EDITS = (0.05, 0.25)  # share of the words that are edited, as far as the type finds room
PREFIX, CONTINUATION = 3, 4  # words, of attested alternatives
HOME_GROUND = "random-words"

_IDENTIFIER = re.compile(r"^\W*(?!(?:e\.g|i\.e)\W)(?=\w*[a-z])(\w+_\w+|\w+\.\w+|[a-z]+[A-Z]\w*|[A-Z][a-z]+[A-Z]\w*)\W*$")
_NUMBER = re.compile(r"\d+")
_NEGATABLE = re.compile(r"^(is|are|was|were|will|can|should|must|may|does|do|has|have)$")
_NEGATION = re.compile(r"^(not|never|no)$")

Edited = tuple[list[str], list[int]]  # the new words, and which of them are wrong
Edit = Callable[[list[str], int, np.random.Generator, dict], Edited]  # words, how many edits, randomness, `error_pool`


def prompt_of(source: str) -> str:
    """The summary line as a prompt: the description follows on a new line."""
    return source + "\n"


def word_swap(words: list[str], edits: int, rng: np.random.Generator, _pool: dict) -> Edited:
    """Neighbours change places."""
    places = [i for i in range(0, len(words) - 1, 2) if words[i] != words[i + 1]]
    words, wrong = list(words), []
    for i in _choose(places, edits, rng):
        words[i], words[i + 1] = words[i + 1], words[i]
        wrong += [i, i + 1]
    return words, wrong


def deletion(words: list[str], edits: int, rng: np.random.Generator, _pool: dict) -> Edited:
    """Words are missing; the word after each gap counts as wrong."""
    gone = set(_choose(range(len(words) - 1), edits, rng))
    kept = [i for i in range(len(words)) if i not in gone]
    return [words[i] for i in kept], [place for place, i in enumerate(kept) if i - 1 in gone]


def other_text(words: list[str], edits: int, rng: np.random.Generator, pool: dict) -> Edited:
    """Words are replaced by words of another text, one in the place of another."""
    other = pool["texts"][rng.integers(len(pool["texts"]))]
    return replace_words(words, range(len(words)), edits, rng, lambda word: other[rng.integers(len(other))])


def number(words: list[str], edits: int, rng: np.random.Generator, _pool: dict) -> Edited:
    """Numbers are changed to others of as many digits."""

    def change(word: str) -> str:
        return _NUMBER.sub(lambda m: "".join(str((int(d) + int(rng.integers(1, 10))) % 10) for d in m.group()), word)

    return replace_words(words, [i for i, word in enumerate(words) if _NUMBER.search(word)], edits, rng, change)


def identifier(words: list[str], edits: int, rng: np.random.Generator, pool: dict) -> Edited:
    """Names of functions, arguments and classes are replaced by names from other texts; quotes and full stops around them stay."""

    def change(word: str) -> str:
        start, end = _IDENTIFIER.match(word).span(1)
        return word[:start] + pool["identifiers"][rng.integers(len(pool["identifiers"]))] + word[end:]

    return replace_words(words, [i for i, word in enumerate(words) if _IDENTIFIER.match(word)], edits, rng, change)


def negation(words: list[str], edits: int, rng: np.random.Generator, _pool: dict) -> Edited:
    """ "not" is removed, or added behind a verb: one edit. The word after a removed one counts as wrong."""
    places = [i for i in range(len(words) - 1) if _NEGATION.match(words[i]) or (_NEGATABLE.match(words[i]) and words[i + 1] != "not")]
    if not places:
        return words, []
    (i,) = _choose(places, 1, rng)
    if _NEGATION.match(words[i]):
        return words[:i] + words[i + 1 :], [i]
    return [*words[: i + 1], "not", *words[i + 1 :]], [i + 1]


def random_words(words: list[str], edits: int, rng: np.random.Generator, pool: dict) -> Edited:
    """Words are replaced by words drawn by their frequency in the training texts."""
    new, p = pool["words"], pool["frequencies"]
    return replace_words(words, range(len(words)), edits, rng, lambda word: new[rng.choice(len(new), p=p)])


TYPES: dict[str, Edit] = {
    "word-swap": word_swap,
    "deletion": deletion,
    "other-text": other_text,
    "number": number,
    "identifier": identifier,
    "negation": negation,
    HOME_GROUND: random_words,
}


def _choose(places, edits: int, rng: np.random.Generator) -> list[int]:
    places = list(places)
    return sorted(rng.choice(places, min(edits, len(places)), replace=False).tolist()) if places else []


def replace_words(words: list[str], places, edits: int, rng: np.random.Generator, change: Callable[[str], str]) -> Edited:
    """`change` up to `edits` of the words at these places; a word that comes out as it was is no error."""
    words, wrong = list(words), []
    for i in _choose(places, edits, rng):
        new = change(words[i])
        if new != words[i]:
            words[i] = new
            wrong.append(i)
    return words, wrong


def items(corpus: pd.DataFrame, texts: int = 150, split: str = "test", seed: int = 0) -> pd.DataFrame:
    """Items from a corpus with the columns source, target, group, package, split; `wrong_words` lists the places of wrong words, `text`
    numbers the originals.

    `texts` originals and their edits of each type (at least one word), and further ones for types that few texts have room for, up to
    `texts` a type.
    Then up to `texts` attested prefixes (`type=attested`): two continuations with gold 1, two of other prefixes with gold 0.
    """
    rng = np.random.default_rng(seed)
    inside = (corpus["split"] == split) & corpus["target"].str.split().str.len().between(MIN_WORDS, MAX_WORDS)
    shuffled = corpus[inside].sample(frac=1.0, random_state=seed)
    shuffled = shuffled.assign(prompt=shuffled["source"].map(prompt_of))[["group", "package", "prompt", "target"]]
    pool = error_pool(corpus[corpus["split"] == split]["target"], corpus[corpus["split"] == "train"]["target"])
    return make_items(graded(shuffled, TYPES, texts, pool, rng) + _attested(corpus, split, texts, rng))


def graded(originals: pd.DataFrame, types: dict[str, Edit], texts: int, pool: dict, rng: np.random.Generator) -> list[dict]:
    """Rows of items: of `texts` originals as they are and with the errors of each type, and of further originals for types that few texts
    have room for, up to `texts` a type.

    originals: column `target`, the text; all others are handed on. Added are `text` (number of the original), `slice`, `output`, `gold`
    and `wrong_words`. `pool` as made by `error_pool`.
    """
    rows, found = [], Counter()
    for number_of_text, line in enumerate(originals.to_dict("records")):
        original = line.pop("target").split()
        common = {**line, "text": number_of_text}
        edited = []
        for name, edit in types.items():
            changed, wrong = edit(original, max(1, round(rng.uniform(*EDITS) * len(original))), rng, pool)
            if wrong and found[name] < texts:
                found[name] += 1
                gold = 1 - len(wrong) / len(changed)
                edited.append({**common, "slice": f"type={name}", "output": " ".join(changed), "gold": gold, "wrong_words": wrong})
        if edited or number_of_text < texts:
            rows += [{**common, "slice": "type=original", "output": " ".join(original), "gold": 1.0, "wrong_words": []}, *edited]
    return rows


def error_pool(texts: pd.Series, training: pd.Series) -> dict:
    """What errors are made of: other texts, their identifiers, and the words of the training texts by frequency."""
    others = texts.str.split().tolist()
    counts = Counter(word for text in training for word in text.split())
    words = sorted(counts)
    frequencies = np.array([counts[word] for word in words], float)
    identifiers = sorted({found.group(1) for text in others for word in text if (found := _IDENTIFIER.match(word))})
    return {"texts": others, "identifiers": identifiers, "words": words, "frequencies": frequencies / frequencies.sum()}


def _attested(corpus: pd.DataFrame, split: str, limit: int, rng: np.random.Generator) -> list[dict]:
    """Items of prefixes that at least two near-duplicate groups of the split share and continue with different words. A continuation that
    begins with a word that follows the prefix anywhere in the whole corpus is never used as wrong.
    """
    ways: dict[str, dict[str, object]] = defaultdict(dict)  # prefix: {continuation: group}, first words all different
    following = defaultdict(set)
    for line in corpus.itertuples():
        words = line.target.split()
        if len(words) < PREFIX + CONTINUATION:
            continue
        prefix, first = " ".join(words[:PREFIX]), words[PREFIX]
        known = ways[prefix]
        if line.split == split and not any(other.split()[0] == first or group == line.group for other, group in known.items()):
            known[" ".join(words[PREFIX : PREFIX + CONTINUATION])] = line.group
        following[prefix].add(first)
    ambiguous = sorted(prefix for prefix, known in ways.items() if len(known) > 1)
    every = sorted(continuation for prefix in ambiguous for continuation in ways[prefix])
    rows = []
    for prefix in rng.permutation(ambiguous)[:limit]:
        wrong = [continuation for continuation in every if continuation.split()[0] not in following[prefix]]
        common = {"group": f"prefix {prefix}", "slice": "type=attested", "package": "", "text": -1, "prompt": prefix, "wrong_words": []}
        for continuation in list(ways[prefix])[:2] if wrong else []:
            rows.append({**common, "output": f" {continuation}", "gold": 1.0})
            rows.append({**common, "output": f" {wrong[rng.integers(len(wrong))]}", "gold": 0.0})
    return rows
