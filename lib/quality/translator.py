"""A small translation model, trained from scratch on Multi30k en-de (captions of photographs): the
paper's own setting at laptop size.

Trained without label smoothing: that would buy a little BLEU, but it moves a tenth of the
probability to arbitrary tokens, which then appear in samples and in every softmax score.
"""

from pathlib import Path

import numpy as np
import pandas as pd
import torch
from sacrebleu.metrics import BLEU, CHRF
from torch import Tensor
from transformers import BartForConditionalGeneration

from lib.corpora import fingerprint, load
from lib.quality.encoder_decoder import EncoderDecoder
from lib.quality.language_models import SAMPLING
from lib.study.cache import cached, checkpoint_file
from lib.study.models import configuration, seq2seq_batch, source_batch, train_tokenizer
from lib.study.paths import progress
from lib.study.training import train

DATASET = "multi30k-en-de"
BEAMS = 5
MAX_TOKENS = 100  # of a translation; the longest reference of the training split has 63

# everything the weights depend on, apart from the training pairs, by the name that results give it
TRANSLATORS = {
    "tiny-nmt": {  # 5.3 M parameters, about 35 minutes on two cores
        "vocabulary": 4096,  # joint; against 8,192 a tenth more tokens, but an eighth less time
        "size": {"d_model": 256, "layers": 3, "ffn_dim": 512, "dropout": 0.2},
        "updates": 3200,  # 10.5 epochs
        "tokens_per_batch": 2048,  # padded target tokens an update: about 95 pairs
        "learning_rate": 1.5e-3,
        "warmup": 400,  # updates
    },
    "tiny-nmt-smoke": {  # translates nothing
        "vocabulary": 1024,
        "size": {"d_model": 64, "layers": 1, "ffn_dim": 128, "dropout": 0.2},
        "updates": 60,
        "tokens_per_batch": 2048,
        "learning_rate": 1.5e-3,
        "warmup": 20,
    },
}


def sentence_pairs(split: str) -> pd.DataFrame:
    """Multi30k: `source` (English), `target` (German), and `group`, a number for each source."""
    pairs = load(DATASET).query("split == @split")[["source", "target"]].reset_index(drop=True)
    return pairs.assign(group=pd.factorize(pairs["source"])[0])


@cached(version=1, folder=True, data=lambda: fingerprint(DATASET))
def translation_model(folder: Path, name: str, options: dict) -> None:
    """Model and tokenizer of one of TRANSLATORS, trained; a run that was stopped goes on."""
    model, tokenizer = fit_translator(sentence_pairs("train"), **options)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def load_translator(name: str) -> EncoderDecoder:
    """One of TRANSLATORS, trained first where the cache lacks it."""
    lm = EncoderDecoder.load(str(translation_model(name, TRANSLATORS[name])))
    lm.name = name  # not that of the folder, which no result should carry
    return lm


def fit_translator(
    pairs: pd.DataFrame,
    vocabulary: int,
    size: dict,
    updates: int,
    tokens_per_batch: int,
    learning_rate: float,
    warmup: int,
):
    """A BART and its tokenizer, trained on pairs (columns source, target) with cross-entropy."""
    tokenizer = train_tokenizer([*pairs["source"], *pairs["target"]], vocabulary)
    sources, targets = (
        tokenizer(pairs[side].tolist())["input_ids"] for side in ("source", "target")
    )
    torch.manual_seed(0)
    scale = size["d_model"] ** -0.5  # embeddings, which are scaled up, then have unit variance
    model = BartForConditionalGeneration(configuration(vocabulary, **size, init_std=scale))

    def batch(indices: np.ndarray, _rng: np.random.Generator) -> dict[str, Tensor]:
        return seq2seq_batch(model, [sources[i] for i in indices], [targets[i] for i in indices])

    train(
        model,
        np.array([(len(target), len(source)) for target, source in zip(targets, sources)]),
        batch,
        updates=updates,
        learning_rate=learning_rate,
        tokens_per_batch=tokens_per_batch,
        seed=0,
        checkpoint=checkpoint_file(),
        warmup=warmup,
        description="translation model",
    )
    return model, tokenizer


# ---- translating -----------------------------------------------------------------------------


def translate(lm: EncoderDecoder, sources: list[str], beams: int = BEAMS) -> list[str]:
    """The best translation of each source by beam search."""
    return _generate(lm, sources, num_beams=beams, do_sample=False)


def sample_translations(lm: EncoderDecoder, sources: list[str], seed: int) -> list[str]:
    """One translation a source, drawn from the model's own distribution; may be empty. The same
    list and seed give the same samples.
    """
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return _generate(lm, sources, num_beams=1, **SAMPLING)


@torch.no_grad()
def _generate(lm: EncoderDecoder, sources: list[str], batch: int = 64, **options) -> list[str]:
    """Sources of similar length share a batch."""
    options = {"max_new_tokens": MAX_TOKENS} | options
    ids = lm.tokenizer(list(sources), verbose=False)["input_ids"] if sources else []
    longest_first, outputs = sorted(range(len(ids)), key=lambda i: -len(ids[i])), [""] * len(ids)
    for start in progress(range(0, len(ids), batch), "translating"):
        rows = longest_first[start : start + batch]
        inputs = source_batch(lm.model, [ids[row] for row in rows])
        tokens = lm.model.generate(**inputs, **options)
        texts = lm.tokenizer.batch_decode(tokens, skip_special_tokens=True)
        for row, text in zip(rows, texts):
            outputs[row] = text.strip()
    return outputs


def corpus_quality(outputs: list[str], references: list[str]) -> pd.DataFrame:
    """`metric` (BLEU, chrF; 0 to 100, sacrebleu's defaults), `value`, and the ends `low`, `high` of
    its 95 % interval (bootstrap over sentences).
    """
    rows = []
    for name, metric in (("BLEU", BLEU()), ("chrF", CHRF())):
        score = metric.corpus_score(outputs, [references], n_bootstrap=1000)
        rows.append((name, score.score, score._mean - score._ci, score._mean + score._ci))
    return pd.DataFrame(rows, columns=["metric", "value", "low", "high"])
