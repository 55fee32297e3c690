"""`make report`: the README and every notebook, as stored, as a static site of linked HTML pages in .cache/report."""

import os
import re
import shutil
from pathlib import Path

import nbformat
from nbconvert import HTMLExporter
from nbconvert.filters import markdown2html

from old import paths

REPORT = paths.CACHE / "report"
# beside what nbconvert brings: a bar of links above each page; wide tables and figures scroll by themselves, so that a page fits a phone
STYLE = """
<style>
.study { font: 15px/1.5 system-ui, sans-serif; max-width: 60em; margin: 0 auto; padding: .7em 1em; }
.study nav a { margin-right: 1em; color: #0b57d0; text-decoration: underline; display: inline-block; }
.study table { display: block; overflow-x: auto; border-collapse: collapse; margin: 1em 0; }
.study td, .study th { border: 1px solid #ccc; padding: .3em .6em; vertical-align: top; text-align: left; }
.study img { max-width: 100%; height: auto; }
.study pre { overflow-x: auto; background: #f5f5f5; padding: .7em; }
body.jp-Notebook { max-width: 76em; margin: 0 auto; }
.jp-RenderedHTMLCommon table { display: block; overflow-x: auto; max-width: 100%; }
.jp-OutputArea-output, .jp-RenderedHTMLCommon { overflow-x: auto; }
.jp-RenderedImage img { max-width: 100%; height: auto; }
@media (max-width: 700px) { .jp-InputPrompt, .jp-OutputPrompt { display: none; } body.jp-Notebook { padding: 4px; } }
</style>
"""
VIEWPORT = '<meta name="viewport" content="width=device-width, initial-scale=1">'


def title(markdown: str) -> str:
    """The first heading."""
    return re.search(r"^# (.+)$", markdown, re.MULTILINE)[1]


def linked(html: str) -> str:
    """Links to notebooks become links to their pages, wherever they start from; those to other files of the repository stay."""
    return re.sub(r'href="(?:\.\./)?(?:notebooks/)?(\w+)\.ipynb"', r'href="\1.html"', html)


def page(html: str, bar: str) -> str:
    """A page of nbconvert with our style and the bar of links."""
    html = html.replace("<head>", f"<head>{VIEWPORT}", 1) if "viewport" not in html else html
    html = html.replace("</head>", f"{STYLE}</head>", 1)
    return linked(re.sub(r"(<body[^>]*>)", lambda found: f'{found[1]}<div class="study">{bar}</div>', html, count=1))


def build(folder: Path = REPORT) -> Path:
    """Write the site anew; return its first page."""
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(paths.FIGURES, folder / "figures", ignore=shutil.ignore_patterns("smoke"))
    files = sorted(paths.NOTEBOOKS.glob("*.ipynb"))
    notebooks = {file.stem: nbformat.read(file, as_version=4) for file in files}
    titles = {name: title(notebook.cells[0].source) for name, notebook in notebooks.items()}
    exporter = HTMLExporter(embed_images=True)
    names = list(notebooks)
    for number, (name, notebook) in enumerate(notebooks.items()):
        near = [("index", "All notebooks"), *((n, titles[n]) for n in names[max(0, number - 1) : number + 2] if n != name)]
        for cell in notebook.cells:
            if cell.metadata.get("jupyter", {}).get("source_hidden"):  # as JupyterLab shows it: the prose, not the code that wrote it
                cell.metadata["transient"] = {"remove_source": True}
        html, _ = exporter.from_notebook_node(notebook, {"metadata": {"name": titles[name]}})
        (folder / f"{name}.html").write_text(page(html, _bar(near)))
    readme = (paths.ROOT / "README.md").read_text()
    bar = _bar(list(titles.items()))
    head = f'<meta charset="utf-8">{VIEWPORT}<title>{title(readme)}</title>{STYLE}'
    first = folder / "index.html"
    first.write_text(
        linked(
            f'<!doctype html><html lang="en"><head>{head}</head><body><div class="study">{bar}{markdown2html(readme)}</div></body></html>'
        )
    )
    return first


def _bar(links: list[tuple[str, str]]) -> str:
    return "<nav>" + " ".join(f'<a href="{name}.html">{text}</a>' for name, text in links) + "</nav>"


if __name__ == "__main__":
    print(f"open {os.path.relpath(build())}")
