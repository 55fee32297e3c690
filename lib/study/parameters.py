"""Parameters of a notebook: what its cell tagged `parameters` declares, and whether values fit.

Light, as the command line needs it: nothing but the standard library is imported with this module.
"""

import ast
import difflib
import json
import math
from pathlib import Path

from lib.study import paths

PLAIN = (bool, int, float, str, list, dict, type(None))  # types that papermill can set
OF_IPYTHON = ("In", "Out")


class Parameters(dict):
    """Values by name. `own`: all are the notebook's own, those that its stored outputs show."""

    own: bool = True


def declared_parameters(notebook: Path) -> dict:
    """Names and default values of the cell tagged `parameters`: lines `name: type = literal`."""
    cells = json.loads(notebook.read_text(encoding="utf8"))["cells"]
    tagged = [cell for cell in cells if "parameters" in cell["metadata"].get("tags", [])]
    if not tagged:
        raise ValueError(f"{notebook.name} has no cell tagged 'parameters'")
    values = {}
    try:
        for line in ast.parse("".join(tagged[0]["source"])).body:
            value = ast.literal_eval(line.value)
            if type(value).__name__ != line.annotation.id:
                raise ValueError(f"{value!r} is no {line.annotation.id}")
            values[line.target.id] = value
    except (SyntaxError, AttributeError, ValueError) as error:
        reason = f"the parameters cell holds lines `name: type = literal` only ({error})"
        raise ValueError(f"{notebook.stem}: {reason}") from None
    return values


def check_values(notebook: str, given: dict, declared: dict) -> None:
    """Raise ValueError for a name that is not declared or a value unlike the declared one."""
    for name, value in given.items():
        if name not in declared:
            close = difflib.get_close_matches(name, declared, 1)
            hint = f" (did you mean {close[0]!r}?)" if close else ""
            known = ", ".join(declared)
            raise ValueError(f"{notebook} has no parameter {name!r}{hint}; it has {known}")
        if fault := _fault(value, declared[name]):
            raise ValueError(f"{notebook}: parameter {name} = {value!r} {fault}")
        if name == "seeds" and not value:
            raise ValueError(f"{notebook}: seeds must name at least one")


def _fault(value: object, default: object) -> str:
    """What is wrong with a value, judged by the default; empty when nothing is."""
    if isinstance(default, list):
        if not isinstance(value, list):
            return f"must be a list, such as {default}"
        if any(entry in value[:place] for place, entry in enumerate(value)):
            return "names something twice"
        faults = [_fault(entry, default[0]) for entry in value] if default else []
        return next((f"holds an element that {fault}" for fault in faults if fault), "")
    expected = type(default)
    if type(value) is not expected and not (expected is float and type(value) is int):
        text = expected is float and isinstance(value, str)
        hint = " (YAML reads 1e-4 as text: write 1.0e-4)" if text else ""
        return f"must be of type {expected.__name__}, not {type(value).__name__}{hint}"
    if expected in (int, float) and not (math.isfinite(value) and value >= min(default, 0)):
        return "must be finite and not negative"
    return ""


def check_parameters(notebook: str, namespace: dict) -> Parameters:
    """For a notebook's first cell of code: its parameters, out of its globals(), checked.

    papermill only warns of a name that it does not know, and sets it all the same: in a fresh
    kernel it is a plain value that is not declared. When the cell is run again by hand, the
    notebook has names of its own, and only likely misspellings are shown.
    """
    from IPython.display import Markdown, display  # noqa: PLC0415 - slow

    declared = declared_parameters(paths.NOTEBOOKS / f"{notebook}.ipynb")
    names = [name for name, value in namespace.items() if isinstance(value, PLAIN)]
    others = [name for name in names if not name.startswith("_") and name not in declared]
    others = [name for name in others if name not in OF_IPYTHON and not name.isupper()]
    if not any(isinstance(value, Parameters) for value in namespace.values()):
        check_values(notebook, {name: namespace[name] for name in others}, declared)
    for name in others:
        if close := difflib.get_close_matches(name, declared, 1, cutoff=0.8):
            display(Markdown(f"`{name}` is no parameter: did you mean `{close[0]}`?"))
    if missing := [name for name in declared if name not in namespace]:
        raise ValueError(f"{missing[0]} is not set: run the parameters cell first")
    parameters = Parameters({name: namespace[name] for name in declared})
    check_values(notebook, parameters, declared)
    changed = {name: value for name, value in parameters.items() if value != declared[name]}
    parameters.own = not changed
    if changed:
        values = ", ".join(f"`{name} = {value!r}`" for name, value in changed.items())
        display(Markdown(f"**Changed**: {values}. The text is about the notebook's own values."))
    return parameters
