"""Tables and figures of the scores without training (notebook 16)."""

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import seaborn as sns

from old.figures import with_interval
from old.quality import evaluation
from old.quality.training_free import FLATTENED, FORMS, UNIGRAM
from old.results import holm, interval, p_value


def gain_maps(gains: pd.Series, how: str = "mean") -> plt.Figure:
    """Gain of each closed form over log-probability by its numbers of negatives, without and with exclusion; `gains` by (score, way)."""
    figure, axes = plt.subplots(1, 2, figsize=(11, 4.2), sharey=True, layout="constrained")
    gains = gains[gains.index.get_level_values(1) == how]
    limit = gains.abs().max()
    for axis, excluded in zip(axes, (False, True)):
        table = pd.DataFrame(np.nan, index=UNIGRAM, columns=FLATTENED)
        for form in FORMS:
            if form.excluded == excluded and form.unigram in UNIGRAM and form.flattened in FLATTENED:
                table.loc[form.unigram, form.flattened] = gains.get((form.name, how), np.nan)
        sns.heatmap(table, ax=axis, annot=True, fmt="+.3f", cmap="PuOr", vmin=-limit, vmax=limit, cbar=excluded, annot_kws={"size": 9})
        axis.set(title="dominant tokens excluded" if excluded else "no exclusion", xlabel="$K_q$, draws from the flattened model")
        axis.tick_params(axis="y", rotation=0)
        axis.grid(False)
    axes[0].set_ylabel("$K_u$, draws from the unigram frequencies")
    axes[1].collections[0].colorbar.set_label("gain over log p")
    figure.suptitle(f"token scores joined by the {how}", fontsize="medium")
    return figure


def ways_table(grids: dict[str, pd.DataFrame], rows: pd.DataFrame) -> pd.DataFrame:
    """By task and score: the way to join that is best on dev, its value on test, and that of the mean."""
    lines = {}
    for task, grid in grids.items():
        for method, part in rows[rows["dataset"] == task].groupby("method", sort=False):
            row = part.iloc[0]
            name, how = (field.split("=")[1] for field in row["setting"].split(";"))
            mean = grid.set_index(["score", "aggregate"]).loc[(name, "mean"), "test"]
            lines[task, method] = {
                "score": name,
                "best way on dev": how,
                "test": with_interval(row["value"], row["ci_low"], row["ci_high"]),
                "test, mean": f"{mean:.2f}",
            }
    return pd.DataFrame(lines).T.rename_axis(["task", "method"])


def differences(chosen: pd.DataFrame, others: dict[str, pd.DataFrame], method: str) -> pd.DataFrame:
    """One score against others on the same test items, task by task: paired differences, Holm-corrected over all.

    chosen: items with `dataset`, `id`, `group`, `gold` and the score `method`. others: by name, scores of at least the same items with the
    columns `dataset`, `id`, `score` and, of a trained head, `seed`; of several seeds the mean of their values counts. Columns as those of
    `figures.differences`, and both values.
    """
    lines = []
    for task, items in chosen.groupby("dataset", sort=False):
        metric = evaluation.metric_of(items)
        ours = _statistic(items[method], items, metric)
        for other, scores in others.items():
            seeds = scores[scores["dataset"] == task].groupby("seed")
            theirs = [_statistic(part.set_index("id")["score"].reindex(items["id"]), items, metric) for _, part in seeds]
            if not theirs:
                continue
            mean = evaluation.average(theirs)
            step = evaluation.difference(ours, mean)
            low, high = interval(step.replicates)
            p = p_value(step.value, step.replicates, step.clusters)
            by_seed = [round(ours.value - one.value, 4) for one in theirs]
            lines.append((task, other, metric, ours.value, mean.value, step.value, low, high, p, by_seed))
    columns = ["task", "against", "metric", "ours", "theirs", "value", "ci_low", "ci_high", "p", "seeds"]
    table = pd.DataFrame(lines, columns=columns)
    return table.assign(p_holm=holm(table["p"].to_numpy())).set_index(["task", "against"])


def in_the_same_way(chosen: pd.DataFrame, method: str) -> dict[str, pd.DataFrame]:
    """What `method` is compared with in the items of its unit, for `differences`: columns `<score>` and `<head>@<seed>`."""
    found: dict[str, list[pd.DataFrame]] = {}
    described = {"id", "group", "gold", "study", "dataset", "model", "method", "part", "seed", method}
    for column in [name for name in chosen if name not in described]:
        name, _, seed = column.partition("@")
        part = chosen[["dataset", "id"]].assign(score=chosen[column], seed=int(seed or 0)).dropna()
        found.setdefault(name, []).append(part)
    return {name: pd.concat(parts) for name, parts in found.items()}


def by_their_mean(outputs: pd.DataFrame, methods: list[str]) -> dict[str, pd.DataFrame]:
    """The stored scores of notebooks 10, 12 and 15, for `differences`."""
    there = [name for name in methods if name in outputs]
    return {name: outputs[["dataset", "id", "seed"]].assign(score=outputs[name]).dropna() for name in there}


def _statistic(scores: pd.Series, items: pd.DataFrame, metric: str) -> evaluation.Statistic:
    return evaluation.agree(items.assign(score=scores.to_numpy(float)), "test", (metric,))["test", metric]
