"""How well a model keeps to a requested length, and what the text is worth: one row of measurements an output, then the study's metrics.

A length counts every token the decoder emits, EOS included; or the words or characters of the text, where the model counts those. An output
that reaches `target_length + ALLOWANCE` without EOS is cut there and counted as capped; its error is then a lower bound.
"""

import re
from itertools import pairwise

import numpy as np
import pandas as pd
import torch
from rouge_score.rouge_scorer import RougeScorer
from sacrebleu.metrics import BLEU
from torch import Tensor
from transformers import LogitsProcessorList

from old.length.control import ALLOWANCE
from old.length.models import ForcedLength
from old.progress import progress
from old.results import RESAMPLES, cluster_bootstrap, interval

OUTLIER = 20  # tokens; the paper's bound
LONGEST_REQUEST = 4  # times the training cut
MOST_LOGITS = 2**28  # in a batch, one gigabyte: large vocabularies make smaller batches
ROUGE = ("rouge1", "rouge2", "rougeL", "rougeLsum")
BLEU_STATISTICS = [f"bleu_{i}" for i in range(10)]  # lengths of hypothesis and reference, then matches and counts of 1- to 4-grams


def buckets(max_train_length: int) -> list[tuple[int, int]]:
    """Ranges [low, high) of requested length (tokens), half the training cut wide: two trained ones, then the unseen.

    >>> buckets(64)
    [(0, 32), (32, 64), (64, 96), (96, 128), (128, 160), (160, 192), (192, 224), (224, 256)]
    """
    edges = [i * max_train_length // 2 for i in range(2 * LONGEST_REQUEST + 1)]
    return list(pairwise(edges))


def bucket_name(low: int, high: int) -> str:
    """`[64,96)`"""
    return f"[{low},{high})"


def output_lengths(generated: Tensor, eos_token_id: int) -> tuple[Tensor, Tensor]:
    """Tokens of each output up to and including its first EOS, and whether there was one.

    generated (B, T) without the start token -> (B,), (B,)

    >>> output_lengths(torch.tensor([[7, 8, 2, 0], [7, 8, 9, 9]]), eos_token_id=2)
    (tensor([3, 4]), tensor([ True, False]))
    """
    is_eos = generated == eos_token_id
    ended = is_eos.any(1)
    return torch.where(ended, is_eos.int().argmax(1) + 1, generated.shape[1]), ended


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
    """Generate one output a source; columns `generated_length`, `capped`, `tokens` (ids without EOS), in the order given.

    sources: token ids, EOS at the end (of a decoder-only model: prompts, without EOS). target_lengths (N,), in what the model counts.
    Requests of similar length are decoded together, `batch_size` at once (by default as many as suit the kind of model).
    `forced` masks EOS until the requested number of tokens and forces it there; `controlled=False` hides the length from the model (with
    `forced`, the stock model cut to size). `temperature`: sampled at it, from torch's global generator; greedy (or by beams) without.
    """
    eos, counting, rows = model.config.eos_token_id, model.counting, [None] * len(sources)
    batch_size = batch_size or model.decoded_at_once
    habits = {"do_sample": False} if temperature is None else {"do_sample": True, "top_k": 0, "temperature": temperature}
    order = np.argsort(target_lengths, kind="stable")
    for start in progress(range(0, len(order), batch_size), "generating"):
        part = order[start : start + batch_size]
        lengths = torch.as_tensor(target_lengths[part], device=model.device)
        batch = model.source_batch([sources[i] for i in part], lengths if controlled else None)
        first = model.prompt_length(batch)
        limit = int(lengths.max()) + ALLOWANCE + 1  # one more: some models are made to emit EOS at the limit, which must not count
        if counting is not None:
            limit = model.most_new_tokens(int(lengths.max()), batch["input_ids"].shape[1])
        options = {"logits_processor": LogitsProcessorList([ForcedLength(lengths, eos, first)])} if forced else {}
        out = model.generate(**batch, max_new_tokens=limit, num_beams=beams, **habits, **options)[:, first:]  # (B, T), new tokens
        sizes, ended = output_lengths(out, eos)
        content = [row[: size - 1] if done else row for row, size, done in zip(out.tolist(), sizes.tolist(), ended.tolist())]
        if counting is not None:
            sizes = torch.tensor([counting.length(row) for row in content], device=sizes.device)
        allowed = lengths + ALLOWANCE  # the same allowance for every item, whatever batch it is in
        capped = ~ended | (sizes > allowed)
        sizes = torch.minimum(sizes, allowed)
        for row, tokens, size, cap in zip(part, content, sizes.tolist(), capped.tolist()):
            rows[row] = (size, cap, tokens[:size] if cap and counting is None else tokens)
    return pd.DataFrame(rows, columns=["generated_length", "capped", "tokens"])


@torch.no_grad()
def negative_log_likelihood(
    model, sources: list[list[int]], targets: list[list[int]], target_lengths: np.ndarray | None, batch_size: int = 128
) -> pd.DataFrame:
    """Teacher-forced nats of each target: `nll_content` (sum over all tokens but EOS), `nll_eos`, `content_tokens`.

    The split matters: a model that knows l gets EOS for nothing, and at every token before it loses nothing on "or the text ends here".
    So content counts as -log p(token | the text goes on), that is -log p(token) + log(1 - p(EOS)): this compares controlled with
    uncontrolled.
    """
    rows = [None] * len(sources)
    order = np.argsort([len(t) for t in targets], kind="stable")
    logits_a_row = model.config.get_text_config().vocab_size * max((len(t) for t in targets), default=1)
    batch_size = max(1, min(batch_size, MOST_LOGITS // logits_a_row))
    for start in range(0, len(order), batch_size):
        part = order[start : start + batch_size]
        lengths = None if target_lengths is None else torch.as_tensor(target_lengths[part], device=model.device)
        batch = model.pair_batch([sources[i] for i in part], [targets[i] for i in part], lengths)
        labels = batch.pop("labels")
        logits = model(**batch).logits
        log_p = logits.float().log_softmax(-1)  # (B, T, V)
        loss = -log_p.gather(2, labels.clamp(min=0)[:, :, None])[:, :, 0]
        goes_on = torch.log1p(-log_p[:, :, model.config.eos_token_id].exp())
        last = (labels != -100).sum(1) - 1
        before = torch.arange(labels.shape[1], device=labels.device) < last[:, None]
        content = ((loss + goes_on) * before).sum(1)
        eos = loss.gather(1, last[:, None])[:, 0]
        for row, total, end, count in zip(part, content.tolist(), eos.tolist(), last.tolist()):
            rows[row] = (total, end, count)
    return pd.DataFrame(rows, columns=["nll_content", "nll_eos", "content_tokens"])


def repetition(tokens: list[int], n: int = 4) -> float:
    """Share of n-grams that occurred before in the same text: 0 for none, near 1 for a loop; 0 for texts shorter than n."""
    grams = [tuple(tokens[i : i + n]) for i in range(len(tokens) - n + 1)]
    return 1 - len(set(grams)) / len(grams) if grams else 0.0


def text_quality(outputs: list[str], references: list[str]) -> pd.DataFrame:
    """Per output: ROUGE F1 (0...1, stemmed; Lsum over sentences), sentence-end share, and the ten sums that corpus BLEU is made of."""
    scorer, bleu = RougeScorer(list(ROUGE), use_stemmer=True), BLEU(effective_order=True)
    rows = []
    for output, reference in zip(outputs, references):
        by_sentence = [re.sub(r"(?<=[.!?]) ", "\n", text) for text in (reference, output)]
        scores = scorer.score(*by_sentence)
        sums = bleu.corpus_score([output], [[reference]])
        statistics = [sums.sys_len, sums.ref_len, *sums.counts, *sums.totals]
        rows.append([*(scores[name].fmeasure for name in ROUGE), float(bool(re.search(r"[.!?:][\"')`]*$", output.strip()))), *statistics])
    return pd.DataFrame(rows, columns=[*ROUGE, "sentence_end_rate", *BLEU_STATISTICS])


# ---- from items to the rows of the result table --------------------------------------------------------------------------------------

# metric: (numerator, denominator) a item, and what is done to the ratio of their sums
_ONE = "one"
METRICS = {
    "mae": ("absolute_error", _ONE, None),
    "signed_error": ("error", _ONE, None),
    "exact_rate": ("exact", _ONE, None),
    "outlier_rate": ("outlier", _ONE, None),
    "capped_rate": ("capped", _ONE, None),
    "repetition": ("repetition", _ONE, None),
    "sentence_end_rate": ("sentence_end_rate", _ONE, None),
    **{name: (name, _ONE, None) for name in (*ROUGE, "bertscore")},
    "ppl_content": ("nll_content", "content_tokens", np.exp),
    "ppl_eos": ("nll_eos", _ONE, np.exp),
}


def bleu_from_sums(sums: np.ndarray) -> np.ndarray:
    """Corpus BLEU (0...100) from sums of BLEU_STATISTICS, with sacrebleu's exponential smoothing. (..., 10) -> (...)"""
    hypothesis, reference, counts, totals = sums[..., 0], sums[..., 1], sums[..., 2:6], sums[..., 6:10]
    halvings = np.cumsum(counts == 0, axis=-1)  # the k-th n-gram order without a match counts as 2^-k matches
    with np.errstate(divide="ignore", invalid="ignore"):
        precision = np.where(counts == 0, 0.5**halvings, counts) / totals
        brevity = np.where(hypothesis < reference, np.exp(1 - reference / hypothesis), 1.0)
        bleu = 100 * brevity * np.exp(np.log(precision).mean(-1))
    return np.where((counts.sum(-1) == 0) | (totals.min(-1) == 0), 0.0, bleu)


def _per_item(items: pd.DataFrame) -> pd.DataFrame:
    """Statistics of each item, averaged over its seeds: index id, columns the numerators and denominators of METRICS."""
    error = items["generated_length"] - items["target_length"]
    statistics = items.assign(
        error=error,
        absolute_error=error.abs(),
        exact=(error == 0).where(error.notna()),
        outlier=(error.abs() > OUTLIER).where(error.notna()),
        one=1.0,
    )
    wanted = {name for top, bottom, _ in METRICS.values() for name in (top, bottom)} | {"id", "group", *BLEU_STATISTICS}
    return statistics[[name for name in statistics if name in wanted]].astype(float).groupby("id").mean()


def replicates(items: pd.DataFrame, resamples: int = RESAMPLES) -> tuple[dict[str, float], dict[str, np.ndarray]]:
    """Every metric of one slice, setting and method (any number of seeds): its value, and its bootstrap replicates (R,).

    Clusters are near-duplicate groups. Slices with the same items get the same resamples, so that differences of replicates are paired.
    """
    statistics = _per_item(items)
    names = [m for m, (top, *_) in METRICS.items() if top in statistics and statistics[top].notna().all()]
    tops, bottoms = ([METRICS[m][i] for m in names] for i in (0, 1))
    has_bleu = BLEU_STATISTICS[0] in statistics and statistics[BLEU_STATISTICS[0]].notna().all()
    tops, bottoms = (tops + BLEU_STATISTICS, bottoms + [_ONE] * 10) if has_bleu else (tops, bottoms)
    top, bottom = statistics[tops].to_numpy(float), statistics[bottoms].to_numpy(float)
    drawn = np.vstack(
        [top.sum(0) / bottom.sum(0), cluster_bootstrap(top, bottom, statistics["group"].to_numpy(), resamples)]
    )  # (1 + R, M): the value first
    values = {m: (METRICS[m][2] or np.asarray)(drawn[:, i]) for i, m in enumerate(names)}
    if has_bleu:
        values["bleu"] = bleu_from_sums(drawn[:, -10:] * len(statistics))  # sums, not means: smoothing counts matches
    return {m: float(v[0]) for m, v in values.items()}, {m: v[1:] for m, v in values.items()}


def summarise(items: pd.DataFrame, identity: dict, first_unseen: int) -> list[dict]:
    """Result rows of one method and one seed (`seed` in identity) or of all its seeds together (`seed` = "all").

    `identity`: study, dataset, model, method, seed. One row for each slice, setting and metric, plus `mae_sd`, the standard deviation of
    |error| (the paper's ± SD), and the slice `unseen`: all buckets from `first_unseen` tokens on.
    """
    rows = []
    buckets = items["slice"].str.extract(r"^\[(\d+),")[0].astype(float)
    pooled = items[buckets >= first_unseen].assign(slice="unseen")
    for (name, setting), group in pd.concat([items, pooled]).groupby(["slice", "setting"], sort=False):
        common = {**identity, "slice": name, "setting": setting, "n": len(group)}
        values, drawn = replicates(group)
        for metric, value in values.items():
            low, high = interval(drawn[metric])
            rows.append({**common, "metric": metric, "value": value, "ci_low": low, "ci_high": high})
        error = (group["generated_length"] - group["target_length"]).abs()
        if error.notna().all():
            rows.append({**common, "metric": "mae_sd", "value": error.std(ddof=0)})
    return rows
