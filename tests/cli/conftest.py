"""The command line run in this process, with a tuner that trains nothing."""

from __future__ import annotations

import json
import shutil
import sys
import types
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import pytest

from paceline.cli.app import main
from paceline.report.progress import Progress

MODEL = """\
def build(hp):
    return hp

def data():
    return ([1, 2], [0, 1]), ([3], [1])
"""


@dataclass
class Outcome:
    """What a command left behind."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        """The last line of stdout, read strictly."""
        return json.loads(self.out.splitlines()[-1], parse_constant=pytest.fail)


@pytest.fixture
def paceline(capsys: pytest.CaptureFixture[str]) -> Callable[..., Outcome]:
    """Run ``paceline WORDS...`` in this process."""

    def run(*words: str) -> Outcome:
        code: Any = "main returned"
        try:
            main(words)
        except SystemExit as stop:
            code = stop.code
        captured = capsys.readouterr()
        return Outcome(code, captured.out, captured.err)

    return run


@pytest.fixture
def user_modules(monkeypatch: pytest.MonkeyPatch):
    """What a command imports from a user's file is forgotten after the test."""
    before = set(sys.modules)
    monkeypatch.setattr(sys, "path", list(sys.path))
    yield
    for name in set(sys.modules) - before:
        if getattr(sys.modules[name], "__file__", None) in {
            str(path) for path in Path.cwd().glob("*.py")
        }:
            del sys.modules[name]


class FakeTuner:
    """Takes what ``Tuner`` takes and finds at once what ``result`` holds."""

    made: ClassVar[list[FakeTuner]]
    result: ClassVar[dict[str, Any]]
    raises: ClassVar[BaseException | None]

    def __init__(self, build: Any, **arguments: Any) -> None:
        self.build, self.arguments, self.call = build, arguments, {}
        self.made.append(self)

    def search(self, **call: Any) -> None:
        self.call = call
        self.arguments["on_note"]("a note of the tuner")
        self.arguments["on_progress"](
            Progress("s", "done", 32, 32, 0, 0, 0, 320, 1.0, 320.0, None, "val_accuracy")
        )
        if self.raises is not None:
            raise self.raises

    def summary(self) -> dict[str, Any]:
        return self.result


@pytest.fixture
def tuner(monkeypatch: pytest.MonkeyPatch, user_modules: None) -> type[FakeTuner]:
    """The tuner that ``search`` and ``resume`` find; ``made`` lists those they made."""

    class Tuner(FakeTuner):  # a fresh class for every test
        made: ClassVar = []
        raises: ClassVar = None
        result: ClassVar = {
            "study": "model",
            "n_trials": {"complete": 31, "pruned": 0, "failed": 1, "running": 0},
            "best": {
                "number": 17,
                "value": 0.975,
                "hparams": {"lr": 0.01, "x": float("nan")},
                "epochs": 10,
            },
            "seconds": {"total": 4.2, "train": 3.0, "build": float("inf")},
            "programs": {"distinct": 1, "compiled": 2, "from_cache": 0},
            "plans": [],
        }

    module = types.ModuleType("paceline.tuner.tuner")
    module.Tuner = Tuner  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "paceline.tuner.tuner", module)
    return Tuner


@pytest.fixture
def model() -> Path:
    """A user's file in the working folder."""
    path = Path("model.py")
    path.write_text(MODEL, encoding="utf-8")
    return path


@pytest.fixture
def searched(runs: Path) -> Any:
    """A tuner of a copy of ``runs``, a folder that a fixture of the module has searched."""
    from copied_study import tuner  # it loads Keras, which most tests here do without

    shutil.copytree(runs, "runs")
    return tuner()
