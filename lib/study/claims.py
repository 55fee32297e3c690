"""Numbers in prose: each is quoted once more in a notebook's last cell, beside what the rows say.

check_claims([("7.1", mae["pre"], "mean error of PRE"), ("36 %", share, "texts cut")], parameters)
"""

import ast
import json
import re
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pandas as pd

from lib.study.parameters import Parameters

NUMBER = re.compile(
    r"(?<![\w.])(?<![A-Za-z]-)([+−-]?)(\d+(?:,\d{3})*(?:\.\d+)?)(?!\.?\d|\w)(\s?%)?"
)
TIE = 1e-6  # of the last digit: 0.03125 may be quoted as 0.0312 and as 0.0313

# what is no number of the study: code, formulas, comments, addresses, arXiv ids, years and dates,
# headings' and lists' numbers, places in the study, the level of an interval
EXEMPT = re.compile(
    r"```.*?```|`[^`]*`|\$\$.*?\$\$|\$[^$\n]*\$|<!--.*?-->|<[^>]+>|\]\([^)]*\)|https?://\S+"
    r"|\b\d{4}\.\d{5}\b|\b(?:19|20)\d\d\b(?:-\d\d-\d\d)?|^#+ *\d+[^\n\w]|^ *\d+\. "
    r"|\b(?:[Nn]otebooks?|[Ss]ections?|[Tt]ables?|[Ff]igures?|[Cc]ells?|seeds?|[Ii]ssues?)"
    r" \d+(?:(?:,| and| or| to|–) ?\d+)*\b|\b95 ?%",
    re.MULTILINE | re.DOTALL,
)
SENTENCE = re.compile(r"(?<=[.;!?])\s+|\n\s*\n|\n(?=[-*|#>] )")
OF_THE_PAPER = re.compile(r"\bpapers?:", re.IGNORECASE)


def check_claims(claims: Sequence[tuple[str, object, str]], parameters: Parameters) -> pd.DataFrame:
    """Every claim beside what it is now: a table. Claims: (as quoted in the prose, value, what).

    A quoted percentage is about a share: "36 %" of 0.36. Several quoted numbers take as many
    values: ("7.1 [6.9, 7.3]", (mae, low, high), "mean error"). Under the notebook's own parameters
    a value that does not round to the quoted digits raises ValueError, which names all such claims.
    """
    lines = [(quoted, *_compared(quoted, value), what) for quoted, value, what in claims]
    table = pd.DataFrame(lines, columns=["quoted", "now", "agrees", "what"])
    wrong = table[~table["agrees"]]
    if parameters.own and len(wrong):
        each = (f"{line.what}: {line.quoted}, but {line.now}" for line in wrong.itertuples())
        raise ValueError("the text quotes other numbers than the rows hold: " + "; ".join(each))
    return table.set_index("what") if parameters.own else table.set_index("what")[["quoted", "now"]]


def _compared(quoted: str, value: object) -> tuple[str, bool]:
    """The value with one digit more than quoted, and whether it rounds to what is quoted."""
    numbers, values = list(NUMBER.finditer(quoted)), np.atleast_1d(value).astype(float)
    if not numbers or len(numbers) != len(values):
        raise ValueError(f"{quoted!r} holds {len(numbers)} numbers, for {len(values)} values")
    shown, agrees = [], True
    for number, exact in zip(numbers, values):
        sign, digits, percent = number.groups()
        scaled = exact * 100 if percent else exact
        decimals = len(digits.partition(".")[2])
        stated = float(digits.replace(",", "")) * (-1 if sign in ("-", "−") and sign else 1)
        agrees &= bool(abs(scaled - stated) <= (0.5 + TIE) * 10.0**-decimals)
        shown.append(f"{scaled:.{decimals + 1}f}{percent or ''}")
    return ", ".join(shown), agrees


# ---- for tests -----------------------------------------------------------------------------------


def numbers_in(text: str) -> list[str]:
    """Numbers of prose that must be claimed, unsigned; see EXEMPT for what need not.

    A sentence (an entry, a line of a table) with the mark `paper:` quotes the paper. Digits glued
    to letters (ROUGE-1, SmolLM2-135M, 7B) are names.

    >>> numbers_in("PRE is off by 7.1 tokens (2 of 3 below 1,024). Paper: 0.5. See notebook 21.")
    ['7.1', '2', '3', '1,024']
    """
    sentences = SENTENCE.split(EXEMPT.sub(" ", text))
    own = (sentence for sentence in sentences if not OF_THE_PAPER.search(sentence))
    return [number[2] for sentence in own for number in NUMBER.finditer(sentence)]


def claimed_numbers(notebook: Path) -> set[str]:
    """Numbers of the quoted texts in the cell tagged `claims`: first entries of its tuples."""
    trees = [ast.parse(source) for source in _sources(notebook, "code", "claims")]
    tuples = [node for tree in trees for node in ast.walk(tree) if isinstance(node, ast.Tuple)]
    first = [node.elts[0] for node in tuples if len(node.elts) == 3]
    quoted = [str(node.value) for node in first if isinstance(node, ast.Constant)]
    return {number[2] for text in quoted for number in NUMBER.finditer(text)}


def unclaimed_numbers(notebook: Path) -> list[str]:
    """Numbers in a notebook's prose that neither its claims nor its code (parameters) hold."""
    code = re.sub(r"(?<=\d)_(?=\d)", "", " ".join(_sources(notebook, "code")))
    defined = {float(number[2].replace(",", "")) for number in NUMBER.finditer(code)}
    claimed = claimed_numbers(notebook)
    prose = [number for text in _sources(notebook, "markdown") for number in numbers_in(text)]
    return [n for n in prose if n not in claimed and float(n.replace(",", "")) not in defined]


def _sources(notebook: Path, kind: str, tag: str | None = None) -> list[str]:
    """Sources of the cells of a kind: with the tag, or (no tag given) all but the claims."""
    cells = json.loads(notebook.read_text(encoding="utf8"))["cells"]
    chosen = [cell for cell in cells if cell["cell_type"] == kind]
    tags = [cell["metadata"].get("tags", []) for cell in chosen]
    has = [tag in own if tag else "claims" not in own for own in tags]
    return ["".join(cell["source"]) for cell, wanted in zip(chosen, has) if wanted]
