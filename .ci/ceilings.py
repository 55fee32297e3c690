"""The ceilings on the size of the project, so that growth is a decision; run from its root."""

import ast
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

# on the way to 6500 lines and 45 files of lib, 7000 lines of tests
LIB_LINES, LIB_FILES, FILE_LINES, TEST_LINES, COLUMNS = 8063, 51, 300, 7820, 100
NOTEBOOKS, NOTEBOOK_LINES, CELL_LINES = 14, 250, 25
CORE = ("sigmoid_head", "sampler", "progress_ratio", "reverse_position")
OF_CORE = {"torch", "safetensors", "math", "hashlib", "pathlib", "typing", "collections", "json"}
ABOVE = {  # what the modules of a folder must not import
    "length": ("lib.quality", "lib.tasks", "lib.joint"),
    "quality": ("lib.length", "lib.tasks", "lib.joint"),
    "corpora": ("lib.length", "lib.quality", "lib.tasks", "lib.joint"),
    "study": ("lib.length", "lib.quality", "lib.tasks", "lib.corpora", "lib.joint"),
}
# a string with a blank in it that is added to: prose is written, not built
SENTENCE = re.compile(r"\w+\s*(?:\+=|\.append\()\s*\(?\s*f?[\"'][^\"']*\s[^\"']*\s")


def tracked(pattern: str) -> list[Path]:
    """Files that git knows, or would add."""
    command = ["git", "ls-files", "-co", "--exclude-standard", pattern]
    names = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    return sorted(Path(name) for name in names if Path(name).is_file())


def lines(path: Path) -> list[str]:
    """Of a text file."""
    return path.read_text(encoding="utf8").splitlines()


def imports(path: Path) -> Iterator[str]:
    """Modules that a file imports, and the names it takes from them."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def code(notebook: Path) -> Iterator[list[str]]:
    """Lines of each cell of code but the claims, without blank ones and comments."""
    for cell in json.loads(notebook.read_text(encoding="utf8"))["cells"]:
        if cell["cell_type"] == "code" and "claims" not in cell["metadata"].get("tags", []):
            source = "".join(cell["source"]).splitlines()
            yield [line for line in source if line.strip() and not line.strip().startswith("#")]


def counts() -> Iterator[tuple[str, int, int]]:
    """What is counted, how many there are, how many there may be."""
    lib, tests, notebooks = tracked("lib/*.py"), tracked("tests/*.py"), tracked("notebooks/*.ipynb")
    yield "lines of lib", sum(len(lines(path)) for path in lib), LIB_LINES
    yield "files of lib with code", sum(len(lines(path)) > 3 for path in lib), LIB_FILES
    yield "lines of tests", sum(len(lines(path)) for path in tests), TEST_LINES
    yield "notebooks", len(notebooks), NOTEBOOKS
    for path in lib + tests:
        if path in lib:
            yield f"lines of {path}", len(lines(path)), FILE_LINES
        yield f"wide lines of {path}", sum(len(line) > COLUMNS for line in lines(path)), 0
    for path in notebooks:
        cells = list(code(path))
        yield f"code lines of {path}", sum(map(len, cells)), NOTEBOOK_LINES
        yield f"lines of a cell of {path}", max(map(len, cells), default=0), CELL_LINES
        every = [line for cell in cells for line in cell]
        yield f"wide lines of {path}", sum(len(line) > COLUMNS for line in every), 0
        built = sum(len(SENTENCE.findall("\n".join(cell))) for cell in cells)
        yield f"sentences built in {path}", built, 0
    for path in (Path("lib", f"{name}.py") for name in CORE):
        other = {name.split(".")[0] for name in imports(path)} - OF_CORE
        yield f"imports of {path} beyond torch", len(other), 0
    for folder, forbidden in ABOVE.items():
        for path in lib:
            upward = [name for name in imports(path) if name.startswith(forbidden)]
            if path.parts[1] == folder:
                yield f"upward imports of {path}", len(upward), 0


def main() -> int:
    """Print what passes its ceiling; 1 where anything does."""
    over = [(what, value, ceiling) for what, value, ceiling in counts() if value > ceiling]
    for what, value, ceiling in over:
        print(f"{what}: {value}, at most {ceiling}")
    return 1 if over else 0


if __name__ == "__main__":
    sys.exit(main())
