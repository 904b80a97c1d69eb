"""The notebooks that the site offers for Colab and Kaggle are its pages, behind a first cell."""

from __future__ import annotations

import ast
import importlib.util
import re
from pathlib import Path
from typing import Any

import nbformat
import pytest

from pages import ROOT, blocks, pages, text_of

README = "docs/tutorials/README.md"
#: Form -> what its first cell installs.
INSTALLED = {"tpu": '"paceline[tpu]"', "gpu": '"paceline[cuda]"', "cpu": "paceline"}
TEXT = (
    "---\nfile_format: mystnb\n---\n\n# A page\n\n```{code-cell}\nx = 1\n```\n\nSee [it](it.md).\n"
)


@pytest.fixture(scope="module")
def extension() -> Any:
    """The extension of the site that writes them, which has the name of a module of the tests."""
    path = ROOT / "docs" / "_ext" / "notebooks.py"
    spec = importlib.util.spec_from_file_location("site_notebooks", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


PAGES = [page for page in pages() if text_of(page).startswith("---\nfile_format: mystnb")]


@pytest.fixture(scope="module")
def site(extension, tmp_path_factory) -> Path:
    """A folder with the notebooks of all pages; only theirs are written."""
    out = tmp_path_factory.mktemp("site")
    for page in PAGES:
        (out / page).parent.mkdir(parents=True, exist_ok=True)
    extension.write(ROOT, out, {page.removesuffix(".md") for page in pages()})
    return out


def test_each_tutorial_and_seed_has_a_notebook_for_each_device(site):
    written = {str(path.relative_to(site)) for path in site.rglob("*.ipynb")}
    names = [page.removesuffix(".md") for page in PAGES]
    assert {"docs/tutorials/image", "docs/seeds/talos_scan"} < set(names)
    assert written == {f"{name}-{form}.ipynb" for name in names for form in INSTALLED}


@pytest.mark.parametrize("form", INSTALLED)
def test_a_first_cell_is_that_of_its_device(extension, form):
    told = dict(zip(INSTALLED, ("With a TPU", "With a GPU", "Without an acc"), strict=True))[form]
    cell = extension.first_cells(text_of(README))[form]
    assert cell.splitlines()[0] == f"%pip install -q {INSTALLED[form]}"
    assert text_of(README).partition(f"\n{told}")[2].partition("```ipython\n")[2].startswith(cell)


@pytest.mark.parametrize("form", INSTALLED)
@pytest.mark.parametrize("page", PAGES)
def test_a_notebook_is_its_page_behind_the_first_cell(extension, site, page, form):
    path = site / f"{page.removesuffix('.md')}-{form}.ipynb"
    notebook = nbformat.read(path, as_version=4)
    nbformat.validate(notebook)
    first, *cells = notebook["cells"]
    assert first["cell_type"] == "code"
    assert first["source"] == extension.first_cells(text_of(README))[form]
    code = [cell["source"] for cell in cells if cell["cell_type"] == "code"]
    assert code == [block.text.strip() for block in blocks(page, "python")]
    for source in code:
        ast.parse(source)
    prose = "\n\n".join(cell["source"] for cell in cells if cell["cell_type"] == "markdown")
    title, *_ = re.findall(r"^# .+", text_of(page), re.MULTILINE)
    assert prose.startswith(title)
    assert words(prose) == words(re.sub(r"```\{code-cell\}.*?\n```", "", body(page), flags=re.S))
    assert re.findall(r"\]\((?!https?:)[^)]*\)", prose) == [], "there are no pages beside it"


def body(page: str) -> str:
    """A page without what its head tells the site."""
    return text_of(page).split("---\n", 2)[2]


def words(text: str) -> list[str]:
    """The words of Markdown, without where links lead."""
    return re.sub(r"\[([^\]]+)\]\([^)]+\)", r"\1", text).split()


def test_the_same_page_gives_the_same_file(extension):
    made = extension.to_ipynb(TEXT, "first")
    assert made == extension.to_ipynb(TEXT, "first")
    cells = nbformat.reads(made, as_version=4)["cells"]
    assert [cell["source"] for cell in cells] == ["first", "# A page", "x = 1", "See it."]
