"""Self-generation: the model continues held-out docstrings by sampling; gold is the similarity of a continuation to the real one.

Gold: chrF (sacrebleu, 0 to 1) against the reference. It is a weak gold - another good continuation gets little - and named as such.
"""

import pandas as pd
import torch
from sacrebleu.metrics import CHRF

from lib.progress import progress
from lib.quality.language_models import LanguageModel
from lib.quality.tasks import make_items
from lib.quality.tasks.corruption import prompt_of

OPENING = 4  # words of the real description that the model is given
LENGTH = (12, 40)  # words of a real description in this task


def items(
    lm: LanguageModel, corpus: pd.DataFrame, texts: int = 100, samples: int = 4, max_tokens: int = 40, split: str = "test", seed: int = 0
) -> pd.DataFrame:
    """`samples` continuations of each of `texts` texts (group: near-duplicate group), sampled at temperature 1 from the whole distribution.

    A continuation ends with its first line; an empty one is left out and counted (attrs["empty"]).
    """
    words = corpus["target"].str.split()
    inside = (corpus["split"] == split) & words.str.len().between(*LENGTH)
    chosen = corpus[inside].sample(min(texts, int(inside.sum())), random_state=seed)
    openings = [prompt_of(line.source) + " ".join(line.target.split()[:OPENING]) for line in chosen.itertuples()]
    references = [" ".join(line.target.split()[OPENING:]) for line in chosen.itertuples()]
    outputs = sample(lm, [opening for opening in openings for _ in range(samples)], max_tokens, seed)
    score, rows, empty = CHRF(), [], 0
    for number, output in enumerate(outputs):
        line = chosen.iloc[number // samples]
        text = output.split("\n")[0]
        if not text.strip():
            empty += 1
            continue
        gold = score.sentence_score(text.strip(), [references[number // samples]]).score / 100
        common = {"group": line["group"], "package": line["package"], "slice": "all", "prompt": openings[number // samples]}
        rows.append({**common, "output": text, "gold": gold})
    items = make_items(rows)
    items.attrs["empty"] = empty
    return items


@torch.no_grad()
def sample(lm: LanguageModel, prompts: list[str], max_tokens: int, seed: int, batch: int = 32) -> list[str]:
    """One sampled continuation a prompt; prompts of equal length share a batch, so no padding is involved."""
    ids = lm.tokenizer(prompts, add_special_tokens=False)["input_ids"]
    by_length: dict[int, list[int]] = {}
    for number, row in enumerate(ids):
        by_length.setdefault(len(row), []).append(number)
    groups = [members[i : i + batch] for _, members in sorted(by_length.items()) for i in range(0, len(members), batch)]
    outputs = [""] * len(prompts)
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        for group in progress(groups, "sampling"):
            tokens = torch.tensor([ids[i] for i in group], device=lm.device)
            # top_k=0, top_p=1, temperature=1: the model's own distribution, whatever its generation configuration says
            options = {"do_sample": True, "top_k": 0, "top_p": 1.0, "temperature": 1.0, "repetition_penalty": 1.0}
            out = lm.model.generate(
                tokens, attention_mask=torch.ones_like(tokens), max_new_tokens=max_tokens, pad_token_id=lm.tokenizer.eos_token_id, **options
            )
            for number, text in zip(group, lm.tokenizer.batch_decode(out[:, tokens.shape[1] :], skip_special_tokens=True)):
                outputs[number] = text
    return outputs
