"""Code of ``build`` that changed since a study began, and studies that begin anew."""

from __future__ import annotations

import functools
import os
import subprocess
import sys
import types
from pathlib import Path
from typing import Any

import pytest

import paceline
import toys
from paceline.executor.model_builder import ModelBuilder
from paceline.study.storage.folder import aside_of, study_lock

SOURCE = """\
import keras
UNITS = 8
def head(n):
    return [keras.layers.Dense(n, activation="softmax")]
class Kept:
    def call(self, x):
        return {"a", "b", "c"}
def build(hp):
    "Makes it."
    layers = [keras.Input((6,)), keras.layers.Dense(UNITS), *head(3)]
    rate = hp.Float("lr", 1e-3, 1e-1)
    found = [each for each in [1, 2] if each in {3, 4, "x", "y"}]
    Kept
    return layers, rate
"""


def digest(source: str, name: str = "build") -> str | None:
    module = types.ModuleType("model")
    exec(source, vars(module))
    return ModelBuilder(vars(module)[name]).code_digest


@pytest.mark.parametrize(
    ("old", "new", "changed"),
    [
        ("1e-3", "1e-4", True),
        ('"lr"', '"rate"', True),
        ('activation="softmax"', 'activation="relu"', True),  # in what build calls
        ('"a", "b"', '"a", "d"', True),  # in a class
        ("*head(3)", "*head(4)", True),
        ("each in [1, 2]", "each in [1, 3]", True),
        ("UNITS = 8", "UNITS = 9", False),  # a variable: it may hold the time of day
        ("    rate =", "    # the rate\n\n    rate =", False),
        ("layers, rate\n", "(layers,\n      rate)\n", False),
        ("import keras\n", "import keras\nimport os\ndef other():\n    return 1\n", False),
    ],
)
def test_a_change_of_the_code_shows(old, new, changed):
    assert (digest(SOURCE.replace(old, new)) != digest(SOURCE)) is changed


@pytest.mark.slow
def test_the_digest_is_the_same_in_every_process():
    code = (
        "import types; from paceline.executor.model_builder import ModelBuilder\n"
        f"m = types.ModuleType('model'); exec({SOURCE!r}, vars(m))\n"
        "print(ModelBuilder(m.build).code_digest)"
    )
    for seed in ("1", "2"):
        environment = {**os.environ, "PYTHONHASHSEED": seed}
        done = subprocess.run(
            [sys.executable, "-c", code],
            env=environment,
            capture_output=True,
            text=True,
            check=True,
        )
        assert done.stdout.strip() == digest(SOURCE)


class Hyper:
    def __init__(self, units: int) -> None:
        self.units = units

    def build(self, hp: Any) -> Any:
        return self._made(hp)

    def _made(self, hp: Any) -> Any:
        return self.units

    def __call__(self, hp: Any) -> Any:
        return self._made(hp)


def test_every_kind_of_build_has_a_digest():
    for build in (Hyper(1), Hyper(1).build, functools.partial(toys.dense_with, activation="relu")):
        assert ModelBuilder(build).code_digest
    assert ModelBuilder(len).code_digest is None
    before = ModelBuilder(Hyper(1)).code_digest

    def other(self: Any, hp: Any) -> Any:
        return self.units + 1

    made, Hyper._made = Hyper._made, other
    try:
        assert ModelBuilder(Hyper(1)).code_digest != before
    finally:
        Hyper._made = made


@pytest.mark.parametrize("base", ["keras_tuner", "paceline.compat.keras_tuner"])
def test_a_change_of_the_code_of_a_hypermodel_shows(base):
    source = (
        f"import {base} as kt\n"
        "class Hyper(kt.HyperModel):\n"
        "    def build(self, hp):\n"
        "        return self.head(3)\n"
        "    def head(self, units):\n"
        "        return units\n"
        "build = Hyper()\n"
    )
    assert digest(source) == digest(source)
    assert digest(source.replace("head(3)", "head(4)")) != digest(source)
    assert digest(source.replace("return units", "return units + 1")) != digest(source)


def first(hp: Any) -> Any:
    return toys.compiled(toys.softmax(), hp.Float("lr", 1e-3, 1e-1))


def second(hp: Any) -> Any:
    rate = hp.Float("lr", 1e-3, 1e-1)
    return toys.compiled(toys.softmax(), rate)


def failing(hp: Any) -> Any:
    if hp.Float("rate", 0.1, 1.0) != 0.1:
        raise ValueError("no such thing")
    return toys.softmax()


class Searches:
    def __init__(self) -> None:
        self.notes: list[str] = []

    def __call__(self, build: Any, n_trials: int | str, **arguments: Any) -> paceline.Tuner:
        self.notes.clear()
        tuner = paceline.Tuner(
            build, study="s", sampler="random", on_note=self.notes.append, **arguments
        )
        tuner.search(*toys.data(), n_trials=n_trials, **{**toys.CALL, "epochs": 1})
        return tuner

    @property
    def said(self) -> bool:
        return any("the code of build(hp) has changed since trial 0" in n for n in self.notes)


@pytest.fixture
def search() -> Searches:
    return Searches()


@pytest.mark.slow
def test_old_and_new_code_are_not_mixed_without_a_word(search):
    search(first, 1)
    search(first, 2)
    assert not search.said
    search(second, 3)
    assert search.said
    search(second, 4)
    assert search.said  # trial 0 is of the first code
    search(first, 5)
    assert not search.said


def test_a_fresh_study_takes_the_place_of_the_old_one(search):
    search(first, 3)
    tuner = search(second, 2, overwrite=True)
    assert not search.said
    assert tuner.results()["number"].tolist() == [0, 1]
    assert os.listdir("runs") == ["s"]
    tuner.search(*toys.data(), n_trials=3, **{**toys.CALL, "epochs": 1})  # this goes on
    assert len(tuner.results()) == 3


@pytest.mark.slow
def test_the_old_study_comes_back_where_no_trial_of_the_new_one_trained(search):
    search(first, 3)
    with pytest.raises(paceline.BuildError, match="every trial of this search failed"):
        search(failing, 2, overwrite=True)
    assert os.listdir("runs") == ["s"]
    assert len(search(first, 3).results()) == 3


def test_wrong_input_moves_nothing(search):
    search(first, 1)
    with pytest.raises(paceline.BuildError, match="build"):
        search(lambda hp: 7, 1, overwrite=True)
    with pytest.raises(paceline.UsageError, match="overwrite=True needs the journal"):
        search(first, 1, overwrite=True, storage="sqlite:///a.db")
    searched = pytest.raises(paceline.StudyError, match="'s' is being searched. Stop the search")
    with study_lock(Path("runs/s")), searched:
        search(first, 1, overwrite=True)
    assert len(search(first, 1).results()) == 1


def test_a_search_that_was_killed_before_its_first_trial_lost_nothing(search):
    search(first, 3)
    aside = aside_of(Path("runs/s"))
    Path("runs/s").rename(aside)  # as the killed process left it
    assert len(search(first, 4).results()) == 4
    assert not aside.exists()


def test_what_is_under_way_keeps_both(search):
    search(first, 3)

    def stops(hp: Any) -> Any:
        if hp.Float("lr", 1e-3, 1e-1) != 1e-3:
            raise KeyboardInterrupt
        return toys.softmax()

    with pytest.raises(KeyboardInterrupt, match="^$"):
        search(stops, 2, overwrite=True)
    aside = aside_of(Path("runs/s"))
    found = [path for path in (aside, Path("runs/s")) if (path / "journal.log").is_file()]
    assert found  # the three trials are somewhere
    search(first, "+1")
    assert os.listdir("runs") == ["s"]
