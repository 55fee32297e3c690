"""A summary line described in the lengths asked for, by the small committed checkpoint."""

import pandas as pd
import torch
from transformers import AutoTokenizer

from old import paths
from old.length import evaluation, experiment
from old.length.finetuning import Settings, prepare, trained_model
from old.length.models import LengthControlled

CHECKPOINT = paths.MODELS / "tiny-bart-pre"


def written_lengths(source: str, lengths: list[int]) -> pd.DataFrame:
    """Index: requested length (tokens, end of text included); columns generated length and the text."""
    tokenizer = AutoTokenizer.from_pretrained(CHECKPOINT)
    model = LengthControlled.from_pretrained(str(CHECKPOINT), dtype=torch.float32).eval()
    ids = tokenizer(source)["input_ids"]
    out = evaluation.generate(model, [ids] * len(lengths), torch.tensor(lengths).numpy())
    texts = tokenizer.batch_decode(out["tokens"].tolist(), skip_special_tokens=True)
    return pd.DataFrame({"generated": out["generated_length"].tolist(), "text": texts}, index=pd.Index(lengths, name="requested"))


def export() -> None:
    """Copy the `cpu` profile's model with signal `pre`, seed 0, to data/models (committed), in half precision."""
    (unit,) = experiment.plan(["in-distribution"], {"signals": ["pre"], "seeds": [0]})
    data = prepare(Settings())
    trained_model(unit, Settings(), data).half().save_pretrained(CHECKPOINT)
    data.tokenizer.save_pretrained(CHECKPOINT)


if __name__ == "__main__":
    export()
