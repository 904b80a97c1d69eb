"""``sampler="auto"`` in a search: what is looked at, what is stored, and who takes it later."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import keras
import optuna
import pytest

import paceline
import toys
from commands import command
from marks import slow_where
from paceline.search_space import HyperParameters
from paceline.study.objectives import Objective
from paceline.study.samplers.auto import CMAES_TRIALS
from paceline.study.storage.storage import StudyStorage
from paceline.tuner.arguments.config import TunerConfig
from paceline.tuner.arguments.sampler_choice import with_chosen_sampler

X, Y = toys.data()
CALL: dict[str, Any] = {**toys.CALL, "epochs": 1}


# -- what is looked at -----------------------------------------------------------------------------


def chosen(declare: Callable[[HyperParameters], Any], n_trials: int, **of_call: Any) -> Any:
    """The sampler, the reason, and the number of models that were built for it."""
    built: list[HyperParameters] = []

    def builder(hp: HyperParameters, seed: int) -> None:
        built.append(hp)
        declare(hp)

    first = HyperParameters()
    declare(first)
    arguments: Any = SimpleNamespace(
        settled=lambda n_done: SimpleNamespace(n_trials=n_trials),
        timeout=None,
        stopping=None,
        trial_timeout=None,
        callbacks=None,
        epochs_for=lambda hp: 1,
        inputs_for=lambda hp, model: None,
        **of_call,
    )
    unused: dict[str, Any] = dict.fromkeys(TunerConfig.__dataclass_fields__)
    config = TunerConfig(
        **{
            **unused,
            "builder": builder,
            "study": "s",
            "sampler": "auto",
            "directory": Path("runs"),
            "seed": 0,
        }
    )
    build: Any = SimpleNamespace(hp=first)
    found = with_chosen_sampler(
        config, arguments, build, Objective("loss", "minimize"), lambda text: None
    )
    return found.sampler, found.sampler_reason, len(built)


def plain(hp: HyperParameters) -> None:
    hp.Choice("kind", ["a", "b"])
    hp.Int("layers", 1, 3)


def layers(hp: HyperParameters) -> None:
    """6 configurations by the first model, 3 + 9 + 27 in all."""
    for i in range(hp.Int("layers", 1, 3)):
        hp.Choice(f"units_{i}", [8, 16, 32])


def branches(hp: HyperParameters) -> None:
    if hp.Choice("kind", ["a", "b"]) == "b":
        hp.Int("units", 1, 100)


def scopes(hp: HyperParameters) -> None:
    kind = hp.Choice("kind", ["a", "b"])
    for each in ("a", "b"):
        with hp.conditional_scope("kind", [each]):
            hp.Choice("units" if kind == each else "other", [1, 2])


def floats(hp: HyperParameters) -> None:
    for i in range(3):
        hp.Float(f"x{i}", 0.0, 1.0)


def floats_of_some(hp: HyperParameters) -> None:
    for i in range(hp.Int("n", 3, 20)):
        hp.Float(f"x{i}", 0.0, 1.0)


def test_a_space_that_a_grid_tries_is_looked_at_once_for_each_value() -> None:
    assert chosen(plain, 6) == (
        "grid",
        "6 trials are enough for every configuration, at most 6",
        3,
    )


@pytest.mark.parametrize("declare", [layers, branches])
def test_what_an_if_hides_is_counted(declare: Callable[[HyperParameters], Any]) -> None:
    sampler, _, n_built = chosen(declare, 10)
    assert sampler == "tpe"
    assert 1 <= n_built <= 2  # no further than it takes to know


def test_a_small_space_with_conditions_is_a_grid() -> None:
    assert chosen(scopes, 8)[0] == "grid"
    assert chosen(scopes, 3)[0] == "tpe"


def test_values_beyond_those_of_a_hidden_hyperparameter_are_looked_at() -> None:
    """An if within an if: the third shows only with values that the second look found."""

    def nested(hp: HyperParameters) -> None:
        if hp.Boolean("one") and hp.Boolean("two"):
            hp.Float("three", 0.0, 1.0)

    assert chosen(nested, 50)[0] == "tpe"


def test_no_model_is_built_where_none_could_change_the_choice() -> None:
    def mixed(hp: HyperParameters) -> None:
        floats(hp)
        plain(hp)

    assert chosen(mixed, CMAES_TRIALS)[::2] == ("tpe", 0)
    assert chosen(floats, 32)[::2] == ("tpe", 0)


def test_numbers_are_cmaes_only_where_none_depends_on_another() -> None:
    pytest.importorskip("cmaes")
    assert chosen(floats, CMAES_TRIALS)[::2] == ("cmaes", 3)
    sampler, reason, _ = chosen(floats_of_some, CMAES_TRIALS)
    assert (sampler, reason) == ("tpe", "some hyperparameters depend on others")


def test_a_model_that_cannot_be_built_shows_what_it_declares_before() -> None:
    def fails(hp: HyperParameters) -> None:
        if hp.Choice("kind", ["a", "b"]) == "b":
            hp.Float("rate", 0.0, 1.0)
            raise RuntimeError("no such model")

    assert chosen(fails, 50)[0] == "tpe"


# -- in a search -----------------------------------------------------------------------------------


def small(hp: Any) -> keras.Model:
    """Four configurations."""
    hp.Choice("kind", ["a", "b"])
    model = keras.Sequential(
        [keras.Input((toys.FEATURES,)), keras.layers.Dense(toys.CLASSES, activation="softmax")]
    )
    return toys.compiled(model, hp.Choice("lr", [1e-3, 1e-2]))


def meta(storage: Any = None) -> dict[str, Any]:
    found = StudyStorage.of(storage, "s", Path("runs")).load("s")
    assert found is not None
    return found.meta


@pytest.mark.parametrize("storage", slow_where([None, "sqlite:///s.db"], bool))
def test_the_choice_is_stored_and_taken_whatever_n_trials_is_later(make, notes, storage) -> None:
    make(small, sampler="auto", storage=storage).search(X, Y, n_trials=2, **CALL)
    reason = "kind has 2 values, and is not a range of numbers"
    assert notes[0] == f'sampler: "auto" chose tpe: {reason}'
    assert (meta(storage)["sampler"], meta(storage)["sampler_reason"]) == ("tpe", reason)
    again = make(small, sampler="auto", storage=storage)
    notes.clear()
    again.search(X, Y, n_trials=4, **CALL)  # a new study of 4 trials would be a grid
    assert f'sampler: "auto" keeps tpe: {reason}' in notes
    assert again.summary()["sampler"] == {"name": "tpe", "reason": reason}
    assert (meta(storage)["sampler"], meta(storage)["sampler_reason"]) == ("tpe", reason)
    assert len({str(again.trial(n).hparams) for n in range(4)}) == 4


@pytest.mark.slow
def test_it_searches_as_the_sampler_that_it_chose(make) -> None:
    auto, grid = make(small, sampler="auto"), make(small, sampler="grid", study="grid")
    for tuner in (auto, grid):
        tuner.search(X, Y, n_trials=4, **CALL)
    assert [auto.trial(n).hparams for n in range(4)] == [grid.trial(n).hparams for n in range(4)]
    assert "sampler" not in grid.summary()
    again = auto.reproduce(2, X, Y, validation_data=CALL["validation_data"])
    assert max(again.to_json()["differences"].values()) < 1e-5
    page = auto.report().read_text(encoding="utf-8")
    assert "grid, chosen by &quot;auto&quot;: 4 trials are enough for every configuration" in page


@pytest.mark.slow
def test_a_study_that_was_begun_with_a_name_goes_on_with_it(make, notes) -> None:
    make(small, sampler="random").search(X, Y, n_trials=2, **CALL)
    again = make(small, sampler="auto")
    again.search(X, Y, n_trials=3, **CALL)
    assert 'sampler: "auto" keeps random: the study began with it' in notes
    assert again.summary()["sampler"]["name"] == "random"
    make(small, sampler="qmc").search(X, Y, n_trials=4, **CALL)  # a name decides, as always
    assert meta()["sampler"] == "qmc" and "sampler_reason" not in meta()


@pytest.mark.slow
def test_an_object_cannot_be_made_again(make, notes) -> None:
    make(small, sampler=optuna.samplers.TPESampler(seed=0)).search(X, Y, n_trials=1, **CALL)
    make(small, sampler="auto").search(X, Y, n_trials=2, **CALL)
    assert any(text.startswith("sampler: study 's' was searched with TPESampler") for text in notes)
    assert meta()["sampler"] == "tpe"


@pytest.mark.slow
def test_a_new_study_in_its_place_is_chosen_for_anew(make) -> None:
    make(small, sampler="auto").search(X, Y, n_trials=2, **CALL)
    make(small, sampler="auto", overwrite=True).search(X, Y, n_trials=4, **CALL)
    assert meta()["sampler"] == "grid"


def test_a_misspelt_name_names_auto_too(make) -> None:
    with pytest.raises(
        paceline.SamplerError, match="sampler must be one of .*auto .*got 'automatic'"
    ):
        make(small, sampler="automatic").search(X, Y, n_trials=2, **CALL)


def test_the_command_and_what_it_prints(capsys) -> None:
    Path("model.py").write_text(toys.MODEL_FILE, encoding="utf-8")
    words = ("search", "model.py", "--epochs", "1", "--sampler", "auto", "--study", "s", "--json")
    assert command(*words, "--trials", "2") == 0
    said = capsys.readouterr()
    found = json.loads(said.out.splitlines()[-1])
    reason = f"there are fewer than {CMAES_TRIALS} trials"
    assert found["sampler"] == {"name": "tpe", "reason": reason}
    assert f'Sampler: tpe, chosen by "auto": {reason}.' in said.err
    assert command("resume", "s", "--trials", "+1", "--json") == 0
    said = capsys.readouterr()
    assert json.loads(said.out.splitlines()[-1])["sampler"] == {"name": "tpe", "reason": reason}
    assert f'sampler: "auto" keeps tpe: {reason}' in " ".join(said.err.split())
    assert meta()["sampler_reason"] == reason
