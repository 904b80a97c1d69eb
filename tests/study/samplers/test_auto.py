"""The rules behind ``sampler="auto"``: each with a space that it is for, and one just beyond."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from typing import Any

import optuna
import pytest

from paceline.search_space import HyperParameters
from paceline.study.samplers.auto import CMAES_TRIALS, SearchOutline, choose_sampler, is_name
from paceline.study.sharing.worker import Worker
from paceline.study.study import Study
from study.sharing.party import Clock

Declare = Callable[[HyperParameters], Any]


def of(declare: Declare, **known: Any) -> SearchOutline:
    hp = HyperParameters()
    declare(hp)
    return SearchOutline(hp.parameters.values(), **known)


def numbers(hp: HyperParameters, n: int = 3) -> None:
    for i in range(n):
        hp.Float(f"x{i}", 0.0, 1.0)


def finite(hp: HyperParameters) -> None:
    """24 configurations."""
    hp.Choice("kind", ["a", "b"])
    hp.Int("layers", 1, 3)
    hp.Float("rate", 0.1, 0.4, step=0.1)
    hp.Choice("only", ["one"])
    hp.Fixed("epochs", 3)


def mixed(hp: HyperParameters) -> None:
    numbers(hp)
    hp.Choice("kind", ["a", "b"])


def coarse(hp: HyperParameters) -> None:
    numbers(hp)
    hp.Int("layers", 1, 4)


def log_ints(hp: HyperParameters) -> None:
    """Of 97 values the grid would walk 10."""
    hp.Int("units", 32, 128, sampling="log")


MANY = CMAES_TRIALS


@pytest.mark.parametrize(
    ("declare", "known", "sampler", "reason"),
    [
        (finite, {"n_trials": 24}, "grid", "24 trials are enough for every configuration, at most"),
        (finite, {"n_trials": 23}, "tpe", "kind has 2 values, and is not a range of numbers"),
        (finite, {"n_trials": None}, "tpe", "the number of trials is not known"),
        (finite, {"n_trials": 24, "may_end_early": True}, "tpe", "kind has 2"),
        (finite, {"n_trials": 24, "learns": True}, "tpe", "the search is warm-started from"),
        (finite, {"n_trials": 24, "constrained": True, "n_objectives": 2}, "grid", "24 trials"),
        (log_ints, {"n_trials": 100}, "tpe", "the number of hyperparameters is 1"),
        (numbers, {"n_trials": MANY}, "cmaes", f"{MANY} trials vary only numbers, 3 of them"),
        (numbers, {"n_trials": MANY - 1}, "tpe", f"there are fewer than {MANY} trials"),
        (numbers, {"n_trials": 4}, "tpe", f"there are fewer than {MANY} trials"),
        (numbers, {"n_trials": MANY, "conditional": True}, "tpe", "some hyperparameters depend"),
        (numbers, {"n_trials": MANY, "constrained": True}, "tpe", "it learns from trials that are"),
        (numbers, {"n_trials": MANY, "n_objectives": 2}, "tpe", "there are 2 objectives"),
        (numbers, {"n_trials": MANY, "population": True}, "tpe", "the members of a population"),
        (lambda hp: numbers(hp, 1), {"n_trials": MANY}, "tpe", "the number of hyperparameters is"),
        (lambda hp: numbers(hp, 40), {"n_trials": MANY}, "tpe", "the number of hyperparameters"),
        (mixed, {"n_trials": MANY}, "tpe", "kind has 2 values, and is not a range of numbers"),
        (coarse, {"n_trials": MANY}, "tpe", "layers has 4 values"),
        (lambda hp: None, {"n_trials": MANY}, "tpe", "the number of hyperparameters is 0"),
    ],
)
def test_the_first_rule_that_fits(
    declare: Declare, known: dict[str, Any], sampler: str, reason: str
) -> None:
    pytest.importorskip("cmaes")
    choice = choose_sampler(of(declare, **known))
    assert choice.sampler == sampler
    assert choice.reason.startswith(reason)


def test_without_the_package_it_is_tpe_and_says_what_to_install(monkeypatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    choice = choose_sampler(of(numbers, n_trials=MANY))
    assert choice == (
        "tpe",
        'cmaes would suit but is not installed: pip install "paceline[cmaes]"',
    )


@pytest.mark.parametrize("name", ["tpe", "grid", "nsga2", "nsga3:12"])
def test_what_names_a_sampler(name: str) -> None:
    assert is_name(name)


@pytest.mark.parametrize("name", ["auto", "TPESampler", "nsga2:1", "nsga2:x", "", None, ["tpe"], 3])
def test_what_names_none(name: Any) -> None:
    assert not is_name(name)


OURS = {"sampler": "tpe", "sampler_reason": "ours"}


@pytest.mark.parametrize(
    ("theirs", "ours", "expected", "most_open"),
    [
        ({"sampler": "grid", "sampler_reason": "theirs"}, OURS, ("grid", "theirs"), None),
        (
            {"sampler": "random"},
            OURS,
            ("random", "another process began the study with this sampler"),
            None,
        ),
        ({"sampler": "TPESampler"}, OURS, ("tpe", "ours"), 4),
        ({}, OURS, ("tpe", "ours"), 4),
        ({"sampler": "grid", "sampler_reason": "theirs"}, {"sampler": "tpe"}, ("tpe", None), 4),
    ],
)
def test_of_two_that_choose_at_once_the_one_that_makes_the_study_decides(
    theirs: dict[str, Any],
    ours: dict[str, Any],
    expected: tuple[str, str | None],
    most_open: int | None,
) -> None:
    """Both have found no study; one that was told a sampler's name keeps that sampler."""
    notes: list[str] = []
    clock, storage = Clock(), optuna.storages.InMemoryStorage()

    def opened(sampler: str) -> Study:
        return Study(
            "s",
            storage=storage,
            direction="minimize",
            sampler=sampler,
            n_trials=8,
            worker=Worker(None, notes.append, clock=clock, pause=clock.pause, beats=False),
            note=notes.append,
        )

    first, second = opened("random"), opened("tpe")
    first.persist(theirs)
    second.persist(ours)
    meta = second.metadata.meta
    assert (meta["sampler"], meta.get("sampler_reason")) == expected
    assert second.asker.max_open == most_open
    said = [text for text in notes if '"auto" keeps' in text]
    assert len(said) == (expected[0] != "tpe")
    for study in (first, second):
        study.close()
