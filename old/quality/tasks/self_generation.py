"""Self-generation: the model continues held-out docstrings by sampling; gold is the similarity of a continuation to the real one.

Gold: chrF (sacrebleu, 0 to 1) against the reference, both cut to the same number of words: otherwise the longer continuation would be the
better one. It is a weak gold - another good continuation gets little - and named as such.
"""

import re

import pandas as pd
import torch
from sacrebleu.metrics import CHRF

from old.progress import progress
from old.quality.language_models import SAMPLING, LanguageModel
from old.quality.tasks import make_items
from old.quality.tasks.corruption import prompt_of

OPENING = 4  # words of the real description that the model is given
LENGTH = (12, 40)  # words of a real description in this task
SHORTEST = 5  # words of a continuation that is judged


def items(
    lm: LanguageModel, corpus: pd.DataFrame, texts: int = 100, samples: int = 4, max_tokens: int = 40, split: str = "test", seed: int = 0
) -> pd.DataFrame:
    """`samples` continuations of each of `texts` texts (group: near-duplicate group), sampled at temperature 1 from the whole distribution.

    A continuation ends with its first line, or with as many words as the rest of the description has; a shorter one than SHORTEST is left
    out and counted (attrs["short"]).
    """
    words = corpus["target"].str.split()
    inside = (corpus["split"] == split) & words.str.len().between(*LENGTH)
    chosen = corpus[inside].sample(min(texts, int(inside.sum())), random_state=seed)
    openings = [prompt_of(line.source) + " ".join(line.target.split()[:OPENING]) for line in chosen.itertuples()]
    references = [" ".join(line.target.split()[OPENING:]) for line in chosen.itertuples()]
    outputs = sample(lm, [opening for opening in openings for _ in range(samples)], max_tokens, seed)
    score, rows, short = CHRF(), [], 0
    for number, output in enumerate(outputs):
        line, reference = chosen.iloc[number // samples], references[number // samples].split()
        text = output.split("\n")[0]
        size = min(len(text.split()), len(reference))
        if size < SHORTEST:
            short += 1
            continue
        text = re.match(rf"(\s*\S+){{{size}}}", text).group()
        gold = score.sentence_score(text.strip(), [" ".join(reference[:size])]).score / 100
        common = {"group": line["group"], "package": line["package"], "slice": "all", "prompt": openings[number // samples]}
        rows.append({**common, "output": text, "gold": gold})
    items = make_items(rows)
    items.attrs["short"] = short
    return items


@torch.no_grad()
def sample(lm: LanguageModel, prompts: list[str], max_tokens: int, seed: int, batch: int = 64, greedy: bool = False) -> list[str]:
    """One continuation a prompt, sampled, or with `greedy` of the likeliest token at each step.

    Prompts of similar length share a batch, padded on the left and masked there.
    """
    options = {**SAMPLING, "do_sample": not greedy}
    ids, padding = lm.prompt_ids(prompts), lm.tokenizer.eos_token_id
    order = sorted(range(len(prompts)), key=lambda number: len(ids[number]))
    groups = [order[i : i + batch] for i in range(0, len(order), batch)]
    outputs = [""] * len(prompts)
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        for group in progress(groups, "sampling"):
            missing = [len(ids[group[-1]]) - len(ids[i]) for i in group]
            tokens = torch.tensor([[padding] * count + ids[i] for i, count in zip(group, missing)], device=lm.device)
            mask = torch.tensor([[0] * count + [1] * len(ids[i]) for i, count in zip(group, missing)], device=lm.device)
            out = lm.model.generate(tokens, attention_mask=mask, max_new_tokens=max_tokens, pad_token_id=padding, **options)
            for number, text in zip(group, lm.tokenizer.batch_decode(out[:, tokens.shape[1] :], skip_special_tokens=True)):
                outputs[number] = text
    return outputs
