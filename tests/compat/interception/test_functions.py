"""Functions in packs come out as they do alone."""

from __future__ import annotations

from functools import partial

import keras
import numpy as np
import pytest

from compat.interception.alone import alone, assert_same
from compat.interception.functions import FUNCTIONS, X, Y, network
from marks import slow_where
from paceline.compat.interception import Engine, FunctionCall
from paceline.executor.training.planner import Planner

SEEDS = [21, 22, 23]


#: Those that have their like among the others: ``make test-slow``.
ALIKE = {
    "another_layer_count",
    "averaged_weights",
    "compiled_again_between",
    "data_overwritten_between",
    "defaults",
    "ended_by_a_loss_that_is_no_number",
    "evaluated_and_asked",
    "first_epoch_later",
    "folds_inside",
    "in_quiet",
    "model_built_and_trained_before",
    "model_used_by_a_callback",
    "plain",
    "plateau",
    "positional",
    "remainders",
    "scheduled",
    "session_cleared",
    "split_and_weighted",
    "twice",
    "two_inputs_by_name",
    "two_models",
    "unshuffled",
    "weights_written_by_a_callback",
    "validation_in_a_list",
    "validations_are_told_of",
}


@pytest.mark.parametrize("name", slow_where(FUNCTIONS, ALIKE.__contains__))
def test_a_function_in_a_pack_is_that_function(name, random_state):
    functions = [partial(FUNCTIONS[name], i) for i in range(len(SEEDS))]
    notes: list[str] = []
    before = random_state()
    with Engine(notes=notes.append) as engine:
        calls = [FunctionCall(i, f, SEEDS[i]) for i, f in enumerate(functions)]
        outcomes = {outcome.number: outcome for outcome in engine.run(calls)}
    assert random_state() == before
    assert notes == []
    assert sorted(outcomes) == [0, 1, 2]
    for outcome in outcomes.values():
        assert outcome.error is None
        assert all(fit.why_alone is None and fit.program for fit in outcome.fits)
    # The last differs from the first in every number that the functions are given.
    assert_same(outcomes[2].value, alone(functions[2], SEEDS[2]))


def test_functions_of_one_program_share_a_pack():
    with Engine() as engine:
        calls = [FunctionCall(i, partial(FUNCTIONS["plain"], i), i) for i in range(5)]
        outcomes = list(engine.run(calls))
        assert engine.program_counts() == {"distinct": 1, "roles": 2}
    (program,) = {fit.program for outcome in outcomes for fit in outcome.fits}
    assert program is not None


def test_what_differs_late_is_compiled_once():
    """Scans walk a grid: for many functions one number differs, and then another does."""

    def function(dropout, rate):
        model = network(dropout, optimizer=keras.optimizers.Adam(rate))
        model.fit(X, Y, epochs=1, verbose=0)

    values = [(dropout, rate) for dropout in (1, 2) for rate in (0.01, 0.02, 0.03, 0.04)]
    with Engine() as engine:
        calls = [FunctionCall(i, partial(function, *pair), i) for i, pair in enumerate(values)]
        assert all(outcome.error is None for outcome in engine.run(calls))
        assert engine.program_counts() == {"distinct": 1, "roles": 1}


def test_programs_are_looked_for_before_the_first_is_compiled(monkeypatch):
    begun, compiled = [], []
    compile_group = Planner.compile

    def compile_noted(self, *arguments):
        compiled.append(len(begun))
        compile_group(self, *arguments)

    monkeypatch.setattr(Planner, "compile", compile_noted)

    def function(i):
        begun.append(i)
        network(units=8 + i // 2).fit(X, Y, epochs=1, verbose=0)

    with Engine(slots=2, concurrent=True) as engine:  # two functions fill the slots
        assert (
            len(list(engine.run([FunctionCall(i, partial(function, i), i) for i in range(4)]))) == 4
        )
    assert compiled == [4, 4]


def test_where_keras_shuffles():
    """Written nowhere, and what the orders of examples in packs rest on."""
    seen: list[tuple[str, int]] = []

    class Notes(keras.callbacks.Callback):
        def on_train_begin(self, logs=None):
            seen.append(("train", draws()))

        def on_epoch_begin(self, epoch, logs=None):
            seen.append(("begin", draws()))

        def on_epoch_end(self, epoch, logs=None):
            seen.append(("end", draws()))

    def draws() -> int:
        """How many permutations of the examples have been drawn since the seed."""
        now = np.random.get_state()
        np.random.seed(5)
        count = 0
        while not same(np.random.get_state(), now):
            np.random.permutation(len(X))
            count += 1
            assert count < 20
        np.random.set_state(now)
        return count

    def same(one, other) -> bool:
        return one[2] == other[2] and np.array_equal(one[1], other[1])

    model = network()
    np.random.seed(5)
    for _ in range(2):
        model.fit(X, Y, epochs=2, validation_split=0.0, callbacks=[Notes()], verbose=0)
    first = [("train", 1), ("begin", 1), ("end", 2), ("begin", 2), ("end", 3)]
    # Nothing is left to build in the second: it looks at no batch before it trains.
    second = [("train", 3), ("begin", 3), ("end", 4), ("begin", 4), ("end", 5)]
    assert seen == first + second
