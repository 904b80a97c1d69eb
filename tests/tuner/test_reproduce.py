"""A trial trained again, alone: the same numbers as recorded."""

from __future__ import annotations

import functools
import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest

import paceline
import toys
from paceline.tuner.after.reproduce import arguments_again

X, Y = toys.data()
CALL: dict[str, Any] = {"validation_data": toys.data(23, seed=1), "batch_size": 16}


@pytest.fixture
def make(make: Callable[..., paceline.Tuner]) -> Callable[..., paceline.Tuner]:
    """As everywhere, four trials at a time."""
    return functools.partial(make, parallel_trials=4)


@pytest.mark.slow
@pytest.mark.parametrize("arguments", [{}, {"repeats": 2}], ids=["one", "repeats"])
def test_a_sequential_trial_is_the_same_to_the_bit(make, arguments) -> None:
    make(plan="sequential").search(X, Y, epochs=4, n_trials=3, **CALL, **arguments)
    again = make().reproduce(1, X, Y, **CALL)
    assert again.plan == "sequential"
    assert again.history == again.trial.history
    assert set(again.differences.values()) == {0.0}
    assert again.notes == ()


@pytest.mark.slow
def test_epochs_without_validation_are_no_difference(make) -> None:
    make(plan="sequential").search(X, Y, epochs=3, n_trials=1, validation_freq=2, **CALL)
    again = make().reproduce(0, X, Y, **CALL)
    assert np.isnan(again.history["val_loss"]).tolist() == [True, False, True]
    assert set(again.differences.values()) == {0.0}


def test_a_packed_trial_differs_by_the_order_of_sums(make) -> None:
    make(plan="vectorized").search(X, Y, epochs=4, n_trials=6, **CALL)
    again = make().reproduce(5, X, Y, **CALL)
    assert again.trial.plan == "vectorized"
    assert 0 <= max(again.differences.values()) < 1e-4  # 4 slots against 1, Adam: 1e-6 seen
    np.testing.assert_allclose(again.history["loss"], again.trial.history["loss"], rtol=1e-4)


@pytest.mark.slow
def test_a_trial_of_fit_trains_in_fit(make) -> None:
    make(executor="fit").search(X, Y, epochs=2, n_trials=2, **CALL)
    again = make(executor="fit").reproduce(0, X, Y, **CALL)
    assert again.plan == "fit"
    assert set(again.differences.values()) == {0.0}


@pytest.mark.slow
def test_a_pruned_trial_trains_as_many_epochs(make) -> None:
    make(pruner="asha", plan="sequential").search(X, Y, epochs=9, n_trials=9, **CALL)
    tuner = make()
    pruned = [n for n in range(9) if tuner.trial(n).state == "pruned"]
    again = tuner.reproduce(pruned[0], X, Y, **CALL)
    assert len(again.history["loss"]) == again.trial.epochs < 9
    assert set(again.differences.values()) == {0.0}


def test_other_data_and_versions_are_named(make, monkeypatch) -> None:
    from paceline.tuner.arguments import comparison

    make(plan="sequential").search(X, Y, epochs=1, n_trials=1, **CALL)
    now = {**comparison.versions(), "jax": "0.0.1", "device": "abacus"}
    monkeypatch.setattr(comparison, "versions", lambda: now)
    monkeypatch.setattr(comparison, "compiled_with", lambda: {"xla_backend_extra_options": "x=1"})
    again = make().reproduce(0, X + 1, Y, **CALL)
    assert any("the data differ from those" in note for note in again.notes)
    for name, value in {**now, "xla_backend_extra_options": "x=1"}.items():
        if name in ("jax", "device", "xla_backend_extra_options"):
            said = f"{name} changed from .* to {value}"
            assert any(re.fullmatch(said, note) for note in again.notes)
    assert max(again.differences.values()) > 0


@pytest.mark.slow
def test_a_trial_has_the_arguments_of_its_own_search(make) -> None:
    """Not those of the study's last one."""
    validation = {"validation_data": CALL["validation_data"]}
    notes: list[str] = []
    tuner = make(plan="sequential", on_note=notes.append)
    tuner.search(X, Y, epochs=2, n_trials=1, batch_size=16, **validation)
    tuner.search(X, Y, epochs=2, n_trials=2, batch_size=5, shuffle=False, **validation)
    assert sum("batch_size 16 instead of 5, shuffle True instead of False" in n for n in notes) == 1
    tuner.search(X, Y, epochs=2, n_trials=3, batch_size=5, shuffle=False, repeats=2, **validation)
    for number in range(3):
        again = make().reproduce(number, X, Y, **validation)
        assert set(again.differences.values()) == {0.0}, number


@pytest.mark.slow
def test_functions_of_hp_are_to_be_given(make) -> None:
    sizes = {"batch_size": lambda hp: hp.Choice("size", [5, 16])}
    validation = {"validation_data": CALL["validation_data"]}
    make(plan="sequential").search(X, Y, epochs=2, n_trials=2, **sizes, **validation)
    with pytest.raises(paceline.UsageError, match="batch_size was a function of hp"):
        make().reproduce(0, X, Y, **validation)
    again = make().reproduce(0, X, Y, **sizes, **validation)
    assert set(again.differences.values()) == {0.0}


@pytest.mark.slow
def test_a_search_without_a_batch_size_has_the_default_again(make) -> None:
    validation = {"validation_data": CALL["validation_data"]}
    make(plan="sequential").search(X, Y, epochs=2, n_trials=1, **validation)
    again = make().reproduce(0, X, Y, **validation)
    assert set(again.differences.values()) == {0.0}


@pytest.mark.slow
def test_a_trial_without_a_batch_size_after_one_whose_size_is_a_function(make) -> None:
    validation = {"validation_data": CALL["validation_data"]}
    tuner = make(plan="sequential")
    tuner.search(X, Y, epochs=1, n_trials=1, batch_size=lambda hp: 5, **validation)
    tuner.search(X, Y, epochs=1, n_trials=2, **validation)
    with pytest.raises(paceline.UsageError, match="batch_size was a function of hp"):
        tuner.reproduce(0, X, Y, **validation)
    assert set(tuner.reproduce(1, X, Y, **validation).differences.values()) == {0.0}


@pytest.mark.slow
def test_models_compute_again_in_what_they_computed_in(make) -> None:
    make(plan="sequential", precision="bfloat16").search(X, Y, epochs=2, n_trials=1, **CALL)
    again = make().reproduce(0, X, Y, **CALL)
    assert set(again.differences.values()) == {0.0} and again.notes == ()
    assert make().best_model().layers[-1].compute_dtype == "bfloat16"
    notes: list[str] = []
    make(on_note=notes.append).search(X, Y, epochs=2, n_trials=2, **CALL)
    assert any("other numbers than float32" in note for note in notes)
    again = make(precision="bfloat16").reproduce(0, X, Y, **CALL)
    assert any("mixed_bfloat16" in note for note in again.notes)


@pytest.mark.slow
def test_other_validation_data_are_named(make) -> None:
    make(plan="sequential").search(X, Y, epochs=1, n_trials=1, **CALL)
    x, y = CALL["validation_data"]
    again = make().reproduce(0, X, Y, **CALL | {"validation_data": (x + 1, y)})
    assert any("the validation data differ from those" in note for note in again.notes)


def test_bad_requests(make) -> None:
    tuner = make()
    with pytest.raises(paceline.StudyError, match="there is no study"):
        tuner.reproduce(0, X, Y)
    tuner.search(X, Y, epochs=1, n_trials=1, **CALL)
    with pytest.raises(paceline.StudyError, match="no trial 7"):
        tuner.reproduce(7, X, Y, **CALL)
    with pytest.raises(paceline.UsageError, match="colour"):
        tuner.reproduce(0, X, Y, colour="red", **CALL)


COMMANDS = """\
import sys
from paceline.cli.app import main

for words in sys.argv[1:]:
    try:
        main(words.split())
    except SystemExit as stop:
        assert not stop.code, stop.code
"""


@pytest.mark.slow
def test_from_the_command_line(child_environment, fresh_folder) -> None:
    Path("model.py").write_text(toys.MODEL_FILE)

    def run(*commands: str) -> str:
        """Commands in one process of their own."""
        done = subprocess.run(
            [sys.executable, "-c", COMMANDS, *commands],
            env=child_environment,
            check=False,
            capture_output=True,
            text=True,
            timeout=120,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    search = "search model.py --trials 3 --epochs 3 --plan sequential --quiet"
    assert "the same bit for bit" in run(search, "reproduce model 2 --quiet")
    found = json.loads(run("reproduce model 1 --json --quiet").splitlines()[-1])
    assert found["number"] == 1
    assert set(found["differences"]) == {"loss", "accuracy", "val_loss", "val_accuracy"}
    assert set(found["differences"].values()) == {0.0}


@pytest.mark.slow
@pytest.mark.parametrize("plan", ["sequential", "vectorized"])
def test_a_copy_is_trained_again_with_the_line_that_it_continues(make, plan: str) -> None:
    call = {**CALL, "epochs": 6, "n_trials": 8, "callbacks": lambda hp: [Counted()]}
    make(plan=plan, pruner=paceline.PBT(perturbation_interval=2), parallel_trials=8).search(
        X, Y, **call
    )
    tuner = make()
    copies = tuner.results().query("state == 'complete' and continued_from.notna()")["number"]
    longest = max(copies, key=lambda number: len(tuner.lineage(number)))
    assert len(tuner.lineage(longest)) >= 2
    again = tuner.reproduce(longest, X, Y, **CALL, callbacks=lambda hp: [Counted()])
    assert again.history.keys() == again.trial.history.keys()
    assert again.history["count"] == [1, 2, 3, 4, 5, 6]  # the callback's state is copied, too
    # 8 slots against 1, Adam: 2e-6 seen. Values of the trial that was copied show at 1e-2.
    allowed = 0 if plan == "sequential" else 1e-4
    assert max(again.differences.values()) <= allowed


@pytest.mark.slow
def test_a_copy_whose_model_is_another_now_is_not_trained_again(make) -> None:
    call = {**CALL, "epochs": 4, "n_trials": 4}
    make(pruner=paceline.PBT(perturbation_interval=2)).search(X, Y, **call)
    number = make().results().query("continued_from.notna()")["number"].iloc[0]
    source = make().trial(number).continued_from
    own = make().trial(number).hparams

    def other(hp: Any) -> Any:
        model = toys.dense(hp)
        return model if hp.hparams == own else toys.softmax()

    with pytest.raises(paceline.StudyError, match=f"other variables than that of.* {source}"):
        make(other).reproduce(number, X, Y, **CALL)


class Counted(keras.callbacks.Callback):
    """Counts the epochs of a line."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self.count += 1
        logs["count"] = self.count


def test_a_batch_size_that_was_a_function_of_hp_must_be_given() -> None:
    stored = {"epochs": 2, "batch_size": None, "n_trials": 1, "shuffle": True}
    with pytest.raises(paceline.UsageError, match="batch_size was a function.*None if"):
        arguments_again(stored, {}, 2, X)
    known = arguments_again(stored, {"batch_size": None}, 2, X)
    assert known["batch_size"] is None
    with pytest.raises(paceline.UsageError, match="initial_epoch was a function of hp in the "):
        arguments_again({"initial_epoch": None}, {}, 2, X)
