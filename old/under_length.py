"""Where the two halves meet: quality scores judge text that was written to a requested length (notebook 30).

Two parts, each a unit a signal and seed:
- `under-length`: the same sources at several lengths, each a fraction of the reference's. Beside every text of a length-controlled model
  the uncontrolled one's, forced to exactly as many tokens: whatever differs, length does not. Method `forced`: forced to the requested
  length itself. Method `reference`: the reference, whole and cut short, which is damaged for certain;
- `best-of-n`: several texts a source, sampled at the reference's length, to choose from.

Two judges read every text, each with the same scores: SmolLM2, which sees summary line and text, and the uncontrolled tiny BART of the same
seed, which is the model that was forced. Seeds are paired: text of seed 0 is judged by the heads of seed 0.
"""

import dataclasses
from dataclasses import dataclass
from functools import lru_cache
from math import comb

import numpy as np
import pandas as pd
import torch
from torch import nn

from old.length import evaluation, experiment
from old.length.finetuning import Settings, model_file, prepare, trained_model
from old.parameters import check_names, settings_from
from old.quality import heads, prefix_tree
from old.quality.encoder_decoder import EncoderDecoder
from old.quality.evaluation import Statistic, mean, rows
from old.quality.head import SigmoidHead
from old.quality.language_models import SMOLLM2, LanguageModel, Text
from old.quality.negatives import TokenFrequencies
from old.quality.scores import METHOD, head_scores, sequence_scores
from old.quality.tasks.corruption import prompt_of
from old.quality.training import collect, fit, fitted_start, gold_tokens, held_out_loss, hidden_states, text_numbers
from old.quality.training_free import CHOSEN, PAPER, Form, closed_form, gold_statistics
from old.results import make_table, setting_name, write_atomically
from old.units import Unit, default_jobs, pending
from old.units import run as run_units

RECIPE = 1  # bump when a change here moves the numbers
SWEEP, BEST = "under-length", "best-of-n"
FORCED, REFERENCE = "forced", "reference"
SHORTEST, LEAST = 16, 2  # tokens of a reference (half of one is still a sentence), and of a request
TEMPERATURE = 0.7  # set beforehand, not tuned
CHOSEN_FORM, CHOSEN_WAY = Form(10, 1, excluded=False), "log-mean"  # what notebook 16 chose, on other tasks
WAYS = {CHOSEN: CHOSEN_WAY}  # how token scores are joined, where not by their mean
WRITER = "bart:"  # scores by the tiny BART are named `bart:softmax`, ...
SCORES = ("softmax", "logprob", "closed-form", CHOSEN, heads.RELEASED, "logprob-with-end", "end")
MEASURES = ("rougeL", "sentence_end_rate")
HEAD_TEXTS, HEAD_RANK, HEAD_UPDATES, HEAD_BATCH = 2000, 32, 400, 1024  # of the tiny BART's head: as those of the language model
NOTHING = "..."  # stands for an empty output, which has no token to score


@dataclass(frozen=True)
class Judge:
    """A frozen model and what its scores need."""

    lm: LanguageModel
    unigram: TokenFrequencies
    head: SigmoidHead


# ---- units ---------------------------------------------------------------------------------------------------------------------------


def plan(parameters: dict) -> list[Unit]:
    """All units for a notebook's parameters (`signals`, `seeds`, `fractions`, `sources`, `sampled`, `candidates`, fields of the length
    experiment's Settings). ValueError for what is unknown or out of range, before anything is computed.
    """
    check_names("signal", parameters["sampled"], parameters["signals"])
    if not parameters["fractions"] or min(parameters["fractions"]) <= 0 or min(parameters["sources"], parameters["candidates"]) < 2:
        raise ValueError("fractions must be above 0; sources and candidates at least 2")
    if absent := [seed for seed in parameters["seeds"] if not heads.released_head(SMOLLM2, seed).exists()]:
        raise ValueError(f"no committed head of seed {absent[0]}: notebook 30 judges with those in data/heads")
    sweep = {name: parameters[name] for name in ("sources", "fractions")} | {"judge": SMOLLM2}
    best = {name: parameters[name] for name in ("sources", "candidates")} | {"judge": SMOLLM2}
    units = []
    for part, methods, own in (
        (SWEEP, [REFERENCE, FORCED, *parameters["signals"]], sweep),
        (BEST, parameters["sampled"], best),
    ):
        for method in methods:
            signal = "none" if method in (REFERENCE, FORCED) else method
            for model in experiment.plan(["in-distribution"], parameters | {"signals": [signal]}):
                values = model.parameters | own
                units.append(Unit("quality", model.dataset, model.model, method, part, model.seed, values, model.data, RECIPE))
    return units


def run(parameters: dict) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Rows and items of all units: read where they are stored, computed where not."""
    units = plan(parameters)
    todo = pending(units, parameters["profile"])
    for unit in {unit.seed: unit for unit in todo}.values():  # once a seed, before units run side by side
        writer(settings_from(Settings, unit.parameters), unit.seed)
    return run_units(units, compute, parameters["profile"], default_jobs())


def compute(unit: Unit) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Rows and items of one unit; its items are texts, with the scores of both judges, their names and their likeness to the reference."""
    settings = settings_from(Settings, unit.parameters)
    data = prepare(settings)
    pairs = data.split("test", low=SHORTEST, high=settings.max_train_length)
    pairs = pairs.sample(min(unit.parameters["sources"], len(pairs)), random_state=0).reset_index(drop=True)
    made = {REFERENCE: _references, FORCED: _forced}.get(unit.method, _controlled) if unit.part == SWEEP else _sampled
    items = made(unit, settings, pairs)
    lines = pairs.loc[items.pop("source")].reset_index(drop=True)
    tokens = items.pop("tokens").tolist()
    texts = [" ".join(text.split()) for text in data.tokenizer.batch_decode(tokens, skip_special_tokens=True)]
    for number, text in enumerate(texts):
        if not text:
            texts[number], tokens[number] = NOTHING, data.tokenizer(NOTHING)["input_ids"][:-1]
    quality = evaluation.text_quality(texts, lines["target"].tolist())[list(MEASURES)]
    of_language_model = scores(smollm2(unit.seed), with_end(smollm2(unit.seed).lm, lines["source"].tolist(), texts))
    judge, eos = writer(settings, unit.seed), data.tokenizer.eos_token_id
    start = judge.lm.model.config.decoder_start_token_id
    read = [Text((start, *row, eos), 1, tuple(source)) for row, source in zip(tokens, lines["source_ids"])]
    parts = [lines[["id", "group"]], items, quality, of_language_model, scores(judge, read).add_prefix(WRITER)]
    found = pd.concat(parts, axis=1)
    summarise = _sweep_rows if unit.part == SWEEP else _best_rows
    return make_table(summarise(found, unit.identity)), found


# ---- texts: one row each, with `source` (row of the pairs), `tokens` without EOS, and lengths ------------------------------------------


def _fractions(unit: Unit, pairs: pd.DataFrame) -> pd.DataFrame:
    """One row a source and requested length."""
    each = pd.MultiIndex.from_product([unit.parameters["fractions"], pairs.index], names=["fraction", "source"]).to_frame(index=False)
    length = (each["fraction"] * pairs["length"].loc[each["source"]].to_numpy()).round().astype(int)
    return each.assign(target_length=length.clip(lower=LEAST))


def _controlled(unit: Unit, settings: Settings, pairs: pd.DataFrame) -> pd.DataFrame:
    """Texts of the controlled model, and of the uncontrolled one forced to the length that each of them has."""
    asked = _fractions(unit, pairs)
    sources = pairs["source_ids"].loc[asked["source"]].tolist()
    model, plain = _model(unit.method, unit.seed, settings), _model("none", unit.seed, settings)
    written = evaluation.generate(model, sources, asked["target_length"].to_numpy()).drop(columns="capped")
    lengths = written["generated_length"].to_numpy()
    forced = evaluation.generate(plain, sources, lengths, controlled=False, forced=True).drop(columns="capped")
    natural = _natural_length(plain, pairs)[asked["source"]]
    both = [asked.assign(text=name, natural_length=natural, **found) for name, found in (("controlled", written), (FORCED, forced))]
    return pd.concat(both, ignore_index=True)


def _forced(unit: Unit, settings: Settings, pairs: pd.DataFrame) -> pd.DataFrame:
    """Texts of the uncontrolled model, forced to the requested length."""
    asked, plain = _fractions(unit, pairs), _model("none", unit.seed, settings)
    sources = pairs["source_ids"].loc[asked["source"]].tolist()
    written = evaluation.generate(plain, sources, asked["target_length"].to_numpy(), controlled=False, forced=True)
    natural = _natural_length(plain, pairs)[asked["source"]]
    return asked.assign(text=FORCED, natural_length=natural, **written.drop(columns="capped"))


def _references(unit: Unit, _settings: Settings, pairs: pd.DataFrame) -> pd.DataFrame:
    """References, cut to the requested length where that is shorter."""
    asked = _fractions(unit, pairs)
    asked = asked[asked["fraction"] <= 1].reset_index(drop=True)
    tokens = [pairs["target_ids"][s][: length - 1] for s, length in zip(asked["source"], asked["target_length"])]
    return asked.assign(text=REFERENCE, tokens=tokens, generated_length=asked["target_length"])


def _sampled(unit: Unit, settings: Settings, pairs: pd.DataFrame) -> pd.DataFrame:
    """Candidates of each source at the length of its reference, with their log-probability under the model that wrote them (told the
    length; mean over tokens, EOS apart).
    """
    many = unit.parameters["candidates"]
    source = np.repeat(pairs.index, many)
    sources, lengths = pairs["source_ids"].loc[source].tolist(), pairs["length"].loc[source].to_numpy()
    model = _model(unit.method, unit.seed, settings)
    torch.manual_seed(unit.seed)
    written = evaluation.generate(model, sources, lengths, temperature=TEMPERATURE).drop(columns="capped")
    loss = evaluation.negative_log_likelihood(model, sources, [[*row, model.config.eos_token_id] for row in written["tokens"]], lengths)
    own = -loss["nll_content"] / loss["content_tokens"].clip(lower=1)
    candidate = np.tile(np.arange(many), len(pairs))
    return written.assign(source=source, candidate=candidate, target_length=lengths, **{"own-logprob": own})


def _natural_length(plain: nn.Module, pairs: pd.DataFrame) -> np.ndarray:
    """Tokens that the uncontrolled model writes by itself; loops are cut as everywhere. (N,)"""
    return evaluation.generate(plain, pairs["source_ids"].tolist(), pairs["length"].to_numpy(), controlled=False)[
        "generated_length"
    ].to_numpy()


def _model_unit(signal: str, seed: int, settings: Settings) -> Unit:
    """A unit of the length experiment that is measured on this model."""
    (unit,) = experiment.plan(["in-distribution"], dataclasses.asdict(settings) | {"signals": [signal], "seeds": [seed]})
    return unit


@lru_cache(maxsize=4)
def _model(signal: str, seed: int, settings: Settings) -> nn.Module:
    return trained_model(_model_unit(signal, seed, settings), settings, prepare(settings))


# ---- judges --------------------------------------------------------------------------------------------------------------------------


@lru_cache(maxsize=1)
def smollm2(seed: int) -> Judge:
    """The language model with its committed head of a seed."""
    lm = _language_model()
    return Judge(lm, heads.released_frequencies(SMOLLM2), SigmoidHead.load(heads.released_head(SMOLLM2, seed), lm.unembedding))


@lru_cache(maxsize=1)
def _language_model() -> LanguageModel:
    return LanguageModel.load(SMOLLM2)


def with_end(lm: LanguageModel, sources: list[str], texts: list[str]) -> list[Text]:
    """Texts behind their summary lines, and the token that ends a text behind them."""
    encoded = lm.encode([prompt_of(source) for source in sources], texts)
    return [dataclasses.replace(text, ids=(*text.ids, lm.tokenizer.eos_token_id)) for text in encoded]


@lru_cache(maxsize=1)
def writer(settings: Settings, seed: int) -> Judge:
    """The uncontrolled model of a seed with a head of its own, trained on the references it was fine-tuned on; kept in the cache."""
    data = prepare(settings)
    lm = EncoderDecoder(settings.model, _model("none", seed, settings), data.tokenizer)
    texts = {split: _read(lm, data.split(split, high=settings.max_train_length)) for split in ("train", "validation")}
    unigram = TokenFrequencies.from_labels(gold_tokens(texts["train"]), len(lm.unembedding))
    file = model_file(_model_unit("none", seed, settings)).with_suffix(f".head-r{RECIPE}.safetensors")
    if not file.exists():
        head = _train_head(lm, texts, unigram, seed)
        write_atomically(file, lambda partial: head.save(partial, settings.model))
    return Judge(lm, unigram, SigmoidHead.load(file, lm.unembedding))


def _read(lm: EncoderDecoder, pairs: pd.DataFrame) -> list[Text]:
    start = lm.model.config.decoder_start_token_id
    chosen = pairs.sample(min(HEAD_TEXTS, len(pairs)), random_state=0)
    return [Text((start, *target), 1, tuple(source)) for source, target in zip(chosen["source_ids"], chosen["target_ids"])]


def _train_head(lm: EncoderDecoder, texts: dict[str, list[Text]], unigram: TokenFrequencies, seed: int) -> SigmoidHead:
    """A low-rank head by the paper's sampler, at the learning rate of least loss on validation references."""
    training, held_out = (
        collect(lm, texts[s], unigram, rounds=4, seed=n, samplers=(METHOD,)) for n, s in enumerate(("train", "validation"))
    )
    trained: dict[float, SigmoidHead] = {}

    def loss_at(rate: float) -> float:
        torch.manual_seed(seed)
        head = SigmoidHead(lm.unembedding, lm.bias, HEAD_RANK, *fitted_start(lm, training, METHOD))
        fit(head, training, METHOD, updates=HEAD_UPDATES, learning_rate=rate, positions_per_batch=HEAD_BATCH, seed=seed)
        trained[rate] = head.eval()
        return held_out_loss(head, held_out, METHOD, limit=heads.HELD_OUT)

    losses = heads.search(loss_at)
    return trained[min(losses, key=losses.get)]


@torch.no_grad()
def scores(judge: Judge, texts: list[Text]) -> pd.DataFrame:
    """SCORES of whole texts, whose last token is the one that ends them: all but two leave it out, as scores do everywhere here.

    `end`: its log-probability; `logprob-with-end`: the mean log-probability with it. Each higher = better; one row a text.
    """
    states_of = hidden_states if isinstance(judge.lm, EncoderDecoder) else prefix_tree.hidden_states
    states, ids, number = states_of(judge.lm, texts), gold_tokens(texts), text_numbers(texts)
    found = gold_statistics(judge.lm, states, ids, judge.unigram, "last")
    tokens = {"softmax": np.exp(found["logprob"]), "logprob": found["logprob"], "closed-form": closed_form(found, PAPER)}
    tokens |= {CHOSEN: closed_form(found, CHOSEN_FORM), heads.RELEASED: head_scores(judge.head, states, ids)}
    last = np.r_[number[1:] != number[:-1], True]
    joined = {name: sequence_scores(values[~last], number[~last], WAYS.get(name, "mean")) for name, values in tokens.items()}
    joined |= {"logprob-with-end": sequence_scores(found["logprob"], number), "end": found["logprob"][last]}
    return pd.DataFrame(joined)[list(SCORES)]


# ---- what they say ---------------------------------------------------------------------------------------------------------------------


def score_names(items: pd.DataFrame) -> list[str]:
    """The scores among the columns of items, those of the tiny BART behind those of the language model, its own log-probability last."""
    known = [*SCORES, *(WRITER + name for name in SCORES), "own-logprob"]
    return [name for name in known if name in items and items[name].notna().any()]


def paired(items: pd.DataFrame) -> pd.DataFrame:
    """Controlled text minus the forced one of the same source, seed and length: one row a pair; columns of scores and MEASURES hold
    differences. `kind`: whether forcing cut the uncontrolled text short, or stretched it (or left it as long as it was).
    """
    key = ["method", "seed", "fraction", "id"]
    both = items[(items["part"] == SWEEP) & ~items["method"].isin([FORCED, REFERENCE])]
    ours, theirs = (both[both["text"] == name].set_index(key).sort_index() for name in ("controlled", FORCED))
    names = [*score_names(items), *MEASURES]
    kind = np.where(ours["natural_length"] > ours["generated_length"], "cut", "stretched")
    return ours[["group"]].assign(kind=kind, **(ours[names] - theirs[names])).reset_index()


def cut_references(items: pd.DataFrame) -> pd.DataFrame:
    """The whole reference minus the same one cut short: one row a pair, columns as those of `paired`."""
    part = items[(items["part"] == SWEEP) & (items["method"] == REFERENCE)].set_index(["seed", "id"])
    names = [*score_names(items), *MEASURES]
    whole, rest = part[part["fraction"] == 1], part[part["fraction"] < 1]
    return rest[["group", "fraction"]].assign(**(whole[names].reindex(rest.index) - rest[names])).reset_index()


def above(difference: pd.Series, groups: pd.Series) -> Statistic:
    """Share of pairs with a positive difference, ties one half."""
    return mean((difference > 0) + 0.5 * (difference == 0), groups)


def expected_best(score: np.ndarray, value: np.ndarray, n: int) -> float:
    """Mean value of the best-scored of n candidates, over all choices of n among those there are; of tied ones the mean. (m,), (m,)

    >>> round(expected_best(np.array([3.0, 1.0, 2.0]), np.array([1.0, 0.0, 0.0]), 2), 3)  # in 2 of 3 pairs
    0.667
    """
    many = len(score)
    _, block = np.unique(-score, return_inverse=True)  # the best block is number 0
    size = np.bincount(block)
    within = np.r_[0, np.cumsum(size)]
    reached = np.array([1 - comb(many - k, n) / comb(many, n) for k in within])  # the best of n is among the k best
    return float(np.diff(reached) @ (np.bincount(block, value) / size))


def choices(items: pd.DataFrame, sizes: list[int]) -> pd.DataFrame:
    """Likeness to the reference of what each score chooses among n candidates: one row a method, seed, source and n; one column a score,
    `random` (the mean of all) and `oracle` (the choice that knows the reference).
    """
    candidates, names = items[items["part"] == BEST], score_names(items)
    found = []
    for (method, seed, number, group), part in candidates.groupby(["method", "seed", "id", "group"], sort=False):
        value = part["rougeL"].to_numpy(float)
        ranked = {name: part[name].to_numpy(float) for name in names} | {"oracle": value}
        for n in sizes:
            chosen = {name: expected_best(score, value, n) for name, score in ranked.items()}
            found.append({"method": method, "seed": seed, "id": number, "group": group, "n": n, "random": value.mean(), **chosen})
    return pd.DataFrame(found)


def sizes(candidates: int) -> list[int]:
    """Numbers of candidates to choose from: 2, 4, ... and all of them.

    >>> sizes(8)
    [2, 4, 8]
    """
    return [2**k for k in range(1, candidates.bit_length()) if 2**k < candidates] + [candidates]


def _sweep_rows(items: pd.DataFrame, identity: dict) -> list[dict]:
    """By fraction and kind of text: means of measures and scores; and how often controlled text is above the forced one."""
    found = []
    for (fraction, text), part in items.groupby(["fraction", "text"], sort=False):
        where = f"f={fraction:g}"
        for name in MEASURES:
            found += rows({(where, name): mean(part[name], part["group"])}, identity | {"setting": setting_name(text=text)})
        for name in score_names(items):
            statistic = {(where, "mean_score"): mean(part[name], part["group"])}
            found += rows(statistic, identity | {"setting": setting_name(text=text, score=name)})
    if identity["method"] not in (FORCED, REFERENCE):
        for fraction, part in paired(items.assign(part=SWEEP, **identity)).groupby("fraction"):
            for name in score_names(items):
                statistic = {(f"f={fraction:g}", "p_above_forced"): above(part[name], part["group"])}
                found += rows(statistic, identity | {"setting": setting_name(score=name)})
    return found


def _best_rows(items: pd.DataFrame, identity: dict) -> list[dict]:
    """Gain over a random choice, by score and number of candidates."""
    found, many = [], int(items["candidate"].max()) + 1
    for n, part in choices(items.assign(part=BEST, **identity), sizes(many)).groupby("n"):
        for name in [*score_names(items), "oracle"]:
            gain = {(f"n={n}", "rougeL_gain"): mean(part[name] - part["random"], part["group"])}
            found += rows(gain, identity | {"setting": setting_name(score=name)})
    return found
