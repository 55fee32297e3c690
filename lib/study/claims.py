"""Numbers in prose: each is quoted once more in a notebook's last cell, beside what the rows say.

check_claims([("7.1", mae["pre"], "mean error of PRE"), ("36 %", share, "texts cut")], parameters)
"""

import re
from collections.abc import Sequence

import numpy as np
import pandas as pd

from lib.study.parameters import Parameters

NUMBER = re.compile(
    r"(?<![\w.])(?<![A-Za-z]-)([+−-]?)(\d+(?:,\d{3})*(?:\.\d+)?)(?!\.?\d|\w)(\s?%)?"
)
TIE = 1e-6  # of the last digit: 0.03125 may be quoted as 0.0312 and as 0.0313


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
