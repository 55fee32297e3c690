"""Token scores (higher = better), the closed form, and joins."""
# SKELETON: signatures are final, bodies follow

from lib.sampler import METHOD  # noqa: F401

JOINS = ("mean", "log-mean", "product", "min")


def token_facts(lm, states, token_ids, unigram, mode="last") -> dict:
    """What every untrained score is a function of; states (N, d), token_ids (N, n) -> tensors (N, n):
    logit, logprob, entropy, boostedprob, dominant, unigram, left, flattened, flattened_rest.
    """


def closed_form(facts, uniform=0, unigram=5, flattened=5, excluded=True):
    """sigma(z) = p / (p + (1 - p)(K_u u + K_q q)). -> (N, n)"""


def token_scores(
    lm, texts, unigram=None, baselines=None, heads=None, states=None, samplers=(METHOD,)
):
    """Table: text, token_id, one column a score."""


def head_scores(head, states, token_ids):
    """(N,)"""


def join(scores, text, how="mean"):
    """(N,), (N,) -> (T,): mean, log-mean, product, min, worst-5."""
