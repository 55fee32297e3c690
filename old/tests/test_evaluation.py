"""Measurements of outputs against the tools they stand for, and summaries against numbers computed by hand."""

import doctest
import math

import numpy as np
import pandas as pd
import pytest
import torch
from helpers import controlled, pairs_of, random_rows
from rouge_score.rouge_scorer import RougeScorer
from sacrebleu.metrics import BLEU

from old.length import evaluation
from old.length.evaluation import BLEU_STATISTICS, bleu_from_sums, repetition, summarise, text_quality
from old.results import make_table
from old.seq2seq import seq2seq_batch, source_batch

IDENTITY = {"study": "length", "dataset": "docstrings", "model": "tiny-bart", "method": "pre", "seed": 0}
REFERENCES = ["The quick brown fox jumps over the lazy dog.", "It returns a list. The list may be empty!", "Nothing else matters here."]
OUTPUTS = {
    "close": ["The quick brown fox jumped over a lazy dog.", "It returns a list. That list is empty", "Nothing matters here but this."],
    "equal": REFERENCES,
    "longer": [f"{text} And then some more words follow it" for text in REFERENCES],
    "no 4-gram": ["The quick fox jumps", "a list that returns", "else matters"],
    "no 2-gram": ["dog fox", "empty list returns", "here Nothing"],
    "nothing in common": ["one two three four five", "six seven eight nine", "ten eleven twelve thirteen"],
    "too short for 4-grams": ["The quick", "It returns", "Nothing else"],
    "some empty": ["", "It returns a list. The list may be empty!", ""],
    "all empty": ["", "", ""],
}  # fmt: skip


def test_examples_in_the_docstrings():
    outcome = doctest.testmod(evaluation)
    assert outcome.attempted and not outcome.failed


def test_output_lengths():
    """Up to and including the first EOS; the whole row where there is none."""
    rows = torch.tensor([[2, 2, 2, 2], [7, 2, 7, 2], [7, 7, 7, 2], [7, 7, 7, 7]])
    lengths, ended = evaluation.output_lengths(rows, eos_token_id=2)
    assert lengths.tolist() == [1, 2, 4, 4] and ended.tolist() == [True, True, True, False]


# ---- text quality --------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", OUTPUTS)
def test_bleu_is_sacrebleu(name):
    """Corpus BLEU from the summed statistics of single outputs = sacrebleu on the corpus, its smoothing included."""
    sums = text_quality(OUTPUTS[name], REFERENCES)[BLEU_STATISTICS].to_numpy().sum(0)
    expected = BLEU(effective_order=False).corpus_score(OUTPUTS[name], [REFERENCES]).score
    assert bleu_from_sums(sums) == pytest.approx(expected, abs=1e-5)
    assert bleu_from_sums(np.stack([sums, sums]))[1] == pytest.approx(expected, abs=1e-5)


@pytest.mark.parametrize("name", OUTPUTS)
def test_rouge_is_rouge_score(name):
    """ROUGE-1, -2, -L of the plain texts; ROUGE-Lsum of the texts with one sentence a line. With stemming."""
    ours = text_quality(OUTPUTS[name], REFERENCES)
    lines = {".": ".\n", "!": "!\n"}
    for row, output, reference in zip(ours.itertuples(), OUTPUTS[name], REFERENCES):
        plain = RougeScorer(["rouge1", "rouge2", "rougeL"], use_stemmer=True).score(reference, output)
        by_line = [text.translate(str.maketrans(lines)) for text in (reference, output)]
        plain |= RougeScorer(["rougeLsum"], use_stemmer=True).score(*by_line)
        assert [row.rouge1, row.rouge2, row.rougeL, row.rougeLsum] == pytest.approx([s.fmeasure for s in plain.values()], abs=1e-9)


def test_sentence_end():
    texts = ["Done.", "Done", 'He said "done."', "As follows:", "(really?)", "", "a.b", "Wait... "]
    assert text_quality(texts, ["x"] * 8)["sentence_end_rate"].tolist() == [1, 0, 1, 1, 1, 0, 0, 1]


@pytest.mark.parametrize(
    ("tokens", "expected"),
    [([], 0), ([1, 2, 3], 0), ([1, 2, 3, 4, 5, 6], 0), ([1, 2, 3, 4] * 3, 5 / 9), ([7] * 103, 0.99), ([1, 2, 3, 4, 9, 1, 2, 3, 4], 1 / 6)],
)
def test_repetition(tokens, expected):
    assert repetition(tokens) == pytest.approx(expected)


# ---- likelihood ----------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("told", [None, [9, 3, 7, 30]], ids=["not told", "told a length"])
def test_likelihood_is_the_models_loss(told):
    """EOS nats are the model's; content nats those of the other tokens given that the text goes on; whatever the batches."""
    model, (sources, targets) = controlled(), pairs_of([8, 3, 6, 5])
    lengths = None if told is None else np.array(told)
    nll = evaluation.negative_log_likelihood(model, sources, targets, lengths, batch_size=3)
    assert nll["content_tokens"].tolist() == [7, 2, 5, 4]
    for i, target in enumerate(targets):
        batch = seq2seq_batch(model, [sources[i]], [target])
        options = {} if told is None else {"target_length": torch.tensor([told[i]])}
        with torch.no_grad():
            out = model(**batch, **options)
        log_p = out.logits[0].log_softmax(-1)
        assert nll["nll_eos"][i] == pytest.approx(-log_p[-1, model.config.eos_token_id].item(), abs=1e-4)
        others = out.logits[0].index_fill(1, torch.tensor([model.config.eos_token_id]), -torch.inf).log_softmax(-1)  # EOS ruled out
        content = -sum(others[step, token].item() for step, token in enumerate(target[:-1]))
        assert nll["nll_content"][i] == pytest.approx(content, abs=1e-4)


# ---- generation ----------------------------------------------------------------------------------------------------------------------

SOURCES, LENGTHS = random_rows([5, 7, 9, 4, 6]), np.array([20, 9, 14, 5, 9])


@pytest.fixture
def eight_more(monkeypatch):
    monkeypatch.setattr(evaluation, "ALLOWANCE", 8)


@pytest.mark.parametrize("options", [{}, {"controlled": False}, {"forced": True}, {"forced": True, "beams": 3}], ids=str)
def test_generation_does_not_depend_on_batches(eight_more, options):
    """Outputs in the order of the sources, each as if it had been asked for alone, capped at its own allowance."""
    model = controlled()
    together, pairs = (evaluation.generate(model, SOURCES, LENGTHS, batch_size=n, **options) for n in (5, 2))
    alone = [evaluation.generate(model, [s], LENGTHS[[i]], **options) for i, s in enumerate(SOURCES)]
    pd.testing.assert_frame_equal(together, pairs)
    pd.testing.assert_frame_equal(together, pd.concat(alone, ignore_index=True))
    assert together["tokens"].map(tuple).nunique() > 3


def test_uncontrolled_generation_is_stock(eight_more):
    """`controlled=False`: the tokens of plain generate, without its EOS."""
    model = controlled()
    out = evaluation.generate(model, SOURCES, LENGTHS, controlled=False)
    stock = model.generate(**source_batch(model, SOURCES), do_sample=False, max_new_tokens=13)[:, 1:]
    assert [row[:13] for row in out["tokens"]] == [[t for t in row if t not in (1, 2)] for row in stock.tolist()]
    assert out["tokens"].tolist() != evaluation.generate(model, SOURCES, LENGTHS)["tokens"].tolist()


@pytest.mark.parametrize("options", [{}, {"beams": 3}, {"controlled": False}], ids=str)
def test_forced_generation_is_exact(eight_more, options):
    out = evaluation.generate(controlled(), SOURCES, LENGTHS, forced=True, **options)
    assert out["generated_length"].tolist() == LENGTHS.tolist() and not out["capped"].any()
    assert out["tokens"].str.len().tolist() == (LENGTHS - 1).tolist()  # EOS is not part of the text


def test_capped_output_is_flagged(eight_more):
    """A model that never ends is cut at its own l + ALLOWANCE and flagged; one that ends at once is not."""
    model = controlled()
    model.final_logits_bias[0, model.config.eos_token_id] = -1e9
    endless = evaluation.generate(model, SOURCES, LENGTHS)
    assert endless["capped"].all() and endless["generated_length"].tolist() == (LENGTHS + 8).tolist()
    assert endless["tokens"].str.len().tolist() == (LENGTHS + 8).tolist()
    model.final_logits_bias[0, model.config.eos_token_id] = 1e9
    silent = evaluation.generate(model, SOURCES, LENGTHS)
    assert not silent["capped"].any() and (silent["generated_length"] == 1).all() and not silent["tokens"].str.len().any()


def test_forced_eos_at_the_limit_is_capped(eight_more):
    """BART's default forced_eos_token_id ends every output at the limit: still capped, for the longest request of a batch too."""
    model = controlled("bart", forced_eos_token_id=2)
    model.final_logits_bias[0, model.config.eos_token_id] = -1e9
    assert evaluation.generate(model, SOURCES, LENGTHS)["capped"].all()


# ---- summary -------------------------------------------------------------------------------------------------------------------------


def items(errors: list[int], name: str = "[64,96)", **columns) -> pd.DataFrame:
    """Items of one slice with these errors in tokens."""
    n = len(errors)
    table = pd.DataFrame({"id": range(n), "group": range(n), "slice": name, "setting": "", "target_length": 70, "capped": False})
    return table.assign(generated_length=70 + np.array(errors), repetition=0.25, **columns)


def summary(table: pd.DataFrame, **identity) -> pd.DataFrame:
    return make_table(summarise(table, IDENTITY | identity, first_unseen=64))


def values(table: pd.DataFrame, name: str = "[64,96)", setting: str = "", **identity) -> dict[str, float]:
    rows = summary(table, **identity)
    return rows[(rows["slice"] == name) & (rows["setting"] == setting)].set_index("metric")["value"].to_dict()


def test_summary_by_hand():
    """Errors 0, -2, 21, 20, -41: |e| = 0 2 21 20 41; an outlier is more than 20 away."""
    found = values(items([0, -2, 21, 20, -41], capped=[False, False, True, False, False]))
    expected = {"mae": 84 / 5, "signed_error": -2 / 5, "exact_rate": 1 / 5, "outlier_rate": 2 / 5, "capped_rate": 1 / 5, "repetition": 0.25}
    expected["mae_sd"] = np.std([0, 2, 21, 20, 41])
    assert found == pytest.approx(expected, abs=1e-5)


def test_perplexity_is_of_the_sums():
    """exp(sum of nats / sum of tokens), not the mean of each text's; EOS: exp(mean nats)."""
    found = values(items([0, 0], nll_content=[2.0, 30.0], nll_eos=[1.0, 2.0], content_tokens=[4, 20]))
    assert found["ppl_content"] == pytest.approx(math.exp(32 / 24), rel=1e-5)
    assert found["ppl_eos"] == pytest.approx(math.exp(1.5), rel=1e-5)


@pytest.mark.parametrize("name", ["close", "some empty", "no 4-gram"])
def test_summary_bleu_is_sacrebleu(name):
    found = values(items([0, 0, 0]).join(text_quality(OUTPUTS[name], REFERENCES)))
    assert found["bleu"] == pytest.approx(BLEU(effective_order=False).corpus_score(OUTPUTS[name], [REFERENCES]).score, abs=1e-4)


def test_slices():
    """`unseen` pools the buckets from 64 on, natural slices aside; a bucket without items has no row."""
    table = pd.concat([items([1], "[32,64)"), items([4, 2], "[64,96)"), items([9], "[224,256)"), items([100], "in-distribution")])
    rows = summary(table.assign(id=range(5), group=range(5)))
    assert set(rows["slice"]) == {"[32,64)", "[64,96)", "[224,256)", "in-distribution", "unseen"}
    mae = rows[rows["metric"] == "mae"].set_index("slice")
    assert mae.loc["unseen", "value"] == 5 and mae.loc["unseen", "n"] == 3 and mae.loc["in-distribution", "value"] == 100
    assert "unseen" not in set(summary(items([1], "[32,64)"))["slice"])


def test_nothing_to_summarise():
    assert summarise(items([]), IDENTITY, 64) == []


def test_what_was_not_measured_has_no_row():
    """Items of which only the likelihood is known (`length=wrong`) get perplexities, and no length metric."""
    wrong = items([0, 0], nll_content=[2.0, 3.0], nll_eos=1.0, content_tokens=4).assign(setting="length=wrong")
    wrong = wrong.drop(columns=["generated_length", "capped", "repetition"])
    both = pd.concat([items([3, 5]), wrong], ignore_index=True)
    assert set(values(both, setting="length=wrong")) == {"ppl_content", "ppl_eos"}
    assert values(both)["mae"] == 4


def test_seeds_are_averaged_by_item():
    """Over seeds: the value is the mean over items of the mean over seeds, and repeating a seed narrows no interval."""
    first, second = items([0, 10, 4, 2], seed=0, method="pre"), items([2, 30, 4, 8], seed=1, method="pre")
    one, both, twice = (summary(t, seed="all") for t in (first, pd.concat([first, second]), pd.concat([first, first.assign(seed=1)])))
    mae = {
        name: t[(t["metric"] == "mae") & (t["slice"] == "[64,96)")].iloc[0] for name, t in (("one", one), ("both", both), ("twice", twice))
    }
    assert mae["both"]["value"] == pytest.approx((1 + 20 + 4 + 5) / 4)
    assert mae["twice"][["value", "ci_low", "ci_high"]].tolist() == mae["one"][["value", "ci_low", "ci_high"]].tolist()


def test_clusters_widen_the_interval():
    """Near-duplicates are resampled together: one group has no width, and the interval always holds the value."""
    table = items([0, 10, 4, 2, 30, 1])
    apart, together = (
        t[(t["metric"] == "mae") & (t["slice"] == "unseen")].iloc[0] for t in (summary(table), summary(table.assign(group=7)))
    )
    assert apart["ci_low"] < apart["value"] < apart["ci_high"]
    assert together["ci_low"] == together["value"] == together["ci_high"]


def test_items_from_storage_are_understood():
    """Stored items come back with the names of their unit; those are no measurements."""
    table = items([3, 5], study="length", dataset="docstrings", model="tiny-bart", method="pre", part="unseen", seed=0)
    assert evaluation.replicates(table)[0]["mae"] == 4
