"""Heads of the study: how each is trained, with the same care for all, kept in the cache."""
# SKELETON: signatures are final, bodies follow

HEADS: dict = {}  # name: options (low_rank, sampler, fitted, loss)


def trained_head(head, seed, model, training) -> dict:  # cached
    """Tensors of a trained head in half precision; `curve` (n, 3): update, bce_own, bce_common;
    `learning_rate`.
    """


def load_head(head, seed, model, training):
    """The SigmoidHead itself, trained first where the cache lacks it."""


def head_learning_curve(head, seed, model, training):  # experiment
    """Columns: update, bce_own, bce_common (held-out losses), learning_rate."""


def untrained_losses(model, training):  # experiment
    """Columns: score (closed form by sampler, softmax), negatives (own, common, full, cross-entropy), loss."""


def released_head(model, seed):
    """File of a committed head, data/heads/<model>.sigmoid-lowrank.<seed>.safetensors."""


def released_frequencies(model):
    """TokenFrequencies of the labels that the committed heads learnt from."""
