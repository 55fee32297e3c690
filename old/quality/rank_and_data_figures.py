"""Figures and tables of rank and data (notebook 18)."""

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd

from old.figures import STYLE
from old.quality import evaluation
from old.quality.figures import difference_rows, printed
from old.quality.rank_and_data import FULL, MEASURES, PART, UNTRAINED, column, held_out_statistic
from old.results import holm, interval, p_value

SLICES = {"all": "all tokens", "seen": "gold token seen as a positive", "unseen": "gold token never seen"}
TITLES = {"bce": "held-out loss (nats a position)", "above": "P(gold scored above a negative)", "score": "mean score of the gold token"}
_MARKERS = ("^", "o", "<", ">", "p")

Statistics = dict[tuple[str, int, str], list[evaluation.Statistic]]  # by (corpus, texts, score): one a seed


def sizes_table(rows: pd.DataFrame) -> pd.DataFrame:
    """One line a corpus and number of texts: training positions, held-out docstring positions whose token is among them or not."""
    part = rows[
        rows["slice"].isin(["docstrings:seen", "docstrings:unseen"]) & (rows["metric"] == "bce") & (rows["method"] == "closed-form")
    ]
    counts = _described(part).pivot_table(index=["trained_on", "train_texts"], columns="slice", values="n")
    learnt = _described(rows[rows["metric"] == "train_positions"]).groupby(["trained_on", "train_texts"])["value"].first()
    unseen, held = counts["docstrings:unseen"], counts.sum(axis=1)
    table = pd.DataFrame({"positions": learnt, "held out": held, "token unseen": unseen, "share unseen": unseen / held})
    return table.astype({"positions": int, "held out": int, "token unseen": int}).sort_values(["trained_on", "positions"])


def bytes_table(rows: pd.DataFrame) -> pd.DataFrame:
    """Size on disk by rank, in megabytes and relative to the full head; and the learning rates that were chosen."""
    described = _described(rows)
    described = described[described["trained_on"] == "docstrings"]
    size = described[described["metric"] == "bytes"].groupby("rank", sort=False)["value"].first() / 1e6
    rates = described[described["metric"] == "learning_rate"].sort_values(["train_texts", "seed"])
    chosen = rates.drop_duplicates(["rank", "train_texts"]).pivot(index="rank", columns="train_texts", values="value")
    chosen = chosen.map(lambda rate: "–" if np.isnan(rate) else f"{rate:g}").rename(columns=lambda n: f"rate, {n:,} texts")
    table = pd.DataFrame({"MB": size.round(2), "of the full head": size / size["full"] if "full" in size.index else np.nan}).join(chosen)
    return table.loc[[name for name in _ranks(described) if name in table.index]]


def _ranks(described: pd.DataFrame) -> list[str]:
    return sorted(described["rank"].dropna().unique(), key=lambda name: np.inf if name == "full" else int(name))


def _described(rows: pd.DataFrame) -> pd.DataFrame:
    """Rows with the fields of their setting as columns."""
    fields = rows["setting"].str.split(";").map(lambda parts: dict(part.split("=") for part in parts if part))
    return rows.assign(
        rank=fields.map(lambda f: f.get("rank")),
        trained_on=fields.map(lambda f: f.get("trained_on")),
        train_texts=fields.map(lambda f: int(f["train_texts"]) if "train_texts" in f else -1),
    )


# ---- held-out positions ----------------------------------------------------------------------------------------------------------------


def held_out(outputs: pd.DataFrame, corpus: str, measure: str, slice_name: str = "all") -> Statistics:
    """Statistics of every score on the held-out positions of a corpus, by (corpus, texts, score), one a seed; replicates are paired."""
    items = outputs[(outputs["part"] == PART) & (outputs["study"] == "sampling") & (outputs["held_out"] == corpus)]
    texts, found = np.sort(items["text"].unique()), {}
    if slice_name != "all":
        items = items[items["seen"].astype(bool) == (slice_name == "seen")]
    for (name, method, score, _), part in items.groupby(["dataset", "method", "score_name", "seed"], sort=False):
        _, size, head = method.split("-", 2)
        key = (name, int(size), score if score in UNTRAINED else head)
        found.setdefault(key, []).append(held_out_statistic(part, measure, texts))
    return found


def first_seed(found: Statistics) -> dict[tuple[str, int, str], evaluation.Statistic]:
    """The statistic of the first seed of each."""
    return {key: seeds[0] for key, seeds in found.items()}


def curves(outputs: pd.DataFrame, positions: pd.Series, ranks: list[int], measure: str = "bce") -> plt.Figure:
    """A measure on held-out docstrings against the number of training positions, a line a rank, a panel a slice; bars: 95 % over texts.

    `positions` by (corpus, texts), see `sizes_table`.
    """
    figure, axes = plt.subplots(1, len(SLICES), figsize=(13, 4.4), layout="constrained")
    names = [column(rank) for rank in sorted(ranks, key=lambda rank: rank or np.inf)]
    for axis, (slice_name, title) in zip(axes, SLICES.items()):
        found = first_seed(held_out(outputs, "docstrings", measure, slice_name))
        shown = [*names, "closed-form", "rescale"] if measure == "bce" else [*names, "closed-form", "softmax"]
        for place, name in enumerate(shown):
            sizes = [n for corpus, n, head in found if (corpus, head) == ("docstrings", name) and ("docstrings", n, names[0]) in found]
            x = np.array([positions["docstrings", n] for n in sorted(sizes)]) * 1.04 ** (place - (len(shown) - 1) / 2)
            cells = [found["docstrings", n, name] for n in sorted(sizes)]
            value = np.array([cell.value for cell in cells])
            low, high = np.array([interval(cell.replicates) for cell in cells]).T
            colour, marker, line = _style(name, names)
            label = "softmax (and log-probability)" if name == "softmax" else name
            axis.plot(x, value, color=colour, marker=marker, linestyle=line, markersize=6, linewidth=1.3, label=label)
            axis.vlines(x, low, high, color=colour, linewidth=1.3)
        axis.set(xscale="log", xlabel="training positions", title=title)
        ticks = sorted({positions["docstrings", n] for corpus, n, head in found if (corpus, head) == ("docstrings", names[0])})
        axis.set_xticks(ticks, [f"{tick:,}" for tick in ticks])
        axis.minorticks_off()
    axes[0].set_ylabel(TITLES[measure])
    axes[-1].legend(fontsize="small", loc="center left", bbox_to_anchor=(1, 0.5))
    return figure


def _style(name: str, names: list[str]) -> tuple:
    """Low-rank heads share their colour; the lighter the smaller."""
    if name in UNTRAINED:
        return STYLE[name]
    if name == column(FULL):
        return STYLE["sigmoid-full"]
    low = [rank for rank in names if rank != column(FULL)]
    share = (low.index(name) + 1) / len(low)
    colour = tuple(1 - (1 - part) * (0.35 + 0.65 * share) for part in STYLE["sigmoid-lowrank"][0])
    return colour, _MARKERS[low.index(name) % len(_MARKERS)], "-"


def held_out_table(outputs: pd.DataFrame, measure: str, slice_name: str, digits: int = 3) -> pd.DataFrame:
    """Scores by number of docstring texts, first seed, with intervals over held-out texts."""
    found = first_seed(held_out(outputs, "docstrings", measure, slice_name))
    cells = {(name, texts): printed(cell, digits) for (corpus, texts, name), cell in found.items() if corpus == "docstrings"}
    table = pd.Series(cells).unstack().fillna("–")
    return table.loc[sorted(table.index, key=_order)].rename(columns=lambda n: f"{n:,} texts").rename_axis("score")


def _order(name: str) -> tuple:
    return (UNTRAINED.index(name), 0) if name in UNTRAINED else (len(UNTRAINED), int(name.partition("-")[2] or 10**9))


# ---- tasks ------------------------------------------------------------------------------------------------------------------------------


def on_tasks(outputs: pd.DataFrame, stored: pd.DataFrame, untrained: tuple[str, ...]) -> dict[str, Statistics]:
    """Of every task the statistic of its main measure, by (corpus, texts, score), one a seed; and of the `untrained` scores that other
    notebooks stored for the same items, as ("", 0, score). Replicates are paired.
    """
    items, found = outputs[(outputs["part"] == PART) & (outputs["study"] != "sampling")], {}
    for task, part in items.groupby("dataset", sort=False):
        cells: Statistics = {}
        metric = evaluation.metric_of(part)
        for (method, _), own in part.sort_values("id").groupby(["method", "seed"], sort=False):
            corpus, _, texts = method.rpartition("-")
            for name in [name for name in own if name == column(FULL) or name.startswith("rank-")]:
                if own[name].notna().all():
                    cells.setdefault((corpus, int(texts), name), []).append(_agreement(own, own[name], metric))
        asked = part.drop_duplicates("id").sort_values("id")
        there = stored[stored["dataset"] == task]
        for name in [name for name in untrained if name in there]:
            scores = there[["id", name]].dropna().drop_duplicates("id").set_index("id")[name].reindex(asked["id"])
            if len(scores) and scores.notna().all():
                cells["", 0, name] = [_agreement(asked, scores, metric)]
        found[task] = cells
    return found


def _agreement(items: pd.DataFrame, scores: pd.Series, metric: str) -> evaluation.Statistic:
    return evaluation.agree(items.assign(score=scores.to_numpy(float)), "all", (metric,))["all", metric]


def tasks_table(found: dict[str, Statistics], sizes: list[int], ranks: list[int]) -> pd.DataFrame:
    """Tasks by (score, docstring texts): agreement of the first seed, with intervals over groups of items."""
    keys = [("docstrings", texts, column(rank)) for rank in ranks for texts in sorted(sizes)]
    lines = {}
    for task, cells in found.items():
        untrained = {(key[2], ""): printed(seeds[0]) for key, seeds in cells.items() if key[1] == 0}
        lines[task] = untrained | {(key[2], f"{key[1]:,}"): printed(cells[key][0]) for key in keys if key in cells}
    return pd.DataFrame(lines).rename_axis(["score", "texts"]).fillna("–")


def steps(cells_by_measure: dict[str, Statistics], pairs: list[tuple], sign: dict[str, int]) -> pd.DataFrame:
    """Paired differences of the means over seeds, one row a pair and measure, Holm-corrected over the table; `sign` is -1 where less is
    better, so that a positive value always means that the first of a pair is better. Pairs of keys of `Statistics`; columns as in
    `figures.differences`.
    """
    lines = []
    for ours, theirs in pairs:
        for measure, cells in cells_by_measure.items():
            if ours not in cells or theirs not in cells:
                continue
            step = evaluation.difference(evaluation.average(cells[ours]), evaluation.average(cells[theirs]))
            low, high = sorted(sign[measure] * np.array(interval(step.replicates)))
            p = p_value(step.value, step.replicates, step.clusters)
            others = cells[theirs] if len(cells[theirs]) == len(cells[ours]) else [evaluation.average(cells[theirs])] * len(cells[ours])
            by_seed = [round(sign[measure] * (a.value - b.value), 4) for a, b in zip(cells[ours], others)]
            lines.append((label(ours), label(theirs), measure, sign[measure] * step.value, low, high, p, by_seed))
    table = pd.DataFrame(lines, columns=["score", "against", "measure", "value", "ci_low", "ci_high", "p", "seeds"])
    return table.assign(p_holm=holm(table["p"].to_numpy())).set_index(["score", "against", "measure"])


def label(key: tuple[str, int, str]) -> str:
    """How tables name a score: `closed-form`, `rank-32, docstrings, 220 texts`."""
    corpus, texts, name = key
    return name if name in UNTRAINED or not texts else f"{name}, {corpus}, {texts:,} texts"


def corpora_table(cells_by_measure: dict[str, Statistics], keys: list[tuple]) -> pd.DataFrame:
    """Measures by scores: mean over seeds, with its interval."""
    lines = {}
    for measure, cells in cells_by_measure.items():
        lines[measure] = {label(key): printed(evaluation.average(cells[key]), 3) for key in keys if key in cells}
    return pd.DataFrame(lines).T.rename_axis("measure").fillna("–")


def step_plot(table: pd.DataFrame, title: str) -> plt.Figure:
    """Paired differences with intervals: a row a measure, a marker a score compared; right of zero is better. Losses have a panel of their
    own: nats are no shares.
    """
    names, measures = list(table.index.unique("score")), list(table.index.unique("measure"))
    losses = [measure for measure in measures if measure.endswith(": bce")]
    panels = {"nats a position": losses, "share or correlation": [measure for measure in measures if measure not in losses]}
    panels = {unit: part for unit, part in panels.items() if part}
    figure, axes = plt.subplots(
        len(panels),
        1,
        figsize=(9, 0.55 * len(measures) + 2.2),
        height_ratios=[len(part) for part in panels.values()],
        squeeze=False,
        layout="constrained",
    )
    colours = plt.get_cmap("viridis")(np.linspace(0.15, 0.75, len(names)))
    style = dict(zip(names, zip(colours, _MARKERS)))
    for axis, (unit, shown) in zip(axes[:, 0], panels.items()):
        parts = {name: table.xs(name, level="score").droplevel("against").reindex(shown) for name in names}
        difference_rows(axis, {name: part.rename(_in_words) for name, part in parts.items()}, style, 0.2)
        axis.set_ylim(len(shown) - 0.5, -0.5)
        axis.set_xlabel(unit, fontsize="small")
    figure.supxlabel(title, fontsize="medium")
    axes[0, 0].legend(fontsize="small", loc="center left", bbox_to_anchor=(1, 0.5))
    return figure


def _in_words(measure: str) -> str:
    return measure.replace("p_right_above_wrong", "ranking").replace("bce", "loss")


def held_out_measures(outputs: pd.DataFrame, reference: tuple[str, int]) -> dict[str, Statistics]:
    """Loss and ranking on the held-out positions of each corpus, for `steps` and `corpora_table`. Scores without training stand, as in
    `on_tasks`, under ("", 0, score): those of the `reference` corpus and size. log p ranks as p does.
    """
    there = outputs.loc[(outputs["part"] == PART) & (outputs["study"] == "sampling"), "held_out"].unique()
    found = {}
    for name in there:
        for measure in ("bce", "above"):
            cells = held_out(outputs, name, measure)
            cells |= {("", 0, score): cells[*reference, score] for score in UNTRAINED if (*reference, score) in cells}
            if measure == "above" and ("", 0, "softmax") in cells:
                cells["", 0, "logprob"] = cells["", 0, "softmax"]
            found[f"held-out {name}: {MEASURES[measure]}"] = cells
    return found
