"""``Tuner(share_widths=...)``: trials of several widths share a program and come out as alone."""

from __future__ import annotations

import os
import shutil
import signal
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import keras
import numpy as np
import pytest

import paceline
from epoch_reports import observe_reports
from marks import slow_where
from paceline.errors import UsageError
from paceline.executor.base import EpochReport
from paceline.executor.sharing import costs as sharing_costs
from paceline.executor.sharing import family_builder
from paceline.study.samplers.structure_order import TIMED_WAVE
from paceline.study.trials.table import expected_by_time
from paceline.tuner.search.timeouts import SearchTimeout
from shared_programs import (
    DATA,
    KINDS,
    X,
    Y,
    check_each_trial_by_itself,
    check_going_on,
    compiled,
    grid,
    whole_and_resumed,
)
from stopping import hears_signals  # noqa: F401 - a fixture


def build(hp: Any) -> Any:
    """Two widths, of which one trial of the grid has the largest."""
    return compiled(
        keras.layers.Dense(hp.Int("units", 4, 12, step=4), activation="relu"),
        keras.layers.Dropout(0.3),
        keras.layers.Dense(hp.Choice("second", [5, 9]), activation="tanh"),
    )


def search(
    widths: bool | str, notes: list[str], made: Any = build, **arguments: Any
) -> paceline.Tuner:
    return grid(made, widths, notes, **arguments)


@pytest.mark.slow
def test_trials_of_six_widths_are_those_of_six_programs() -> None:
    notes: list[str] = []
    apart, together = search(False, notes), search(True, notes)
    assert apart.summary()["programs"]["distinct"] == 6
    assert together.summary()["programs"]["distinct"] == 1
    for number in range(6):
        ours, theirs = together.trial(number), apart.trial(number)
        assert ours.hparams == theirs.hparams
        for name, values in theirs.history.items():
            # float32's rounding of sums with zeros in between, two epochs long
            np.testing.assert_allclose(ours.history[name], values, rtol=1e-5, atol=1e-6)
    assert not [note for note in notes if "width" in note]


@pytest.mark.slow
def test_the_best_model_has_its_own_widths() -> None:
    tuner = search(True, [])
    model, hparams = tuner.best_model(), tuner.best_hparams
    assert model.layers[0].units == hparams["units"]
    assert model.layers[2].units == hparams["second"]
    found = model.evaluate(X[:21], Y[:21], verbose=0, return_dict=True)
    assert found["accuracy"] == pytest.approx(tuner.best_trial.value, abs=1e-6)


@pytest.mark.slow
def test_callbacks_see_the_trial_s_own_widths() -> None:
    seen: list[tuple[int, ...]] = []

    class Shapes(keras.callbacks.Callback):
        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            kernel = self.model.layers[0].kernel
            seen.append(tuple(np.asarray(kernel).shape))
            kernel.assign(np.asarray(kernel) * 0.5)

    search(True, [], callbacks=lambda hp: [Shapes()])
    assert {shape[1] for shape in seen} == {4, 8, 12}


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_each_trial_is_that_trial_by_itself(kind: str, fresh_folder: Path) -> None:
    check_each_trial_by_itself(build, kind)


@pytest.mark.slow
@pytest.mark.parametrize("kind", slow_where(KINDS, lambda kind: kind != "one after another"))
@pytest.mark.parametrize("stop", slow_where([3, 9], lambda stop: stop != 9))
def test_a_search_goes_on_where_it_was_stopped(
    kind: str, stop: int, fresh_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To the bit, with trials of several widths under way."""
    check_going_on(build, kind, stop, monkeypatch)


@pytest.mark.slow
def test_a_width_of_one_has_a_program_of_its_own(fresh_folder: Path) -> None:
    """JAX leaves axes of length 1 out; all the same the trial is trained, and the others ride."""

    def narrow(hp: Any) -> Any:
        return compiled(keras.layers.Dense(hp.Int("units", 1, 8)))

    notes: list[str] = []
    tuner = paceline.Tuner(narrow, study="one", on_note=notes.append)
    tuner.enqueue([{"units": units} for units in (1, 5, 8, 4)])
    tuner.search(X, Y, epochs=1, n_trials=4, **DATA)
    assert tuner.summary()["n_trials"]["complete"] == 4, notes
    assert tuner.summary()["programs"] | {"compiled": 0} == {
        "distinct": 2,
        "structures": 4,
        "compiled": 0,
        "from_cache": 0,
    }


def deep(hp: Any) -> Any:
    units = hp.Int("units", 2, 32)
    hidden = [keras.layers.Dense(units) for _ in range(hp.Int("depth", 1, 4))]
    return compiled(*hidden, optimizer=keras.optimizers.Adam(hp.Float("lr", 1e-3, 1e-1)))


# What the founder of a family is judged by -> operations that take as long as a structure, the
# trials, and the epochs. The first two end long before the others, in another order of founding.
FOUNDERS = {
    "its depth": (2e6, [(20, 4, 1), (20, 4, 1), (7, 1, 4), (7, 1, 4)]),
    "its epochs": (4e5, [(20, 1, 1), (7, 1, 1), (20, 1, 4), (7, 1, 4)]),
}


@pytest.mark.slow
@pytest.mark.parametrize("judged", slow_where(FOUNDERS, "its depth".__eq__))
def test_who_rides_stays_so_when_a_search_goes_on(
    judged: str, fresh_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    structure, given = FOUNDERS[judged]
    monkeypatch.setattr(family_builder, "_STRUCTURE", {"cpu": structure})
    monkeypatch.setenv("PACELINE_CHECKPOINT_SECONDS", "0")
    left: list[int] = []
    notes: list[str] = []

    def interrupt(report: EpochReport) -> None:
        if left == [report.number, report.epoch]:
            os.kill(os.getpid(), signal.SIGINT)

    def search(study: str) -> paceline.Tuner:
        tuner = paceline.Tuner(
            deep,
            "loss",
            study,
            sampler="random",
            parallel_trials=2,
            plan="vectorized",
            on_note=notes.append,
        )
        rates = [0.01, 0.02, 0.011, 0.013]
        tuner.enqueue(
            [
                {"units": units, "depth": depth, "lr": rate, "epochs": epochs}
                for (units, depth, epochs), rate in zip(given, rates, strict=True)
            ]
        )
        epochs_of = lambda hp: hp.Int("epochs", 1, 4)  # noqa: E731
        tuner.search(X, Y, epochs=epochs_of, batch_size=16, n_trials=4)
        return tuner

    observe_reports(monkeypatch, before=interrupt)
    whole = search("whole")
    left += [3, 2]
    with pytest.raises(KeyboardInterrupt, match="^$"):
        search("s")
    left.clear()
    resumed = search("s")
    assert not [note for note in notes if "restart as new trials" in note]
    for number in range(4):
        assert resumed.trial(number).history == whole.trial(number).history


# -- where it is worth it --------------------------------------------------------------------------


def distinct(made: Any = build) -> int:
    counts = search("auto", [], made).summary()["programs"]
    assert counts["distinct"] in (1, counts["structures"])
    return counts["distinct"]


def test_small_models_of_many_widths_share_a_program(fresh_folder: Path) -> None:
    assert distinct() == 1


@pytest.mark.slow
def test_large_products_are_not_padded(fresh_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(family_builder, "_STRUCTURE", {"cpu": 1e5})
    assert distinct() == 6


# -- bands -----------------------------------------------------------------------------------------


WIDE = [20, 8, 32, 6, 14, 26, 30, 2, 24, 12, 28, 18, 4, 22, 10, 16]


def of_width(hp: Any, units: int) -> Any:
    hidden = keras.layers.Dense(units, "relu")
    return compiled(hidden, optimizer=keras.optimizers.Adam(hp.Float("lr", 1e-3, 1e-1)))


def many(hp: Any) -> Any:
    return of_width(hp, hp.Int("units", 2, 32, step=2))


def in_bands(study: str, n_trials: int | str = 16, made: Any = many, **arguments: Any) -> Any:
    """A search whose structures are worth two bands, 2 to 16 and 18 to 32, if it has 16 trials."""
    tuner = paceline.Tuner(made, "loss", study, sampler="random", seed=1, **arguments)
    tuner.enqueue([{"units": units, "lr": 0.01 + units / 1000} for units in WIDE])
    tuner.search(X, Y, epochs=2, n_trials=n_trials, **DATA)
    return tuner


@pytest.fixture
def worth_two_bands(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(family_builder, "_STRUCTURE", {"cpu": 4e5})


def bands_of(tuner: paceline.Tuner) -> dict[str, set[int]]:
    """Program -> the widths of its trials."""
    found: dict[str, set[int]] = {}
    for trial in (tuner.trial(number) for number in range(len(tuner.results()))):
        found.setdefault(str(trial.program_id), set()).add(trial.hparams["units"])
    return found


@pytest.mark.usefixtures("worth_two_bands")
@pytest.mark.slow
def test_narrow_and_wide_models_have_programs_of_their_own(fresh_folder: Path) -> None:
    tuner, apart = in_bands("s"), in_bands("apart", share_widths=False)
    assert tuner.summary()["programs"]["distinct"] == 2
    low, high = sorted(bands_of(tuner).values(), key=min)
    assert max(low) <= 16 < min(high)
    for number in range(16):
        ours, theirs = tuner.trial(number), apart.trial(number)
        assert ours.hparams == theirs.hparams
        for name, values in theirs.history.items():
            # float32's rounding of sums with zeros in between, two epochs long
            np.testing.assert_allclose(ours.history[name], values, rtol=2e-5, atol=2e-6)


@pytest.mark.usefixtures("worth_two_bands")
@pytest.mark.slow
def test_a_search_that_grows_keeps_its_bands(fresh_folder: Path) -> None:
    """By how many trials it chose them is in the study: the others of a longer one differ."""
    in_bands("s")
    tuner = in_bands("s", "+48")
    assert tuner.optuna_study().user_attrs["paceline"]["outlook"]["trials"] == 16
    assert {max(widths) <= 16 for widths in bands_of(tuner).values()} == {True, False}
    assert tuner.summary()["programs"]["distinct"] <= 2
    assert len(bands_of(in_bands("long", 64))) > 2


@pytest.mark.slow
@pytest.mark.usefixtures("worth_two_bands")
@pytest.mark.parametrize("stop", [1, 9, 20])
def test_trials_in_bands_go_on_to_the_bit(
    stop: int, fresh_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole, resumed = whole_and_resumed(in_bands, stop, monkeypatch)
    assert len(whole.results()) == 16
    assert bands_of(resumed) == bands_of(whole)


def two_widths(hp: Any) -> Any:
    widths = [hp.Int(name, 2, 128, step=2) for name in ("first", "second")]
    adam = keras.optimizers.Adam(hp.Float("lr", 1e-3, 1e-1))
    return compiled(*(keras.layers.Dense(n, "relu") for n in widths), optimizer=adam)


def by_time(study: str) -> paceline.Tuner:
    tuner = paceline.Tuner(two_widths, "loss", study, sampler="random", seed=1, pruner="asha")
    tuner.search(X[:32], Y[:32], epochs=2, n_trials=18, timeout=1000.0, **DATA)
    return tuner


@pytest.mark.slow
def test_where_time_ends_a_search_it_trains_before_programs_are_shared(fresh_folder: Path) -> None:
    """A family is made while the first trial trains, and those that come later share it."""
    tuner = by_time("s")
    programs = [tuner.trial(number).program_id for number in range(18)]
    assert len(set(programs[1:])) == 1
    assert programs[1] != programs[0]
    outlook = tuner.optuna_study().user_attrs["paceline"]["outlook"]
    assert outlook["core_seconds"] >= 1000.0
    assert outlook["trained"] == pytest.approx(2 / 3)  # one of three trials has a second epoch
    assert outlook["alike"] == 1  # random search has no waves


@pytest.mark.parametrize(("timeout", "alike"), [(1000.0, TIMED_WAVE), (None, 1)])
def test_where_time_ends_a_search_waves_of_one_structure_are_expected(
    timeout: float | None, alike: int, fresh_folder: Path
) -> None:
    tuner = paceline.Tuner(two_widths, "loss", "s", sampler="tpe")
    tuner.search(X[:32], Y[:32], epochs=1, n_trials=1, timeout=timeout, **DATA)
    assert tuner.optuna_study().user_attrs["paceline"]["outlook"]["alike"] == alike


@pytest.mark.parametrize("objective", ["loss", ["loss", "params"]])
def test_late_in_the_time_trials_have_the_structure_of_the_best(
    objective: Any, fresh_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun = observe_reports(monkeypatch)
    monkeypatch.setattr(SearchTimeout, "late", property(lambda self: len(begun) >= 6))
    tuner = paceline.Tuner(two_widths, objective, "s", sampler="tpe", share_widths=False)
    tuner.search(X[:32], Y[:32], epochs=1, n_trials=16, timeout=1000.0, **DATA)
    trials = [tuner.trial(number) for number in range(16)]
    best = min(trials[:6], key=lambda trial: trial.history["loss"][0])
    late = {trial.program_id for trial in trials[12:]}
    known = {trial.program_id for trial in trials[:12]}
    if objective == "loss":
        assert late <= known and best.program_id in known
        assert len({trial.program_id for trial in trials[-2:]}) == 1
    else:  # the structure with the best loss has most parameters
        assert not late <= known


@pytest.mark.slow
@pytest.mark.usefixtures("hears_signals")
@pytest.mark.parametrize("stop", [3, 9, 20])
def test_such_a_search_goes_on_to_the_bit(
    stop: int, fresh_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Trials from before and after its family was made are under way when it is stopped."""
    whole, resumed = whole_and_resumed(by_time, stop, monkeypatch)
    for number in range(18):
        assert resumed.trial(number).program_id == whole.trial(number).program_id


def test_trials_to_come_are_reckoned_by_those_that_came() -> None:
    assert [expected_by_time(n) for n in (0, 12, 13, 100)] == [24, 24, 26, 200]


@pytest.mark.usefixtures("worth_two_bands")
@pytest.mark.slow
def test_where_the_largest_widths_cannot_be_built_the_narrow_ones_share_a_program(
    fresh_folder: Path,
) -> None:
    def refusing(hp: Any) -> Any:
        if hp.Int("units", 2, 32, step=2) == 32:
            raise ValueError("too wide")
        return many(hp)

    tuner = in_bands("s", made=refusing)
    programs = {trial.hparams["units"]: trial.program_id for trial in map(tuner.trial, range(16))}
    assert len({programs[units] for units in range(2, 18, 2)}) == 1
    assert len({programs[units] for units in range(18, 32, 2)}) == 7


@pytest.mark.usefixtures("worth_two_bands")
@pytest.mark.slow
def test_one_name_of_two_parameters_has_the_bands_of_each(fresh_folder: Path) -> None:
    """Under one condition it is a width, under the other a size by name."""

    def either(hp: Any) -> Any:
        units = 2
        if hp.Choice("of", ["names", "numbers"]) == "names":
            with hp.conditional_scope("of", ["names"]):
                units = {"small": 4, "large": 30}[hp.Choice("units", ["small", "large"])]
        else:
            with hp.conditional_scope("of", ["numbers"]):
                units = hp.Int("units", 2, 32, step=2)
        return of_width(hp, units)

    tuner = paceline.Tuner(either, "loss", "s")
    units = [20, "small", 8, 12, "large", 4]
    of = {str: "names", int: "numbers"}
    tuner.enqueue([{"of": of[type(u)], "units": u, "lr": 0.01} for u in units])
    tuner.search(X, Y, epochs=2, n_trials=16, **DATA)
    assert tuner.summary()["n_trials"]["complete"] == 16
    counts = tuner.summary()["programs"]
    assert 1 < counts["distinct"] < counts["structures"] / 2


@pytest.mark.slow
def test_other_bounds_of_the_same_models_share_too(fresh_folder: Path) -> None:
    def either(hp: Any) -> Any:
        units = hp.Int("ua" if hp.Choice("of", ["a", "b"]) == "a" else "ub", 2, 32, step=2)
        return of_width(hp, units)

    tuner = paceline.Tuner(either, "loss", "s")
    tuner.enqueue([{"of": of, f"u{of}": u, "lr": 0.01} for u in (20, 8, 12) for of in "ab"])
    tuner.search(X, Y, epochs=1, n_trials=6, **DATA)
    assert len({tuner.trial(number).program_id for number in range(6)}) == 1


def test_what_may_be_huge_is_not_built(fresh_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A seed is no width, and the largest widths of some spaces fit into no memory."""
    asked: list[int] = []

    def noting(hp: Any) -> Any:
        asked.append(hp.Int("units", 4, 12, step=4))
        hp.Int("seed", 1, 2**40)
        return build(hp)

    monkeypatch.setattr(family_builder, "_HUGE", 0)
    values = {"units": 4, "second": 5, "seed": 7}
    tuner = paceline.Tuner(noting, study="huge")
    tuner.enqueue(values)
    tuner.search(X, Y, epochs=1, n_trials=1, **DATA)
    assert set(asked) == {4}


def test_few_widths_are_not_padded(fresh_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A family's program takes as long to compile as those of two structures."""
    largest = lambda *_: pytest.fail("the largest model was traced for nothing")  # noqa: E731
    monkeypatch.setattr(family_builder.FamilyBuilder, "_largest", largest)

    def two(hp: Any) -> Any:
        return compiled(keras.layers.Dense(hp.Choice("units", [4, 8])))

    assert distinct(two) == 2


@pytest.mark.slow
def test_loops_and_convolutions_are_not_padded_unasked(fresh_folder: Path) -> None:
    def recurrent(hp: Any) -> Any:
        return compiled(keras.layers.Reshape((6, 2)), keras.layers.GRU(hp.Int("units", 2, 4)))

    assert distinct(recurrent) == 3


@pytest.mark.slow
def test_a_largest_model_that_build_refuses_is_told(fresh_folder: Path) -> None:
    def picky(hp: Any) -> Any:
        units = hp.Int("units", 4, 12, step=4)
        if units * hp.Choice("second", [5, 9]) > 100:
            raise ValueError("too many weights")
        return build(hp)

    notes: list[str] = []
    tuner = search(True, notes, picky)
    assert tuner.summary()["programs"]["distinct"] == 5
    assert any("widths are not trained together: too many weights" in note for note in notes)


def test_a_name_that_is_none_is_refused() -> None:
    with pytest.raises(
        UsageError, match=r"share_widths must be one of auto, True, False, got 'all'\."
    ):
        paceline.Tuner(build, share_widths="all")


# -- on an accelerator -----------------------------------------------------------------------------


@pytest.fixture
def accelerator(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who rides is decided as on a GPU."""
    monkeypatch.setattr(family_builder, "jax", SimpleNamespace(default_backend=lambda: "gpu"))


def filters(hp: Any) -> Any:
    return compiled(
        keras.layers.Reshape((4, 3, 1)),
        keras.layers.Conv2D(hp.Choice("filters", [4, 8]), 3, padding="same"),
        keras.layers.Flatten(),
    )


def test_two_widths_of_a_convolution_fill_slots(accelerator: None, fresh_folder: Path) -> None:
    assert distinct(filters) == 1


@pytest.mark.slow
def test_loops_fill_slots(accelerator: None, fresh_folder: Path) -> None:
    def recurrent(hp: Any) -> Any:
        return compiled(keras.layers.Reshape((6, 2)), keras.layers.GRU(hp.Int("units", 2, 4)))

    assert distinct(recurrent) == 1


@pytest.mark.slow
@pytest.mark.parametrize("name", slow_where(["_PRODUCTS", "_ELEMENTS"], "_PRODUCTS".__eq__))
def test_what_takes_longer_than_it_fills_is_apart(
    name: str, accelerator: None, fresh_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def chosen(hp: Any) -> Any:
        return compiled(keras.layers.Dense(8, activation=hp.Choice("f", ["relu", "tanh"])))

    assert distinct(made := filters if name == "_PRODUCTS" else chosen) == 1
    monkeypatch.setattr(sharing_costs, name, 1.0)  # operations a second
    shutil.rmtree("runs")
    assert distinct(made) == 2


def kernels(hp: Any) -> Any:
    return compiled(
        keras.layers.Reshape((4, 3, 1)),
        keras.layers.Conv2D(hp.Choice("filters", [4, 8]), hp.Choice("kernel", [1, 3])),
        keras.layers.GlobalAveragePooling2D(),
    )


@pytest.mark.slow
@pytest.mark.parametrize("widths", slow_where(["auto", True], lambda widths: widths is True))
def test_a_width_that_cannot_be_padded_divides_the_others(
    widths: bool | str, accelerator: None, fresh_folder: Path
) -> None:
    counts = search(widths, [], kernels).summary()["programs"]
    assert (counts["distinct"], counts["structures"]) == (2, 4)
