"""Who runs when, what ends a run, and what goes to Keras' own ``fit``."""

from __future__ import annotations

import random
import sys
import threading
import time
import warnings
from functools import partial

import jax
import keras
import numpy as np
import pytest
from jax.experimental.compilation_cache import compilation_cache

from compat.interception.alone import alone, assert_same
from compat.interception.functions import X_VAL, Y_VAL, X, Y, network, plain
from marks import slow_where
from paceline.compat.interception import Engine, FunctionCall
from paceline.executor.training import memory
from toys import data


def run(functions, **engine):
    """Outcomes by number, and the notes."""
    notes: list[str] = []
    with Engine(notes=notes.append, **engine) as made:
        calls = [FunctionCall(i, function, i) for i, function in enumerate(functions)]
        return {outcome.number: outcome for outcome in made.run(calls)}, notes


def fitted(i=0, **arguments):
    model = network(i)
    return model.fit(X, Y, **{"epochs": 2, "verbose": 0, **arguments}), model


# -- failures --------------------------------------------------------------------------------------


def test_a_function_that_raises_fails_alone():
    def raises():
        fitted()
        raise ValueError("no good")

    class Raises(keras.callbacks.Callback):
        def __init__(self, when):
            super().__init__()
            self.when = when

        def set_model(self, model):
            if self.when == "made":  # as TensorBoard without TensorFlow
                raise ImportError(self.when)
            super().set_model(model)

        def on_train_begin(self, logs=None):
            if self.when == "before":
                raise KeyError(self.when)

        def on_epoch_end(self, epoch, logs=None):
            if self.when == "between" and epoch == 1:
                raise KeyError(self.when)

    functions = [
        fitted,
        raises,
        partial(fitted, callbacks=[Raises("before")], epochs=3),
        partial(fitted, callbacks=[Raises("between")], epochs=3),
        lambda: 1 / 0,
        partial(fitted, epochs=3),
        partial(fitted, callbacks=[Raises("made")], epochs=3),
    ]
    outcomes, notes = run(functions)
    errors = {n: repr(outcome.error) for n, outcome in outcomes.items() if outcome.error}
    assert errors == {
        1: "ValueError('no good')",
        2: "KeyError('before')",
        3: "KeyError('between')",
        4: "ZeroDivisionError('division by zero')",
        6: "ImportError('made')",
    }
    assert [len(outcomes[n].fits) for n in range(7)] == [1, 1, 1, 1, 0, 1, 1]
    assert [fit.epochs for n in (2, 3, 5) for fit in outcomes[n].fits] == [0, 2, 3]
    assert notes == []
    assert_same(outcomes[5].value, alone(functions[5], 5))


@pytest.mark.slow
def test_a_function_may_catch_what_fit_raises():
    def catches():
        model = network()
        with pytest.raises(ValueError, match="(?i)cardinality|number of samples|same number"):
            model.fit(X, Y[:-1], verbose=0)
        return fitted()

    outcomes, notes = run([catches])
    assert outcomes[0].error is None
    assert "must have the same number of examples" in notes[0]


def test_fit_of_a_model_that_is_not_compiled_says_what_keras_says():
    model = keras.Sequential([keras.layers.Dense(1)])
    outcomes, _ = run([lambda: model.fit(X, Y)])
    with pytest.raises(ValueError, match="compile"):
        raise outcomes[0].error


def test_what_ends_the_process_ends_the_run():
    def leaves():
        fitted()
        sys.exit(3)

    with pytest.raises(SystemExit, match="3"):
        run([fitted, leaves])
    assert "fit" not in vars(keras.Model)


# -- what packs cannot do --------------------------------------------------------------------------


class OnBatches(keras.callbacks.Callback):
    def on_test_batch_end(self, batch, logs=None):
        pass


class OwnFit(keras.Sequential):
    def fit(self, *args, **kwargs):
        return super().fit(*args, **kwargs)


def eager_fit(i):
    model = keras.Sequential([keras.layers.Dense(3, activation="softmax")])
    model.compile("sgd", "sparse_categorical_crossentropy", run_eagerly=True)
    return model.fit(X[:16], Y[:16], epochs=1, verbose=0), model


def own_fit(i):
    model = OwnFit([keras.layers.Dense(3)])
    model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    return model.fit(X, Y, epochs=1, verbose=0), model


FOR_FIT = [
    (partial(fitted, callbacks=[OnBatches()]), "OnBatches has its own on_test_batch_end"),
    (
        partial(fitted, callbacks=[keras.callbacks.BackupAndRestore("backup")]),
        "BackupAndRestore decides where training begins",
    ),
    (partial(fitted, steps_per_epoch=2), "steps_per_epoch is given"),
    (partial(fitted, validation_data=(X_VAL, Y_VAL), validation_freq=2), "validation_freq"),
    (partial(fitted, shuffle="batch"), "shuffle is 'batch'"),
    (partial(own_fit, 0), r"its class OwnFit has its own fit\(\)"),
    (partial(eager_fit, 0), "run_eagerly=True"),
]


@pytest.mark.parametrize(
    ("function", "why"),
    slow_where(FOR_FIT, lambda case: case[0].func is eager_fit),
)
def test_the_rest_goes_to_keras_own_fit(function, why):
    outcomes, notes = run([function])
    assert outcomes[0].error is None
    (fit,) = outcomes[0].fits
    assert (fit.plan, fit.program) == ("fit", None)
    assert fit.epochs == len(outcomes[0].value[0].epoch)
    (note,) = notes
    with pytest.raises(AssertionError, match=why):
        raise AssertionError(note)
    assert note.startswith("function 0 and its like train in Keras' own fit, one at a time: ")


@pytest.mark.parametrize(
    ("function", "why"), slow_where(FOR_FIT, lambda case: case[1] != "shuffle is 'batch'")
)
def test_what_keras_own_fit_trains_comes_out_as_alone(function, why):
    outcomes, _ = run([function])
    assert_same(outcomes[0].value, alone(function, 0))


def test_a_reason_is_told_once():
    _, notes = run([partial(fitted, shuffle="batch", epochs=1)] * 2)
    assert len(notes) == 1


def test_an_untraceable_step_comes_out_as_alone():
    """Building has drawn a permutation already; ``fit`` must not draw another."""

    class Prints(keras.layers.Layer):
        def call(self, x):
            import jax

            jax.debug.callback(lambda _: None, x)
            return x

    def function():
        model = keras.Sequential([keras.layers.Dense(5), Prints(), keras.layers.Dense(3)])
        model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
        return model.fit(X, Y, epochs=2, batch_size=16, verbose=0), model

    outcomes, notes = run([function])
    assert len(notes) == 1
    assert outcomes[0].fits[0].plan == "fit"
    assert_same(outcomes[0].value, alone(function, 0))


# -- turns -----------------------------------------------------------------------------------------


def test_only_one_function_runs_at_a_time():
    running: list[int] = []
    most = []

    def function():
        running.append(1)
        most.append(len(running))
        model = network()
        running.pop()
        model.fit(X, Y, epochs=2, verbose=0)
        running.append(1)
        most.append(len(running))
        running.pop()

    run([function] * 6, concurrent=True)
    assert len(most) == 12
    assert max(most) == 1


def test_calls_are_taken_when_there_is_room():
    taken = []

    def calls():
        for i in range(200):
            taken.append(i)
            yield FunctionCall(i, fitted, i)

    with Engine(slots=2) as engine:
        outcomes = engine.run(calls())
        next(outcomes)
        assert len(taken) < 100
        outcomes.close()
    assert threading.active_count() < 100


def test_none_waits_for_an_outcome():
    known: list[int] = []
    asked: list[tuple[int, int]] = []

    def calls():
        for i in range(4):
            while i // 2 > len(known) // 2:  # two at a time
                yield None
            asked.append((i, len(known)))
            yield FunctionCall(i, fitted, i)

    with Engine() as engine:
        for outcome in engine.run(calls()):
            known.append(outcome.number)
    assert sorted(known) == [0, 1, 2, 3]
    assert asked == [(0, 0), (1, 0), (2, 2), (3, 2)]


def test_none_with_nothing_under_way_is_the_end():
    with Engine() as engine:
        assert list(engine.run(iter([None, FunctionCall(0, fitted, 0)]))) == []


def test_a_run_goes_on_with_the_programs_of_the_one_before():
    with Engine() as engine:
        list(engine.run([FunctionCall(i, partial(plain, i), i) for i in range(2)]))
        counts = engine.program_counts()
        again = list(engine.run([FunctionCall(i, partial(plain, i % 2), i) for i in range(2)]))
        assert engine.program_counts()["distinct"] == counts["distinct"] == 1
    assert all(outcome.error is None for outcome in again)


def test_two_runs_at_once_are_refused():
    with Engine() as engine:
        outcomes = engine.run([FunctionCall(i, partial(plain, i), i) for i in range(2)])
        next(outcomes)
        with pytest.raises(RuntimeError, match="another run has not ended"):
            next(engine.run([FunctionCall(0, fitted, 0)]))


def test_a_seed_is_drawn_where_there_is_none():
    def drawn(seed):
        random.seed(seed)
        with Engine() as engine:
            (outcome,) = engine.run([FunctionCall(0, random.random)])
        return outcome.value

    assert drawn(1) == drawn(1) != drawn(2)


def test_time_is_a_functions_own():
    slow = threading.Event()

    def waits():
        slow.wait(0.2)
        fitted()

    outcomes, _ = run([fitted, waits])
    for outcome in outcomes.values():
        assert outcome.began <= outcome.ended <= time.time()
    assert outcomes[1].seconds >= 0.2
    assert outcomes[1].ended - outcomes[1].began >= 0.2


# -- leaving ---------------------------------------------------------------------------------------


def test_a_closed_run_unwinds_what_is_under_way():
    left = []

    def function(i):
        try:
            fitted(epochs=1 if i == 0 else 1000)
        finally:
            left.append(i)

    with Engine(concurrent=True) as engine:
        outcomes = engine.run([FunctionCall(i, partial(function, i), i) for i in range(4)])
        assert next(outcomes).number == 0
        outcomes.close()
        assert sorted(left) == [0, 1, 2, 3]
        assert "fit" not in vars(keras.Model)
        (again,) = engine.run([FunctionCall(0, fitted, 0)])  # the engine itself goes on
        assert again.error is None
    assert not [t.name for t in threading.enumerate() if t.name.startswith("paceline-call")]


def test_a_fit_of_its_own_is_unwound_after_its_epoch():
    epochs = []

    class Counts(OnBatches):
        def on_epoch_end(self, epoch, logs=None):
            epochs.append(epoch)
            if epoch == 1:
                raise KeyboardInterrupt("now")  # where the engine's thread would be interrupted

    with pytest.raises(KeyboardInterrupt, match="now"):
        run([partial(fitted, callbacks=[Counts()], epochs=1000), fitted])
    assert epochs == [0, 1]


def test_outside_of_a_run_fit_is_keras_own():
    original = keras.Model.fit

    class Counts(keras.callbacks.Callback):
        batches = 0

        def on_train_batch_end(self, batch, logs=None):
            Counts.batches += 1

    with Engine() as engine:
        for _ in engine.run([FunctionCall(0, fitted, 0)]):
            fitted(epochs=1, callbacks=[Counts()])  # the caller's own
    assert Counts.batches == 2
    assert keras.Model.fit is original


def test_a_patch_of_another_library_is_put_back(monkeypatch):
    seen = []
    original = keras.Model.fit

    def patched(self, *args, **kwargs):
        seen.append(self)
        return original(self, *args, **kwargs)

    monkeypatch.setattr(keras.Model, "fit", patched, raising=False)
    outcomes, _ = run([partial(fitted, shuffle="batch")])
    assert outcomes[0].error is None
    assert len(seen) == 1
    assert vars(keras.Model)["fit"] is patched


def test_settings_of_the_process_reach_functions_and_stay(random_state):
    policy, filters = keras.config.dtype_policy(), warnings.filters
    before = random_state()

    def function():
        seen = keras.config.dtype_policy().name, keras.config.epsilon()
        keras.config.set_dtype_policy("float32")
        keras.config.set_epsilon(1e-3)
        warnings.simplefilter("ignore")
        np.random.seed(0)
        return seen

    try:
        keras.config.set_dtype_policy("mixed_bfloat16")
        outcomes, _ = run([function, function])
        assert [outcomes[i].value for i in range(2)] == [("mixed_bfloat16", 1e-7)] * 2
        assert keras.config.dtype_policy().name == "mixed_bfloat16"
    finally:
        keras.config.set_dtype_policy(policy)
    assert keras.config.epsilon() == 1e-7
    assert warnings.filters is filters
    assert random_state() == before


def test_automatic_names_begin_anew_in_each_function_and_go_on_outside():
    keras.layers.Dense(1)
    expected = keras.layers.Dense(1).name.rpartition("_")[2]
    outcomes, _ = run([lambda: [keras.layers.Dense(1).name for _ in range(2)]] * 2)
    assert outcomes[0].value == outcomes[1].value == ["dense", "dense_1"]
    assert int(keras.layers.Dense(1).name.rpartition("_")[2]) == int(expected) + 1


@pytest.mark.slow
def test_data_that_few_fits_use_are_dropped():
    x, y = data(20)

    def function(i):
        model = network()
        model.fit(x + i, y, epochs=1, verbose=0)

    with Engine() as engine:
        for i in range(7):
            (outcome,) = engine.run([FunctionCall(i, partial(function, i), i)])
            assert outcome.error is None
        assert len(list(engine.executors)) == 4


@pytest.mark.slow
def test_fits_wait_for_the_memory_of_fits_on_other_data(monkeypatch):
    """Each of four data sets has an executor; the device holds one trial and a half."""

    def wide(i):
        layers = [keras.Input((X.shape[1],)), keras.layers.Dense(2000), keras.layers.Dense(3)]
        model = keras.Sequential(layers)
        model.compile(keras.optimizers.Adam(0.001 * (i + 1)), "mse")
        x, _ = data(60, seed=i % 4)
        return model.fit(x, x[:, :3], epochs=3, verbose=0).history["loss"]

    functions = [partial(wide, i) for i in range(8)]
    expected, _ = run(functions)
    monkeypatch.setenv(memory.LIMIT, "3000000")
    found, notes = run(functions)
    assert any("wait for others" in note for note in notes)
    for number, outcome in found.items():
        assert outcome.error is None and outcome.fits[0].program
        # Packs of fewer slots may add in another order: less than 1e-7 seen.
        np.testing.assert_allclose(outcome.value, expected[number].value, rtol=1e-6)


def test_verbose_is_spoken_for():
    _, notes = run([partial(fitted, verbose=1)] * 2)
    assert notes == [
        "verbose: fits of several functions train at once, so their progress bars are not drawn"
    ]


def test_what_was_learnt_of_models_is_on_disk_when_the_engine_is_closed(tmp_path, monkeypatch):
    """JAX has the search's folder only while functions run; the engine is closed afterwards."""
    before = jax.config.jax_compilation_cache_dir
    monkeypatch.setenv("PACELINE_CACHE_DIR", str(tmp_path))
    jax.config.update("jax_compilation_cache_dir", None)
    compilation_cache.reset_cache()
    try:
        _, notes = run([partial(fitted, i, epochs=1) for i in range(8)], slots=4)
    finally:
        jax.config.update("jax_compilation_cache_dir", before)
        compilation_cache.reset_cache()
    assert notes == []
    assert list((tmp_path / "programs" / "structures").glob("*.json"))
