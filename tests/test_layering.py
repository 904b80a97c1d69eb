"""Directions of imports (docs/design.md, "Layout"): the contracts of pyproject.toml, and more."""

from __future__ import annotations

import ast
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
SOURCE = ROOT / "src" / "paceline"

# What may know both sides, or belongs to neither.
BETWEEN = {
    "__main__",
    "benchmark",
    "best",
    "builder",
    "cli",
    "collector",
    "compat",
    "commandline",
    "continuation",
    "corners",
    "ends",
    "datasets",
    "executor",
    "fallback",
    "finisher",
    "forecast",
    "identity",
    "judging",
    "members",
    "others",
    "outlook",
    "precision",
    "probe",
    "report",
    "relay",
    "reproduction",
    "search",
    "search_arguments",
    "session",
    "starter",
    "supply",
    "suspension",
    "training_data",
    "testing",
    "trained",
    "tuner",
    "user_file",
    "watch",
}

# What a library keeps to itself, and the one module of ours that may touch it.
PRIVATE = {"jax._src", "keras.src"}
GUARDED = SOURCE / "program" / "keras_private.py"


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


def test_every_module_is_on_a_side():
    with (ROOT / "pyproject.toml").open("rb") as file:
        contracts = tomllib.load(file)["tool"]["importlinter"]["contracts"]
    sides = {contract["id"]: contract["source_modules"] for contract in contracts}
    placed = BETWEEN | {
        name.removeprefix("paceline.")
        for side in ("search-side", "device-side")
        for name in sides[side]
    }
    there = {path.stem for path in SOURCE.iterdir() if path.suffix == ".py" or path.is_dir()}
    missing = there - placed - {"__init__", "__pycache__"}
    assert not missing, (
        f"name {sorted(missing)} in a contract of pyproject.toml, or in BETWEEN here"
    )


@pytest.mark.parametrize("path", modules(), ids=lambda path: str(path.relative_to(SOURCE)))
def test_no_private_module_of_jax_or_keras_is_used(path):
    if path == GUARDED:
        return
    assert not private_uses(path.read_text(encoding="utf-8"))


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
