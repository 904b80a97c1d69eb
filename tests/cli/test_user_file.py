"""Loading a user's FILE.py."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from paceline.cli import user_file
from paceline.errors import UsageError


@pytest.fixture(autouse=True)
def same_imports(monkeypatch):
    """Modules and import paths are after a test as they were before."""
    before = set(sys.modules)
    monkeypatch.setattr(sys, "path", list(sys.path))
    yield
    for name in set(sys.modules) - before:
        del sys.modules[name]


def write(text: str, name: str = "a_model.py") -> Path:
    path = Path(name)
    path.write_text(text, encoding="utf-8")
    return path


@pytest.mark.parametrize(
    ("target", "path", "function"),
    [
        ("a.py", "a.py", "build"),
        ("a.py:other", "a.py", "other"),
        ("b/a.py:Other_2", "b/a.py", "Other_2"),
        ("C:\\models\\a.py", "C:\\models\\a.py", "build"),
        ("C:/models/a.py:wide", "C:/models/a.py", "wide"),
    ],
)
def test_a_target_is_a_path_and_perhaps_a_function(target, path, function):
    assert user_file.split_target(target) == (Path(path), function)


def test_a_file_gives_its_build_data_and_digest():
    path = write("def build(hp):\n    return hp\n\ndef data():\n    return 1\n")
    user = user_file.load(path)
    assert user.path == path.resolve()
    assert user.build(3) == 3
    assert user.data is not None
    assert user.data() == 1
    assert user.digest == user_file.file_digest(path)
    assert user.digest.startswith("sha256:")
    assert len(user.digest) == len("sha256:") + 64


def test_a_changed_file_is_read_again_and_has_another_digest():
    first = user_file.load(write("def build(hp):\n    return 1\n"))
    second = user_file.load(write("def build(hp):\n    return 22\n"))
    assert (first.build(0), second.build(0)) == (1, 22)
    assert first.digest != second.digest


def test_data_is_optional():
    assert user_file.load(write("def build(hp): ...\n")).data is None


def test_another_function_can_be_named():
    path = write("def wide(hp):\n    return 'wide'\n")
    assert user_file.load(path, "wide").build(0) == "wide"


def test_a_hypermodel_may_be_a_class_or_an_object():
    path = write("class Model:\n    def build(self, hp):\n        return hp\n\nready = Model()\n")
    for function in ("Model", "ready"):
        assert user_file.load(path, function).build.build(7) == 7


@pytest.mark.parametrize(
    ("body", "why"),
    [
        ("def __init__(self, width): ...", r"TypeError: .* missing 1 required .* 'width'"),
        ("def __init__(self): raise ValueError('no')", r"ValueError: no \(line 2\)"),
        ("def __init__(self): raise SystemExit(3)", r"SystemExit: 3 \(line 2\)"),
    ],
)
def test_a_hypermodel_class_that_cannot_be_made_names_an_object_instead(body, why):
    path = write(f"class Model:\n    {body}\n    def build(self, hp): ...\n")
    with pytest.raises(UsageError, match=rf"a_model\.py: Model\(\) raised {why}") as refused:
        user_file.load(path, "Model")
    assert str(refused.value).endswith(
        ". Make the object in the file, `model = Model(...)`, and use a_model.py:model."
    )


def test_a_file_may_import_its_neighbours():
    write("WIDTH = 5\n", "a_neighbour.py")
    path = write("from a_neighbour import WIDTH\n\ndef build(hp):\n    return WIDTH\n")
    assert user_file.load(path).build(0) == 5


def test_a_file_called_like_a_module_that_is_loaded_replaces_nothing():
    import json

    path = write("def build(hp):\n    return 'mine'\n", "json.py")
    assert user_file.load(path).build(0) == "mine"
    assert sys.modules["json"] is json


def test_a_name_that_is_no_identifier_can_be_loaded():
    assert user_file.load(write("def build(hp):\n    return 1\n", "my-model 2.py")).build(0) == 1


def test_classes_of_the_file_know_their_module():
    path = write(
        "from __future__ import annotations\nimport dataclasses\n\n"
        "@dataclasses.dataclass\nclass Shape:\n    width: int\n\n"
        "def build(hp):\n    return Shape(hp)\n"
    )
    assert user_file.load(path).build(2).width == 2


@pytest.mark.parametrize(
    ("target", "message"),
    [
        ("nowhere.py", r"nowhere\.py: no such file"),
        (".", r"\. is a folder"),
        ("a.txt", r"the model's file must end in \.py, got a\.txt"),
        (f"{'a' * 300}.py", r"File name too long. Name the Python file"),
    ],
)
def test_what_is_no_python_file_is_refused(target, message):
    Path("a.txt").write_text("", encoding="utf-8")
    with pytest.raises(UsageError, match=message):
        user_file.load(Path(target))


def test_a_file_without_build_names_what_it_has():
    path = write("def make(hp): ...\n")
    with pytest.raises(UsageError, match=r"no 'build', only make\. .* a_model\.py:make"):
        user_file.load(path)


def test_a_name_that_is_misspelt_is_told_the_one_that_is_like_it():
    path = write("def data(): ...\ndef other(hp): ...\ndef build(hp): ...\n")
    with pytest.raises(UsageError, match=r"or name another function: a_model\.py:build\.$"):
        user_file.load(path, "biuld")
    with pytest.raises(UsageError, match=r"a_model\.py:other\.$"):
        user_file.load(path, "x")


def test_an_empty_file_says_what_to_write():
    with pytest.raises(UsageError, match=r"has no 'build'\. Write `def build\(hp\)`"):
        user_file.load(write(""))


def test_a_build_that_is_no_function_is_refused():
    with pytest.raises(UsageError, match="'build' must be a function of hp, got int 3"):
        user_file.load(write("build = 3\n"))


def test_a_data_that_is_no_function_is_refused():
    with pytest.raises(UsageError, match=r"'data' must be a function, got int\. Write `def data"):
        user_file.load(write("def build(hp): ...\ndata = 3\n"))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("import no_such_package\n", r"ModuleNotFoundError: .*no_such_package.* \(line 1\)"),
        ("x = 1\nraise ValueError('odd')\n", r"ValueError: odd \(line 2\)"),
        ("x = 1\n\ndef build(hp:\n", r"SyntaxError: .* \(line 3\)"),
        ("import sys\nsys.exit(4)\n", r"calls sys\.exit\(4\) when imported"),
    ],
)
def test_a_file_that_cannot_be_imported_says_where(text, message):
    with pytest.raises(UsageError, match=message):
        user_file.load(write(text))
    assert "a_model" not in sys.modules
