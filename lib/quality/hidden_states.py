"""Hidden states and training positions, cached."""
# SKELETON: signatures are final, bodies follow


def frozen_model(name):
    """LanguageModel or EncoderDecoder by name."""


def training_texts(corpus, split, count, model) -> list:
    """Text's: prompts and outputs of a training corpus, the first MAX_TOKENS of each output."""


def corpus_states(corpus, split, count, model) -> dict:  # cached
    """states (N, d), gold (N,), text (N,)"""


def positions(corpus, split, count, model, training_count, dominant="last"):
    """Positions with negatives of all samplers."""
