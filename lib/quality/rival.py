"""The supervised rival of all scores: ridge regression on a text's mean hidden state, fitted to
gold. No score without labels has to reach what is learnt from people.

Groups (the clusters of a task) never stand on two sides of a split, neither where a text is judged
nor where the penalty is chosen.
"""

import numpy as np
from scipy.sparse import csr_array
from sklearn.linear_model import Ridge
from sklearn.model_selection import GridSearchCV, GroupKFold
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from torch import Tensor

FOLDS = 5
PENALTIES = 10.0 ** np.arange(0, 7)  # to choose from; features are standardised


def mean_states(states: Tensor | np.ndarray, text: np.ndarray) -> np.ndarray:
    """Mean over the tokens of each text. states (N, d), text (N,) numbers from 0 -> (T, d)

    Raises ValueError for a text without tokens, or different numbers of tokens.
    """
    if len(states) != len(text):
        raise ValueError(f"{len(states)} states but text numbers of {len(text)}")
    counts = np.bincount(text)
    if not counts.all():
        raise ValueError(f"text {counts.argmin()} has no tokens")
    return csr_array((1 / counts[text], (text, np.arange(len(text))))) @ np.asarray(states)


def fit(features: np.ndarray, gold: np.ndarray, groups: np.ndarray) -> GridSearchCV:
    """The regression whose penalty has the least squared error on held-out groups; `predict` of
    features (M, d) gives scores (M,), higher = better. features (N, d), gold (N,), groups (N,)

    Raises ValueError for fewer than two groups.
    """
    pipeline = make_pipeline(StandardScaler(), Ridge())
    choices = {"ridge__alpha": PENALTIES}
    search = GridSearchCV(pipeline, choices, scoring="neg_mean_squared_error", cv=_folds(groups))
    return search.fit(features, gold, groups=groups)


def cross_fitted(features: np.ndarray, gold: np.ndarray, groups: np.ndarray) -> np.ndarray:
    """Score of each text by a regression fitted, penalty and all, on the other folds of groups.
    (N, d), (N,), (N,) -> (N,). Raises ValueError where these hold fewer than two groups.
    """
    scores = np.empty(len(gold))
    for train, test in _folds(groups).split(features, gold, groups):
        fitted = fit(features[train], gold[train], groups[train])
        scores[test] = fitted.predict(features[test])
    return scores


def _folds(groups: np.ndarray) -> GroupKFold:
    count = len(np.unique(groups))
    if count < 2:
        raise ValueError(f"a rival needs at least two groups to learn from, not {count}")
    return GroupKFold(min(FOLDS, count))
