"""The API reference has every public name, and public docstrings say what callers need."""

from __future__ import annotations

import ast
import inspect
import re
import textwrap
from collections.abc import Callable
from typing import Any

import pytest

import paceline
from pages import ROOT

PAGES = "\n".join(
    path.read_text(encoding="utf-8") for path in sorted((ROOT / "docs" / "api").glob("*.rst"))
)


def public_methods(owner: Any) -> list[tuple[str, Callable[..., Any]]]:
    """The public methods of a class, inherited ones of ours included."""
    found = inspect.getmembers(owner, inspect.isfunction)
    return [
        (f"{owner.__name__}.{name}", method)
        for name, method in found
        if not name.startswith("_") and method.__module__.startswith("paceline")
    ]


CALLS: list[tuple[str, Callable[..., Any]]] = [
    ("bench", paceline.bench),
    ("from_keras_tuner", paceline.from_keras_tuner),
    ("from_talos_csv", paceline.from_talos_csv),
    ("map", paceline.map),
    ("optimize", paceline.optimize),
    ("datasets.load", paceline.datasets.load),
    ("datasets.from_function", paceline.datasets.from_function),
    *public_methods(paceline.PackPoolExecutor),
    *public_methods(paceline.Tuner),
    *public_methods(paceline.HyperParameters),
]


@pytest.mark.parametrize("name", [*paceline.__all__, "map"])
def test_every_public_name_is_in_the_reference(name):
    assert re.search(rf"^\.\. auto\w+:: paceline\.{name}(\(\))?$", PAGES, re.MULTILINE)


@pytest.mark.parametrize("name", [name for name, _ in public_methods(paceline.Tuner)])
def test_every_method_of_a_tuner_is_in_the_reference(name):
    assert re.search(rf"automethod:: {name.removeprefix('Tuner.')}$", PAGES, re.MULTILINE)


@pytest.mark.parametrize("name", ["Dataset", "digits", "from_function", "load"])
def test_the_names_of_data_sets_are_in_the_reference(name):
    assert f":: paceline.datasets.{name}" in PAGES


def arguments(call: Callable[..., Any]) -> list[str]:
    """The names of a call's arguments, as a docstring writes them."""
    marks = {inspect.Parameter.VAR_POSITIONAL: "*", inspect.Parameter.VAR_KEYWORD: "**"}
    parameters = inspect.signature(call).parameters.values()
    return [marks.get(p.kind, "") + p.name for p in parameters if p.name not in ("self", "cls")]


@pytest.mark.parametrize(("name", "call"), CALLS, ids=[name for name, _ in CALLS])
def test_a_docstring_names_every_argument(name, call):
    text = inspect.getdoc(call) or ""
    assert text, f"{name} has no docstring"
    missing = [
        each
        for each in arguments(call)
        if not re.search(rf"(?m)^    {re.escape(each)}: |``{re.escape(each)}\b", text)
    ]
    assert missing == []


def test_a_tuner_names_every_argument():
    text = inspect.getdoc(paceline.Tuner) or ""
    names = [name for name in arguments(paceline.Tuner.__init__) if not name.startswith("_")]
    assert [name for name in names if not re.search(rf"(?m)^    {name}: ", text)] == []


def raising() -> dict[str, str]:
    """The public calls that raise in their own lines -> their docstrings."""
    calls: dict[str, Any] = dict(CALLS)
    for name in (*paceline.__all__, "map"):
        found = getattr(paceline, name)
        if inspect.isclass(found):
            calls |= public_methods(found)
        if inspect.isfunction(found) or inspect.isfunction(vars(found).get("__init__")):
            calls[name] = found
    texts = {}
    for name, call in calls.items():
        function = call.__init__ if inspect.isclass(call) else call
        if "<string>" in function.__code__.co_filename:  # a dataclass made it
            continue
        tree = ast.parse(textwrap.dedent(inspect.getsource(function)))
        if any(isinstance(node, ast.Raise) and node.exc for node in ast.walk(tree)):
            texts[name] = inspect.getdoc(call) or ""
    return texts


def test_a_docstring_says_what_its_call_raises():
    texts = raising()
    assert {"Tuner", "HyperParameters.get"} <= set(texts)
    told = re.compile(r"(?m)^Raises:$|\ARaise ``\w+``")
    assert [name for name, text in texts.items() if not told.search(text)] == []


@pytest.mark.parametrize("call", [paceline.Tuner.search, paceline.bench], ids=["search", "bench"])
def test_data_have_shapes(call):
    """Features and targets have N examples, validation data V."""
    text = inspect.getdoc(call) or ""
    assert "N: training examples. V: validation examples." in text
    for argument in ("x: Features [N, ...]", "y: Targets [N, ...]", "[V, ...]"):
        assert argument in text


def test_the_reference_imports_nothing_that_it_does_not_show():
    """A name of the reference is there."""
    from importlib import import_module

    for target in re.findall(r"^\.\. auto\w+:: ([\w.]+)", PAGES, re.MULTILINE):
        module, _, name = target.rpartition(".")
        assert hasattr(import_module(module), name), target
