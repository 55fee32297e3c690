"""Items made from benchmarks, on made-up rows: what is prompt, output, gold and group; odd characters survive, a damaged row is named."""

import os
import re
from decimal import Decimal
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
import torch
from helpers import encoder_decoder, language_model
from mirrors import HEADER, corrections, expert_files, ratings, use_archive, use_expert_files, use_rows
from transformers import AutoTokenizer

from old import paths
from old.corpora import benchmarks, instructions, wording
from old.quality.language_models import SMOLLM2
from old.quality.tasks import ITEM, acceptability, arithmetic, human_judgements, paraphrase, self_generation, word_errors
from old.small_bart import train_tokenizer

needs_real_files = pytest.mark.skipif(not os.environ.get("STUDY_DATA"), reason="STUDY_DATA names no local mirror")

# ---- made-up rows ----------------------------------------------------------------------------------------------------------------------

RATED = [  # source, translation, z_mean, model_score
    ('say "hi"', 'sag\u2028"hallo"', "-0.5", "-0.2"),
    ("", "NA", "1e-1", "-0.3"),
    ('say "hi"', "sag  doch „grüß Gott“ ", "0.75", "-0.4"),
]
PAIRS = [  # sentence1, sentence2, label
    ('A "b" c', "A c", 0),
    ("x ,\ty", "y , x", 1),
    ("z", "A c", 1),
    ("NA", "NA", 1),
    ("q", "z", 0),
]
SENTENCES = [('He said "hi".', 1), ("Łódź\tis.", 0), ("null", 1), ('He said "hi".', 1)]
SOLUTIONS = {
    "Cats?\n": "Two and one is 2+1=<<2+1=3>>3 cats.\n\nThey have 4*3=<<4*3=12>>12 legs,\nso 12 „in“ all\n#### 12",
    "How much?": "He pays 4*$5 = $<<4*5=20.00>>20.00\nThat is <<20-7=13>>13 more  than 7\n#### 1,250",
    "Which one?": "He is <<5+1=6>>6th of <<8/2=4>>4\nA part of <<3/4=3/4>>3/4 of <<2-1=1>>1\n#### 4",
    "None?": "Say <<2-2=0>>0 or 10-5=<<10-5=5>>5\n#### 0",
}


def use_rated(monkeypatch, mirror, rows: list[tuple[str, str, str, str]] = RATED) -> None:
    lines = [f"{number}\t{a}\t{b}\t[1]\t1.0\t[0]\t{z}\t{score}\n" for number, (a, b, z, score) in enumerate(rows)]
    one_token_each = {"tokens": "a\n" * len(rows), "logprobs": "-1 -1\n" * len(rows)}
    use_archive(monkeypatch, mirror, "mlqe-pe-en-de", ratings(table="".join([f"{HEADER}\n", *lines]), **one_token_each), len(rows))


def use_corrected(monkeypatch, mirror, **changed: str) -> None:
    use_archive(monkeypatch, mirror, "mlqe-pe-tags-en-de", corrections(**({"mt": 'NA x\n"Kätze"\n'} | changed)))


def use_pairs(monkeypatch, mirror, pairs: list[tuple[str, str, int]] = PAIRS) -> None:
    rows = [{"id": i, "sentence1": a, "sentence2": b, "label": label} for i, (a, b, label) in enumerate(pairs)]
    use_rows(monkeypatch, mirror, "paws-x-en", "test", rows)


def use_sentences(monkeypatch, mirror, sentences: list[tuple[str, int]] = SENTENCES) -> None:
    rows = [{"sentence": text, "label": label, "idx": i} for i, (text, label) in enumerate(sentences)]
    use_rows(monkeypatch, mirror, "cola", "validation", rows)


def use_problems(monkeypatch, mirror, solutions: dict[str, str] = SOLUTIONS, split: str = "test") -> None:
    use_rows(monkeypatch, mirror, "gsm8k", split, [{"question": a, "answer": b} for a, b in solutions.items()])


def use_everything(monkeypatch, mirror) -> None:
    for use in (use_rated, use_corrected, use_pairs, use_sentences, use_problems):
        use(monkeypatch, mirror)
    use_expert_files(monkeypatch, expert_files(mirror / "github"))


TASKS = {  # how items are made with a limit, and how many groups the made-up rows have
    "human judgements": (lambda limit: human_judgements.items("en-de", limit=limit), 2),
    "for an encoder": (lambda limit: human_judgements.items("en-de", True, limit), 2),
    "marked words": (lambda limit: word_errors.items("hjqe-en-de", limit=limit), 2),
    "post-edits": (lambda limit: word_errors.items("mlqe-pe-tags-en-de", limit=limit), 2),
    "paraphrase": (lambda limit: paraphrase.items("test", limit), 3),
    "arithmetic": (lambda limit: arithmetic.items(limit=limit), 4),
    "acceptability": (acceptability.items, 3),
}


@pytest.mark.parametrize("name", TASKS)
def test_limit(name, mirror, monkeypatch):
    """That many whole groups, the same ones every time; a larger limit than there are groups is none; items are numbered from 0."""
    use_everything(monkeypatch, mirror)
    make, groups = TASKS[name]
    whole = make(None)
    assert list(whole)[: len(ITEM)] == ITEM and whole["group"].nunique() == groups
    for same in (make(None), make(groups), make(99)):
        pd.testing.assert_frame_equal(same, whole)
    some = make(groups - 1)
    pd.testing.assert_frame_equal(make(groups - 1), some)
    assert some["id"].tolist() == some.index.tolist() == list(range(len(some)))
    kept = whole[whole["group"].isin(some["group"])].drop(columns="id").reset_index(drop=True)
    pd.testing.assert_frame_equal(some.drop(columns="id"), kept)
    assert 0 < some["group"].nunique() < groups
    for wrong in (0, -1):
        with pytest.raises(ValueError, match=f"limit must be at least 1, not {wrong}"):
            make(wrong)


@pytest.mark.parametrize("name", TASKS)
def test_nothing_of_the_data_outside_prompt_and_output(name, mirror, monkeypatch):
    """Groups are numbers: what is stored of an item holds no third-party text. No output begins or ends with a space."""
    use_everything(monkeypatch, mirror)
    items = TASKS[name][0](None)
    assert items["group"].str.fullmatch(r"\d+").all()
    others = items.drop(columns=["id", "group", "slice", "prompt", "output", "wrong_words"], errors="ignore")
    assert all(pd.api.types.is_numeric_dtype(others[column]) for column in others)
    assert (items["output"] == items["output"].str.strip()).all() and (items["output"] != "").all()


# ---- human judgements ------------------------------------------------------------------------------------------------------------------


def test_human_judgements(mirror, monkeypatch):
    use_rated(monkeypatch, mirror)
    items = human_judgements.items("en-de")
    assert items.attrs["scores"] == ["nmt-logprob"] and set(items) == {*ITEM, "nmt-logprob"}
    assert items["slice"].tolist() == ["prompt=none"] * 3 + ["prompt=source"] * 3
    assert items["output"].tolist() == ['sag\u2028"hallo"', "NA", "sag  doch „grüß Gott“"] * 2
    assert items["gold"].tolist() == [-0.5, 0.1, 0.75] * 2 and items["nmt-logprob"].tolist() == [-0.2, -0.3, -0.4] * 2
    assert items["group"].tolist() == ["0", "1", "0"] * 2
    assert items["prompt"].tolist()[:4] == [""] * 3 + ['Translate from English to German.\nEnglish: say "hi"\nGerman:\n']
    assert items["prompt"][4] == "Translate from English to German.\nEnglish: \nGerman:\n"


def test_human_judgements_for_an_encoder(mirror, monkeypatch):
    """It reads the bare source; all else is as in the slice with the source."""
    use_rated(monkeypatch, mirror)
    with_source = human_judgements.items("en-de").query("slice == 'prompt=source'").reset_index(drop=True)
    bare = human_judgements.items("en-de", encoder=True)
    assert bare["prompt"].tolist() == ['say "hi"', "", 'say "hi"']
    pd.testing.assert_frame_equal(bare.drop(columns=["id", "prompt"]), with_source.drop(columns=["id", "prompt"]))


@pytest.mark.parametrize(("pair", "languages"), [("en-de", "English German"), ("ro-en", "Romanian English"), ("ru-en", "Russian English")])
def test_prompt_of_a_translation(pair, languages):
    """Names both languages in their direction and ends with a new line."""
    before, after = languages.split()
    assert wording.translation("x: y", pair) == f"Translate from {before} to {after}.\n{before}: x: y\n{after}:\n"


def test_a_translation_without_text(mirror, monkeypatch):
    use_rated(monkeypatch, mirror, [RATED[0], ("b", " ", "0", "-1")])
    with pytest.raises(ValueError, match="mlqe-pe-en-de, row 2: translation is empty"):
        human_judgements.items("en-de", limit=1)


# ---- word errors -----------------------------------------------------------------------------------------------------------------------


def test_marked_words(mirror, monkeypatch):
    use_expert_files(monkeypatch, expert_files(mirror / "github"))
    items = word_errors.items("hjqe-en-de")
    assert items["output"].tolist() == ['die "Kätze"', "NA"] * 2 and items["wrong_words"].tolist() == [[1], []] * 2
    assert items["gold"].tolist() == [0.5, 1] * 2 and items["slice"].tolist() == ["prompt=none"] * 2 + ["prompt=source"] * 2
    assert items["prompt"].tolist() == ["", "", wording.translation('the "cat"', "en-de"), wording.translation("NA", "en-de")]
    assert word_errors.items("hjqe-en-de", encoder=True)["prompt"].tolist() == ['the "cat"', "NA"]


def test_corrected_words(mirror, monkeypatch):
    use_corrected(monkeypatch, mirror)
    items = word_errors.items("mlqe-pe-tags-en-de")
    assert items["output"].tolist() == ["NA x", '"Kätze"'] * 2 and items["wrong_words"].tolist() == [[1], [0]] * 2
    assert items["gold"].tolist() == [0.5, 0] * 2


@pytest.mark.parametrize(("mt", "tags"), [("NA x\n\n", "OK OK OK OK OK\nOK OK OK\n"), ("NA x\n y\n", "OK OK OK OK OK\nOK OK OK OK OK\n")])
def test_an_empty_word(mt, tags, mirror, monkeypatch):
    use_corrected(monkeypatch, mirror, mt=mt, tags=tags)
    with pytest.raises(ValueError, match="mlqe-pe-tags-en-de, row 2: the translation .* has an empty word"):
        word_errors.items("mlqe-pe-tags-en-de", limit=1)


def test_unknown_words():
    with pytest.raises(ValueError, match="'mlqe-pe-ru-en': choose from hjqe-en-de, mlqe-pe-tags-en-de, mlqe-pe-tags-ro-en"):
        word_errors.items("mlqe-pe-ru-en")


GERMAN = 'Die Bäume , größer als „ 3,5 Häuser “ , stürzten ( um ) : "ßü" € 中文 a\u2028b c\u00a0d .'


@pytest.fixture(scope="module")
def byte_level():
    """A byte-level tokenizer that knows a few words: elsewhere the space before a word is a token of its own, and an umlaut is two."""
    return train_tokenizer(["Die Bäume sind größer als Häuser .", "a , b"] * 3, 300)


@pytest.mark.parametrize("output", [GERMAN, "x", ".", "ß", *GERMAN.split(" ")[::3], "Bäume " * 5 + "um", '" „ “ "'])
def test_words_are_their_tokens(output, byte_level):
    """The tokens of a word spell it, and nothing else; every token belongs to one."""
    numbers = word_errors.word_numbers(byte_level, output)
    ids = np.array(byte_level(output, add_special_tokens=False)["input_ids"])
    assert len(numbers) == len(ids)
    assert [byte_level.decode(ids[numbers == place]).strip(" ") for place in range(numbers[-1] + 1)] == output.split(" ")
    assert (np.diff(numbers) >= 0).all()


def test_word_numbers_are_of_the_tokens_that_are_scored(byte_level):
    """As many as LanguageModel.encode makes, for both kinds of models."""
    for lm in (language_model(), encoder_decoder()):
        (text,) = lm.encode(["the mat"], ["the cat ist größer ."])
        numbers = word_errors.word_numbers(lm.tokenizer, "the cat ist größer .")
        assert len(numbers) == len(text.output) and sorted(set(numbers)) == [0, 1, 2, 3, 4]


def spans(*given: tuple[int, int]):
    """In place of a tokenizer: these places of tokens, whatever the text."""
    return lambda **options: {"offset_mapping": given}


@pytest.mark.parametrize(
    ("given", "numbers"),
    [
        ([(0, 2), (2, 4), (4, 6)], [0, 1, 2]),  # "ab", " c", " d"
        ([(0, 2), (2, 3), (3, 4), (4, 5), (5, 6)], [0, 1, 1, 2, 2]),  # spaces alone
        ([(0, 0), (0, 1), (1, 2), (3, 3), (3, 4), (5, 5), (5, 6)], [0, 0, 0, 1, 1, 2, 2]),  # spaces alone, whose places are cut off
        ([(0, 3), (3, 5), (5, 6)], [0, 1, 2]),  # "ab ", "c ", "d": a space behind its word
        ([(0, 1), (1, 2), (1, 2), (1, 2), (2, 4), (4, 6)], [0, 0, 0, 0, 1, 2]),  # one character, three tokens
    ],
)
def test_where_tokens_belong(given, numbers):
    assert word_errors.word_numbers(spans(*given), "ab c d").tolist() == numbers


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ([(0, 4), (4, 6)], "no token begins in word 1 of 'ab c d'"),
        ([(0, 2), (2, 4)], "no token begins in word 2"),
        ([(2, 4), (4, 6)], "no token begins in word 0"),
        ([(0, 2), (2, 4), (4, 6), (6, 6)], "a token begins behind the last word"),
    ],
)
def test_words_without_tokens(given, message):
    with pytest.raises(ValueError, match=message):
        word_errors.word_numbers(spans(*given), "ab c d")


@pytest.mark.parametrize("output", ["", " a", "a ", "a  b"])
def test_word_numbers_of_empty_words(output, byte_level):
    with pytest.raises(ValueError, match="single spaces"):
        word_errors.word_numbers(byte_level, output)


@pytest.mark.skipif(not list((paths.CACHE / "models").glob(f"{SMOLLM2}-*")), reason="the cache holds no SmolLM2")
def test_word_numbers_of_smollm2():
    """By hand: Die| B ä ume| ,| gr ö ß er| al s| „|   3 , 5| H ä user| “| .| (a token that is the space before a number alone)."""
    tokenizer = AutoTokenizer.from_pretrained(next((paths.CACHE / "models").glob(f"{SMOLLM2}-*")))
    numbers = word_errors.word_numbers(tokenizer, "Die Bäume , größer als „ 3,5 Häuser “ .")
    assert numbers.tolist() == [0, *[1] * 3, 2, *[3] * 4, *[4] * 2, 5, *[6] * 4, *[7] * 3, 8, 9]


# ---- paraphrase and acceptability ------------------------------------------------------------------------------------------------------


def test_paraphrase(mirror, monkeypatch):
    """Pairs that share a sentence, on whichever side, directly or not, are one group."""
    use_pairs(monkeypatch, mirror)
    items = paraphrase.items("test")
    assert items["output"].tolist() == ["A c", "y , x", "A c", "NA", "z"] and items["gold"].tolist() == [0, 1, 1, 1, 0]
    assert items["prompt"][0] == 'Say the same in other words.\nSentence: A "b" c\nParaphrase:\n'
    assert all(text in prompt for (text, _, _), prompt in zip(PAIRS, items["prompt"])) and set(items["slice"]) == {"all"}
    group = items["group"].tolist()
    assert group[0] == group[2] == group[4] and len({group[0], group[1], group[3]}) == 3


def test_validation_pairs_share_nothing_with_test():
    """Directly or through other pairs, of either table; what is left stays in its order."""
    table = pd.DataFrame([("a", "b"), ("b", "c"), ("d", "e"), ("f", "g"), ("h", "i")], columns=["sentence1", "sentence2"])
    other = pd.DataFrame([("c", "x"), ("y", "g"), ("y", "z")], columns=["sentence1", "sentence2"])
    assert paraphrase.apart(table, other)["sentence1"].tolist() == ["d", "h"]
    assert paraphrase.apart(other, table).to_numpy().tolist() == []


def test_chains_do_not_depend_on_sides_or_order():
    rng = np.random.default_rng(0)
    first, second = (pd.Series(rng.integers(0, 40, 30).astype(str)) for _ in range(2))
    group = paraphrase.chains(first, second)
    same = group[:, None] == group
    np.testing.assert_array_equal(paraphrase.chains(second, first)[:, None] == paraphrase.chains(second, first), same)
    shared = np.array([[bool({a, b} & {c, d}) for c, d in zip(first, second)] for a, b in zip(first, second)])
    reached = np.linalg.matrix_power(shared.astype(float), 30) > 0
    np.testing.assert_array_equal(same, reached)
    assert 1 < len(set(group)) < 30 and (same != shared).any()


def test_acceptability(mirror, monkeypatch):
    use_sentences(monkeypatch, mirror)
    items = acceptability.items()
    assert items["output"].tolist() == [text for text, _ in SENTENCES] and items["gold"].tolist() == [1, 0, 1, 1]
    assert set(items["prompt"]) == {""} and set(items["slice"]) == {"all"} and items["group"].tolist() == ["0", "1", "2", "0"]


def test_a_sentence_without_text(mirror, monkeypatch):
    use_sentences(monkeypatch, mirror, [*SENTENCES, ("\t ", 1)])
    use_pairs(monkeypatch, mirror, [*PAIRS, ("a", "", 1)])
    with pytest.raises(ValueError, match="cola, row 5: sentence is empty"):
        acceptability.items()
    with pytest.raises(ValueError, match="paws-x-en test, row 6: sentence2 is empty"):
        paraphrase.items("test")


# ---- arithmetic ------------------------------------------------------------------------------------------------------------------------

FIRST, SECOND, THIRD, FOURTH = (
    "Two and one is 2+1=3 cats.\n\nThey have 4*3=12 legs,\nso 12 „in“ all\nThe answer is 12.",
    "He pays 4*$5 = $20.00\nThat is 13 more  than 7\nThe answer is 1,250.",
    "He is 6th of 4\nA part of 3/4 of 1\nThe answer is 4.",
    "Say 0 or 10-5=5\nThe answer is 0.",
)


@pytest.fixture
def problems(mirror, monkeypatch) -> pd.DataFrame:
    use_problems(monkeypatch, mirror)
    return arithmetic.items()


def test_solutions(problems):
    """The reference without annotations; of a problem and slice one original and one changed, or neither, which is counted."""
    assert set(problems[problems["gold"] == 1]["output"]) == {FIRST, SECOND, THIRD, FOURTH}
    assert problems["prompt"][0] == "Solve the problem step by step.\nProblem: Cats?\n\nSolution:\n"
    assert problems.groupby(["text", "slice"])["gold"].agg(list).map(tuple).to_dict() == {
        (0, "changed=answer"): (1, 0),
        (0, "changed=step"): (1, 0),
        (1, "changed=answer"): (1, 0),
        (1, "changed=step"): (1, 0),
        (2, "changed=answer"): (1, 0),
        (3, "changed=step"): (1, 0),
    }
    assert problems.attrs["unchangeable"] == {"changed=step": 1, "changed=answer": 1}
    assert problems["group"].tolist() == problems["text"].astype(str).tolist()


@pytest.mark.parametrize("seed", range(8))
def test_one_number_is_changed(seed, mirror, monkeypatch):
    """In the word that counts as wrong, in its digits only; the final number in one slice, the result of a step that is another number in
    the other; not a part of "6th" or "3/4", and neither 0 nor 1.
    """
    use_problems(monkeypatch, mirror)
    items = arithmetic.items(seed=seed)
    changed, originals = (items[items["gold"] == gold].reset_index(drop=True) for gold in (0, 1))
    assert (originals["wrong_words"].str.len() == 0).all()
    free = {FIRST: ["2+1=3"], SECOND: ["$20.00\nThat", "13"], FOURTH: ["10-5=5\nThe"]}
    for before, after in zip(originals.itertuples(), changed.itertuples(), strict=True):
        old, new = before.output.split(" "), after.output.split(" ")
        ((place, a, b),) = [(i, a, b) for i, (a, b) in enumerate(zip(old, new, strict=True)) if a != b]
        assert after.wrong_words == [place] and before.slice == after.slice and before.text == after.text
        assert re.sub(r"\d", "#", a) == re.sub(r"\d", "#", b)
        if before.slice == "changed=answer":
            assert place == len(old) - 1
        else:
            assert a in free[before.output]


def test_changes_differ(mirror, monkeypatch):
    """By the seed, and by the problem, also where solutions are the same; every result of a solution is changed at times."""
    use_problems(monkeypatch, mirror, {f"Case {i}?": SOLUTIONS["How much?"] for i in range(12)})
    seeds = [arithmetic.items(seed=seed).query("gold == 0") for seed in (0, 1)]
    for name in arithmetic.SLICES:
        first, other = (items[items["slice"] == name] for items in seeds)
        assert first["output"].nunique() > 4 and first["output"].tolist() != other["output"].tolist()
        assert {words[0] for words in first["wrong_words"]} == ({4, 6} if name == "changed=step" else {first["output"].iloc[0].count(" ")})


@pytest.mark.parametrize(
    ("number", "pattern"),
    [
        ("7", "[2-9]"),
        ("24", "[1-9][1-9]"),
        ("20", "[1-9]0"),
        ("305", r"[1-9]\d[1-9]"),
        ("1,200", "[1-9],[1-9]00"),
        ("10,500", r"[1-9]\d,[1-9]00"),
        ("-30", "-[1-9]0"),
        ("1.5", r"[1-9]\.[1-9]"),
        ("16.00", r"[1-9][1-9]\.00"),
        ("0.05", r"0\.0[1-9]"),
        (".2", r"\.[1-9]"),
        ("2.50", r"[1-9]\.[1-9]0"),
    ],
)
def test_another_number_looks_alike(number, pattern):
    """Never the same, never 1, and not always the same other one."""
    found = {arithmetic.other_number(number, np.random.default_rng(seed)) for seed in range(100)}
    assert all(re.fullmatch(pattern, new) for new in found) and not {number, "1"} & found and len(found) > 5


def test_zero_cannot_be_changed():
    with pytest.raises(ValueError, match="'0.00' has no digit"):
        arithmetic.other_number("0.00", np.random.default_rng(0))


@pytest.mark.parametrize(
    "answer", ["no mark 3", "a step\n####", "a step\n#### many", "#### 3", "\n#### 3", "a step\n#### 3\nmore", "a step #### 3"]
)
def test_a_solution_without_its_number(answer, mirror, monkeypatch):
    for split in ("test", "train"):
        use_problems(monkeypatch, mirror, {**SOLUTIONS, "Broken?": answer}, split)
    with pytest.raises(ValueError, match="gsm8k test, row 5: no solution that ends in #### and a number"):
        arithmetic.items()
    with pytest.raises(ValueError, match="gsm8k, row 5"):
        instructions.pairs("train")


def test_no_number_to_change(mirror, monkeypatch):
    use_problems(monkeypatch, mirror, {"None?": "Say <<2-2=0>>0\n#### 1"})
    with pytest.raises(ValueError, match="no number can be changed"):
        arithmetic.items()


@pytest.mark.parametrize(
    ("answer", "reference", "right"),
    [
        ("The answer is 18.", "18", True),
        ("so $1,200.00 in all.", "a\n#### 1200", True),
        ("It is 7, or 8", "7", False),
        ("It is 8, or 7", "7", True),
        ("20-5", "5", True),
        ("20 - 5 = 15", "15", True),
        ("minus: -5", "5", False),
        ("minus: −$5.50", "-5.5", True),
        ("1,2,3", "3", True),
        ("1,2345", "2345", True),
        ("12.", "12", True),
        (".5", "0.5", True),
        ("50%", "50", True),
        ("€3,50", "50", True),  # no comma of thousands: another number
        ("1200", "1,200", True),
        ("18 apples", "81", False),
        ("eighteen", "18", False),
        ("", "18", False),
        ("٣", "3", False),
    ],
)
def test_correct(answer, reference, right):
    assert arithmetic.correct(answer, reference) is right


def test_correct_needs_a_number():
    with pytest.raises(ValueError, match="no number in the reference answer 'many'"):
        arithmetic.correct("3", "many")


def test_every_solution_is_correct_and_its_changed_answer_is_not(problems):
    numbers = {group: Decimal(answer.split("#### ")[1].replace(",", "")) for group, answer in enumerate(SOLUTIONS.values())}
    for item in problems.itertuples():
        wrong = item.gold == 0 and item.slice == "changed=answer"
        assert arithmetic.correct(item.output, str(numbers[item.text])) is not wrong


@pytest.mark.parametrize("has_turns", [True, False])
def test_own_answers(has_turns, mirror, monkeypatch):
    """One greedy and some sampled ones; the model reads turns where it has them, the item keeps the bare prompt; empty ones are counted."""
    use_problems(monkeypatch, mirror)
    seen = []

    def answers(_lm, prompts, max_tokens, seed, greedy=False):
        seen.append((prompts, max_tokens, seed, greedy))
        return [" 4 + 8 = 12" if greedy else [" ", "12.00", "13"][i if i < 3 else i % 2 + 1] for i in range(len(prompts))]

    monkeypatch.setattr(arithmetic, "sample", answers)
    lm = SimpleNamespace(has_turns=has_turns, as_turns=lambda prompts: [f"<user>{prompt}" for prompt in prompts])
    items = arithmetic.own_items(lm, limit=2, samples=3, max_tokens=9, seed=5)
    (greedy, *first), (sampled, *second) = seen
    assert first == [9, 5, True] and second == [9, 5, False]
    assert len(greedy) == 2 and sampled == [prompt for prompt in greedy for _ in range(3)]
    assert all(prompt.startswith("<user>Solve" if has_turns else "Solve") for prompt in greedy)
    assert items.attrs["empty"] == 1 and list(items) == ITEM and items["id"].tolist() == list(range(7))
    assert items["slice"].tolist() == ["decoding=greedy"] * 2 + ["decoding=sample"] * 5
    assert items["prompt"].tolist() == [prompt.removeprefix("<user>") for prompt in [*greedy, *np.repeat(greedy, [2, 3])]]
    rights = {"4 + 8 = 12": "Cats?", "12.00": "Cats?", "13": None}
    assert items["gold"].tolist() == [float(f"Problem: {rights[text.strip()]}" in p) for text, p in zip(items["output"], items["prompt"])]
    assert items["group"].nunique() == 2 and (items.groupby("prompt")["group"].nunique() == 1).all()


def test_own_answers_without_text(mirror, monkeypatch):
    """None at all is an empty table with all columns."""
    use_problems(monkeypatch, mirror)
    monkeypatch.setattr(arithmetic, "sample", lambda lm, prompts, max_tokens, seed, greedy=False: [""] * len(prompts))
    items = arithmetic.own_items(SimpleNamespace(has_turns=False), limit=2, samples=1)
    assert list(items) == ITEM and len(items) == 0 and items.attrs["empty"] == 4


def test_greedy_takes_the_likeliest_token():
    """Whatever the seed and the model's own generation settings; in a batch as alone."""
    lm = language_model()
    lm.model.generation_config.update(do_sample=True, temperature=5.0, top_k=3)
    prompts = ["the cat", "the value of 1 2 3 is"]
    outputs = self_generation.sample(lm, prompts, 5, seed=1, greedy=True)
    assert outputs == self_generation.sample(lm, prompts, 5, seed=2, greedy=True)
    for prompt, output in zip(prompts, outputs):
        ids = lm.tokenizer(prompt, add_special_tokens=False)["input_ids"]
        start = len(ids)
        while len(ids) < start + 5 and ids[-1] != lm.tokenizer.eos_token_id:
            ids.append(int(lm.model(torch.tensor([ids])).logits[0, -1].argmax()))
        assert output == lm.tokenizer.decode(ids[start:], skip_special_tokens=True)


# ---- instructions ----------------------------------------------------------------------------------------------------------------------


@pytest.fixture
def sources(mirror, monkeypatch):
    """Three training splits; each caption and each sentence occurs twice."""
    solutions = {f"Problem {i}?": f"So {i}+1=<<{i}+1={i + 1}>>{i + 1}\n#### {i + 1}" for i in range(30)}
    use_problems(monkeypatch, mirror, solutions, "train")
    captions = [{"en": f' A "{i // 2}".', "de": f"Ein „{i}“.\t"} for i in range(100)]
    use_rows(monkeypatch, mirror, "multi30k-en-de", "train", captions)
    answers = [{"text": [text, "x"], "answer_start": [0, 0]} for text in ("Łódź", "Yes!", "24–10")]
    questions = [{"id": f"{i}", "context": f"Text {i // 2}", "question": f"What {i}?", "answers": answers[i % 3]} for i in range(60)]
    use_rows(monkeypatch, mirror, "squad-sentences", "train", questions)


def test_instructions_have_equal_shares(sources):
    """Of every source as many as the smallest has, also among the first rows; a tenth of the texts is held out."""
    train, validation = (instructions.pairs(split) for split in ("train", "validation"))
    assert train["source"].value_counts().to_dict() == dict.fromkeys(instructions.SOURCES, 27)
    assert validation["source"].value_counts().to_dict() == dict.fromkeys(instructions.SOURCES, 3)
    assert train["source"].tolist() == [*instructions.SOURCES] * 27 and list(train) == ["prompt", "output", "source"]
    pd.testing.assert_frame_equal(instructions.pairs("train"), train)
    assert not train["prompt"].is_monotonic_increasing


def test_instructions_are_in_the_words_of_the_tasks(sources):
    """Each pair is one of its source's; annotations are gone, an answer ends with one mark."""
    table = pd.concat([instructions.pairs(split) for split in ("train", "validation")])
    for source, part in table.groupby("source"):
        for prompt, output in zip(part["prompt"], part["output"]):
            if source == "gsm8k":
                i = int(re.search(r"Problem (\d+)\?", prompt).group(1))
                expected = (wording.word_problem(f"Problem {i}?"), {f"So {i}+1={i + 1}\nThe answer is {i + 1}."})
            elif source == "multi30k-en-de":
                i = int(re.search(r'A "(\d+)"', prompt).group(1))
                expected = (wording.translation(f'A "{i}".', "en-de"), {f"Ein „{2 * i}“.", f"Ein „{2 * i + 1}“."})
            else:
                i = int(re.search(r"What (\d+)\?", prompt).group(1))
                expected = (wording.reading(f"What {i}?", f"Text {i // 2}"), {["Łódź.", "Yes!", "24–10."][i % 3]})
            assert prompt == expected[0] and output in expected[1]


def test_instructions_held_out(sources):
    """No problem, caption or sentence is on both sides."""
    sides = []
    for split in ("train", "validation"):
        prompts = instructions.pairs(split)["prompt"]
        sides.append({re.search(r'Problem \d+\?|A "\d+"|Text \d+', prompt).group() for prompt in prompts})
    assert sides[0] and sides[1] and not sides[0] & sides[1]


def test_instructions_refuse(sources, mirror, monkeypatch):
    """Another split; a row without text, by its number."""
    with pytest.raises(KeyError, match="'train', 'validation'.*'test'"):
        instructions.pairs("test")
    rows = [{"en": "a", "de": "b"}, {"en": "a", "de": " "}]
    use_rows(monkeypatch, mirror, "multi30k-en-de", "train", rows)
    with pytest.raises(ValueError, match="multi30k-en-de, row 2: output is empty"):
        instructions.pairs("train")


def test_instructions_fingerprint(monkeypatch):
    """Needs no data, and changes with what is declared about them and with the recipe."""
    monkeypatch.delenv("STUDY_DATA", raising=False)
    first = instructions.fingerprint()
    assert first == instructions.fingerprint() != benchmarks.fingerprint(*instructions.SOURCES)
    monkeypatch.setattr(instructions, "RECIPE", 99)
    assert instructions.fingerprint() != first


# ---- the real files --------------------------------------------------------------------------------------------------------------------


@needs_real_files
def test_real_instructions_hold_no_test_text():
    """No problem or solution of GSM8K's test split, no caption or translation of Multi30k's; train and validation share no prompt."""
    train, validation = (instructions.pairs(split) for split in ("train", "validation"))
    assert len(train) == 20_178 and len(validation) == 2241 and not set(train["prompt"]) & set(validation["prompt"])
    both = pd.concat([train, validation])
    problems, captions = (benchmarks.load(name, "test").to_pandas() for name in ("gsm8k", "multi30k-en-de"))
    solutions = [wording.conclusion(*row) for row in wording.steps_and_numbers(problems["answer"], "gsm8k").to_numpy()]
    asked = [*problems["question"].map(wording.word_problem), *[wording.translation(text.strip(), "en-de") for text in captions["en"]]]
    answered = [*solutions, *captions["de"].str.strip()]
    assert not set(both["prompt"]) & set(asked) and not set(both["output"]) & set(answered)
    assert {text[-1] for text in asked} == {both["prompt"][0].iloc[0][-1]} == {"\n"}  # the sets are of the same form
    assert not both["output"].str.contains("<<|>>|####").any()


@needs_real_files
def test_real_sizes():
    """Every row of every data set becomes an item; the numbers of wrong words are those of the files."""
    assert [len(human_judgements.items(pair)) for pair in ("en-de", "ro-en", "ru-en")] == [2000] * 3
    bad = {"hjqe-en-de": 1375, "mlqe-pe-tags-en-de": 2344, "mlqe-pe-tags-ro-en": 3708}
    for name in word_errors.DATASETS:
        items = word_errors.items(name, encoder=True)
        assert len(items) == 1000 and items["wrong_words"].str.len().sum() == bad[name]
    for split, pairs, groups in (("validation", 544, 404), ("test", 2000, 1238)):
        items = paraphrase.items(split)
        assert len(items) == pairs and items["group"].nunique() == groups
    items = arithmetic.items()
    assert len(items) == 5134 and items.attrs["unchangeable"] == {"changed=step": 56, "changed=answer": 15}
    assert len(acceptability.items()) == 527
