"""Encoder-decoder models (BART, Marian, T5, ...) behind the interface of LanguageModel, and a small
translation model trained on Multi30k en-de: the paper's own setting at laptop size. It learns
without label smoothing, which would move a tenth of the probability to arbitrary tokens.
"""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from torch import Tensor
from transformers import AutoModelForSeq2SeqLM, BartForConditionalGeneration

from lib.corpora import fingerprint, load
from lib.quality.language_models import SAMPLING, LanguageModel, Text
from lib.study.cache import cached, checkpoint_file
from lib.study.models import configuration, pad, seq2seq_batch, source_batch, train_tokenizer
from lib.study.training import train


class EncoderDecoder(LanguageModel):
    """A frozen encoder-decoder model with its tokenizer; hidden states are those of the decoder.

    A prompt is what the encoder reads. `ids` of a Text: the decoder's start token (and the forced
    first one of BART-large, mBART), then the output. EOS is not scored.
    """

    _loader = AutoModelForSeq2SeqLM

    def encode(self, prompts: list[str], outputs: list[str], chat: bool = False) -> list[Text]:
        """ValueError for `chat`, an empty output or source, or one that does not fit the model."""
        if chat:
            raise ValueError("an encoder-decoder model has no chat template")
        texts = super().encode([""] * len(prompts), outputs)
        sources = self.tokenizer(list(prompts), verbose=False)["input_ids"] if texts else []
        for number, source in enumerate(sources):
            if not 0 < len(source) <= (self.context or len(source)):
                room = f"the encoder holds 1 to {self.context}"
                raise ValueError(f"prompt {number} has {len(source)} tokens; {room}")
        return [replace(text, source=tuple(source)) for text, source in zip(texts, sources)]

    def _first(self) -> list[int]:
        settings = self.model.generation_config
        start = (settings.decoder_start_token_id, settings.forced_bos_token_id)
        return [token for token in start if token is not None]

    def _bias(self) -> Tensor | None:
        constant = getattr(self.model, "final_logits_bias", None)  # BART and Marian: (1, V)
        return super()._bias() if constant is None else constant[0]

    def _batch(self, texts: list[Text]) -> dict[str, Tensor]:
        """The decoder needs no mask: it is causal, and padding stands behind each text."""
        sources = super()._batch([replace(text, ids=text.source) for text in texts])
        ids = pad([text.ids for text in texts], 0)
        return sources | {"decoder_input_ids": ids.to(self.device)}

    def _states(self, batch: dict[str, Tensor]) -> Tensor:
        mask = batch["attention_mask"]
        encoded = self.model.get_encoder()(batch["input_ids"], attention_mask=mask)[0]
        options = {"encoder_hidden_states": encoded, "encoder_attention_mask": mask}
        return self.model.get_decoder()(batch["decoder_input_ids"], **options, use_cache=False)[0]


DATASET = "multi30k-en-de"
BEAMS, MAX_TOKENS = 5, 100  # of a translation; the longest reference of the training split has 63
# everything the weights depend on, apart from the training pairs
TINY = {  # 5.3 M parameters, about 35 minutes on two cores
    "vocabulary": 4096,  # joint; against 8,192 a tenth more tokens, but an eighth less time
    "size": {"d_model": 256, "layers": 3, "ffn_dim": 512, "dropout": 0.2},
    "updates": 3200,  # 10.5 epochs
    "tokens_per_batch": 2048,  # padded target tokens an update: about 95 pairs
    "learning_rate": 1.5e-3,
    "warmup": 400,  # updates
}
SMOKE = {"vocabulary": 1024, "updates": 60, "warmup": 20}  # translates nothing
SMOKE["size"] = {"d_model": 64, "layers": 1, "ffn_dim": 128, "dropout": 0.2}
TRANSLATORS = {"tiny-nmt": TINY, "tiny-nmt-smoke": TINY | SMOKE}  # as results name them


def sentence_pairs(split: str) -> pd.DataFrame:
    """Multi30k: `source` (English), `target` (German), and `group`, a number for each source."""
    pairs = load(DATASET).query("split == @split")[["source", "target"]].reset_index(drop=True)
    return pairs.assign(group=pd.factorize(pairs["source"])[0])


@cached(version=1, folder=True, data=lambda: fingerprint(DATASET))
def translation_model(folder: Path, name: str, options: dict) -> None:
    """Model and tokenizer of one of TRANSLATORS, trained; a run that was stopped goes on."""
    for trained in fit_translator(sentence_pairs("train"), **options):
        trained.save_pretrained(folder)


def load_translator(name: str) -> EncoderDecoder:
    """One of TRANSLATORS, trained first where the cache lacks it."""
    lm = EncoderDecoder.load(str(translation_model(name, TRANSLATORS[name])))
    lm.name = name  # not that of the folder, which no result should carry
    return lm


def fit_translator(pairs: pd.DataFrame, vocabulary: int, size: dict, **options):
    """A BART and its tokenizer, trained on pairs (columns source, target) with cross-entropy;
    options of `lib.study.training.train`.
    """
    tokenizer = train_tokenizer([*pairs["source"], *pairs["target"]], vocabulary)
    sources, targets = (tokenizer(pairs[s].tolist())["input_ids"] for s in ("source", "target"))
    torch.manual_seed(0)
    scale = size["d_model"] ** -0.5  # embeddings, which are scaled up, then have unit variance
    model = BartForConditionalGeneration(configuration(vocabulary, **size, init_std=scale))

    def batch(indices: np.ndarray, _rng: np.random.Generator) -> dict[str, Tensor]:
        return seq2seq_batch(model, [sources[i] for i in indices], [targets[i] for i in indices])

    lengths = np.array([(len(target), len(source)) for target, source in zip(targets, sources)])
    options |= {"checkpoint": checkpoint_file(), "description": "translation model"}
    train(model, lengths, batch, seed=0, **options)
    return model, tokenizer


def translate(lm: EncoderDecoder, sources: list[str], beams: int = BEAMS) -> list[str]:
    """The best translation of each source by beam search."""
    return _generate(lm, sources, num_beams=beams, do_sample=False)


def sample_translations(lm: EncoderDecoder, sources: list[str], seed: int) -> list[str]:
    """One a source, drawn from the model's own distribution, by the seed; may be empty."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return _generate(lm, sources, num_beams=1, **SAMPLING)


@torch.no_grad()
def _generate(lm: EncoderDecoder, sources: list[str], **options) -> list[str]:
    ids = lm.tokenizer(list(sources), verbose=False)["input_ids"] if sources else []
    longest_first = np.argsort([-len(row) for row in ids], kind="stable")
    options = {"max_new_tokens": MAX_TOKENS} | options

    def write(rows: list[list[int]]) -> Tensor:
        return lm.model.generate(**source_batch(lm.model, rows), **options)

    return [text.strip() for text in lm._in_batches(ids, longest_first, write)]
