"""The supervised rival of all scores: ridge regression on a text's mean hidden state, fitted on gold.

It shows what the frozen model knows about quality when it is told what quality is; no score without labels has to reach it. Groups (the
clusters of a task) never stand on two sides of a split, neither where a text is judged nor where the penalty is chosen.
"""

import numpy as np
from scipy.sparse import csr_array
from sklearn.linear_model import Ridge
from sklearn.model_selection import GridSearchCV, GroupKFold
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from torch import Tensor

FOLDS = 5
ALPHAS = 10.0 ** np.arange(0, 7)  # penalties to choose from; features are standardised


def pool(states: Tensor | np.ndarray, text: np.ndarray) -> np.ndarray:
    """Mean over the tokens of each text. states (N, d), text (N,) numbers from 0 -> (T, d)

    ValueError for a text without tokens, or different numbers of tokens.
    """
    if len(states) != len(text):
        raise ValueError(f"{len(states)} states but text numbers of {len(text)}")
    counts = np.bincount(text)
    if not counts.all():
        raise ValueError(f"text {counts.argmin()} has no tokens")
    return csr_array((1 / counts[text], (text, np.arange(len(text))))) @ np.asarray(states)


def fit_probe(features: np.ndarray, gold: np.ndarray, groups: np.ndarray) -> GridSearchCV:
    """The regression with the penalty that has the least squared error on held-out groups; `predict((M, d))` gives (M,) scores, higher =
    better. features (N, d), gold (N,), groups (N,). ValueError for fewer than two groups.
    """
    search = GridSearchCV(
        make_pipeline(StandardScaler(), Ridge()), {"ridge__alpha": ALPHAS}, scoring="neg_mean_squared_error", cv=_folds(groups)
    )
    return search.fit(features, gold, groups=groups)


def cross_fitted(features: np.ndarray, gold: np.ndarray, groups: np.ndarray) -> np.ndarray:
    """Score of each text by a probe that was fitted, penalty and all, on the other folds of groups. (N, d), (N,), (N,) -> (N,)

    ValueError where the other folds hold fewer than two groups.
    """
    scores = np.empty(len(gold))
    for train, test in _folds(groups).split(features, gold, groups):
        scores[test] = fit_probe(features[train], gold[train], groups[train]).predict(features[test])
    return scores


def transferred(train_features: np.ndarray, train_gold: np.ndarray, train_groups: np.ndarray, test_features: np.ndarray) -> np.ndarray:
    """Scores of the texts of one task by a probe of another. (N, d), (N,), (N,), (M, d) -> (M,)"""
    return fit_probe(train_features, train_gold, train_groups).predict(test_features)


def _folds(groups: np.ndarray) -> GroupKFold:
    count = len(np.unique(groups))
    if count < 2:
        raise ValueError(f"a probe needs at least two groups to be fitted and judged on, not {count}")
    return GroupKFold(min(FOLDS, count))
