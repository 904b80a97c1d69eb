"""The notebooks of the site as files for Colab and Kaggle, with their first cell."""

from __future__ import annotations

import re
from pathlib import Path

import nbformat

#: Folders whose notebooks can be downloaded.
FOLDERS = ("docs/tutorials/", "docs/seeds/")
#: Form -> how its link is called.
FORMS = {"tpu": "with a TPU", "gpu": "with a GPU", "cpu": "without an accelerator"}

_FRONT = re.compile(r"\A---\n.*?\n---\n", re.DOTALL)
_CELL = re.compile(r"^```\{code-cell\}[^\n]*\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_FIRST = re.compile(r"^```ipython\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def is_notebook(docname: str, text: str) -> bool:
    """Whether a page is one of those notebooks."""
    return docname.startswith(FOLDERS) and "file_format: mystnb" in text[:300]


def first_cells(page: str) -> dict[str, str]:
    """The first cell of each form, from the text of the tutorials' README."""
    return dict(zip(FORMS, (cell.strip() for cell in _FIRST.findall(page)), strict=True))


def links(docname: str) -> str:
    """A line of links to a notebook's forms, as HTML."""
    name = docname.rpartition("/")[2]
    each = ", ".join(f'<a href="{name}-{form}.ipynb">{told}</a>' for form, told in FORMS.items())
    line = f'<p class="forms">This page as a notebook for Colab or Kaggle: {each}</p>'
    return f"\n```{{raw}} html\n{line}\n```\n"


def to_ipynb(text: str, first: str) -> str:
    """A page as a notebook file.

    Args:
        text: The page.
        first: The source of the cell that is put first.
    """
    body = _FRONT.sub("", text)
    # Pages beside this one are not there in a notebook service.
    body = re.sub(r"(?<!!)\[([^\]]+)\]\((?!https?:)[^)]+\)", r"\1", body)
    cells = [nbformat.v4.new_code_cell(first)]
    for at, part in enumerate(_CELL.split(body)):
        source = part.strip()
        if source:
            make = nbformat.v4.new_code_cell if at % 2 else nbformat.v4.new_markdown_cell
            cells.append(make(source))
    for at, cell in enumerate(cells):
        cell["id"] = f"cell-{at}"  # the same file of the same page
    kernel = {"name": "python3", "display_name": "Python 3", "language": "python"}
    return nbformat.writes(nbformat.v4.new_notebook(cells=cells, metadata={"kernelspec": kernel}))


def write(root: Path, out: Path, docnames: set[str]) -> None:
    """Write all forms of all notebooks beside their pages.

    Args:
        root: The root of the tree.
        out: The folder of the site.
        docnames: The pages of the site.
    """
    first = first_cells((root / "docs/tutorials/README.md").read_text(encoding="utf-8"))
    for docname in sorted(docnames):
        page = root / f"{docname}.md"
        if page.is_file() and is_notebook(docname, text := page.read_text(encoding="utf-8")):
            for form, cell in first.items():
                file = out / f"{docname}-{form}.ipynb"
                file.write_text(to_ipynb(text, cell), encoding="utf-8")
