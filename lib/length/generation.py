"""What a model writes at a requested length, what its text is worth, and how likely it finds texts.

A length counts every token the decoder emits, EOS included, or the text's words or characters. An
output without EOS at `target_length + ALLOWANCE` is cut there: capped, its error a lower bound.
"""

import re

import numpy as np
import pandas as pd
import torch
from rouge_score.rouge_scorer import RougeScorer
from sacrebleu.metrics import BLEU
from torch import Tensor
from transformers import LogitsProcessor, LogitsProcessorList

from lib.length.control import ALLOWANCE
from lib.study.paths import progress

MOST_LOGITS = 2**28  # in a batch, one gigabyte: large vocabularies make smaller batches
ROUGE = ("rouge1", "rouge2", "rougeL", "rougeLsum")
# lengths of hypothesis and reference, then matches and counts of 1- to 4-grams
BLEU_SUMS = [f"bleu_{i}" for i in range(10)]


@torch.no_grad()
def generate(
    model,
    sources: list[list[int]],
    target_lengths: np.ndarray,
    *,
    forced: bool = False,
    controlled: bool = True,
    beams: int = 1,
    temperature: float | None = None,
    batch_size: int | None = None,
) -> pd.DataFrame:
    """One output a source: columns generated_length, capped, tokens (ids without EOS).

    sources: token ids, EOS at the end (prompts: without). target_lengths (N,), in what the model
    counts. `forced`: EOS at exactly the requested token; `controlled=False` hides the length from
    the model; `temperature`: sampled from torch's global generator, else greedy (or by beams).
    """
    eos, counting, rows = model.config.eos_token_id, model.counting, [None] * len(sources)
    batch_size, habits = batch_size or model.decoded_at_once, {"do_sample": False}
    if temperature is not None:
        habits = {"do_sample": True, "top_k": 0, "temperature": temperature}
    order = np.argsort(target_lengths, kind="stable")
    for start in progress(range(0, len(order), batch_size), "generating"):
        numbers = order[start : start + batch_size]
        lengths = torch.as_tensor(target_lengths[numbers], device=model.device)
        batch = model.source_batch([sources[i] for i in numbers], lengths if controlled else None)
        first = model.prompt_length(batch)
        # one more: some models are made to emit EOS at the limit, which must not count
        limit = int(lengths.max()) + ALLOWANCE + 1
        if counting is not None:
            limit = model.most_new_tokens(int(lengths.max()), batch["input_ids"].shape[1])
        options = {"max_new_tokens": limit, "num_beams": beams, **habits}
        if forced:
            options["logits_processor"] = LogitsProcessorList([ForcedLength(lengths, eos, first)])
        out = model.generate(**batch, **options)[:, first:]  # (B, T), new tokens
        sizes, ended = output_lengths(out, eos)
        ends = torch.where(ended, sizes - 1, sizes).tolist()
        content = [row[:end] for row, end in zip(out.tolist(), ends)]
        if counting is not None:
            sizes = torch.tensor([counting.length(row) for row in content], device=sizes.device)
        allowed = lengths + ALLOWANCE  # the same for every output, whatever batch it is in
        capped = ~ended | (sizes > allowed)
        sizes = torch.minimum(sizes, allowed)
        for number, tokens, size, cap in zip(numbers, content, sizes.tolist(), capped.tolist()):
            rows[number] = (size, cap, tokens[:size] if cap and counting is None else tokens)
    return pd.DataFrame(rows, columns=["generated_length", "capped", "tokens"])


def output_lengths(generated: Tensor, eos_token_id: int) -> tuple[Tensor, Tensor]:
    """Tokens of each output up to and including its first EOS, and whether there was one.

    generated (B, T) without the start token -> (B,), (B,)

    >>> output_lengths(torch.tensor([[7, 8, 2, 0], [7, 8, 9, 9]]), eos_token_id=2)
    (tensor([3, 4]), tensor([ True, False]))
    """
    is_eos = generated == eos_token_id
    ended = is_eos.any(1)
    return torch.where(ended, is_eos.int().argmax(1) + 1, generated.shape[1]), ended


class ForcedLength(LogitsProcessor):
    """EOS is masked until step l and the only choice there: every output has l tokens behind
    `prompt_length` in the decoder (the start token).
    """

    def __init__(self, target_length: Tensor, eos_token_id: int, prompt_length: int = 1):
        self.target_length, self.eos, self.first = target_length, eos_token_id, prompt_length

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        """input_ids (B·beams, T), scores (B·beams, V) -> (B·beams, V)"""
        step, beams = input_ids.shape[1] - self.first + 1, len(scores) // len(self.target_length)
        last = (step >= self.target_length).repeat_interleave(beams)  # step l or later
        is_eos = torch.arange(scores.shape[1], device=scores.device) == self.eos
        return scores.masked_fill(last[:, None] ^ is_eos, -torch.inf)


@torch.no_grad()
def likelihoods(
    model,
    sources: list[list[int]],
    targets: list[list[int]],
    target_lengths: np.ndarray | None,
    batch_size: int = 128,
) -> pd.DataFrame:
    """Teacher-forced nats of each target: nll_content (sum over all tokens but EOS), nll_eos,
    content_tokens.

    A model that knows l gets EOS for nothing, and loses nothing before it on "or the text ends
    here": content counts as -log p(token | the text goes on) = -log p(token) + log(1 - p(EOS)).
    """
    rows, tokens = [None] * len(sources), [len(row) for row in targets]
    order = np.argsort(tokens, kind="stable")
    logits_a_row = model.config.get_text_config().vocab_size * max(tokens, default=1)
    batch_size = max(1, min(batch_size, MOST_LOGITS // logits_a_row))
    for start in range(0, len(order), batch_size):
        numbers = order[start : start + batch_size]
        lengths = None if target_lengths is None else torch.as_tensor(target_lengths[numbers])
        chosen = [[texts[i] for i in numbers] for texts in (sources, targets)]
        batch = model.pair_batch(*chosen, lengths)
        labels = batch.pop("labels")
        log_p = model(**batch).logits.float().log_softmax(-1)  # (B, T, V)
        loss = -log_p.gather(2, labels.clamp(min=0)[:, :, None])[:, :, 0]
        goes_on = torch.log1p(-log_p[:, :, model.config.eos_token_id].exp())
        last = (labels != -100).sum(1) - 1
        before = torch.arange(labels.shape[1], device=labels.device) < last[:, None]
        content = ((loss + goes_on) * before).sum(1)
        eos = loss.gather(1, last[:, None])[:, 0]
        for number, *row in zip(numbers, content.tolist(), eos.tolist(), last.tolist()):
            rows[number] = row
    return pd.DataFrame(rows, columns=["nll_content", "nll_eos", "content_tokens"])


def text_quality(outputs: list[str], references: list[str]) -> pd.DataFrame:
    """Per output: ROUGE F1 (0...1, stemmed), whether it ends like a sentence, and BLEU_SUMS."""
    scorer, bleu = RougeScorer(list(ROUGE), use_stemmer=True), BLEU(effective_order=True)
    rows = []
    for output, reference in zip(outputs, references):
        lines = [re.sub(r"(?<=[.!?]) ", "\n", text) for text in (reference, output)]
        rouge, sums = scorer.score(*lines), bleu.corpus_score([output], [[reference]])
        ends = bool(re.search(r"[.!?:][\"')`]*$", output.strip()))
        numbers = [sums.sys_len, sums.ref_len, *sums.counts, *sums.totals]
        rows.append([*(rouge[name].fmeasure for name in ROUGE), float(ends), *numbers])
    return pd.DataFrame(rows, columns=[*ROUGE, "sentence_end_rate", *BLEU_SUMS])


def corpus_bleu(sums: np.ndarray) -> np.ndarray:
    """BLEU (0...100), smoothed as sacrebleu does, from sums of BLEU_SUMS. (..., 10) -> (...)"""
    (hypothesis, reference), counts = np.moveaxis(sums[..., :2], -1, 0), sums[..., 2:6]
    halvings = np.cumsum(counts == 0, axis=-1)  # the k-th order without a match counts 2^-k matches
    with np.errstate(divide="ignore", invalid="ignore"):
        precision = np.where(counts == 0, 0.5**halvings, counts) / sums[..., 6:]
        brevity = np.exp(np.minimum(1 - reference / hypothesis, 0))
        bleu = 100 * brevity * np.exp(np.log(precision).mean(-1))
    return np.where((counts.sum(-1) == 0) | (sums[..., 6:].min(-1) == 0), 0.0, bleu)


def repetition(tokens: list[int], n: int = 4) -> float:
    """Share of n-grams that occurred before in the text: 0 for none, near 1 for a loop."""
    grams = [tuple(tokens[i : i + n]) for i in range(len(tokens) - n + 1)]
    return 1 - len(set(grams)) / len(grams) if grams else 0.0
