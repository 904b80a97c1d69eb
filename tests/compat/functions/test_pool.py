"""``PackPoolExecutor``: the form of ``concurrent.futures``."""

from __future__ import annotations

import concurrent.futures
import subprocess
import sys
import threading

import keras
import numpy as np
import pytest

import paceline
from compat.interception.alone import alone, assert_same
from compat.interception.functions import plain


def test_futures_have_what_each_function_returns_alone():
    notes = []
    with paceline.PackPoolExecutor(seed=3, notes=notes.append) as executor:
        futures = {executor.submit(plain, i): i for i in range(3)}
        for future in concurrent.futures.as_completed(futures, timeout=120):
            assert future.exception() is None
    for future, i in futures.items():
        assert_same(future.result(), alone(lambda i=i: plain(i), 3 + i))
    (summary,) = notes
    assert summary.startswith("3 functions, 3 fits in packs (1 program), ")


def test_fits_that_are_submitted_together_train_together():
    under_way, most = set(), []

    class Watch(keras.callbacks.Callback):
        def on_epoch_begin(self, epoch, logs=None):
            under_way.add(threading.get_ident())

        def on_train_end(self, logs=None):
            most.append(len(under_way))

    def fitted(i):
        model = keras.Sequential([keras.layers.Dense(1)])
        model.compile("sgd", "mse")
        x = np.ones((8, 1), "float32")
        model.fit(x, x, callbacks=[Watch()], epochs=2, verbose=0)

    with paceline.PackPoolExecutor(concurrent=True) as executor:
        list(executor.map(fitted, range(4)))
    assert max(most) == 4


def test_map_yields_in_order_and_raises_where_the_result_is_taken():
    def train(i):
        if i == 1:
            raise ValueError("no good")
        return i

    with paceline.PackPoolExecutor() as executor:
        results = executor.map(train, range(3))
        assert next(results) == 0
        with pytest.raises(ValueError, match="no good"):
            next(results)


def test_what_ends_a_process_ends_its_function_alone():
    with paceline.PackPoolExecutor() as executor:
        leaves, stays = executor.submit(sys.exit, 3), executor.submit(pow, 2, 3)
        assert stays.result(60) == 8
        with pytest.raises(SystemExit, match="3"):
            leaves.result(60)


def test_functions_come_in_later_and_while_others_run():
    with paceline.PackPoolExecutor() as executor:
        assert executor.submit(pow, 2, 3).result(60) == 8
        inner = executor.submit(lambda: executor.submit(pow, 2, 4))
        assert inner.result(60).result(60) == 16


def test_after_the_shutdown_nothing_is_taken_and_what_waits_may_be_cancelled():
    go = threading.Event()
    executor = paceline.PackPoolExecutor()
    first = executor.submit(go.wait, 60)
    while not first.running():
        go.wait(0.01)
    second = executor.submit(pow, 2, 3)
    executor.shutdown(wait=False, cancel_futures=True)
    go.set()
    assert first.result(60) is True
    assert second.cancelled()
    with pytest.raises(RuntimeError, match="the executor was shut down"):
        executor.submit(pow, 2, 3)
    executor.shutdown()


def test_a_future_that_was_cancelled_does_not_run():
    executor = paceline.PackPoolExecutor()
    with executor:
        go = threading.Event()
        first = executor.submit(go.wait, 60)
        second = executor.submit(pow, 2, 3)
        assert second.cancel()
        go.set()
        assert first.result(60) is True
    assert second.cancelled()


def test_the_settings_of_who_submits_hold_in_the_function():
    before = keras.config.dtype_policy()
    keras.config.set_dtype_policy("mixed_bfloat16")
    try:
        with paceline.PackPoolExecutor() as executor:
            name = executor.submit(lambda: keras.config.dtype_policy().name).result(60)
    finally:
        keras.config.set_dtype_policy(before)
    assert name == "mixed_bfloat16"


@pytest.mark.slow
def test_a_script_that_forgets_the_shutdown_finishes_its_functions():
    script = """
import paceline
executor = paceline.PackPoolExecutor()
executor.submit(lambda: print("done"))
"""
    command = [sys.executable, "-c", script]
    outcome = subprocess.run(command, check=True, capture_output=True, text=True, timeout=120)
    assert outcome.stdout == "done\n"
