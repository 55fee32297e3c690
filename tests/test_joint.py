"""Quality under length control: pairs of equal length, scores with and without the end, what the
judges read, expectations of best of n.
"""

import json
from dataclasses import replace
from itertools import combinations

import numpy as np
import pandas as pd
import pytest
import torch
from transformers import BartForConditionalGeneration, LlamaConfig, LlamaForCausalLM

from lib import joint
from lib.joint import LANGUAGE_MODEL, MEASURES, SCORES, WRITER, Judge
from lib.length.finetuning import CORPORA, Data
from lib.quality.language_models import LanguageModel
from lib.quality.scores import token_scores
from lib.quality.translator import EncoderDecoder
from lib.sampler import TokenFrequencies
from lib.sigmoid_head import SigmoidHead
from lib.study import paths
from lib.study.models import configuration, train_tokenizer
from lib.tasks.closed_forms import form_name

SOURCES, OUTPUTS = ["the cat", "return the value of"], ["is not on the mat", "my_name"]
TOKENIZER = train_tokenizer([*SOURCES, *OUTPUTS, "..."] * 3, 300)


def language_model() -> LanguageModel:
    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2}
    sizes |= {"num_attention_heads": 2, "initializer_range": 0.5, "vocab_size": 320}
    ids = {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 2}
    return LanguageModel("tiny", LlamaForCausalLM(LlamaConfig(**sizes, **ids)), TOKENIZER)


def writer() -> EncoderDecoder:
    torch.manual_seed(0)
    model = BartForConditionalGeneration(configuration(320, 16, positions=64))
    return EncoderDecoder("tiny", model, TOKENIZER)


def judge(lm: LanguageModel) -> Judge:
    head = SigmoidHead(lm.unembedding, lm.bias, rank=2).eval()
    return Judge(lm, TokenFrequencies(torch.ones(len(lm.unembedding))), head)


# ---- what judges read, and how they score ------------------------------------------------------


@pytest.mark.parametrize("model", [language_model, writer])
def test_scores_leave_out_the_end_but_for_two(model):
    """Means over the tokens of a text are those of the text without its end; the two others are
    made of the end's log-probability.
    """
    one = judge(model())
    plain = one.lm.encode(SOURCES, OUTPUTS)
    ended = [replace(text, ids=(*text.ids, 2)) for text in plain]
    scores, heads = joint.scores(one, ended), {"sigmoid-lowrank": one.head}
    tokens, ends = (token_scores(one.lm, t, one.unigram, heads=heads) for t in (plain, ended))
    for name in ("softmax", "logprob", "closed-form", "sigmoid-lowrank"):
        expected = tokens.groupby("text")[name].mean()
        np.testing.assert_allclose(scores[name], expected, atol=1e-5)
    by_text = ends.groupby("text")["logprob"]
    np.testing.assert_allclose(scores["end"], by_text.last(), atol=1e-5)
    np.testing.assert_allclose(scores["logprob-with-end"], by_text.mean(), atol=1e-5)
    assert list(scores) == list(SCORES) and (scores["closed-form:chosen"] <= 0).all()


def test_the_language_model_reads_a_summary_line_and_the_end_of_a_turn():
    lm = language_model()
    for text, source, output in zip(joint.with_end(lm, SOURCES, OUTPUTS), SOURCES, OUTPUTS):
        (alone,) = lm.encode([f"{source}\n"], [output])
        assert text.ids == (*alone.ids, lm.tokenizer.eos_token_id) and text.start == alone.start


def test_both_judges_read_every_text(monkeypatch):
    """Measures are of the text, scores of the judge; an empty text counts as three dots."""
    both = judge(language_model()), judge(writer())
    monkeypatch.setattr(joint, "judges", lambda **training: both)
    ids = [TOKENIZER(text)["input_ids"] for text in (*SOURCES, *OUTPUTS)]
    columns = {"id": [7, 8], "group": [1, 1], "source": SOURCES, "target": OUTPUTS}
    pairs = pd.DataFrame(columns | {"source_ids": ids[:2], "target_ids": ids[2:]})
    outputs = pd.DataFrame({"source": [1, 0, 0], "tokens": [ids[3][:-1], ids[2][:2], []]})
    data = Data(pairs, TOKENIZER, "", CORPORA["docstrings"])
    rows = joint.judged(data, pairs, outputs.assign(text="forced"))
    assert rows["judge"].tolist() == [LANGUAGE_MODEL] * 3 + [WRITER] * 3
    assert rows["id"].tolist() == [8, 7, 7] * 2 and (rows["text"] == "forced").all()
    assert rows["rougeL"].tolist()[0] == 1 and rows["rougeL"].tolist()[2] == 0
    read = joint.reading(both[1].lm, [ids[1]], [ids[3]])
    own = joint.scores(both[1], read)[list(SCORES)].to_numpy()
    np.testing.assert_allclose(rows[list(SCORES)].to_numpy()[3:4], own, atol=1e-5)
    dots = joint.with_end(both[0].lm, SOURCES[:1], ["..."])
    expected = joint.scores(both[0], dots).to_numpy()
    np.testing.assert_allclose(rows[list(SCORES)].to_numpy()[2:3], expected, atol=1e-5)


# ---- what the rows say -------------------------------------------------------------------------


@pytest.fixture
def texts() -> pd.DataFrame:
    """Made-up rows: `end` knows the controlled text and the whole reference."""
    rng, rows = np.random.default_rng(0), []
    kinds = [("none", "reference", f) for f in (0.5, 1.0)]
    kinds += [("none", "forced", f) for f in (0.5, 1.0, 2.0)]
    kinds += [("pre", text, f) for f in (0.5, 1.0, 2.0) for text in ("controlled", "forced")]
    for seed in (0, 1):
        for number in range(30):
            for signal, text, fraction in kinds:
                good = text == "controlled" or (text == "reference" and fraction == 1)
                row = {"signal": signal, "text": text, "fraction": fraction, "seed": seed}
                row |= {"id": number, "group": number // 2, "generated_length": 9}
                row |= {"natural_length": 10 if fraction < 2 else 5}
                row |= {"rougeL": rng.random(), "sentence_end_rate": float(good)}
                for name in (LANGUAGE_MODEL, WRITER):
                    scores = dict(zip(SCORES, rng.normal(size=len(SCORES))))
                    rows.append(row | {"judge": name} | scores | {"end": good + rng.random() / 2})
    return pd.DataFrame(rows).sample(frac=1, random_state=0, ignore_index=True)


def test_pairs_are_of_the_same_source_seed_length_and_judge(texts):
    pairs = joint.pairs_of_equal_length(texts)
    assert len(pairs) == 2 * 2 * 30 * 3 and set(pairs["signal"]) == {"pre"}
    assert (pairs["kind"] == np.where(pairs["fraction"] < 2, "cut", "stretched")).all()
    assert (pairs["end"] > 0).all() and (pairs["sentence_end_rate"] == 1).all()
    place = "id == 7 and seed == 1 and fraction == 0.5 and judge == 'tiny BART'"
    row = pairs.query(place).iloc[0]
    own = texts.query(f"{place} and signal == 'pre'").set_index("text")
    for name in (*SCORES, *MEASURES):
        expected = own.loc["controlled", name] - own.loc["forced", name]
        assert row[name] == pytest.approx(expected)


def test_whole_references_against_their_beginnings(texts):
    pairs = joint.cut_references(texts)
    assert len(pairs) == 2 * 2 * 30 and (pairs["fraction"] == 0.5).all()
    assert (pairs["end"] > 0).all() and pairs["group"].nunique() == 15
    row = pairs.query("id == 3 and seed == 0 and judge == 'SmolLM2'").iloc[0]
    own = texts.query("id == 3 and seed == 0 and judge == 'SmolLM2' and text == 'reference'")
    by_fraction = own.set_index("fraction")["logprob"]
    assert row["logprob"] == pytest.approx(by_fraction[1.0] - by_fraction[0.5])


def test_expected_best_is_the_mean_over_all_choices():
    rng = np.random.default_rng(0)
    value, distinct = rng.random(6), rng.permutation(6).astype(float)
    for n in (1, 2, 4, 6):
        by_hand = [value[max(c, key=lambda i: distinct[i])] for c in combinations(range(6), n)]
        assert joint.expected_best(distinct, value, n) == pytest.approx(np.mean(by_hand))
    assert joint.expected_best(np.zeros(6), value, 3) == pytest.approx(value.mean())


def test_closed_form_is_the_one_that_notebook_15_chose():
    index = json.loads((paths.RESULTS / "chosen_form_scores.json").read_text())
    arguments = [record["arguments"] for record in index["combinations"]]
    assert {(one["form"], one["how"]) for one in arguments} == {
        (form_name(**joint.CHOSEN), "log-mean")
    }


def test_choices_among_candidates():
    """A score that is the likeness itself chooses like the oracle, a constant one at random."""
    rng, like = np.random.default_rng(0), np.tile([0.1, 0.4, 0.2, 0.3], 2)
    rows = pd.DataFrame({"signal": "pre", "seed": 0, "id": [1] * 4 + [2] * 4, "rougeL": like})
    rows = rows.assign(group=0, softmax=like, end=1.0, **{"own-logprob": -like})
    rows = rows.assign(**{name: rng.normal(size=8) for name in SCORES if name not in rows})
    both = [rows.assign(judge=name) for name in (LANGUAGE_MODEL, WRITER)]
    choices = joint.choices(pd.concat(both), [2, 4])
    assert len(choices) == 2 * 2 * (2 * len(SCORES) + 2)
    by_score = choices.set_index(["judge", "score", "size", "id"])["rougeL"]
    for size, best in ((2, 1 / 3), (4, 0.4)):
        oracle = by_score["the reference", "oracle", size, 1]
        assert oracle == pytest.approx(by_score[LANGUAGE_MODEL, "softmax", size, 1])
        assert oracle == pytest.approx(best)
        assert by_score[WRITER, "end", size, 2] == pytest.approx(like.mean())
    assert by_score["the writer itself", "own-logprob", 4, 1] == pytest.approx(0.1)
    assert (choices["random"] == like.mean()).all()
