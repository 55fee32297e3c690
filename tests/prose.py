"""Numbers in the prose of notebooks: which must be claimed, and which are."""

import ast
import json
import re
from pathlib import Path

from lib.study.claims import NUMBER

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
