"""The family of scores without training, the items it is judged on, the choice on dev halves."""

import numpy as np
import pandas as pd
import pytest
import torch

from lib.tasks import closed_forms
from lib.tasks.closed_forms import FORMS, PAPER, best_on_dev, form_scores, joins_of, judged


@pytest.fixture
def facts() -> dict[str, torch.Tensor]:
    """Of five tokens, the first of which is dominant."""
    rng = np.random.default_rng(0)
    p = torch.from_numpy(rng.uniform(0.01, 0.9, (5, 1)))
    names = ("unigram", "unigram_rest", "flattened", "flattened_rest")
    others = {name: torch.from_numpy(rng.uniform(0.001, 0.1, (5, 1))) for name in names}
    dominant = torch.tensor([[True], [False], [False], [False], [False]])
    return {"probability": p, "logprob": p.log(), "boostedprob": p, "dominant": dominant} | others


def items_of_groups(**columns) -> pd.DataFrame:
    """40 items of 20 groups, with columns of a task."""
    ids = np.arange(40)
    gold = ids % 2
    return pd.DataFrame(
        {"id": ids, "group": [f"g{i // 2:02}" for i in ids], "gold": gold} | columns
    )


def test_the_family_has_58_forms_and_the_papers():
    assert len(FORMS) == 59
    assert PAPER == "u5-q5-excluded"
    assert FORMS["u10-q1"] == {"unigram": 10, "flattened": 1, "excluded": False}
    assert all(form["unigram"] + form["flattened"] > 0 for form in FORMS.values())


def test_scores_are_the_formula(facts):
    scores = form_scores(facts)
    p, u, q = (facts[name][:, 0] for name in ("probability", "unigram", "flattened"))
    expected = p / (p + (1 - p) * (10 * u + q))
    np.testing.assert_allclose(scores["u10-q1"], expected, rtol=1e-6)
    np.testing.assert_allclose(scores["softmax"], p, rtol=1e-6)
    np.testing.assert_allclose(scores["logprob"], p.log(), rtol=1e-6)


def test_excluded_dominant_tokens_score_one_and_others_use_what_is_left(facts):
    scores = form_scores(facts)
    p, u, q = (facts[name][:, 0] for name in ("probability", "unigram_rest", "flattened_rest"))
    expected = p / (p + (1 - p) * (3 * u + 10 * q))
    assert scores["u3-q10-excluded"][0] == 1
    np.testing.assert_allclose(scores["u3-q10-excluded"][1:], expected[1:], rtol=1e-6)


def test_scores_lie_between_none_and_certain(facts):
    for name, score in form_scores(facts).items():
        if name != "logprob":
            assert ((score > 0) & (score <= 1)).all(), name


def test_many_draws_order_tokens_as_odds_over_frequency(facts):
    few = form_scores(facts)["u100-q0"]
    odds = facts["probability"] / (1 - facts["probability"]) / facts["unigram"]
    assert (np.argsort(few) == np.argsort(odds[:, 0].numpy())).all()


def test_without_unigram_draws_frequencies_do_not_matter(facts):
    before = form_scores(facts)["u0-q10"]
    facts["unigram"] = facts["unigram"].flip(0)
    np.testing.assert_array_equal(form_scores(facts)["u0-q10"], before)


# ---- halves ------------------------------------------------------------------------------------


def test_halves_are_whole_groups_always_the_same():
    items = judged(items_of_groups())
    sides = items.groupby("group")["half"].nunique()
    assert (sides == 1).all()
    assert (items.drop_duplicates("group")["half"] == "dev").sum() == 10
    shuffled = judged(items_of_groups().sample(frac=1, random_state=1)).sort_values("id")
    assert (shuffled["half"].to_numpy() == items["half"].to_numpy()).all()


def test_listing_judges_right_ones_among_many_against_wrong_ones_where_few_are_right():
    k = np.tile([1, 2, 3, 4, 5], 8)
    items = judged(items_of_groups(k=k, order=0))
    right = items["gold"] == 1
    assert set(items.loc[right, "k"]) == {4, 5}
    assert set(items.loc[~right, "k"]) == {1, 2}


def test_languages_judge_right_of_two_against_wrong_of_one_and_no_controls():
    k, prior = np.repeat([1, 2], 20), np.tile([False, False, True, True], 10)
    items = judged(items_of_groups(k=k, prior=prior))
    assert not items["prior"].any()
    assert (items["k"] - items["gold"] == 1).all()


@pytest.mark.parametrize(
    ("columns", "query"),
    [
        ({"edit": ["original", "word-swap", "attested", "random-words"] * 10}, "edit in @kept"),
        ({"with_source": [True, False] * 20}, "with_source"),
        ({"changed": ["step", "answer"] * 20}, "changed == 'step'"),
    ],
)
def test_other_tasks_keep_what_their_main_measure_is_about(columns, query):
    kept = ("original", "word-swap")  # noqa: F841 - used in a query
    items = items_of_groups(**columns)
    assert judged(items)["id"].tolist() == items.query(query)["id"].tolist()


# ---- joins, and the choice ---------------------------------------------------------------------


def test_logarithms_are_joined_for_scores_between_0_and_1_only():
    inside, outside = np.array([0.2, 0.9]), np.array([-3.0, -0.1])
    assert joins_of("corruption", inside) == ("mean", "log-mean", "product", "min", "worst-5")
    assert joins_of("corruption", outside) == ("mean", "min", "worst-5")
    assert joins_of("languages", inside) == ("mean",)


def test_the_best_on_dev_is_chosen_whatever_test_says():
    lines = [
        ("softmax", "mean", 0.6, 0.9),
        ("softmax", "min", 0.7, 0.1),
        ("logprob", "mean", 0.5, 0.5),
        ("boostedprob", "mean", 0.5, 0.5),
        (PAPER, "mean", 0.65, 0.2),
        ("u10-q1", "log-mean", 0.8, 0.3),
        ("u3-q1", "log-mean", 0.7, 0.99),
    ]
    grid = pd.DataFrame(lines, columns=["score", "join", "dev", "test"], index=range(10, 17))
    best = best_on_dev(grid)
    assert best.loc["softmax", "join"] == "min"
    assert best.loc["closed-form", "score"] == PAPER
    assert best.loc["closed-form:any", "score"] == "u10-q1"
    assert best.loc["closed-form:any", "index"] == 15


# ---- the experiments, on made-up tokens --------------------------------------------------------


@pytest.fixture
def tokens_of_task(monkeypatch):
    """A task whose outputs have three tokens, scored by random forms that know gold."""
    items, rng = items_of_groups(), np.random.default_rng(0)
    text = np.repeat(items["id"].to_numpy(), 3)
    p = 0.2 + 0.3 * items["gold"].to_numpy()[text] + rng.uniform(0, 0.4, len(text))
    scores = {"softmax": p, "logprob": np.log(p), "boostedprob": p[::-1]}
    scores |= {PAPER: p**0.5, "u10-q1": p}
    monkeypatch.setattr(closed_forms, "_tokens", lambda *_: (items, text, scores))
    return items


def test_a_grid_has_every_join_and_intervals_of_what_is_best(tokens_of_task):
    grid = closed_forms.closed_form_grid(task="cola", model="any", texts=20, training={})
    assert len(grid) == 4 * 5 + 3
    assert (grid["n"] == 20).all()
    best = grid.loc[best_on_dev(grid)["index"]]
    assert best["low"].notna().all() and (best["low"] <= best["test"] + 1e-9).all()
    assert grid["low"].notna().sum() == len(best.drop_duplicates(["score", "join"]))
    same = grid.set_index(["score", "join"])
    assert same.loc[("softmax", "min"), "dev"] == same.loc[("logprob", "min"), "dev"]


def test_chosen_scores_are_of_the_test_half_joined_in_one_way(tokens_of_task, monkeypatch):
    known = {"states": torch.zeros(120, 1), "gold": torch.zeros(120, dtype=torch.long)}
    monkeypatch.setattr(closed_forms, "output_states", lambda *_: known)
    monkeypatch.setattr(closed_forms, "load_head", lambda head, seed, *_: seed)
    monkeypatch.setattr(closed_forms, "scores_of_head", lambda seed, *_: np.full(120, 0.1 + seed))
    rows = closed_forms.chosen_form_scores(
        form="u10-q1",
        how="log-mean",
        heads=["sigmoid-full"],
        seeds=[0, 1],
        task="cola",
        model="any",
        texts=20,
        training={},
    )
    assert set(rows["method"]) == {"closed-form:chosen", "closed-form", "softmax", "sigmoid-full"}
    assert rows.groupby(["method", "seed"]).size().eq(20).all()
    tests = judged(tokens_of_task).query("half == 'test'")["id"]
    assert set(rows["id"]) == set(tests)
    of_head = rows[rows["method"] == "sigmoid-full"].groupby("seed")["score"].first()
    np.testing.assert_allclose(of_head, np.log([0.1, 1.1]))
