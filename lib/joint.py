"""Where the two halves meet: quality scores judge text that was written to a requested length.

Beside every text of a length-controlled model stands the uncontrolled one's, forced to exactly as
many tokens. Two judges of the same seed read both: SmolLM2, and the tiny BART that was forced.
"""

from dataclasses import replace
from math import comb
from typing import NamedTuple

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from lib.length.finetuning import Data, fine_tuned, fingerprint, trained
from lib.length.generation import generate, likelihoods, text_quality
from lib.quality import training as heads
from lib.quality.experiments import released_frequencies, released_head
from lib.quality.language_models import LanguageModel, Text
from lib.quality.scores import closed_form, head_scores, join, token_facts
from lib.quality.translator import EncoderDecoder
from lib.sampler import METHOD, TokenFrequencies
from lib.sigmoid_head import SigmoidHead
from lib.study.cache import cached, experiment
from lib.study.models import SMOLLM2, smollm2_folder

LANGUAGE_MODEL, WRITER = "SmolLM2", "tiny BART"  # the judges
AVERAGED = ("softmax", "logprob", "closed-form", "closed-form:chosen", "sigmoid-lowrank")
SCORES = (*AVERAGED, "logprob-with-end", "end")
MEASURES = ("rougeL", "sentence_end_rate")
SHORTEST, LEAST = 16, 2  # tokens of a reference (half of one is still a sentence), of a request
TEMPERATURE = 0.7  # set beforehand, not tuned
CHOSEN = {"unigram": 10, "flattened": 1, "excluded": False}  # by notebook 15, on other tasks
HEAD_TEXTS, HEAD_RANK, HEAD_UPDATES, HEAD_BATCH = 2000, 32, 400, 1024  # of the tiny BART's head
FEW = 4096  # positions that its start is fitted to, and that choose its learning rate
NOTHING = "..."  # stands for an empty output, which has no token to score


class Judge(NamedTuple):
    """A frozen model and what its scores need."""

    lm: LanguageModel
    unigram: TokenFrequencies
    head: SigmoidHead


@cached(version=1, built_on=[fine_tuned], data=fingerprint)
def writer_head(**training) -> dict[str, Tensor]:
    """A low-rank head of the model of `fine_tuned`, trained on the references this learnt from, at
    the learning rate of least loss on validation references.
    """
    lm, texts, unigram = _writer(**training)
    options, tried = {"rounds": 4, "samplers": (METHOD,)}, {}
    learnt, held_out = (
        heads.collect(lm, t, unigram, seed=n, **options) for n, t in enumerate(texts)
    )
    start = heads.fitted_start(lm, learnt[:FEW], METHOD)

    def loss_at(learning_rate: float) -> float:
        torch.manual_seed(training["seed"])
        head = SigmoidHead(lm.unembedding, lm.bias, HEAD_RANK, *start)
        batches = heads.shuffled(learnt, METHOD, HEAD_BATCH, training["seed"])
        heads.fit(head, batches, updates=HEAD_UPDATES, learning_rate=learning_rate)
        tried[learning_rate] = head.eval()
        return heads.held_out_loss(head, held_out[:FEW], METHOD)

    chosen = tried[heads.best_learning_rate(loss_at)]
    return {name: parameter.half() for name, parameter in chosen.named_parameters()}


def _writer(**training) -> tuple[EncoderDecoder, list[list[Text]], TokenFrequencies]:
    """The model of `fine_tuned`, training and validation texts of its head, unigram frequencies."""
    model, data = trained(**training)
    lm, texts = EncoderDecoder(training["model"], model, data.tokenizer), []
    for split in ("train", "validation"):
        pairs = data.split(split, high=training["max_train_length"])
        pairs = pairs.sample(min(HEAD_TEXTS, len(pairs)), random_state=0)
        texts.append(reading(lm, pairs["source_ids"], pairs["target_ids"]))
    labels = heads.gold_tokens(texts[0])
    return lm, texts, TokenFrequencies.from_labels(labels, len(lm.unembedding))


def reading(lm: EncoderDecoder, sources, targets) -> list[Text]:
    """What the tiny BART reads: token ids of sources, and of targets with the end."""
    start = lm.model.config.decoder_start_token_id
    return [Text((start, *target), 1, tuple(source)) for source, target in zip(sources, targets)]


def with_end(lm: LanguageModel, sources: list[str], texts: list[str]) -> list[Text]:
    """What SmolLM2 reads: summary line, text, the token that ends a turn."""
    encoded = lm.encode([f"{source}\n" for source in sources], texts)
    return [replace(text, ids=(*text.ids, lm.tokenizer.eos_token_id)) for text in encoded]


def judges(**training) -> tuple[Judge, Judge]:
    """The language model with its committed head of a seed; the writer with its own."""
    lm = LanguageModel.load(SMOLLM2)
    head = SigmoidHead.load(released_head(SMOLLM2, training["seed"]), lm.unembedding)
    plain = training | {"signal": "none", "options": {}}
    writer, _, unigram = _writer(**plain)
    own = SigmoidHead.from_tensors(writer_head(**plain), writer.unembedding)
    return Judge(lm, released_frequencies(SMOLLM2), head), Judge(writer, unigram, own)


@torch.no_grad()
def scores(judge: Judge, texts: list[Text]) -> pd.DataFrame:
    """SCORES, higher = better, of texts whose last token is the one that ends them: all leave it
    out but `end`, its log-probability, and `logprob-with-end`, the mean with it. One row a text.
    """
    ids, number = heads.gold_tokens(texts), heads.text_numbers(texts)  # (N,)
    states = judge.lm.hidden_states(texts)  # (N, d)
    facts = token_facts(judge.lm, states, ids[:, None], judge.unigram)
    forms = closed_form(facts), closed_form(facts, **CHOSEN)
    logprob, *forms = (values.numpy()[:, 0] for values in (facts["logprob"], *forms))
    tokens = np.exp(logprob), logprob, *forms, head_scores(judge.head, states, ids)
    within = np.r_[number[1:] == number[:-1], False]  # (N,), all but the ends
    how = ["log-mean" if name == "closed-form:chosen" else "mean" for name in AVERAGED]
    joined = [join(values[within], number[within], way) for values, way in zip(tokens, how)]
    joined += [join(logprob, number), logprob[~within]]
    return pd.DataFrame(dict(zip(SCORES, joined)))


def judged(data: Data, pairs: pd.DataFrame, outputs: pd.DataFrame, **training) -> pd.DataFrame:
    """Outputs (columns source, a row of pairs; tokens without EOS) with MEASURES and, two rows an
    output, the SCORES of each judge.
    """
    lines, tokens = pairs.loc[outputs["source"]].reset_index(drop=True), outputs["tokens"].tolist()
    decoded = data.tokenizer.batch_decode(tokens, skip_special_tokens=True)
    texts, nothing = [" ".join(t.split()) for t in decoded], data.tokenizer(NOTHING)["input_ids"]
    ended = [[*row, nothing[-1]] if text else nothing for text, row in zip(texts, tokens)]
    texts = [text or NOTHING for text in texts]
    quality = text_quality(texts, lines["target"].tolist())[list(MEASURES)]
    known = [lines[["id", "group"]], outputs.drop(columns=["source", "tokens"]), quality]
    smollm2, writer = judges(**training)
    read = with_end(smollm2.lm, lines["source"].tolist(), texts)
    rows = [scores(smollm2, read).assign(judge=LANGUAGE_MODEL)]
    read = reading(writer.lm, lines["source_ids"], ended)
    rows += [scores(writer, read).assign(judge=WRITER)]
    return pd.concat([pd.concat([*known, own], axis=1) for own in rows], ignore_index=True)


def judged_pairs(data: Data, sources: int, max_train_length: int) -> pd.DataFrame:
    """Test pairs whose references are no longer than in training, and not very short."""
    pairs = data.split("test", low=SHORTEST, high=max_train_length)
    return pairs.sample(min(sources, len(pairs)), random_state=0).reset_index(drop=True)


@experiment(version=1, built_on=[fine_tuned, writer_head, smollm2_folder], data=fingerprint)
def texts_under_length(fractions: list, sources: int, **training) -> pd.DataFrame:
    """Texts at fractions of the reference's length. `text`: of a signal `controlled`, and `forced`,
    the uncontrolled model's of the same length; of none `forced`, and `reference`, cut to it.

    One row a text and judge: id, group, fraction, text, target_length, generated_length,
    natural_length (what the uncontrolled model writes by itself), MEASURES, judge, SCORES.
    """
    model, data = trained(**training)
    pairs = judged_pairs(data, sources, training["max_train_length"])
    product = pd.MultiIndex.from_product([fractions, pairs.index], names=["fraction", "source"])
    asked = product.to_frame(index=False)
    lengths = (asked["fraction"] * pairs["length"].loc[asked["source"]].to_numpy()).round()
    asked["target_length"] = lengths.astype(int).clip(lower=LEAST)
    read = pairs["source_ids"].loc[asked["source"]].tolist()
    lengths = asked["target_length"].to_numpy()
    if training["signal"] == "none":
        plain = model
        shorter = asked[asked["fraction"] <= 1].reset_index(drop=True)
        cut = zip(pairs["target_ids"].loc[shorter["source"]], shorter["target_length"])
        own = {"generated_length": shorter["target_length"], "tokens": [t[: l - 1] for t, l in cut]}
        texts = [shorter.assign(text="reference", **own)]
    else:
        plain, _ = trained(**training | {"signal": "none", "options": {}})
        written = generate(model, read, lengths).drop(columns="capped")
        texts = [asked.assign(text="controlled", **written)]
        lengths = written["generated_length"].to_numpy()
    forced = generate(plain, read, lengths, controlled=False, forced=True).drop(columns="capped")
    texts.append(asked.assign(text="forced", **forced))
    sources, usual = pairs["source_ids"].tolist(), pairs["length"].to_numpy()
    natural = generate(plain, sources, usual, controlled=False)["generated_length"].to_numpy()
    texts = pd.concat(texts, ignore_index=True)
    return judged(data, pairs, texts.assign(natural_length=natural[texts["source"]]), **training)


@experiment(version=1, built_on=[fine_tuned, writer_head, smollm2_folder], data=fingerprint)
def sampled_texts(candidates: int, sources: int, **training) -> pd.DataFrame:
    """Samples at the length of the reference: one row a text and judge.

    Columns: id, group, candidate, target_length, generated_length, own-logprob (mean under the
    model that wrote it, told the length; EOS apart), MEASURES, judge, SCORES.
    """
    model, data = trained(**training)
    pairs = judged_pairs(data, sources, training["max_train_length"])
    source = np.repeat(pairs.index, candidates)
    read, lengths = pairs["source_ids"].loc[source].tolist(), pairs["length"].loc[source].to_numpy()
    torch.manual_seed(training["seed"])
    written = generate(model, read, lengths, temperature=TEMPERATURE).drop(columns="capped")
    ended = [[*row, model.config.eos_token_id] for row in written["tokens"]]
    loss = likelihoods(model, read, ended, lengths)
    own = -loss["nll_content"] / loss["content_tokens"].clip(lower=1)
    candidate = np.tile(np.arange(candidates), len(pairs))
    texts = written.assign(source=source, candidate=candidate, target_length=lengths)
    return judged(data, pairs, texts.assign(**{"own-logprob": own}), **training)


def pairs_of_equal_length(texts: pd.DataFrame) -> pd.DataFrame:
    """Controlled text minus the forced one of the same source, seed and length: one row a pair and
    judge. `kind`: whether forcing `cut` the uncontrolled text, or `stretched` it (or neither).
    """
    key = ["signal", "seed", "fraction", "id", "judge"]
    texts = texts[texts["signal"] != "none"]
    ours, theirs = (texts[texts["text"] == name] for name in ("controlled", "forced"))
    ours, theirs = ours.set_index(key).sort_index(), theirs.set_index(key).sort_index()
    names = [*SCORES, *MEASURES]
    kind = np.where(ours["natural_length"] > ours["generated_length"], "cut", "stretched")
    return ours[["group"]].assign(kind=kind, **(ours[names] - theirs[names])).reset_index()


def cut_references(texts: pd.DataFrame) -> pd.DataFrame:
    """The whole reference minus the same one cut short: one row a pair and judge, as above."""
    key, names = ["seed", "id", "judge"], [*SCORES, *MEASURES]
    texts = texts[texts["text"] == "reference"].set_index(key)
    whole, rest = texts[texts["fraction"] == 1], texts[texts["fraction"] < 1]
    differences = whole[names].reindex(rest.index) - rest[names]
    return rest[["group", "fraction"]].assign(**differences).reset_index()


def expected_best(score: np.ndarray, value: np.ndarray, n: int) -> float:
    """Mean value (m,) of the best-scored (m,) of n candidates, over all choices of n; of tied ones
    the mean. The best of n is among the k best with probability 1 - C(m - k, n) / C(m, n).

    >>> round(expected_best(np.array([3.0, 1.0, 2.0]), np.array([1.0, 0.0, 0.0]), 2), 3)
    0.667
    """
    many = len(score)
    _, block = np.unique(-score, return_inverse=True)  # the best block is number 0
    size = np.bincount(block)
    reached = [1 - comb(many - k, n) / comb(many, n) for k in np.r_[0, np.cumsum(size)]]
    return float(np.diff(reached) @ (np.bincount(block, value) / size))


def choices(samples: pd.DataFrame, sizes: list[int]) -> pd.DataFrame:
    """rougeL of what each score chooses among so many candidates, and `random`, the mean of all.
    One row a signal, seed, source, size, judge (also the writer itself, the reference) and score.
    """
    rows, key = [], ["signal", "seed", "id", "group"]
    for (judge, *place), texts in samples.groupby(["judge", *key], sort=False):
        value = texts["rougeL"].to_numpy(float)
        ranked = {(judge, name): texts[name].to_numpy(float) for name in SCORES}
        if judge == WRITER:
            ranked["the writer itself", "own-logprob"] = texts["own-logprob"].to_numpy(float)
            ranked["the reference", "oracle"] = value
        rows += [
            [*place, size, *name, expected_best(score, value, size), value.mean()]
            for size in sizes
            for name, score in ranked.items()
        ]
    return pd.DataFrame(rows, columns=[*key, "size", "judge", "score", "rougeL", "random"])
