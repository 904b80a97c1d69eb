"""``paceline.map``: results in order, as each call alone would have them."""

from __future__ import annotations

import itertools
import subprocess
import sys

import keras
import numpy as np
import pytest

import paceline
from compat.interception.alone import alone, assert_same
from compat.interception.functions import X, Y, network, plain
from paceline.errors import UsageError


def fitted(i):
    model = network(i)
    history = model.fit(X, Y, epochs=1 + i % 2, verbose=0)
    return history.history["loss"][-1]


def test_results_are_those_of_each_call_alone_in_order():
    results = paceline.map(plain, range(2), seeds=7, progress=False)
    for i, result in enumerate(results):
        assert_same(result, alone(lambda i=i: plain(i), 7 + i))


def test_nothing_runs_before_the_first_result_is_taken():
    begun = []

    def train(i):
        begun.append(i)
        return i

    results = paceline.map(train, range(3), progress=False)
    assert begun == []
    assert next(results) == 0
    assert list(results) == [1, 2]


def test_an_error_arises_where_its_result_is_taken_and_the_next_results_are_there():
    def train(i):
        if i == 1:
            raise ValueError(f"no good: {i}")
        return fitted(i)

    results = paceline.map(train, range(3), seeds=[5, 5, 5], progress=False)
    next(results)
    with pytest.raises(ValueError, match="no good: 1"):
        next(results)
    assert isinstance(next(results), float)
    with pytest.raises(StopIteration):  # noqa: PT011 - it has no text
        next(results)


def test_several_iterables_end_with_the_shortest():
    found = paceline.map(lambda a, b: (a, b), [1, 2], itertools.count(10), progress=False)
    assert list(found) == [(1, 10), (2, 11)]


def test_an_error_of_the_configurations_comes_after_the_results_before_it():
    def configurations():
        yield 1
        raise KeyError("broken")

    results = paceline.map(lambda value: value, configurations(), progress=False)
    assert next(results) == 1
    with pytest.raises(KeyError, match="broken"):
        next(results)
    assert list(results) == []


def test_an_endless_list_of_configurations_may_be_left():
    results = paceline.map(lambda i: i, itertools.count(), progress=False)
    assert [next(results) for _ in range(3)] == [0, 1, 2]
    results.close()
    assert "fit" not in vars(keras.Model)


def test_what_ends_the_process_is_raised_and_said_again():
    def leaves(i):
        sys.exit(3)

    results = paceline.map(leaves, [1], progress=False)
    with pytest.raises(SystemExit, match="3"):
        next(results)
    with pytest.raises(RuntimeError, match=r"SystemExit has ended the run\. Call paceline\.map"):
        next(results)


def test_functions_that_share_an_optimizer_run_one_at_a_time_with_a_note():
    optimizer = keras.optimizers.Adam()

    def train(i):
        model = network(0, optimizer=optimizer)
        return model.fit(X, Y, verbose=0).history["loss"][-1]

    notes: list[str] = []
    results = paceline.map(train, range(2), seeds=0, progress=False, notes=notes.append)
    next(results)
    results.close()
    assert "run one at a time" in notes[0]
    assert "Adam" in notes[0]


def test_the_summary_counts_fits(capsys):
    list(paceline.map(fitted, range(2), seeds=0))
    line = capsys.readouterr().err
    assert "2/2 calls" in line
    assert "2 fits in packs (1 program)" in line


@pytest.mark.parametrize(
    ("arguments", "options", "text"),
    [
        ((3, [1]), {}, "function must be callable, got int"),
        ((fitted,), {}, "iterables are missing"),
        ((fitted, [1]), {"seeds": "12"}, "seeds must be an integer, integers or None, got '12'"),
        ((fitted, [1]), {"concurrent": "no"}, "concurrent: 'no' is not True"),
    ],
)
def test_bad_arguments_are_refused_before_anything_runs(arguments, options, text):
    with pytest.raises(UsageError, match=text):
        paceline.map(*arguments, **options)


def test_too_few_seeds_are_refused_where_one_is_missing():
    results = paceline.map(lambda i: i, [1, 2], seeds=[np.int64(4)], progress=False)
    assert next(results) == 1
    with pytest.raises(UsageError, match="one integer for each call, got None for call 1"):
        next(results)


@pytest.mark.slow
def test_a_script_that_takes_one_result_ends():
    """Threads of calls under way are unwound before Python stops threads."""
    script = """
import paceline, keras, numpy as np
x, y = np.ones((64, 4), "float32"), np.ones((64, 1), "float32")
def train(i):
    model = keras.Sequential([keras.layers.Dense(4), keras.layers.Dense(1)])
    model.compile("adam", "mse")
    return model.fit(x, y, epochs=i, verbose=0).history["loss"][-1]
results = paceline.map(train, [1, 500, 500], progress=False)
print(next(results))
"""
    command = [sys.executable, "-c", script]
    outcome = subprocess.run(command, check=True, capture_output=True, text=True, timeout=120)
    assert float(outcome.stdout) > 0
