"""`make report`: README and notebooks, as stored, as linked HTML pages in .cache/report."""

import os
import re
import shutil
from pathlib import Path

import nbformat
from nbconvert import HTMLExporter
from nbconvert.filters import markdown2html

from lib.study import paths

REPORT = paths.CACHE / "report"
# beside what nbconvert brings: a bar of links above each page; what is wide scrolls by itself
STYLE = """<style>
.study { font: 15px/1.5 system-ui, sans-serif; max-width: 60em; margin: 0 auto; padding: 1em; }
.study nav a { margin-right: 1em; display: inline-block; }
.study td, .study th { border: 1px solid #ccc; padding: .3em .6em; text-align: left; }
.study pre { overflow-x: auto; background: #f5f5f5; padding: .7em; }
.study table, .jp-RenderedHTMLCommon table { display: block; overflow-x: auto; max-width: 100%; }
body.jp-Notebook { max-width: 76em; margin: 0 auto; }
.study img, .jp-RenderedImage img { max-width: 100%; height: auto; }
.jp-OutputArea-output, .jp-RenderedHTMLCommon { overflow-x: auto; }
</style>"""
HEAD = f'<meta name="viewport" content="width=device-width, initial-scale=1">{STYLE}'


def title(markdown: str) -> str:
    """The first heading."""
    return re.search(r"^# (.+)$", markdown, re.MULTILINE)[1]


def write(file: Path, html: str) -> None:
    """A page: links to notebooks become links to their pages; those to other files stay."""
    pattern = r'href="(?:\.\./)?(?:notebooks/)?(\w+)\.ipynb"'
    file.write_text(re.sub(pattern, r'href="\1.html"', html), encoding="utf8")


def bar(links: list[tuple[str, str]]) -> str:
    """(page, text) -> links above a page."""
    pages = " ".join(f'<a href="{name}.html">{text}</a>' for name, text in links)
    return f"<nav>{pages}</nav>"


def build(folder: Path = REPORT) -> Path:
    """Write the site anew; return its first page."""
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(paths.FIGURES, folder / "figures")
    files = sorted(paths.NOTEBOOKS.glob("*.ipynb"))
    notebooks = {file.stem: nbformat.read(file, as_version=4) for file in files}
    pages = [(name, title(notebook.cells[0].source)) for name, notebook in notebooks.items()]
    exporter = HTMLExporter(embed_images=True)
    for number, (name, text) in enumerate(pages):
        near = [("index", "All notebooks"), *pages[max(0, number - 1) : number + 2]]
        above = f'<div class="study">{bar([page for page in near if page[0] != name])}</div>'
        html, _ = exporter.from_notebook_node(notebooks[name], {"metadata": {"name": text}})
        html = html.replace("</head>", f"{HEAD}</head>", 1)
        html = re.sub(r"<body[^>]*>", lambda body, above=above: body[0] + above, html, count=1)
        write(folder / f"{name}.html", html)
    readme = (paths.ROOT / "README.md").read_text(encoding="utf8")
    head = f'<meta charset="utf-8"><title>{title(readme)}</title>{HEAD}'
    body = f'<body><div class="study">{bar(pages)}{markdown2html(readme)}</div></body>'
    page = f'<!doctype html><html lang="en"><head>{head}</head>{body}</html>'
    write(folder / "index.html", page)
    return folder / "index.html"


if __name__ == "__main__":
    print(f"open {os.path.relpath(build())}")
