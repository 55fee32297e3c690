"""A prompt and some outputs, their tokens coloured by score, as static HTML."""

import html

import numpy as np
from matplotlib import colormaps
from matplotlib.colors import to_hex

from old.quality import scores
from old.quality.head import SigmoidHead
from old.quality.heads import released_frequencies, released_head
from old.quality.language_models import SMOLLM2, LanguageModel

SHOWN = ("softmax", "closed-form", "sigmoid")


def coloured_scores(prompt: str, outputs: list[str]) -> str:
    """One table: a row an output and score, its tokens on a background from red (0) to blue (1), and their mean."""
    lm = LanguageModel.load(SMOLLM2)
    head = SigmoidHead.load(released_head(SMOLLM2, 0), lm.unembedding)
    texts = lm.encode([prompt] * len(outputs), outputs)
    table = scores.token_scores(lm, texts, released_frequencies(SMOLLM2), heads={"sigmoid": head})
    lines = [f"<p>{html.escape(prompt)}</p><table><tr><th>output</th><th>score</th><th>mean</th></tr>"]
    for number in range(len(outputs)):
        part = table[table["text"] == number]
        tokens = [lm.tokenizer.decode([token]) for token in part["token_id"]]
        for name in SHOWN:
            cells = "".join(_span(token, value, name) for token, value in zip(tokens, part[name]))
            lines.append(f'<tr><td style="text-align:left">{cells}</td><td>{name}</td><td>{part[name].mean():.2f}</td></tr>')
    return "\n".join([*lines, "</table>"])


def _span(token: str, value: float, name: str) -> str:
    """The title shows the number to whoever points at the token; lightness falls and rises with the score, so that grey works too."""
    colour = to_hex(np.clip(colormaps["RdBu"](0.15 + 0.7 * value), 0, 1))
    return f'<span style="background:{colour};color:black;padding:1px" title="{name} {value:.3f}">{html.escape(token)}</span>'
