"""Items of every task: the gold is true, a task is what its text says, and the same seed gives the same items."""

import json
import re
from collections import Counter

import numpy as np
import pandas as pd
import pytest
import torch
from babel import Locale
from babel.languages import get_official_languages
from helpers import docstring_corpus, language_model

from old.quality.tasks import ITEM, corruption, languages, listing, self_generation, user

# ---- listing -------------------------------------------------------------------------------------------------------------------------


def short(text: str) -> bool:
    """Stands for `one token`: some names of most sets, all or none of others."""
    assert text.startswith(" ")
    return len(text) <= 7


@pytest.fixture(scope="module")
def listed() -> pd.DataFrame:
    """Items with the names that the prompt lists (`before`) and the members of their set (`members`)."""
    items = listing.items(short, orders=4)
    opening = items["group"].map(lambda group: listing.SETS[group][0])
    rest = [prompt.removeprefix(start).strip() for prompt, start in zip(items["prompt"], opening)]
    before = [[name for name in re.split(r",\s*", text) if name] for text in rest]
    return items.assign(before=before, members=items["group"].map(listing.names_of), k=items["slice"].str.removeprefix("k=").astype(int))


def test_listing_right_answers(listed):
    """A member of the set that is not listed yet."""
    right = listed[listed["kind"] == "right"]
    assert (right["gold"] == 1).all() and len(right) > 300
    for item in right.itertuples():
        assert item.output == f" {item.answer}" and item.answer in item.members and item.answer not in item.before


def test_listing_k_is_the_number_of_right_answers(listed):
    """What the set still holds, from all but one of it down to one; and which names those are."""
    for item in listed.itertuples():
        assert set(item.before) <= set(item.members) and len(set(item.before)) == len(item.before)
        assert item.k == len(item.members) - len(item.before) == len(item.right)
        assert set(item.right) == set(item.members) - set(item.before) and item.before
    assert (listed.groupby("group")["k"].nunique() == listed.groupby("group")["members"].first().str.len() - 1).all()


def test_listing_answer_is_the_same_at_every_k(listed):
    """And the list only grows: the prompt of k + 1 begins that of k."""
    for (_, _), part in listed[listed["kind"] == "right"].groupby(["group", "order"]):
        assert part["answer"].nunique() == 1 and part["k"].tolist() == list(range(1, len(part) + 1))
        for shorter, longer in zip(part["prompt"].iloc[1:], part["prompt"].iloc[:-1]):
            assert longer.startswith(shorter)


def test_listing_wrong_answers(listed):
    """`listed` is in the prompt; `sibling` is a name of the sibling set and not of this one."""
    wrong = listed[listed["kind"] != "right"]
    assert (wrong["gold"] == 0).all() and set(wrong["kind"]) == {"listed", "sibling"}
    for item in wrong.itertuples():
        assert item.output == f" {item.answer}"
        if item.kind == "listed":
            assert item.answer in item.before
        else:
            assert item.answer in listing.names_of(listing.SETS[item.group][2]) and item.answer not in item.members


def test_listing_wrong_answers_wherever_there_are_any(listed):
    """One of each kind at k = 1 and 2, as long as a name with one token is listed, or belongs to the sibling set; none beyond."""
    assert (listed[listed["k"] > 2]["kind"] == "right").all()
    for (group, _, _), part in listed[listed["k"] <= 2].groupby(["group", "order", "k"]):
        choices = {
            "right": part["members"].iloc[0],
            "listed": part["before"].iloc[0],
            "sibling": set(listing.names_of(listing.SETS[group][2])) - set(listing.names_of(group)),
        }
        assert sorted(part["kind"]) == sorted(kind for kind, names in choices.items() if any(short(f" {name}") for name in names))


def test_listing_scores_single_tokens_only(listed):
    assert listed["output"].map(short).all()
    expected = {group for group in listing.SETS if any(short(f" {name}") for name in listing.names_of(group))}
    assert set(listed["group"]) == expected
    assert listing.items(lambda text: text == " spring", 1)["group"].unique().tolist() == ["seasons"]


def test_listing_sets_are_sound():
    """No name twice, a sibling that exists, and no prompt of another set's."""
    for group, (_, _, sibling) in listing.SETS.items():
        names = listing.names_of(group)
        assert len(names) == len(set(names)) >= 4 and sibling in listing.SETS and sibling != group
    assert len({prompt for prompt, _, _ in listing.SETS.values()}) == len(listing.SETS)


def test_listing_is_decided_by_the_seed():
    first, again, other = (listing.items(short, 2, seed) for seed in (0, 0, 1))
    pd.testing.assert_frame_equal(first, again)
    assert not first["prompt"].equals(other["prompt"])


# ---- languages -----------------------------------------------------------------------------------------------------------------------

ENGLISH = Locale("en")


def any_name(text: str) -> bool:
    return True


CODES = {name: code for code, name in ENGLISH.territories.items() if len(code) == 2 and code.isalpha()}


def official(territory: str, **options) -> set[str]:
    """English names of the official languages of a territory, by babel."""
    return {ENGLISH.languages.get(tag.split("_")[0]) for tag in get_official_languages(CODES[territory], **options)}


@pytest.fixture(scope="module")
def facts() -> pd.DataFrame:
    return languages.items(any_name, each=300)


def test_languages_right_answers_are_official(facts):
    """All of them, k in number."""
    for (territory, k), part in facts[facts["kind"] == "right"].groupby(["group", "slice"]):
        assert set(part["answer"]) == official(territory) and k == f"k={len(official(territory))}"


@pytest.mark.parametrize("seed", range(4))
def test_languages_wrong_answers_are_not_official(seed):
    """Not in a part of the territory either, nor in practice."""
    wrong = languages.items(any_name, seed, each=300).query("kind == 'wrong'").drop_duplicates(["group", "answer"])
    assert [(t, a) for t, a in zip(wrong["group"], wrong["answer"]) if a in official(t, regional=True, de_facto=True)] == []


def test_languages_wrong_answers_are_as_common(facts):
    """Among the five languages (with ties) whose number of territories is nearest."""
    table, used = languages.facts(), languages._languages(regional=True, de_facto=True)
    frequency = Counter(name for names in table.values() for name in names)
    pairs = facts[(facts["kind"] == "wrong") & ~facts["prior"] & facts["prompt"].str.startswith("An official")]
    right = facts.loc[pairs.index - 1, "answer"]  # a right answer and its wrong one follow each other
    for territory, answer, wrong in zip(pairs["group"], right, pairs["answer"]):
        distances = {
            name: abs(np.log(n / frequency[answer]))
            for name, n in frequency.items()
            if name not in {*table[territory], *used.get(territory, [])}
        }
        assert distances[wrong] <= sorted(distances.values())[4] + 1e-9


def test_languages_prompts(facts):
    """A prior prompt names no territory; otherwise it is the same item."""
    named, prior = (facts[facts["prior"] == value].reset_index(drop=True) for value in (False, True))
    assert all(territory in prompt for territory, prompt in zip(named["group"], named["prompt"]))
    assert set(prior["prompt"]) == {phrasing.format(languages.UNNAMED) for phrasing in languages.PHRASINGS}
    same = ["group", "slice", "output", "gold", "kind", "answer"]
    pd.testing.assert_frame_equal(named[same], prior[same])


def test_languages_are_balanced(facts):
    """One wrong item for every right one; `each` limits the territories of either k."""
    counts = facts.groupby(["group", "prompt"])["kind"].value_counts().unstack()
    assert (counts["right"] == counts["wrong"]).all()
    few = languages.items(any_name, each=5)
    assert few.groupby("slice")["group"].nunique().to_dict() == {"k=1": 5, "k=2": 5}


def test_languages_are_single_tokens():
    """Right ones and wrong ones; k stays the number of official languages. Fewer than two names are an error."""
    items = languages.items(short, each=300)
    assert items["output"].map(short).all() and set(items["slice"]) == {"k=1", "k=2"}
    assert all(k == f"k={len(official(territory))}" for territory, k in set(zip(items["group"], items["slice"])))
    for known in ((), (" French",)):  # of one alone there is no wrong answer
        with pytest.raises(ValueError, match="fewer than two names of languages"):
            languages.items(lambda text, known=known: text in known)


def test_languages_are_decided_by_the_seed():
    first, again, other = (languages.items(any_name, seed, each=5) for seed in (0, 0, 1))
    pd.testing.assert_frame_equal(first, again)
    assert not first["prompt"].equals(other["prompt"])


# ---- corruption ----------------------------------------------------------------------------------------------------------------------

REPLACING = ("word-swap", "other-text", "number", "identifier", "random-words")


CORPUS = docstring_corpus()


@pytest.fixture(scope="module")
def corrupted() -> pd.DataFrame:
    """Edited items with the words of their original (`before`) and their own (`after`)."""
    items = corruption.items(CORPUS, texts=20, seed=3)
    items = items[items["slice"] != "type=attested"]
    original = items[items["slice"] == "type=original"].set_index("group")["output"]
    assert original.index.is_unique
    items = items.assign(before=items["group"].map(original).str.split(" "), after=items["output"].str.split(" "))
    return items.assign(type=items["slice"].str.removeprefix("type="))


def of_type(items: pd.DataFrame, name: str):
    part = items[items["type"] == name]
    assert len(part) > 5, f"the corpus of this test has too few texts for {name}"
    return part.itertuples()


def test_every_edited_item_has_its_original(corrupted):
    """In the same group, with the same prompt; gold 1, nothing wrong, the text of the corpus."""
    assert corrupted["before"].notna().all()
    texts = CORPUS.set_index(CORPUS["group"].astype(str))
    for item in of_type(corrupted, "original"):
        assert item.gold == 1 and item.wrong_words == [] and item.output == texts.loc[item.group, "target"]
    assert (corrupted["prompt"] == corrupted["group"].map(texts["source"]) + "\n").all()
    assert (corrupted["group"].map(texts["split"]) == "test").all() and corrupted["before"].str.len().between(12, 60).all()


def test_gold_is_the_share_of_words_left(corrupted):
    for item in corrupted.itertuples():
        assert item.gold == pytest.approx(1 - len(item.wrong_words) / len(item.after))
        assert (item.gold < 1) == (item.type != "original")
        assert sorted(set(item.wrong_words)) == item.wrong_words and all(0 <= i < len(item.after) for i in item.wrong_words)


@pytest.mark.parametrize("name", REPLACING)
def test_words_that_are_not_wrong_are_untouched(name, corrupted):
    """A word differs from the original's exactly where it counts as wrong; as many edits as EDITS allows, a swap has two words."""
    for item in of_type(corrupted, name):
        assert len(item.after) == len(item.before)
        assert [i for i, (a, b) in enumerate(zip(item.after, item.before)) if a != b] == item.wrong_words
        most = max(1, round(corruption.EDITS[1] * len(item.before)))
        assert 1 <= len(item.wrong_words) <= most * (2 if name == "word-swap" else 1)
    counts = {len(item.wrong_words) for item in of_type(corrupted, name)}
    assert len(counts) > 1


def test_word_swap_exchanges_neighbours(corrupted):
    for item in of_type(corrupted, "word-swap"):
        for first, second in zip(item.wrong_words[::2], item.wrong_words[1::2]):
            assert second == first + 1 and item.after[first : second + 1] == item.before[first : second + 1][::-1]


def test_deletion_leaves_the_other_words_in_order(corrupted):
    """The word behind each gap is wrong (words of a text differ here, so a gap can be seen)."""
    for item in of_type(corrupted, "deletion"):
        kept = [item.before.index(word) for word in item.after]
        assert kept == sorted(kept) and 1 <= len(item.before) - len(kept) <= max(1, round(corruption.EDITS[1] * len(item.before)))
        assert item.wrong_words == [place for place, i in enumerate(kept) if i - 1 != (kept[place - 1] if place else -1)]


def test_numbers_change_in_their_digits_only(corrupted):
    """Every digit of a wrong word is another one, all else stays."""
    for item in of_type(corrupted, "number"):
        for i in item.wrong_words:
            assert re.sub(r"\d", "#", item.after[i]) == re.sub(r"\d", "#", item.before[i])
            assert all(new != old for new, old in zip(item.after[i], item.before[i]) if old.isdigit())


def test_identifiers_are_replaced_by_identifiers(corrupted):
    names = {word for text in CORPUS["target"] for word in text.split() if "_" in word or re.fullmatch(r"v\d+\.50", word)}
    for item in of_type(corrupted, "identifier"):
        assert {item.after[i] for i in item.wrong_words} | {item.before[i] for i in item.wrong_words} <= names


def test_identifiers_change_within_their_punctuation():
    """Else quotes and full stops would give an edit away."""
    words, wrong = corruption.identifier(["call", "`my_name`,", "now"], 1, np.random.default_rng(0), {"identifiers": ["os.path"]})
    assert words == ["call", "`os.path`,", "now"] and wrong == [1]


@pytest.mark.parametrize(
    ("word", "is_name"),
    [("my_name", 1), ("`my_name`,", 1), ("os.path", 1), ("camelCase", 1), ("CamelCase", 1), ("ValueError.", 1), ("word", 0), ("Word", 0)]
    + [("end.", 0), ("NASA", 0), ("3.5", 0), ("(see", 0), ("e.g.", 0), ("(i.e.,", 0), ("e.gold", 1)],
)
def test_what_counts_as_an_identifier(word, is_name):
    assert bool(corruption._IDENTIFIER.match(word)) == bool(is_name)


def test_negation_is_one_word(corrupted):
    """ "not" more behind a verb, which is wrong, or less, and the next word is wrong."""
    changes = set()
    for item in of_type(corrupted, "negation"):
        (i,) = item.wrong_words
        changes.add(len(item.after) - len(item.before))
        if len(item.after) > len(item.before):
            assert item.after[i - 1 : i + 1] == ["is", "not"] and item.after[:i] + item.after[i + 1 :] == item.before
        else:
            assert item.before[i] == "not" and item.before[:i] + item.before[i + 1 :] == item.after
    assert changes == {1, -1}


@pytest.mark.parametrize(("name", "split"), [("other-text", "test"), ("random-words", "train")])
def test_where_new_words_come_from(name, split, corrupted):
    known = {word for text in CORPUS[CORPUS["split"] == split]["target"] for word in text.split()}
    assert all({item.after[i] for i in item.wrong_words} <= known for item in of_type(corrupted, name))


@pytest.mark.parametrize("texts", [1, 5])
def test_corruption_size(texts):
    """At most `texts` items a type, and so many where there is room; originals for all of them, one each."""
    items = corruption.items(CORPUS, texts)
    counts = items["slice"].value_counts()
    assert all(counts[f"type={name}"] == texts for name in corruption.TYPES)
    originals = items[items["slice"] == "type=original"]
    assert originals["group"].is_unique and len(originals) >= texts


def test_corruption_is_decided_by_the_seed():
    first, again, other = (corruption.items(CORPUS, 8, seed=seed) for seed in (0, 0, 1))
    pd.testing.assert_frame_equal(first, again)
    assert not first["output"].equals(other["output"])


@pytest.fixture(scope="module")
def attested() -> pd.DataFrame:
    items = corruption.items(CORPUS, texts=20)
    items = items[items["slice"] == "type=attested"]
    assert items["group"].nunique() == 2  # the two shared prefixes of the corpus
    return items


def test_attested_pairs(attested):
    """For each prefix two right and two wrong continuations, each of four words behind a space."""
    assert (attested.groupby("group")["gold"].agg(list).map(sorted).map(tuple) == (0, 0, 1, 1)).all()
    assert all(output.startswith(" ") and len(output.split()) == 4 for output in attested["output"])
    for prefix, part in attested.groupby("prompt"):
        right, wrong = ({output.split()[0] for output in part[part["gold"] == gold]["output"]} for gold in (1, 0))
        assert len(right) == 2 and not right & wrong and part["group"].unique().tolist() == [f"prefix {prefix}"]


def test_attested_right_ways_occur(attested):
    """In texts of two different groups of the split."""
    texts = CORPUS[CORPUS["split"] == "test"]
    for prefix, part in attested[attested["gold"] == 1].groupby("prompt"):
        sources = [texts[texts["target"].str.startswith(prefix + output)]["group"] for output in part["output"]]
        assert all(len(groups) for groups in sources) and not set(sources[0]) & set(sources[1])


@pytest.mark.parametrize("seed", range(4))
def test_attested_with_near_duplicates(seed):
    """Two texts of one group that go on differently are no two right ways; and no text goes on like a wrong way, not even one of those."""
    ways = {"a b c one x x x": 0, "a b c two x x x": 0, "a b c six x x x": 1, "k l m two x x x": 2, "k l m ten x x x": 3}
    table = pd.DataFrame({"target": list(ways), "group": list(ways.values()), "source": "s", "package": "p", "split": "test"})
    items = corruption.items(pd.concat([table, table.assign(split="train")]), seed=seed).query("slice == 'type=attested'")
    texts = items["prompt"] + items["output"]
    assert sorted(texts[items["gold"] == 1].map(ways)) == [0, 1, 2, 3]
    starts = {" ".join(text.split()[:4]) for text in texts[items["gold"] == 0]}
    assert starts and not {start for start in starts if table["target"].str.startswith(start).any()}


# ---- self-generation -----------------------------------------------------------------------------------------------------------------


def test_self_generation_gold(monkeypatch):
    """1 for the real continuation or its beginning; only the first line counts, and of it no more words than the reference has; one that is
    too short is left out and counted.
    """
    seen = []

    def outputs(_lm, openings, _max_tokens, _seed):
        seen.extend(openings)
        rest = [CORPUS[CORPUS["source"] == opening.split("\n")[0]]["target"].iloc[0].split()[4:] for opening in openings]
        texts = [" ".join(words) for words in rest]
        return [[f" {text}", f" {text} and more\nmore", " \nmore", f" {' '.join(text.split()[:5])}"][i % 4] for i, text in enumerate(texts)]

    monkeypatch.setattr(self_generation, "sample", outputs)
    items = self_generation.items(None, CORPUS, texts=5, samples=4)
    assert items.attrs["short"] == 5 and len(items) == 15 and not items["output"].str.contains("\n| and more").any()
    assert items["gold"].to_numpy() == pytest.approx(1) and items["output"].str.startswith(" ").all()
    texts = CORPUS.set_index(CORPUS["group"].astype(str))
    for item in items.itertuples():
        assert item.prompt == f"{texts.loc[item.group, 'source']}\n{' '.join(texts.loc[item.group, 'target'].split()[:4])}"
    assert len(seen) == 20 and len(set(seen)) == 5


def test_sampling_in_a_batch_is_sampling_alone():
    """With a distribution so sharp that chance has no say, padding to the longest prompt of a batch changes nothing."""
    lm = language_model()
    with torch.no_grad():
        lm.unembedding.mul_(1e4)
    prompts = ["the cat", "the value of 1 2 3 is the number of items", "a"]
    together = self_generation.sample(lm, prompts, 6, 0)
    assert together == [self_generation.sample(lm, [prompt], 6, 0)[0] for prompt in prompts] and all(together)


def test_sampling_is_from_the_whole_distribution():
    """Whatever the model's own generation settings say; the seed decides, and the global generator is left as it was."""
    lm = language_model()
    lm.model.generation_config.update(top_k=1, temperature=0.01)
    prompts = ["the cat"] * 20 + ["the value of 1 2 3"] * 20
    before = torch.get_rng_state()
    first, again, other = (self_generation.sample(lm, prompts, 5, seed) for seed in (0, 0, 1))
    assert torch.equal(torch.get_rng_state(), before)
    assert first == again != other and len(set(first)) > 20


# ---- a user's own items --------------------------------------------------------------------------------------------------------------

GOOD = {"prompt": "a", "output": "b"}


def read(tmp_path, *lines: str | dict) -> pd.DataFrame:
    file = tmp_path / "mine.jsonl"
    file.write_text("\n".join(line if isinstance(line, str) else json.dumps(line, ensure_ascii=False) for line in lines), encoding="utf-8")
    return user.items(file)


def test_user_items(tmp_path):
    """Empty lines do not count; what is missing gets its default."""
    given = {"prompt": "p", "output": "o", "gold": 1, "group": 7, "slice": "hard", "kiwi": 0.5, "other": -3}
    table = read(tmp_path, given, "", given | {"gold": 0.25, "kiwi": 1})
    assert list(table)[: len(ITEM)] == ITEM and table.attrs["scores"] == ["kiwi", "other"]
    assert table["id"].tolist() == [0, 1] and table["group"].tolist() == ["7", "7"] and table["slice"].tolist() == ["hard", "hard"]
    assert table["gold"].tolist() == [1, 0.25] and table["kiwi"].tolist() == [0.5, 1] and table["other"].tolist() == [-3, -3]
    plain = read(tmp_path, GOOD, GOOD)
    assert plain["gold"].isna().all() and plain["group"].is_unique and set(plain["slice"]) == {"all"} and plain.attrs["scores"] == []


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('{"prompt": "a", "output": ', "not JSON"),
        ('["a", "b"]', "expected an object"),
        ({"output": "b"}, "'prompt' is missing or not a text"),
        ({"prompt": "a"}, "'output' is missing or not a text"),
        ({"prompt": 1, "output": "b"}, "'prompt' is missing or not a text"),
        ({"prompt": "a", "output": ["b"]}, "'output' is missing or not a text"),
        ({"prompt": "a", "output": " \n"}, "the output is empty"),
        (GOOD | {"gold": "good"}, "'gold' must be a finite number, not 'good'"),
        (GOOD | {"gold": None}, "'gold' must be a finite number, not None"),
        (GOOD | {"gold": float("nan")}, "'gold' must be a finite number, not nan"),
        ('{"prompt": "a", "output": "b", "gold": 1e999}', "'gold' must be a finite number, not inf"),
        (GOOD | {"gold": True}, "'gold' must be a finite number, not True"),
        (GOOD | {"kiwi": float("inf")}, "'kiwi' must be a finite number, not inf"),
        (GOOD | {"kiwi": 0.5}, r"score columns \['kiwi'\], but the lines above have \[\]"),
    ],
    ids=str,
)
def test_user_refuses_a_bad_line(line, message, tmp_path):
    """And names it: here the third, behind a good and an empty one."""
    with pytest.raises(ValueError, match=rf"mine.jsonl, line 3: .*{message}"):
        read(tmp_path, GOOD, "", line)


def test_user_lacks_a_score_column(tmp_path):
    with pytest.raises(ValueError, match=r"line 2: score columns \[\], but the lines above have \['kiwi'\]"):
        read(tmp_path, GOOD | {"kiwi": 1}, GOOD)


@pytest.mark.parametrize("content", ["", "\n \n"])
def test_user_file_without_items(content, tmp_path):
    with pytest.raises(ValueError, match="mine.jsonl holds no items"):
        read(tmp_path, content)


def test_user_file_missing(tmp_path):
    with pytest.raises(FileNotFoundError, match="no file .*gone.jsonl: give a JSONL file"):
        user.items(tmp_path / "gone.jsonl")


@pytest.mark.parametrize("separator", ["\u2028", "\x85"], ids=["line separator", "next line"])
def test_user_texts_may_hold_any_character(separator, tmp_path):
    """JSON allows Unicode line separators inside a text: they end no line of the file."""
    assert read(tmp_path, {"prompt": "a", "output": f"b{separator}c"})["output"].tolist() == [f"b{separator}c"]
