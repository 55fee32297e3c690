"""The experiments of length control. `**training` are the arguments of `fine_tuned`: signal, seed,
corpus, model, max_train_length, ..., options.
"""

from itertools import pairwise

import numpy as np
import pandas as pd
import torch
from torch import Tensor, nn

from lib.length.finetuning import (
    LONGEST_REQUEST,
    Data,
    fine_tuned,
    fingerprint,
    signal_options,
    tiny_bart,
    tokenised,
    trained,
)
from lib.length.generation import generate, likelihoods, repetition, text_quality
from lib.length.models import is_decoder_only
from lib.reverse_position import ReversePosition
from lib.study.cache import experiment, kept
from lib.study.models import smollm2_folder
from lib.study.sentence_embeddings import bertscore

FAULTS = ("noise-at-inference", "no-signal-at-first-step")  # of the authors' code
OUTLIER = 20  # tokens; the paper's bound


def of_signals(function, signals: list[str], seeds: list[int], **arguments) -> pd.DataFrame:
    """`kept` for signals, each with its own options (`signal_options`), and seeds."""
    cut = arguments["max_train_length"]
    rows = []
    for signal in signals:
        own = {"signal": signal, "options": signal_options(signal, cut)}
        rows.append(kept(function, over={"seed": seeds}, **own, **arguments))
    return pd.concat(rows, ignore_index=True)


def buckets(max_train_length: int) -> list[tuple[int, int]]:
    """Ranges [low, high) of requested length, half the training cut wide: two trained, then unseen.

    >>> buckets(64)
    [(0, 32), (32, 64), (64, 96), (96, 128), (128, 160), (160, 192), (192, 224), (224, 256)]
    """
    edges = [i * max_train_length // 2 for i in range(2 * LONGEST_REQUEST + 1)]
    return list(pairwise(edges))


@experiment(version=1, built_on=[fine_tuned], data=fingerprint)
def controlled_outputs(
    items: int, split: str = "test", fault: str | None = None, **training
) -> pd.DataFrame:
    """Outputs at random requested lengths on random sources, `items` a bucket; the same requests
    for every signal and seed. `fault`: one of FAULTS. One row an output: id, group (of the source),
    bucket_start, bucket_end, target_length, generated_length, capped, repetition.
    """
    model, data = trained(**training)
    rng, sources, chosen = np.random.default_rng(0), data.split(split), []
    for low, high in buckets(training["max_train_length"]):
        repeats = len(sources) < items
        some = sources.iloc[rng.choice(len(sources), items, replace=repeats)]
        lengths = rng.integers(max(low, 2), high, items)
        some = some[["group", "source_ids"]].assign(bucket_start=low, bucket_end=high)
        chosen.append(some.assign(target_length=lengths))
    requests = pd.concat(chosen, ignore_index=True)
    if fault is not None:
        switch_on(fault, model)
    controlled = training["signal"] != "none"
    lengths = requests["target_length"].to_numpy()
    out = generate(model, requests["source_ids"].tolist(), lengths, controlled=controlled)
    rows = requests.drop(columns="source_ids").assign(**out[["generated_length", "capped"]])
    rows.insert(0, "id", np.arange(len(rows)))
    return rows.assign(repetition=[repetition(tokens) for tokens in out["tokens"]])


@experiment(version=1, built_on=[fine_tuned], data=fingerprint)
def reference_outputs(references: str, items: int, **training) -> pd.DataFrame:
    """Outputs at the length of `references` (see `reference_pairs`), compared with them. One row an
    output: id, group, target_length, decoding (free, forced; of a stock encoder-decoder also
    beams-4, forced-beams-4), generated_length, capped, `text_quality`, bertscore, repetition.
    """
    model, data = trained(**training)
    pairs = reference_pairs(data, references, items, training["max_train_length"])
    controlled = training["signal"] != "none"
    decodings = {"free": {}}
    if model.counting is None:  # forced decoding counts tokens
        decodings |= {"forced": {"forced": True}}
        if not controlled and not is_decoder_only(model.config):  # the paper's stock model
            decodings |= {"beams-4": {"beams": 4}, "forced-beams-4": {"forced": True, "beams": 4}}
    sources, lengths = pairs["source_ids"].tolist(), pairs["length"].to_numpy()
    expected, rows = pairs["target"].tolist(), []
    for name, decoding in decodings.items():
        out = generate(model, sources, lengths, controlled=controlled, **decoding)
        texts = data.tokenizer.batch_decode(out["tokens"].tolist(), skip_special_tokens=True)
        texts = [text.strip() for text in texts]
        quality = text_quality(texts, expected)
        if data.corpus.bertscore:
            quality["bertscore"] = bertscore(texts, expected)
        one = pairs[["id", "group"]].assign(target_length=lengths, decoding=name)
        one = one.assign(**out[["generated_length", "capped"]], **quality)
        rows.append(one.assign(repetition=[repetition(tokens) for tokens in out["tokens"]]))
    return pd.concat(rows, ignore_index=True)


@experiment(version=1, built_on=[fine_tuned], data=fingerprint)
def reference_likelihoods(references: str, items: int, **training) -> pd.DataFrame:
    """Nats of references under teacher forcing, told their length (`requested`: "own"), another's
    ("other") or nothing ("none"). One row a reference and what was told: id, group, target_length,
    requested, nll_content, nll_eos, content_tokens.
    """
    model, data = trained(**training)
    pairs = reference_pairs(data, references, items, training["max_train_length"])
    lengths = pairs["length"].to_numpy()
    requests = {"own": lengths}
    if references != "validation":
        requests["other"] = np.roll(lengths, 1)
    if training["signal"] == "none":
        requests = {"none": None}
    ids, common = [pairs[f"{name}_ids"].tolist() for name in ("source", "target")], ["id", "group"]
    pairs, rows = pairs[common].assign(target_length=lengths), []
    for name, told in requests.items():
        rows.append(pairs.assign(requested=name, **likelihoods(model, *ids, told)))
    return pd.concat(rows, ignore_index=True)


@experiment(
    version=1, built_on=[fine_tuned, controlled_outputs, reference_likelihoods], data=fingerprint
)
def tried_on_validation(items: int, **training) -> pd.DataFrame:
    """One row for a choice, tried on validation text: error, exact_rate and outlier_rate of unseen
    lengths, perplexity of short references.
    """
    outputs = controlled_outputs(items=items, split="validation", **training)
    outputs = outputs[outputs["bucket_start"] >= training["max_train_length"]]
    error = (outputs["generated_length"] - outputs["target_length"]).abs()
    nats = reference_likelihoods(references="validation", items=items, **training)
    total = nats[["nll_content", "content_tokens"]].sum()
    rates = {"exact_rate": (error == 0).mean(), "outlier_rate": (error > OUTLIER).mean()}
    perplexity = np.exp(total["nll_content"] / total["content_tokens"])
    return pd.DataFrame([{"mae": error.mean(), **rates, "ppl_content": perplexity}])


@experiment(version=1, built_on=[tiny_bart, smollm2_folder], data=fingerprint)
def target_lengths(corpus: str, model: str, pretrain_updates: int) -> pd.DataFrame:
    """How long natural targets are: split, target_length, pairs (number of such targets)."""
    pairs = tokenised(corpus, model, pretrain_updates).pairs
    pairs = pairs.rename(columns={"length": "target_length"})
    return pairs.groupby(["split", "target_length"]).size().reset_index(name="pairs")


def reference_pairs(data: Data, references: str, items: int, max_train_length: int) -> pd.DataFrame:
    """At most 2 `items` test pairs as short as in training ("trained") or up to LONGEST_REQUEST
    times as long ("unseen"); or all short pairs of validation text ("validation").
    """
    cut = max_train_length
    if references == "validation":
        return data.split("validation", high=cut)
    low, high = {"trained": (1, cut), "unseen": (cut, LONGEST_REQUEST * cut)}[references]
    pairs = data.split("test", low=low, high=high)
    return pairs.sample(min(2 * items, len(pairs)), random_state=0).reset_index(drop=True)


def switch_on(fault: str, model: nn.Module) -> None:
    """Make a model generate with one of FAULTS."""
    if fault == "noise-at-inference":
        model.length_signal.train()
    else:
        model.length_signal = _FaultyFirstStep(model.length_signal)
    torch.manual_seed(0)


class _FaultyFirstStep(nn.Module):
    """The authors' first generation step: no signal (RPE: the signal for one token left)."""

    def __init__(self, signal: nn.Module):
        super().__init__()
        self.signal = signal

    def forward(self, step: Tensor, target_length: Tensor) -> Tensor:
        embedding, first = self.signal(step, target_length), 0
        if isinstance(self.signal, ReversePosition):
            first = self.signal(step, torch.full_like(target_length, 2))
        return torch.where((step == 1)[:, None], first, embedding)
