"""What the site needs beside Sphinx' own: a diagram without a network, and a front door."""

from __future__ import annotations

import re
from html import unescape
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import floors
import redirects
from docutils import nodes
from sphinx.application import Sphinx
from sphinx.errors import ExtensionError
from sphinx.util.docutils import SphinxDirective

import notebooks

FRONT_DOOR = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>Paceline</title>
<meta http-equiv="refresh" content="0; url=docs/index.html"></head>
<body><a href="docs/index.html">Paceline</a></body></html>
"""


class Mermaid(SphinxDirective):
    """A ```mermaid block, which a code host draws by itself; here a picture made at build."""

    has_content = True

    def run(self) -> list[nodes.Node]:
        """Return the picture."""
        try:
            picture = floors.draw("\n".join(self.content))
        except ValueError as error:
            raise self.error(f"mermaid: {error}") from error
        return [nodes.raw("", f'<div class="floors">{picture}</div>', format="html")]


_SEVERAL = re.compile(r"(\s+)(\w+(?:, \w+)+): (.*)")


def split_names(
    app: Sphinx, what: str, name: str, obj: object, options: Any, lines: list[str]
) -> None:
    """Give each name of ``x, y: Text.`` a line of its own; napoleon takes the first for a type."""
    for at in range(len(lines) - 1, -1, -1):
        if match := _SEVERAL.fullmatch(lines[at]):
            indent, names, text = match.groups()
            end = at + 1
            while end < len(lines) and lines[end].startswith(indent + " "):
                end += 1
            rest = lines[at + 1 : end]
            lines[at:end] = [
                line for each in names.split(", ") for line in (f"{indent}{each}: {text}", *rest)
            ]


def name_factories(
    app: Sphinx, what: str, name: str, obj: object, options: Any, signature: str, returns: str
) -> tuple[str, str] | None:
    """Write the default of a data class that a factory makes as ``...``.

    ``<factory>`` is no Python: Sphinx would cut such a signature at every comma, also within types.
    """
    return (signature.replace("<factory>", "..."), returns) if signature else None


def list_decisions(app: Sphinx, docname: str, source: list[str]) -> None:
    """Put the decisions below their list, which on a code host is a table alone."""
    if docname == "docs/decisions/README":
        source[0] += "\n```{toctree}\n:hidden:\n:glob:\n\n0*\ntemplate\n```\n"


def link_notebooks(app: Sphinx, docname: str, source: list[str]) -> None:
    """Put links to a notebook's files below the title of its page."""
    if app.builder.format == "html" and notebooks.is_notebook(docname, source[0]):
        before, title, after = re.split(r"(^# [^\n]+\n)", source[0], maxsplit=1, flags=re.MULTILINE)
        source[0] = before + title + notebooks.links(docname) + after


def write_notebooks(app: Sphinx, failure: Exception | None) -> None:
    """Write the notebooks' files."""
    if failure is None and app.builder.format == "html":
        notebooks.write(Path(app.srcdir), Path(app.outdir), set(app.env.found_docs))


def check_links(app: Sphinx, failure: Exception | None) -> None:
    """Fail where a link of a page leads to no file of the site, or to no place in it."""
    if failure is not None or app.builder.format != "html":
        return
    texts = {path.resolve(): path.read_text("utf-8") for path in Path(app.outdir).rglob("*.html")}
    places = {path: set(re.findall(r'\bid="([^"]+)"', text)) for path, text in texts.items()}
    broken = []
    for path, text in texts.items():
        for target in set(re.findall(r'<a\b[^>]*\bhref="([^"]+)"', text)):
            if re.match(r"[a-z]+:", target):
                continue
            file, _, place = unescape(unquote(target)).partition("#")
            file = file.partition("?")[0]
            found = (path.parent / file).resolve() if file else path
            if not found.exists() or (place and found in places and place not in places[found]):
                broken.append(f"{path.relative_to(Path(app.outdir).resolve())}: {target}")
    if broken:
        raise ExtensionError("links lead nowhere:\n" + "\n".join(sorted(broken)))


def write_front_door(app: Sphinx, failure: Exception | None) -> None:
    """Write index.html, which leads to the first page."""
    if failure is None and app.builder.format == "html":
        Path(app.outdir, "index.html").write_text(FRONT_DOOR, encoding="utf-8")


def write_redirects(app: Sphinx, failure: Exception | None) -> None:
    """Write a page for each old address, which leads to the new one."""
    if failure is None and app.builder.format == "html":
        redirects.write(Path(app.outdir))


def check_no_network(app: Sphinx, failure: Exception | None) -> None:
    """Fail where a page would load a script, a style or a picture from elsewhere."""
    if failure is not None or app.builder.format != "html":
        return
    loads = re.compile(r"""<(?:script|link|img|iframe)\b[^>]*\b(?:src|href)="(?:https?:)?//[^"]+""")
    found = {
        f"{path.relative_to(app.outdir)}: {match.group()[:120]}"
        for path in Path(app.outdir).rglob("*.html")
        for match in loads.finditer(path.read_text(encoding="utf-8"))
    }
    if found:
        raise ExtensionError("a page loads from the network:\n" + "\n".join(sorted(found)))


def check_no_paths(app: Sphinx, failure: Exception | None) -> None:
    """Fail where a page names this folder: what a cell printed would tell of the machine."""
    if failure is not None or app.builder.format != "html":
        return
    root = str(app.srcdir)
    pages = sorted(Path(app.outdir).rglob("*.html"))
    found = [str(page.relative_to(app.outdir)) for page in pages if root in page.read_text("utf-8")]
    if found:
        raise ExtensionError(f"pages name a folder of this machine, {root}: {', '.join(found)}")


def setup(app: Sphinx) -> dict[str, Any]:
    """Register all of it with Sphinx."""
    app.add_directive("mermaid", Mermaid)
    # Before napoleon, whose priority is 500.
    app.connect("autodoc-process-docstring", split_names, priority=400)
    app.connect("autodoc-process-signature", name_factories)
    app.connect("source-read", list_decisions)
    app.connect("build-finished", write_front_door)
    app.connect("build-finished", write_redirects)
    app.connect("source-read", link_notebooks)
    app.connect("build-finished", write_notebooks)
    app.connect("build-finished", check_no_network)
    app.connect("build-finished", check_links)
    app.connect("build-finished", check_no_paths)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
