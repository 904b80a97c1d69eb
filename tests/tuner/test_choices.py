"""Trials of several choices share a program, with several widths or without, and are as alone."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest

import paceline
from marks import slow_where
from paceline.executor.sharing import family_builder
from shared_programs import (
    DATA,
    KINDS,
    X,
    Y,
    check_each_trial_by_itself,
    check_going_on,
    compiled,
    grid,
)
from stopping import hears_signals  # noqa: F401 - a fixture


def build(hp: Any) -> Any:
    """As in KerasTuner's introduction: an activation, and dropout or none; no widths."""
    layers = [keras.layers.Dense(8, activation=hp.Choice("activation", ["relu", "tanh"]))]
    if hp.Boolean("dropout"):
        layers.append(keras.layers.Dropout(0.3))
    return compiled(*layers)


def build_wide(hp: Any) -> Any:
    """The same, of several widths."""
    activation = hp.Choice("activation", ["elu", "softplus"])
    layers: list[Any] = [keras.layers.Dense(hp.Int("units", 4, 12, step=4), activation=activation)]
    if hp.Boolean("norm"):
        layers.append(keras.layers.BatchNormalization())
    layers.append(keras.layers.Dropout(hp.Choice("rate", [0.0, 0.2, 0.5])))
    return compiled(*layers)


def search(
    widths: bool | str, notes: list[str], made: Any = build, **arguments: Any
) -> paceline.Tuner:
    return grid(made, widths, notes, **arguments)


def programs(tuner: paceline.Tuner) -> int:
    return tuner.summary()["programs"]["distinct"]


@pytest.mark.slow
@pytest.mark.parametrize(("made", "n"), [(build, 4), (build_wide, 36)])
def test_trials_are_those_of_programs_of_their_own(
    made: Callable[[Any], Any], n: int, fresh_folder: Path
) -> None:
    notes: list[str] = []
    apart, together = search(False, notes, made), search(True, notes, made)
    assert programs(apart) == {4: 4, 36: 24}[n], "rates above zero share a program as it is"
    assert programs(together) == 1
    for number in range(n):
        ours, theirs = together.trial(number), apart.trial(number)
        assert ours.hparams == theirs.hparams
        for name, values in theirs.history.items():
            # float32's rounding: sums with zeros in between, and other fusions; two epochs long
            np.testing.assert_allclose(ours.history[name], values, rtol=1e-5, atol=1e-6)
    assert {*notes} == {"every configuration of the space has been tried"}


@pytest.mark.slow
def test_the_best_models_are_those_of_their_choices(fresh_folder: Path) -> None:
    tuner = search(True, [])
    model, hparams = tuner.best_model(), tuner.best_hparams
    kinds = [type(layer).__name__ for layer in model.layers]
    assert kinds == (["Dense", "Dropout", "Dense"] if hparams["dropout"] else ["Dense", "Dense"])
    assert model.layers[0].activation.__name__ == hparams["activation"]
    found = model.evaluate(X[:21], Y[:21], verbose=0, return_dict=True)
    assert found["accuracy"] == pytest.approx(tuner.best_trial.value, abs=1e-6)


@pytest.mark.slow
def test_callbacks_see_the_variables_of_the_trial_s_own_model(fresh_folder: Path) -> None:
    """A model without batch normalisation has fewer variables than the program."""
    seen: list[tuple[tuple[int, ...], ...]] = []

    class Shapes(keras.callbacks.Callback):
        model: Any

        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            values = self.model.get_weights()
            seen.append(tuple(value.shape for value in values))
            last = self.model.trainable_variables[-1]
            last.assign(np.asarray(last) * 0.5 + epoch)
            assert np.array_equal(np.asarray(last), values[-1] * np.float32(0.5) + epoch)
            self.model.optimizer.learning_rate.assign(1e-3)

    search(True, [], build_wide, callbacks=lambda hp: [Shapes()])
    assert {len(shapes) for shapes in seen} == {4, 8}
    assert {shapes[0][1] for shapes in seen} == {4, 8, 12}


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_each_trial_is_that_trial_by_itself(kind: str, fresh_folder: Path) -> None:
    check_each_trial_by_itself(build_wide, kind)


@pytest.mark.slow
@pytest.mark.parametrize("kind", slow_where(KINDS, lambda kind: kind != "one after another"))
@pytest.mark.parametrize("stop", slow_where([3, 9], lambda stop: stop != 9))
def test_a_search_goes_on_where_it_was_stopped(
    kind: str, stop: int, fresh_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To the bit, with trials of several choices under way."""
    check_going_on(build_wide, kind, stop, monkeypatch)


# -- where it is worth it --------------------------------------------------------------------------


def test_choices_of_small_models_share_a_program_unasked(fresh_folder: Path) -> None:
    assert programs(search("auto", [])) == 1


@pytest.mark.slow
def test_much_work_of_their_own_is_not_done_for_all(
    fresh_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(family_builder, "_ELEMENT", 1e9)
    assert programs(search("auto", [])) == 4


@pytest.mark.slow
def test_a_choice_of_layers_stays_apart(fresh_folder: Path) -> None:
    """Only one of two models has a product: both would do it."""

    def deeper(hp: Any) -> Any:
        layers = [keras.layers.Dense(8, activation="relu")]
        if hp.Boolean("second"):
            layers.append(keras.layers.Dense(9))
        return compiled(*layers)

    notes: list[str] = []
    assert programs(search(True, notes, deeper)) == 2
    assert any("only one of two variants has this dot_general" in note for note in notes)


@pytest.mark.slow
def test_a_choice_that_build_refuses_stays_out(fresh_folder: Path) -> None:
    def picky(hp: Any) -> Any:
        model = build(hp)
        if hp.get("activation") == "tanh" and hp.get("dropout"):
            raise ValueError("not these two")
        return model

    tuner = search(True, [], picky)
    assert programs(tuner) == 1
    states = [tuner.trial(number).state for number in range(4)]
    assert sorted(states) == ["complete", "complete", "complete", "failed"]


def test_a_choice_of_numbers_is_no_choice_of_operations(fresh_folder: Path) -> None:
    """They are inputs of one program anyhow, and no other model is built for them."""
    asked: list[float] = []

    def rates(hp: Any) -> Any:
        asked.append(hp.Choice("lr", [1e-3, 1e-2]))
        return compiled(keras.layers.Dense(8), optimizer=keras.optimizers.SGD(asked[-1]))

    tuner = paceline.Tuner(rates, study="s")
    tuner.enqueue({"lr": 1e-3})
    tuner.search(X, Y, epochs=1, n_trials=1, **DATA)
    assert set(asked) == {1e-3}


def test_choices_in_convolutions_are_not_even_built_unasked(fresh_folder: Path) -> None:
    """What their elementwise work costs is not counted; ``share_widths=True`` joins them."""
    asked: list[str] = []

    def images(hp: Any) -> Any:
        asked.append(hp.Choice("activation", ["relu", "tanh"]))
        reshape, flat = keras.layers.Reshape((4, 3, 1)), keras.layers.Flatten()
        return compiled(reshape, keras.layers.Conv2D(2, 2, activation=asked[-1]), flat)

    tuner = paceline.Tuner(images, study="s")
    tuner.enqueue({"activation": "relu"})
    tuner.search(X, Y, epochs=1, n_trials=1, **DATA)
    assert set(asked) == {"relu"}
