"""Items made of benchmarks, on made-up rows: what is prompt, output, gold and group; odd characters
survive, and a limit takes whole groups.
"""

import re

import numpy as np
import pandas as pd
import pytest

from lib.corpora import pairs
from lib.tasks import benchmark_items
from lib.tasks.benchmark_items import changed_solutions, correct, other_number, own_answers
from lib.tasks.own_items import ITEM

RATED = pd.DataFrame(
    [
        ('say "hi"', 'sag\u2028"hallo"', -0.5, -0.2),
        ("", "NA", 0.1, -0.3),
        ('say "hi"', "sag  doch „grüß Gott“ ", 0.75, -0.4),
    ],
    columns=["source", "translation", "z_mean", "model_score"],
).assign(pair="en-de")
MARKED = pd.DataFrame({"source": ['the "cat"', "NA"], "translation": ['die "Kätze"', "NA"]})
MARKED = MARKED.assign(pair="en-de", tags=[["OK", "BAD"], ["OK"]])
SENTENCES = pd.DataFrame(
    {"sentence": ['He said "hi".', "Łódź\tis. ", "null", 'He said "hi".'], "label": [1, 0, 1, 1]}
)
PAIRED = [
    ('A "b" c', "A c", 0),
    ("x ,\ty", "y , x", 1),
    ("z", "A c", 1),
    ("NA", "NA", 1),
    ("q", "z", 0),
]
PAIRED = pd.DataFrame(PAIRED, columns=["sentence1", "sentence2", "label"])
CATS = "Two and one is 2+1=<<2+1=3>>3 cats.\n\nThey have 4*3=<<4*3=12>>12 legs,\nso 12 „in“ all"
COST = "He pays 4*$5 = $<<4*5=20.00>>20.00\nThat is <<20-7=13>>13 more  than 7"
WHICH = "He is <<5+1=6>>6th of <<8/2=4>>4\nA part of <<3/4=3/4>>3/4 of <<2-1=1>>1"
NONE = "Say <<2-2=0>>0 or 10-5=<<10-5=5>>5"
SOLUTIONS = {"Cats?\n": f"{CATS}\n#### 12", "How much?": f"{COST}\n#### 1,250"}
SOLUTIONS |= {"Which one?": f"{WHICH}\n#### 4", "None?": f"{NONE}\n#### 0"}
FIRST, SECOND, THIRD, FOURTH = (
    "Two and one is 2+1=3 cats.\n\nThey have 4*3=12 legs,\nso 12 „in“ all\nThe answer is 12.",
    "He pays 4*$5 = $20.00\nThat is 13 more  than 7\nThe answer is 1,250.",
    "He is 6th of 4\nA part of 3/4 of 1\nThe answer is 4.",
    "Say 0 or 10-5=5\nThe answer is 0.",
)


def problems(solutions: dict[str, str] = SOLUTIONS) -> pd.DataFrame:
    return pd.DataFrame({"question": solutions.keys(), "answer": solutions.values()})


MAKERS = {  # how items are made with a limit, and how many groups the rows have
    "ratings": (lambda limit: benchmark_items.rated_translations(RATED, False, limit), 2),
    "encoder": (lambda limit: benchmark_items.rated_translations(RATED, True, limit), 2),
    "marked": (lambda limit: benchmark_items.marked_words(MARKED, False, limit), 2),
    "paraphrases": (lambda limit: benchmark_items.paraphrases(PAIRED, limit), 3),
    "acceptability": (lambda limit: benchmark_items.acceptability(SENTENCES, limit), 3),
    "arithmetic": (lambda limit: changed_solutions(problems(), limit), 4),
}


@pytest.mark.parametrize("name", MAKERS)
def test_limit(name):
    """So many whole groups, always the same; items are numbered from 0, no text is outside prompt
    and output, and no output begins or ends with a space.
    """
    make, groups = MAKERS[name]
    whole, some = make(None), make(groups - 1)
    assert list(whole)[: len(ITEM)] == ITEM and whole["group"].nunique() == groups
    pd.testing.assert_frame_equal(make(99), whole)
    assert some["id"].tolist() == list(range(len(some))) and some["group"].nunique() == groups - 1
    kept = whole[whole["group"].isin(some["group"])].drop(columns="id").reset_index(drop=True)
    pd.testing.assert_frame_equal(some.drop(columns="id"), kept)
    assert whole["group"].str.fullmatch(r"\d+").all()
    assert (whole["output"] == whole["output"].str.strip()).all()


def test_rated_translations():
    items = benchmark_items.rated_translations(RATED, False)
    assert items["with_source"].tolist() == [False] * 3 + [True] * 3
    assert items["output"].tolist() == ['sag\u2028"hallo"', "NA", "sag  doch „grüß Gott“"] * 2
    assert (
        items["gold"].tolist() == [-0.5, 0.1, 0.75] * 2
        and items["group"].tolist() == list("010") * 2
    )
    assert items["nmt-logprob"].tolist() == [-0.2, -0.3, -0.4] * 2
    asked = [pairs.translation(source, "en-de") for source in RATED["source"]]
    assert items["prompt"].tolist() == [""] * 3 + asked


def test_an_encoder_reads_the_bare_source():
    """All else is as with the source."""
    with_source = benchmark_items.rated_translations(RATED, False).query("with_source")
    bare = benchmark_items.rated_translations(RATED, True)
    assert bare["prompt"].tolist() == RATED["source"].tolist()
    same = with_source.reset_index(drop=True).drop(columns=["id", "prompt"])
    pd.testing.assert_frame_equal(bare.drop(columns=["id", "prompt"]), same)


def test_marked_words():
    items = benchmark_items.marked_words(MARKED, False)
    assert items["output"].tolist() == ['die "Kätze"', "NA"] * 2
    assert items["wrong_words"].tolist() == [[1], []] * 2 and items["gold"].tolist() == [0.5, 1] * 2


def test_paraphrases():
    """Pairs that share a sentence, on whichever side, directly or not, are one group."""
    items = benchmark_items.paraphrases(PAIRED)
    assert items["output"].tolist() == ["A c", "y , x", "A c", "NA", "z"]
    assert items["gold"].tolist() == [0, 1, 1, 1, 0] and items["group"].tolist() == list("01020")
    assert items["prompt"].tolist() == [pairs.paraphrase(text) for text in PAIRED["sentence1"]]


def test_paraphrases_share_nothing_with_another_split():
    """Directly or through other pairs, of either table; what is left stays in its order."""
    columns = ["sentence1", "sentence2"]
    table = pd.DataFrame(["ab", "bc", "de", "fg", "hi"]).apply(lambda row: list(row[0]), axis=1)
    table = pd.DataFrame(table.tolist(), columns=columns).assign(label=1)
    other = pd.DataFrame([("c", "x"), ("y", "g"), ("y", "z")], columns=columns)
    items = benchmark_items.paraphrases(table, None, other)
    assert items["output"].tolist() == ["e", "i"]


def test_acceptability():
    items = benchmark_items.acceptability(SENTENCES)
    assert items["output"].tolist() == ['He said "hi".', "Łódź\tis.", "null", 'He said "hi".']
    assert items["gold"].tolist() == [1, 0, 1, 1] and items["group"].tolist() == list("0120")
    assert set(items["prompt"]) == {""}
    with pytest.raises(ValueError, match="row 2: sentence is empty"):
        benchmark_items.acceptability(SENTENCES.assign(sentence=["a", "\t ", "b", "c"]))


# ---- arithmetic -------------------------------------------------------------------------------


def test_solutions():
    """The reference without annotations, and one changed; where nothing can be, neither."""
    items = changed_solutions(problems())
    assert set(items[items["gold"] == 1]["output"]) == {FIRST, SECOND, THIRD, FOURTH}
    assert items["prompt"][0] == pairs.word_problem("Cats?\n")
    there = [(0, "answer"), (0, "step"), (1, "answer"), (1, "step"), (2, "answer"), (3, "step")]
    golds = items.groupby(["text", "changed"])["gold"].agg(list)
    assert golds.index.tolist() == there and golds.map(lambda gold: gold == [1, 0]).all()
    assert items["group"].tolist() == items["text"].astype(str).tolist()


@pytest.mark.parametrize("seed", range(6))
def test_one_number_is_changed(seed):
    """In the word that counts as wrong, in its digits only: the final number, or the result of a
    step that is another one; not a part of "6th" or "3/4", and neither 0 nor 1.
    """
    items = changed_solutions(problems(), seed=seed)
    changed, originals = (items[items["gold"] == gold] for gold in (0, 1))
    assert (originals["wrong_words"].str.len() == 0).all()
    free = {FIRST: ["2+1=3"], SECOND: ["$20.00\nThat", "13"], FOURTH: ["10-5=5\nThe"]}
    for before, after in zip(originals.itertuples(), changed.itertuples(), strict=True):
        words = list(zip(before.output.split(" "), after.output.split(" "), strict=True))
        (place,) = [i for i, (a, b) in enumerate(words) if a != b]
        a, b = words[place]
        assert after.wrong_words == [place] and before.changed == after.changed
        assert re.sub(r"\d", "#", a) == re.sub(r"\d", "#", b)
        assert place == len(words) - 1 if before.changed == "answer" else a in free[before.output]


def test_changes_differ():
    """By the seed, and by the problem, also where solutions are the same."""
    same = problems({f"Case {i}?": SOLUTIONS["How much?"] for i in range(12)})
    first, other = (changed_solutions(same, seed=seed).query("gold == 0") for seed in (0, 1))
    for _, part in first.groupby("changed"):
        assert part["output"].nunique() > 4
    assert first["output"].tolist() != other["output"].tolist()


ALIKE = {"7": "[2-9]", "24": "[1-9][1-9]", "20": "[1-9]0", "305": r"[1-9]\d[1-9]", "-30": "-[1-9]0"}
ALIKE |= {"1,200": "[1-9],[1-9]00", "10,500": r"[1-9]\d,[1-9]00", "1.5": r"[1-9]\.[1-9]"}
ALIKE |= {
    "16.00": r"[1-9][1-9]\.00",
    "0.05": r"0\.0[1-9]",
    ".2": r"\.[1-9]",
    "2.50": r"[1-9]\.[1-9]0",
}


@pytest.mark.parametrize("number", ALIKE)
def test_another_number_looks_alike(number):
    """Never the same, never 1, and not always the same other one."""
    others = {other_number(number, np.random.default_rng(seed)) for seed in range(100)}
    assert all(re.fullmatch(ALIKE[number], new) for new in others)
    assert not {number, "1"} & others and len(others) > 5


@pytest.mark.parametrize(
    ("answer", "reference", "same"),
    [
        ("So she pays $1,200.00 in all.", "1200", True),
        ("It was 20-5, that is 15", "15", True),
        ("minus: -7", "-7", True),
        ("-$7.50", "-7.5", True),
        ("6 or 7", "6", False),
        ("none", "6", False),
    ],
)
def test_what_is_a_right_answer(answer, reference, same):
    assert correct(answer, reference) is same


class Answering:
    """In place of a language model: says the same to every prompt, sampled or not."""

    has_turns, tokenizer = False, None

    def continuations(self, prompts, max_tokens, seed, greedy=False):
        assert max_tokens == benchmark_items.MAX_TOKENS
        return [
            "It is 12" if greedy else ["It is 1250.0", " ", "4"][i % 3] for i in range(len(prompts))
        ]


def test_own_answers():
    """One likeliest answer a problem and some samples; those without text are left out."""
    items = own_answers(Answering(), problems(), None, samples=3)
    assert items["decoding"].tolist() == ["greedy"] * 4 + ["sample"] * 8
    assert items["gold"].tolist() == [1, 0, 0, 0] + [0, 0, 1, 0, 0, 1, 0, 0]
    assert items["group"].tolist() == list("0123") + list("00112233")
