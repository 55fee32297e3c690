"""Texts that share a run of words, and splits that such texts do not cross."""

import re
import unicodedata

import numpy as np
import pandas as pd
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components

NGRAM = 10  # words; two texts that share one such n-gram never fall on two sides of a split


def word_ngrams(text: str, n: int = NGRAM) -> list[str]:
    """Word n-grams, lower case without punctuation; a shorter text is its own single n-gram."""
    words = re.findall(r"[a-z0-9]+", text.lower())
    return [" ".join(words[i : i + n]) for i in range(max(1, len(words) - n + 1))]


def near_duplicate_groups(texts: list[str], n: int = NGRAM) -> np.ndarray:
    """Group of each text where texts that share a word n-gram are linked, named by its first
    member. (N,) -> (N,)
    """
    return linked([word_ngrams(text, n) for text in texts])


def linked(features: list[list[str]]) -> np.ndarray:
    """Group of each of N items, given by its features, where items that share one are linked,
    directly or through others; named by its first member. (N,)
    """
    number, names = pd.factorize(np.array([name for row in features for name in row], object))
    of_item = np.repeat(np.arange(len(features)), [len(row) for row in features])
    nodes = len(features) + len(names)  # a graph of items and features
    cells = (of_item, len(features) + number)
    links = coo_array((np.ones(len(number)), cells), shape=(nodes, nodes))
    group = connected_components(links, directed=False)[1][: len(features)]
    _, first, of_group = np.unique(group, return_index=True, return_inverse=True)
    return first[of_group]


def split_by_group(groups: np.ndarray, shares: dict[str, float], seed: int = 0) -> np.ndarray:
    """Split of each text, drawn by group, so that near-duplicates stay together. (N,) -> (N,)"""
    unique, member = np.unique(groups, return_inverse=True)
    draws = np.random.default_rng(seed).random(len(unique))
    return in_shares(draws, shares)[member]


def in_shares(draws: np.ndarray, shares: dict[str, float]) -> np.ndarray:
    """Name of the split for numbers in [0, 1): the first ones up to its share, and so on."""
    bounds = np.cumsum(list(shares.values()))
    place = np.searchsorted(bounds, draws, side="right").clip(max=len(bounds) - 1)
    return np.array(list(shares))[place]


def without_overlap(train: pd.DataFrame, test: pd.DataFrame) -> pd.DataFrame:
    """The rows of `train` that share nothing with `test` (columns of both: question, context).

    Left out are rows with a question of the test set, and rows whose context (a sentence or a
    paragraph) lies within a test paragraph; case, punctuation and Unicode variants do not count.
    XQuAD is a part of SQuAD's dev set, of which `squad-sentences` is made.
    """
    questions = {_normalised(question) for question in test["question"]}
    paragraphs = "\n".join(f" {_normalised(context)} " for context in set(test["context"]))
    apart = [
        _normalised(row.question) not in questions
        and f" {_normalised(row.context)} " not in paragraphs
        for row in train.itertuples()
    ]
    return train[apart].reset_index(drop=True)


def _normalised(text: str) -> str:
    return " ".join(re.findall(r"\w+", unicodedata.normalize("NFKC", text).casefold()))
