"""Quality under length control: what is planned, pairs of equal length, scores with and without the end, expectations of best-of-n."""

import dataclasses
from itertools import combinations

import numpy as np
import pandas as pd
import pytest
import torch
from helpers import encoder_decoder, language_model

from old import storage, under_length
from old import under_length_figures as figures
from old.quality.head import SigmoidHead
from old.quality.negatives import TokenFrequencies
from old.quality.scores import token_scores
from old.quality.training_free import CHOSEN
from old.under_length import BEST, FORCED, REFERENCE, SCORES, SWEEP, WRITER, Judge

PARAMETERS = {"signals": ["pre", "rpe"], "seeds": [0, 1], "fractions": [0.5, 1.0], "sources": 4, "sampled": ["pre"], "candidates": 3}


def test_plan():
    """A unit a method, part and seed; the signals' models are those of the length experiment."""
    units = under_length.plan(PARAMETERS)
    methods = {(part, unit.method) for part in (SWEEP, BEST) for unit in units if unit.part == part}
    assert methods == {(SWEEP, REFERENCE), (SWEEP, FORCED), (SWEEP, "pre"), (SWEEP, "rpe"), (BEST, "pre")}
    assert len({unit.key for unit in units}) == len(units) == 2 * len(methods)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"sampled": ["lrpe"]}, "unknown signal 'lrpe'"),
        ({"fractions": [0.5, 0.0]}, "fractions must be above 0"),
        ({"candidates": 1}, "candidates at least 2"),
        ({"seeds": [7]}, "no committed head of seed 7"),
    ],
    ids=str,
)
def test_refuses_wrong_parameters(change, message):
    with pytest.raises(ValueError, match=message):
        under_length.plan(PARAMETERS | change)


def test_closed_form_is_what_notebook_16_chose():
    chosen = {tuple(u.record["parameters"]["chosen"]) for u in storage.index("extras").values() if "chosen" in u.record["parameters"]}
    assert chosen == {(under_length.CHOSEN_FORM.name, under_length.CHOSEN_WAY)}


@pytest.mark.parametrize("model", [language_model, encoder_decoder])
def test_scores_leave_out_the_end_but_for_two(model):
    """Means over the tokens of a text equal those of the text without its end; the two others are made of the end's log-probability."""
    lm = model() if model is encoder_decoder else model(vocab_size=320)
    unigram = TokenFrequencies(torch.ones(len(lm.unembedding)))
    head = SigmoidHead(lm.unembedding, lm.bias, rank=2)
    plain = lm.encode(["the cat", "return the value of"], ["is not on the mat", "my_name"])
    ended = [dataclasses.replace(text, ids=(*text.ids, 2)) for text in plain]
    found = under_length.scores(Judge(lm, unigram, head), ended)
    tokens, ends = (token_scores(lm, texts, unigram, heads={"sigmoid-lowrank": head}) for texts in (plain, ended))
    for name in ("softmax", "logprob", "closed-form", "sigmoid-lowrank"):
        np.testing.assert_allclose(found[name], tokens.groupby("text")[name].mean(), atol=1e-5)
    np.testing.assert_allclose(found["end"], ends.groupby("text")["logprob"].last(), atol=1e-5)
    np.testing.assert_allclose(found["logprob-with-end"], ends.groupby("text")["logprob"].mean(), atol=1e-5)
    assert list(found) == list(SCORES) and (found[CHOSEN] <= 0).all()


def test_expected_best_is_the_mean_over_all_choices():
    rng = np.random.default_rng(0)
    value = rng.random(6)
    distinct = rng.permutation(6).astype(float)
    for n in (1, 2, 4, 6):
        by_hand = [value[max(c, key=lambda i: distinct[i])] for c in combinations(range(6), n)]
        assert under_length.expected_best(distinct, value, n) == pytest.approx(np.mean(by_hand))
    assert under_length.expected_best(np.zeros(6), value, 3) == pytest.approx(value.mean())


@pytest.fixture
def items():
    """Made-up items: `end` knows which text is controlled, `softmax` the reference, all others nothing; forced text is never finished."""
    rng, rows = np.random.default_rng(0), []
    for seed in (0, 1):
        for number in range(30):
            common = {"seed": seed, "id": number, "group": number // 2, "target_length": 9, "generated_length": 9}
            texts = [(REFERENCE, REFERENCE, f) for f in (0.5, 1.0)] + [(FORCED, FORCED, f) for f in (0.5, 1.0, 2.0)]
            texts += [("pre", text, f) for f in (0.5, 1.0, 2.0) for text in ("controlled", FORCED)]
            for method, text, fraction in texts:
                good = text == "controlled" or (text == REFERENCE and fraction == 1)
                scores = {prefix + name: rng.normal() for prefix in ("", WRITER) for name in SCORES} | {"end": good + rng.random()}
                like = rng.random()
                row = {"part": SWEEP, "method": method, "text": text, "fraction": fraction, "natural_length": 10 if fraction < 2 else 5}
                rows.append(common | row | scores | {"rougeL": like, "softmax": like, "sentence_end_rate": float(good)})
            for candidate in range(4):
                like = rng.random()
                scores = {prefix + name: rng.normal() for prefix in ("", WRITER) for name in SCORES} | {"softmax": like}
                row = {"part": BEST, "method": "pre", "candidate": candidate, "own-logprob": rng.normal(), "rougeL": like}
                rows.append(common | row | scores)
    return pd.DataFrame(rows)


def test_pairs_are_of_the_same_source_seed_and_length(items):
    pairs = under_length.paired(items)
    assert len(pairs) == 2 * 30 * 3 and set(pairs["method"]) == {"pre"}
    assert (pairs["kind"] == np.where(pairs["fraction"] < 2, "cut", "stretched")).all()
    first = items[(items["id"] == 7) & (items["seed"] == 1) & (items["method"] == "pre") & (items["fraction"] == 0.5)].set_index("text")
    row = pairs[(pairs["id"] == 7) & (pairs["seed"] == 1) & (pairs["fraction"] == 0.5)].iloc[0]
    assert row["end"] == pytest.approx(first.loc["controlled", "end"] - first.loc[FORCED, "end"])


def test_seen_and_gains_on_known_answers(items):
    seen = figures.seen(items)
    for measure in ("whole above cut reference", "above forced, cut short", "above forced, stretched", "prefers the finished text"):
        assert seen.loc[(measure, "end"), "value"] == 1 and figures.verdicts(seen, measure)[0] == ["end"] + [
            "sentence_end_rate"
        ] * measure.startswith("above")
    assert seen.loc[("Pearson with ROUGE-L", "softmax"), "value"] == pytest.approx(1)
    table = figures.seen_table(seen)
    assert table.loc[("SmolLM2", "end"), "prefers the finished text"].endswith("*") and len(table) == 2 * len(SCORES) + 2
    chosen = under_length.choices(items, [2, 4])
    over = figures.gains(chosen, 4, "random")
    assert over.loc["softmax", "value"] == pytest.approx(over.loc["oracle", "value"]) and over.loc["softmax", "value"] > 0.2
    assert figures.gain_table(chosen, 4).loc[("SmolLM2", "softmax"), "share of the oracle's gain"] == "100%"
    damage = figures.damage_table(items)
    assert damage.loc[("pre", 2.0), "forced text cut short"] == "0%" and damage.loc[("pre", 0.5), "finished minus forced"].startswith(
        "+1.00"
    )


def test_where_nothing_is_finished_or_stretched(items):
    """A measure without pairs is left out, and nothing else fails."""
    seen = figures.seen(items.assign(sentence_end_rate=0.0, natural_length=10))
    assert set(seen.index.unique("measure")) == {"whole above cut reference", "above forced, cut short", "Pearson with ROUGE-L"}
    assert (
        figures.verdicts(seen, "prefers the finished text") == ([], [])
        and figures.told(seen, "prefers the finished text", ["end"], 0) == []
    )
    assert len(figures.seen_table(seen).columns) == 3 and (seen.loc["above forced, cut short", "value"]["sentence_end_rate"]) == 0.5


def test_figures(items):
    figures.by_fraction(items, ["softmax", "end", "rougeL"], 2)
    figures.above_forced(items)
    figures.gain_figure(under_length.choices(items, [2, 4]))
