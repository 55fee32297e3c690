"""What heads learn from: hidden states, gold tokens and negatives of a training corpus, cached."""

from dataclasses import replace

import pandas as pd
import torch
from torch import Tensor

from lib import corpora
from lib.quality.language_models import LanguageModel, Unembedding
from lib.quality.training import Positions, draw_negatives, gold_tokens, text_numbers
from lib.quality.translator import TRANSLATORS, load_translator, translation_model
from lib.sampler import TokenFrequencies
from lib.study.cache import cached
from lib.study.models import as_turns, best_device, smollm2_folder

MAX_TOKENS = 96  # of a training text; longer ones are cut
ROUNDS = 4  # sets of negatives drawn a training position, used in turn
# corpora besides those of `lib.corpora` (the model's own answers, mixtures): what they are made of
MADE_OF = {"own-samples": ("instructions",), "both": ("docstrings", "instructions")}
MIXTURES = {"both": ("docstrings", "own-samples")}


def data_of(corpus: str) -> str:
    """Content hash of a training corpus; ValueError for an unknown one."""
    return corpora.fingerprint(*MADE_OF.get(corpus, (corpus,)))


def frozen_model(name: str) -> LanguageModel:
    """By name: a translation model of the study (trained first), or a causal language model."""
    return load_translator(name) if name in TRANSLATORS else LanguageModel.load(name)


@cached(version=1, built_on=[smollm2_folder, translation_model])
def last_layer(model: str) -> dict[str, Tensor]:
    """`unembedding` (V, d) and, where there is one, `bias` (V,) of a model."""
    lm = frozen_model(model)
    return {"unembedding": lm.unembedding} | ({} if lm.bias is None else {"bias": lm.bias})


def unembedding_of(model: str) -> Unembedding:
    """The last layer of a model, on a GPU where there is one."""
    return Unembedding(**{name: x.to(best_device()) for name, x in last_layer(model).items()})


@cached(
    version=1,
    built_on=[smollm2_folder, translation_model],
    data=lambda: corpora.fingerprint("instructions"),
)
def own_samples(split: str, count: int, model: str) -> pd.DataFrame:
    """Prompts of the instructions, answered by the model itself: sampled from its distribution."""
    lm, table = frozen_model(model), corpora.examples("instructions", split, count)[["prompt"]]
    prompts = table["prompt"].tolist()
    asked = as_turns(lm.tokenizer, prompts) if lm.has_turns else prompts
    seed = 0 if split == "train" else 1
    table = table.assign(output=lm.continuations(asked, MAX_TOKENS, seed))
    return table[table["output"].str.strip() != ""].reset_index(drop=True)


@cached(version=1, built_on=[own_samples], data=data_of)
def corpus_states(corpus: str, split: str, count: int, model: str) -> dict[str, Tensor]:
    """Response positions of texts, the first MAX_TOKENS of each output: `states` (N, d), `gold`
    (N,), `text` (N,), the number of the text.
    """
    if corpus in MIXTURES:
        return _by_turns([corpus_states(one, split, count, model) for one in MIXTURES[corpus]])
    lm, own = frozen_model(model), corpus == "own-samples"
    pairs = own_samples(split, count, model) if own else corpora.examples(corpus, split, count)
    # a word has at least one token
    outputs = [" ".join(output.split(" ")[:MAX_TOKENS]) for output in pairs["output"]]
    turns = lm.has_turns and (own or corpora.corpus(corpus).chat)
    texts = lm.encode(pairs["prompt"].tolist(), outputs, turns)
    texts = [replace(text, ids=text.ids[: text.start + MAX_TOKENS]) for text in texts]
    number = torch.from_numpy(text_numbers(texts))
    return {"states": lm.hidden_states(texts), "gold": gold_tokens(texts), "text": number}


def _by_turns(corpora: list[dict[str, Tensor]]) -> dict[str, Tensor]:
    """Texts of several corpora by turns, an equal number of each, up to as many positions as the
    largest of them has alone; a rest that has no partner is left out.
    """
    texts = [
        zip(*(one[name].split(one["text"].bincount().tolist()) for name in ("states", "gold")))
        for one in corpora
    ]
    mixed = [text for turn in zip(*texts) for text in turn]
    sizes, budget = torch.tensor([len(g) for _, g in mixed]), max(len(o["gold"]) for o in corpora)
    mixed = mixed[: int((sizes.cumsum(0) < budget).sum()) + 1]
    states, gold = (torch.cat(one) for one in zip(*mixed))
    number = torch.arange(len(mixed)).repeat_interleave(sizes[: len(mixed)])
    return {"states": states, "gold": gold, "text": number}


@cached(version=1, built_on=[corpus_states, last_layer], data=data_of)
def corpus_negatives(
    corpus: str, split: str, count: int, train_texts: int, model: str, dominant: str
) -> dict[str, Tensor]:
    """Negatives of every sampler (N, rounds * K): for training ROUNDS sets, else one. Unigram
    frequencies are those of the labels of `train_texts` training texts.
    """
    known, lm = corpus_states(corpus, split, count, model), unembedding_of(model)
    rounds, seed = (ROUNDS, 0) if split == "train" else (1, 1)
    where = known["states"], known["gold"], unigram(corpus, train_texts, model)
    return draw_negatives(lm, *where, rounds, dominant, seed)


def unigram(corpus: str, train_texts: int, model: str) -> TokenFrequencies:
    """Frequencies of the labels that heads learn from."""
    lm, gold = unembedding_of(model), corpus_states(corpus, "train", train_texts, model)["gold"]
    return TokenFrequencies.from_labels(gold.to(lm.device), len(lm.unembedding))


def positions(model: str, training: dict, split: str) -> Positions:
    """Training or validation positions for `training` (see `lib.quality.experiments`)."""
    corpus, texts = training["corpus"], training["train_texts"]
    count = texts if split == "train" else training["validation_texts"]
    known = corpus_states(corpus, split, count, model)
    drawn = corpus_negatives(corpus, split, count, texts, model, training["dominant"])
    return Positions(known["states"], known["gold"], drawn)
