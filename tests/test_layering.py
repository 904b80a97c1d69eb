"""Directions of imports (docs/design.md, "Layout"): the contracts of pyproject.toml, and more."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
SOURCE = ROOT / "src" / "paceline"

# All of src/paceline. What is new goes into one of these (docs/design.md).
ENTRIES = {
    "__init__.py",
    "__main__.py",
    "py.typed",
    "errors.py",
    "imports.py",
    "records.py",
    "search_space",
    "data",
    "program",
    "study",
    "pack",
    "executor",
    "report",
    "tuner",
    "benchmark",
    "compat",
    "cli",
}

#: Lines of the longest file without a reason in its docstring.
LONGEST = 700

# What a library keeps to itself, and the modules of ours that may touch it.
PRIVATE = {"jax._src", "keras.src"}
GUARDED = {
    SOURCE / "program" / name
    for name in ("jax_private.py", "keras_private.py", "foreign/tensorflow.py")
}


def modules() -> list[Path]:
    return sorted(SOURCE.rglob("*.py"))


def dotted_names(tree: ast.AST) -> Iterator[tuple[str, int]]:
    """Every dotted name a module imports or spells out, with its line."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield alias.name, node.lineno
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            for alias in node.names:
                yield f"{node.module}.{alias.name}", node.lineno
        elif isinstance(node, ast.Attribute):
            yield ast.unparse(node), node.lineno
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value, node.lineno  # importlib.import_module("...")


def private_uses(source: str) -> list[tuple[str, int]]:
    return [
        (name, line)
        for name, line in dotted_names(ast.parse(source))
        if any(name == private or name.startswith(f"{private}.") for private in PRIVATE)
    ]


def test_the_contracts_hold():
    pytest.importorskip("importlinter", reason="not among the oldest releases' packages")
    outcome = subprocess.run(
        [Path(sys.executable).with_name("lint-imports"), "--no-cache"],
        check=False,
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert outcome.returncode == 0, outcome.stdout + outcome.stderr


def test_the_package_has_twelve_entries():
    there = {path.name for path in SOURCE.iterdir() if path.name != "__pycache__"}
    assert there == ENTRIES


def test_no_file_is_too_long():
    for path in modules():
        text = path.read_text(encoding="utf-8")
        n_lines = len(text.splitlines())
        why = n_lines > LONGEST and "One file, though long" in (
            ast.get_docstring(ast.parse(text)) or ""
        )
        assert n_lines <= LONGEST or why, f"{path}: {n_lines} lines; is it two nouns?"


def test_no_private_module_of_jax_or_keras_is_used():
    for path in set(modules()) - set(GUARDED):
        assert not private_uses(path.read_text(encoding="utf-8")), path


@pytest.mark.parametrize(
    "source",
    [
        "import jax._src.core",
        "from jax._src import core",
        "from jax import _src",
        "from keras.src.backend.common import global_state",
        "import keras\nkeras.src.backend.common",
        "import importlib\nimportlib.import_module('keras.src.trainers')",
    ],
)
def test_every_way_to_a_private_module_is_seen(source):
    assert private_uses(source)


Graph = dict[str, set[str]]  # a module -> the modules that it imports


def module_files(package: Path) -> dict[str, Path]:
    """Dotted name of a module -> its file; a package is its ``__init__.py``."""
    files = {}
    for path in sorted(package.rglob("*.py")):
        parts = path.relative_to(package.parent).with_suffix("").parts
        files[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return files


def imported(module: str, path: Path, modules: Mapping[str, Path]) -> Iterator[str]:
    """The modules of the package that one names, in functions and for type checkers too.

    ``from a.b import c`` names the module a.b.c if there is one, else a.b. Python also runs the
    ``__init__`` of every package above; an import does not name those, and they are not counted.
    """
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names = [(alias.name, None) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                parts = module.split(".") + ["__init__"] * (path.name == "__init__.py")
                base = ".".join(parts[: len(parts) - node.level] + [base] * bool(base))
            names = [(base, alias.name) for alias in node.names]
        else:
            continue
        for base, name in names:
            if name is not None and f"{base}.{name}" in modules:
                yield f"{base}.{name}"
            elif base in modules:
                yield base


def import_graph(package: Path) -> Graph:
    """Each module of a package with those that it imports."""
    modules = module_files(package)
    return {name: set(imported(name, path, modules)) for name, path in modules.items()}


def circles(graph: Graph) -> list[list[str]]:
    """Strongly connected parts of more than one module, and modules that import themselves."""
    # Tarjan 1972, without recursion: the package's chains of imports are long.
    found: list[list[str]] = []
    order: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    on_stack: set[str] = set()
    for root in sorted(graph):
        if root in order:
            continue
        walk: list[tuple[str, Iterator[str]]] = []

        def enter(node: str, walk: list[tuple[str, Iterator[str]]] = walk) -> None:
            order[node] = low[node] = len(order)
            stack.append(node)
            on_stack.add(node)
            walk.append((node, iter(sorted(graph[node]))))

        enter(root)
        while walk:
            node, rest = walk[-1]
            for other in rest:
                if other not in order:
                    enter(other)
                    break
                if other in on_stack:
                    low[node] = min(low[node], order[other])
            else:
                walk.pop()
                if walk:
                    low[walk[-1][0]] = min(low[walk[-1][0]], low[node])
                if low[node] == order[node]:
                    part = []
                    while not part or part[-1] != node:
                        part.append(stack.pop())
                        on_stack.discard(part[-1])
                    if len(part) > 1 or node in graph[node]:
                        found.append(sorted(part))
    return found


def test_no_modules_import_each_other_in_a_circle():
    graph = import_graph(SOURCE)
    told = [
        f"circle {number}: "
        + "; ".join(f"{name} imports {', '.join(sorted(graph[name] & {*part}))}" for name in part)
        for number, part in enumerate(circles(graph), 1)
    ]
    assert not told, "\n".join(told)


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({"a": "import pack.b", "b": "import pack.a"}, [["pack.a", "pack.b"]]),
        ({"a": "from pack import b", "b": "from pack.a import x"}, [["pack.a", "pack.b"]]),
        ({"a": "from . import b", "b": "from .a import x"}, [["pack.a", "pack.b"]]),
        ({"a": "import pack.b", "b": "def f():\n  import pack.a"}, [["pack.a", "pack.b"]]),
        (
            {
                "a": "import pack.b",
                "b": "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n  from pack import a",
            },
            [["pack.a", "pack.b"]],
        ),
        (
            {"a": "import pack.b", "b": "import pack.c", "c": "import pack.a"},
            [["pack.a", "pack.b", "pack.c"]],
        ),
        ({"a": "import pack.a"}, [["pack.a"]]),
        ({"__init__": "from pack.a import x", "a": "from pack import y"}, [["pack", "pack.a"]]),
        ({"__init__": "from pack import a", "a": "from . import y"}, [["pack", "pack.a"]]),
        ({"__init__": "from pack import a, b", "a": "from pack import b", "b": ""}, []),
        ({"a": "import pack.b\nimport pack.c", "b": "import pack.c", "c": "import os"}, []),
    ],
)
def test_every_kind_of_circle_is_found(tmp_path, files, expected):
    package = tmp_path / "pack"
    package.mkdir()
    for name, text in {"__init__": "", **files}.items():
        (package / f"{name}.py").write_text(text, encoding="utf-8")
    assert circles(import_graph(package)) == expected
