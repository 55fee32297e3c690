"""What a computed thing depends on: its name, arguments and data, and the versions of its function
and of everything that is built on, however far down.
"""

import ast
import dataclasses
import functools
import hashlib
import inspect
import json
import textwrap
from collections.abc import Callable, Sequence
from pathlib import Path


class Keyed:
    """A function whose results are kept; called like the function itself, with keywords or without.

    version: raised by hand when a change moves the numbers. built_on: the keyed functions it
    calls. data: a function of some of the arguments (by name) to the content hash of the input
    data. A parameter `**others` stands for those of the first function in built_on, to be handed
    on to it.
    """

    supplied: tuple[str, ...] = ()  # parameters that the cache itself fills in

    def __init__(self, function: Callable, version: int, built_on: Sequence["Keyed"], data):
        functools.update_wrapper(self, function)
        self.function, self.name, self.version = function, function.__name__, version
        self.built_on, self.data, self.source = tuple(built_on), data, _source(function)
        signature = inspect.signature(function)
        known = [p for p in signature.parameters.values() if p.name not in self.supplied]
        if known and known[-1].kind is inspect.Parameter.VAR_KEYWORD:
            names = [p.name for p in known[:-1]]
            others = self.built_on[0].signature.parameters.values()
            others = [p for p in others if p.name not in names]
            known[-1:] = [p.replace(kind=inspect.Parameter.KEYWORD_ONLY) for p in others]
        self.signature = signature.replace(parameters=known)

    def __reduce_ex__(self, protocol: int):  # by reference, but by value from a notebook
        return super().__reduce_ex__(protocol) if self.__module__ == "__main__" else self.name

    def bind(self, *args, **kwargs) -> dict:
        """All arguments by name, defaults included. TypeError, naming the known ones, if wrong."""
        try:
            bound = self.signature.bind(*args, **kwargs)
        except TypeError as error:
            raise TypeError(f"{self.name}: {error}; it takes {self.signature}") from None
        bound.apply_defaults()
        return dict(bound.arguments)

    def closure(self) -> dict[str, "Keyed"]:
        """This function and all it is built on, by name."""
        everything = {self.name: self}
        for other in self.built_on:
            everything |= other.closure()
        return everything

    def key(self, arguments: dict) -> str:
        """Hash of everything that the result depends on."""
        data = None
        if self.data is not None:
            wanted = inspect.signature(self.data).parameters
            data = self.data(**{name: arguments[name] for name in wanted})
        versions = {name: keyed.version for name, keyed in self.closure().items()}
        return digest([self.name, plain(arguments), versions, data])

    def sources(self) -> dict[str, list]:
        """Version and hash of the source of this function and of all it is built on."""
        return {name: [k.version, k.source] for name, k in self.closure().items()}

    def check_built_on(self, called: "Keyed") -> None:
        """Raise ValueError unless `called` is among what this function says it is built on."""
        if called.name not in self.closure():
            raise ValueError(
                f"{self.name} calls {called.name}, but its key does not depend on it: "
                f"add {called.name} to its built_on"
            )

    def check_sources(self, stored: dict[str, list], where: Path) -> None:
        """Raise ValueError where a source has changed under an unchanged version."""
        now = self.sources()
        for name, (version, source) in stored.items():
            if name in now and now[name][0] == version and now[name][1] != source:
                raise ValueError(
                    f"{name} is not as it was when {where.name} was computed, under the same "
                    "version. Does the change move numbers? Then raise its version; if it cannot, "
                    "say kept(..., accept=True) or run once with STUDY_ACCEPT=1"
                )


def digest(value: object) -> str:
    """16 hexadecimal digits for a JSON value."""
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:16]


def plain(value: object) -> object:
    """An argument as JSON knows it. A folder becomes its name and a hash of its files, so that no
    path of a machine is in results, and a changed model is another one.

    Raises TypeError for what JSON does not know.
    """
    if dataclasses.is_dataclass(value):
        value = dataclasses.asdict(value)
    if isinstance(value, dict):
        return {str(name): plain(one) for name, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(one) for one in value]
    if isinstance(value, Path) or (isinstance(value, str) and "/" in value):
        return f"{Path(value).name}@{_folder(Path(value))}" if Path(value).is_dir() else str(value)
    if value is None or isinstance(value, (str, bool, int, float)):
        return value
    raise TypeError(f"an argument must be a plain JSON value, not {value!r}")


def _folder(folder: Path) -> str:
    """Hash of the files of a folder, by name and content."""
    total = hashlib.sha256()
    for file in sorted(file for file in folder.rglob("*") if file.is_file()):
        with file.open("rb") as stream:
            total.update(f"{file.relative_to(folder)}".encode())
            total.update(hashlib.file_digest(stream, "sha256").digest())
    return total.hexdigest()[:8]


def _source(function: Callable) -> str:
    """Hash of a function's syntax tree without decorators, docstring and comments."""
    node = ast.parse(textwrap.dedent(inspect.getsource(function))).body[0]
    node.decorator_list = []
    first = node.body[0]
    if isinstance(first, ast.Expr) and isinstance(getattr(first, "value", None), ast.Constant):
        node.body = node.body[1:] or [ast.Pass()]
    return digest(ast.dump(node))
