"""The static site: every page there, every link between pages and every image resolved."""

import re

import nbformat
import pytest

from lib.study import paths, report


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    return report.build(tmp_path_factory.mktemp("site") / "report").parent


def test_one_page_a_notebook(site):
    names = {file.stem for file in paths.NOTEBOOKS.glob("*.ipynb")}
    assert {file.stem for file in site.glob("*.html")} == names | {"index"}
    for name in names:
        html = (site / f"{name}.html").read_text()
        first = nbformat.read(paths.NOTEBOOKS / f"{name}.ipynb", 4).cells[0].source
        start = report.title(first).partition(":")[0].partition("'")[0]
        assert start in html.partition("</title>")[0]
        assert "width=device-width" in html and 'href="index.html"' in html


def test_links_and_images_lead_somewhere(site):
    for file in site.glob("*.html"):
        html = re.sub(r"<script.*?</script>", "", file.read_text(), flags=re.DOTALL)
        assert ".ipynb" not in " ".join(re.findall(r'href="([^"#]+)', html))
        links = re.findall(r'href="(\w+\.html)"', html) + re.findall(r'src="(figures/[^"]+)"', html)
        assert not [link for link in links if not (site / link).exists()], file.name
