"""The static site: every page there, every link between pages and every image resolved."""

import re

import nbformat
import pytest

from old import paths, report


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    return report.build(tmp_path_factory.mktemp("site") / "report").parent


def test_one_page_a_notebook_with_its_outputs(site):
    names = {file.stem for file in paths.NOTEBOOKS.glob("*.ipynb")}
    assert {file.stem for file in site.glob("*.html")} == names | {"index"}
    for name in names:
        html, first = (site / f"{name}.html").read_text(), nbformat.read(paths.NOTEBOOKS / f"{name}.ipynb", 4).cells[0].source
        assert f"<title>{report.title(first)}</title>".replace("'", "&#39;") in html.replace("&#x27;", "&#39;").replace("'", "&#39;")
        assert "width=device-width" in html and 'href="index.html"' in html


def test_links_and_images_lead_somewhere(site):
    for file in site.glob("*.html"):
        html = re.sub(r"<script.*?</script>", "", file.read_text(), flags=re.DOTALL)
        assert ".ipynb" not in " ".join(re.findall(r'href="([^"#]+)', html))
        for link in re.findall(r'href="(\w+\.html)"', html):
            assert (site / link).exists(), (file.name, link)
        for image in re.findall(r'src="(figures/[^"]+)"', html):
            assert (site / image).exists(), (file.name, image)
    assert len(re.findall(r'href="\w+\.html"', (site / "index.html").read_text())) >= 2 * len(list(site.glob("*.html"))) - 4


def test_code_that_writes_prose_is_hidden(site):
    """As in JupyterLab: the sentences, not their source; other code is shown."""
    html = re.sub("<[^>]+>", "", (site / "22_unseen_lengths.html").read_text())
    assert "PRE. Worst outlier share" in html and "text.append" not in html and "experiment.run" in html
