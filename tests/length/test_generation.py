"""Measurements of outputs against the tools they stand for, and summaries against numbers
computed by hand.
"""

import doctest
import math

import numpy as np
import pandas as pd
import pytest
import torch
from rouge_score.rouge_scorer import RougeScorer
from sacrebleu.metrics import BLEU
from small_models import controlled, pairs_of, random_rows

from lib.length import generation
from lib.length.generation import BLEU_SUMS, corpus_bleu, repetition, text_quality
from lib.length.plots import bleu
from lib.study.models import seq2seq_batch, source_batch
from lib.study.statistics import ratio, sample

REFERENCES = [
    "The quick brown fox jumps over the lazy dog.",
    "It returns a list. The list may be empty!",
    "Nothing else matters here.",
]
OUTPUTS = {
    "close": [
        "The quick brown fox jumped over a lazy dog.",
        "It returns a list. That list is empty",
        "Nothing matters here but this.",
    ],
    "equal": REFERENCES,
    "longer": [f"{text} And then some more words follow it" for text in REFERENCES],
    "no 4-gram": ["The quick fox jumps", "a list that returns", "else matters"],
    "no 2-gram": ["dog fox", "empty list returns", "here Nothing"],
    "nothing in common": [
        "one two three four five",
        "six seven eight nine",
        "ten eleven twelve thirteen",
    ],
    "too short for 4-grams": ["The quick", "It returns", "Nothing else"],
    "some empty": ["", "It returns a list. The list may be empty!", ""],
    "all empty": ["", "", ""],
}


def test_examples_in_the_docstrings():
    outcome = doctest.testmod(generation)
    assert outcome.attempted and not outcome.failed


def test_output_lengths():
    """Up to and including the first EOS; the whole row where there is none."""
    rows = torch.tensor([[2, 2, 2, 2], [7, 2, 7, 2], [7, 7, 7, 2], [7, 7, 7, 7]])
    lengths, ended = generation.output_lengths(rows, eos_token_id=2)
    assert lengths.tolist() == [1, 2, 4, 4] and ended.tolist() == [True, True, True, False]


# ---- text quality ----------------------------------------------------------------------------


@pytest.mark.parametrize("name", OUTPUTS)
def test_bleu_is_sacrebleu(name):
    """Corpus BLEU from the summed statistics of single outputs = sacrebleu on the corpus, its
    smoothing included.
    """
    sums = text_quality(OUTPUTS[name], REFERENCES)[BLEU_SUMS].to_numpy().sum(0)
    expected = BLEU(effective_order=False).corpus_score(OUTPUTS[name], [REFERENCES]).score
    assert corpus_bleu(sums) == pytest.approx(expected, abs=1e-5)
    assert corpus_bleu(np.stack([sums, sums]))[1] == pytest.approx(expected, abs=1e-5)


@pytest.mark.parametrize("name", OUTPUTS)
def test_rouge_is_rouge_score(name):
    """ROUGE-1, -2, -L of the plain texts; ROUGE-Lsum of the texts with one sentence a line. With
    stemming.
    """
    ours = text_quality(OUTPUTS[name], REFERENCES)
    lines = {".": ".\n", "!": "!\n"}
    for row, output, reference in zip(ours.itertuples(), OUTPUTS[name], REFERENCES):
        plain = RougeScorer(["rouge1", "rouge2", "rougeL"], use_stemmer=True).score(
            reference, output
        )
        by_line = [text.translate(str.maketrans(lines)) for text in (reference, output)]
        plain |= RougeScorer(["rougeLsum"], use_stemmer=True).score(*by_line)
        assert [row.rouge1, row.rouge2, row.rougeL, row.rougeLsum] == pytest.approx(
            [s.fmeasure for s in plain.values()], abs=1e-9
        )


def test_sentence_end():
    texts = ["Done.", "Done", 'He said "done."', "As follows:", "(really?)", "", "a.b", "Wait... "]
    assert text_quality(texts, ["x"] * 8)["sentence_end_rate"].tolist() == [1, 0, 1, 1, 1, 0, 0, 1]


@pytest.mark.parametrize(
    ("tokens", "expected"),
    [
        ([], 0),
        ([1, 2, 3], 0),
        ([1, 2, 3, 4, 5, 6], 0),
        ([1, 2, 3, 4] * 3, 5 / 9),
        ([7] * 103, 0.99),
        ([1, 2, 3, 4, 9, 1, 2, 3, 4], 1 / 6),
    ],
)
def test_repetition(tokens, expected):
    assert repetition(tokens) == pytest.approx(expected)


# ---- likelihood ------------------------------------------------------------------------------


@pytest.mark.parametrize("told", [None, [9, 3, 7, 30]], ids=["not told", "told a length"])
def test_likelihood_is_the_models_loss(told):
    """EOS nats are the model's; content nats those of the other tokens given that the text goes
    on; whatever the batches.
    """
    model, (sources, targets) = controlled(), pairs_of([8, 3, 6, 5])
    lengths = None if told is None else np.array(told)
    nll = generation.likelihoods(model, sources, targets, lengths, batch_size=3)
    assert nll["content_tokens"].tolist() == [7, 2, 5, 4]
    for i, target in enumerate(targets):
        batch = seq2seq_batch(model, [sources[i]], [target])
        options = {} if told is None else {"target_length": torch.tensor([told[i]])}
        with torch.no_grad():
            out = model(**batch, **options)
        log_p = out.logits[0].log_softmax(-1)
        assert nll["nll_eos"][i] == pytest.approx(
            -log_p[-1, model.config.eos_token_id].item(), abs=1e-4
        )
        others = (
            out.logits[0]
            .index_fill(1, torch.tensor([model.config.eos_token_id]), -torch.inf)
            .log_softmax(-1)
        )  # EOS ruled out
        content = -sum(others[step, token].item() for step, token in enumerate(target[:-1]))
        assert nll["nll_content"][i] == pytest.approx(content, abs=1e-4)


# ---- generation ------------------------------------------------------------------------------

SOURCES, LENGTHS = random_rows([5, 7, 9, 4, 6]), np.array([20, 9, 14, 5, 9])


@pytest.fixture
def eight_more(monkeypatch):
    monkeypatch.setattr(generation, "ALLOWANCE", 8)


@pytest.mark.parametrize(
    "options", [{}, {"controlled": False}, {"forced": True}, {"forced": True, "beams": 3}], ids=str
)
def test_generation_does_not_depend_on_batches(eight_more, options):
    """Outputs in the order of the sources, each as if it had been asked for alone, capped at its
    own allowance.
    """
    model = controlled()
    together, pairs = (
        generation.generate(model, SOURCES, LENGTHS, batch_size=n, **options) for n in (5, 2)
    )
    alone = [
        generation.generate(model, [s], LENGTHS[[i]], **options) for i, s in enumerate(SOURCES)
    ]
    pd.testing.assert_frame_equal(together, pairs)
    pd.testing.assert_frame_equal(together, pd.concat(alone, ignore_index=True))
    assert together["tokens"].map(tuple).nunique() > 3


def test_uncontrolled_generation_is_stock(eight_more):
    """`controlled=False`: the tokens of plain generate, without its EOS."""
    model = controlled()
    out = generation.generate(model, SOURCES, LENGTHS, controlled=False)
    stock = model.generate(**source_batch(model, SOURCES), do_sample=False, max_new_tokens=13)[
        :, 1:
    ]
    assert [row[:13] for row in out["tokens"]] == [
        [t for t in row if t not in (1, 2)] for row in stock.tolist()
    ]
    assert out["tokens"].tolist() != generation.generate(model, SOURCES, LENGTHS)["tokens"].tolist()


@pytest.mark.parametrize("options", [{}, {"beams": 3}, {"controlled": False}], ids=str)
def test_forced_generation_is_exact(eight_more, options):
    out = generation.generate(controlled(), SOURCES, LENGTHS, forced=True, **options)
    assert out["generated_length"].tolist() == LENGTHS.tolist() and not out["capped"].any()
    assert out["tokens"].str.len().tolist() == (LENGTHS - 1).tolist()  # EOS is not part of the text


def test_capped_output_is_flagged(eight_more):
    """A model that never ends is cut at its own l + ALLOWANCE and flagged; one that ends at once
    is not.
    """
    model = controlled()
    model.final_logits_bias[0, model.config.eos_token_id] = -1e9
    endless = generation.generate(model, SOURCES, LENGTHS)
    assert (
        endless["capped"].all() and endless["generated_length"].tolist() == (LENGTHS + 8).tolist()
    )
    assert endless["tokens"].str.len().tolist() == (LENGTHS + 8).tolist()
    model.final_logits_bias[0, model.config.eos_token_id] = 1e9
    silent = generation.generate(model, SOURCES, LENGTHS)
    assert (
        not silent["capped"].any()
        and (silent["generated_length"] == 1).all()
        and not silent["tokens"].str.len().any()
    )


def test_forced_eos_at_the_limit_is_capped(eight_more):
    """BART's default forced_eos_token_id ends every output at the limit: still capped, for the
    longest request of a batch too.
    """
    model = controlled("bart", forced_eos_token_id=2)
    model.final_logits_bias[0, model.config.eos_token_id] = -1e9
    assert generation.generate(model, SOURCES, LENGTHS)["capped"].all()


# ---- measures --------------------------------------------------------------------------------


def test_perplexity_is_of_the_sums():
    """exp(sum of nats / sum of tokens), not the mean of each text's."""
    rows = {"nll_content": [2.0, 30.0], "content_tokens": [4, 20], "group": [0, 1], "seed": 0}
    ppl = sample(pd.DataFrame(rows), ratio("nll_content", "content_tokens", np.exp))
    assert ppl.value == pytest.approx(math.exp(32 / 24), rel=1e-5)


@pytest.mark.parametrize("name", ["close", "some empty", "no 4-gram"])
def test_bleu_of_several_seeds_is_that_of_one(name):
    """The measure is sacrebleu's of the corpus, and repeating a seed changes nothing."""
    rows = text_quality(OUTPUTS[name], REFERENCES).assign(group=[0, 1, 2], seed=0)
    expected = BLEU(effective_order=False).corpus_score(OUTPUTS[name], [REFERENCES]).score
    twice = pd.concat([rows, rows.assign(seed=1)])
    one, two = sample(rows, bleu), sample(twice, bleu)
    assert one.value == pytest.approx(expected, abs=1e-4)
    assert (two.value, two.low, two.high) == pytest.approx((one.value, one.low, one.high))
