"""Parameters of a notebook: what it declares, whether what it is given fits, and the settings of an experiment made from them."""

import ast
import dataclasses
import difflib
import json
from collections.abc import Iterable
from pathlib import Path
from typing import TypeVar

from old import paths

S = TypeVar("S")


# ---- in a notebook -----------------------------------------------------------------------------------------------------------------


def declared_parameters(notebook: Path) -> dict:
    """Names and default values of the notebook's cell tagged `parameters`."""
    for cell in json.loads(notebook.read_text())["cells"]:
        if "parameters" in cell["metadata"].get("tags", []):
            return _assignments("".join(cell["source"]))
    raise ValueError(f"{notebook.name} has no cell tagged 'parameters'")


def _assignments(source: str) -> dict:
    """`name = literal` (or `name: type = literal`) lines of a cell."""
    statements = [s for s in ast.parse(source).body if isinstance(s, (ast.Assign, ast.AnnAssign))]
    return {(s.target if isinstance(s, ast.AnnAssign) else s.targets[0]).id: ast.literal_eval(s.value) for s in statements}


def check_values(notebook: str, given: dict, declared: dict) -> None:
    """Raise ValueError for a name the notebook does not have, or a value of another type than its default."""
    for name, value in given.items():
        if name not in declared:
            close = difflib.get_close_matches(name, declared, 1)
            hint = f" (did you mean {close[0]!r}?)" if close else ""
            raise ValueError(f"{notebook} has no parameter {name!r}{hint}; it has {', '.join(declared)}")
        if fault := _type_fault(value, declared[name]):
            raise ValueError(f"{notebook}: parameter {name} = {value!r} {fault}")


def _type_fault(value: object, default: object) -> str:
    """What is wrong with the type of a value, judged by the default; empty when nothing is."""
    if isinstance(default, list):
        if not isinstance(value, list):
            return f"must be a list, such as {default}"
        faults = [_type_fault(v, default[0]) for v in value] if default else []
        return next((f"holds an element that {fault}" for fault in faults if fault), "")
    expected = type(default)
    if type(value) is expected or (expected is float and type(value) is int):
        return ""
    hint = " (YAML reads 1e-4 as text: write 1.0e-4)" if expected is float and isinstance(value, str) else ""
    return f"must be of type {expected.__name__}, not {type(value).__name__}{hint}"


def check_parameters(notebook: str, namespace: dict) -> dict:
    """For a notebook's first cell: its parameters as a dictionary, checked however they were set (papermill, old.study, by hand).

    `namespace` is the notebook's globals(). Names that papermill injected are compared with the declared ones: papermill itself only warns.
    """
    declared = declared_parameters(paths.NOTEBOOKS / f"{notebook}.ipynb")
    cells = [source for source in namespace.get("In", []) if source.lstrip().startswith("# Parameters")]  # papermill's injected cell
    check_values(notebook, _assignments(cells[-1]) if cells else {}, declared)
    parameters = {name: namespace[name] for name in declared}
    check_values(notebook, parameters, declared)
    return parameters


# ---- in an experiment --------------------------------------------------------------------------------------------------------------


def settings_from(kind: type[S], parameters: dict) -> S:
    """The settings (a dataclass) among the parameters of a notebook or a unit; what it does not know is of no concern to it."""
    return kind(**{field.name: parameters[field.name] for field in dataclasses.fields(kind) if field.name in parameters})


def check_names(what: str, chosen: list[str], known: Iterable[str]) -> None:
    """Raise ValueError for a name that is not known, naming the valid ones, or one given twice. `what`: head, task, signal ..."""
    known = list(known)
    if unknown := [name for name in chosen if name not in known]:
        raise ValueError(f"unknown {what} {unknown[0]!r}: choose from {', '.join(known)}")
    if len(set(chosen)) < len(chosen):
        raise ValueError(f"no {what} must be named twice: {chosen}")


def check_seeds(seeds: list[int]) -> None:
    """Raise ValueError unless there is at least one seed, none twice and none negative."""
    if not seeds or min(seeds) < 0 or len(set(seeds)) < len(seeds):
        raise ValueError(f"seeds must name at least one, none twice and none negative, not {seeds}")


def model_label(model: str) -> str:
    """What results call a model: a folder by its last name, so that no path of a machine is in them."""
    return Path(model).name if Path(model).is_dir() else model
