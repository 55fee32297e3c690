"""Answers of one token: the gold is true, and a task is what its text says."""

import re
from collections import Counter

import numpy as np
import pandas as pd
import pytest
from babel import Locale
from babel.languages import get_official_languages

from lib.tasks.own_items import (
    ITEM,
    PHRASINGS,
    SETS,
    UNNAMED,
    languages,
    listing,
    official_languages,
)


def short(text: str) -> bool:
    """Stands for `one token`: some names of most sets, all or none of others."""
    assert text.startswith(" ")
    return len(text) <= 7


def any_name(text: str) -> bool:
    return True


@pytest.fixture(scope="module")
def listed() -> pd.DataFrame:
    """Items with the names that the prompt lists (`before`) and those of their set (`members`)."""
    items = listing(short, orders=4)
    opening = items["group"].map(lambda group: SETS[group]["prompt"])
    rest = [p.removeprefix(start) for p, start in zip(items["prompt"], opening)]
    before = [[name.strip() for name in text.split(",") if name.strip()] for text in rest]
    members = items["group"].map(lambda group: SETS[group]["names"])
    assert list(items)[: len(ITEM)] == ITEM
    return items.assign(before=before, members=members)


def test_right_answers_are_not_listed_yet(listed):
    right = listed[listed["kind"] == "right"]
    assert (right["gold"] == 1).all() and len(right) > 300
    for item in right.itertuples():
        assert item.output == f" {item.answer}" and item.answer in set(item.right)
        assert set(item.right) == set(item.members) - set(item.before)


def test_k_is_the_number_of_right_answers(listed):
    """From all but one name of the set down to one; behind an empty list nothing is asked."""
    for item in listed.itertuples():
        assert set(item.before) <= set(item.members) and len(set(item.before)) == len(item.before)
        assert item.before and item.k == len(item.members) - len(item.before) == len(item.right)
    size = listed.groupby("group")["members"].first().str.len()
    assert (listed.groupby("group")["k"].nunique() == size - 1).all()


def test_the_answer_is_the_same_at_every_k(listed):
    """And the list only grows: the prompt of k + 1 begins that of k."""
    for _, part in listed[listed["kind"] == "right"].groupby(["group", "order"]):
        assert part["answer"].nunique() == 1 and part["k"].tolist() == list(range(1, len(part) + 1))
        for shorter, longer in zip(part["prompt"].iloc[1:], part["prompt"].iloc[:-1]):
            assert longer.startswith(shorter)


def test_wrong_answers_of_listing(listed):
    """`listed` is in the prompt, `sibling` of the sibling set and not of this one; one of each
    wherever there is a name with one token, at k = 1 and 2 only.
    """
    assert (listed.loc[listed["kind"] != "right", "gold"] == 0).all()
    assert (listed[listed["k"] > 2]["kind"] == "right").all()
    for (group, _, _), part in listed[listed["k"] <= 2].groupby(["group", "order", "k"]):
        members, before = part[["members", "before"]].iloc[0]
        sibling = set(SETS[SETS[group]["sibling"]]["names"]) - set(members)
        choices = {"right": members, "listed": before, "sibling": sibling}
        there = {kind for kind, names in choices.items() if any(short(f" {n}") for n in names)}
        assert sorted(part["kind"]) == sorted(there)
        assert all(item.answer in choices[item.kind] for item in part.itertuples())


def test_listing_scores_single_tokens_only(listed):
    assert listed["output"].map(short).all()
    assert listing(lambda text: text == " spring", 1)["group"].unique().tolist() == ["seasons"]
    with pytest.raises(ValueError, match="too few names are single tokens"):
        listing(lambda text: False)


def test_sets_are_sound():
    """No name twice, a sibling that exists, and no prompt of another set's."""
    for group, facts in SETS.items():
        names = facts["names"]
        assert len(names) == len(set(names)) >= 4 and facts["sibling"] in SETS.keys() - {group}
    assert len({facts["prompt"] for facts in SETS.values()}) == len(SETS)


@pytest.mark.parametrize(
    "make", [lambda seed: listing(short, 2, seed), lambda seed: languages(any_name, seed, 5)]
)
def test_the_seed_decides(make):
    first, again, other = (make(seed) for seed in (0, 0, 1))
    pd.testing.assert_frame_equal(first, again)
    assert not first["prompt"].equals(other["prompt"])


# ---- languages --------------------------------------------------------------------------------

ENGLISH = Locale("en")
CODES = {name: code for code, name in ENGLISH.territories.items() if re.fullmatch("[A-Z]{2}", code)}


def official(territory: str, **options) -> set[str]:
    """English names of the official languages of a territory, by babel."""
    tags = get_official_languages(CODES[territory], **options)
    return {ENGLISH.languages.get(tag.split("_")[0]) for tag in tags}


@pytest.fixture(scope="module")
def facts() -> pd.DataFrame:
    return languages(any_name, each=300)


def test_right_languages_are_official(facts):
    """All of them, k in number."""
    for (territory, k), part in facts[facts["kind"] == "right"].groupby(["group", "k"]):
        assert set(part["answer"]) == official(territory) and k == len(official(territory))


@pytest.mark.parametrize("seed", range(3))
def test_wrong_languages_are_not_official(seed):
    """Not in a part of the territory either, nor in practice."""
    wrong = languages(any_name, seed, each=300).query("kind == 'wrong'")
    pairs = wrong.drop_duplicates(["group", "answer"])[["group", "answer"]].itertuples(index=False)
    assert [
        pair for pair in pairs if pair[1] in official(pair[0], regional=True, de_facto=True)
    ] == []


def test_wrong_languages_are_as_common(facts):
    """Among the five languages (with ties) whose number of territories is nearest."""
    table, used = official_languages(), official_languages(regional=True, de_facto=True)
    table = {territory: names for territory, names in table.items() if len(names) in (1, 2)}
    count = Counter(name for names in table.values() for name in names)
    first = facts["prompt"].str.startswith("An official") & ~facts["prior"]
    pairs = facts[(facts["kind"] == "wrong") & first]
    right = facts.loc[pairs.index - 1, "answer"]  # a right answer and its wrong one follow
    for territory, answer, wrong in zip(pairs["group"], right, pairs["answer"]):
        taken = {*table[territory], *used.get(territory, [])}
        distance = {name: abs(np.log(n / count[answer])) for name, n in count.items()}
        near = sorted(value for name, value in distance.items() if name not in taken)
        assert distance[wrong] <= near[4] + 1e-9


def test_prior_prompts_name_no_territory(facts):
    """Otherwise it is the same item."""
    named, prior = (
        facts[facts["prior"] == value].reset_index(drop=True) for value in (False, True)
    )
    assert all(name in prompt for name, prompt in zip(named["group"], named["prompt"]))
    assert set(prior["prompt"]) == {phrasing.format(UNNAMED) for phrasing in PHRASINGS}
    same = ["group", "k", "output", "gold", "kind", "answer"]
    pd.testing.assert_frame_equal(named[same], prior[same])


def test_languages_are_balanced_and_limited(facts):
    counts = facts.groupby(["group", "prompt"])["kind"].value_counts().unstack()
    assert (counts["right"] == counts["wrong"]).all()
    few = languages(any_name, each=5)
    assert few.groupby("k")["group"].nunique().to_dict() == {1: 5, 2: 5}


def test_languages_are_single_tokens():
    """Right ones and wrong ones; k stays the number of official languages."""
    items = languages(short, each=300)
    assert items["output"].map(short).all() and set(items["k"]) == {1, 2}
    assert all(
        k == len(official(territory)) for territory, k in set(zip(items["group"], items["k"]))
    )
    for known in ((), (" French",)):  # of one alone there is no wrong answer
        with pytest.raises(ValueError, match="too few names"):
            languages(lambda text, known=known: text in known)
