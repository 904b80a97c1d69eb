"""A process is after a search as it was before, however the search has ended."""

from __future__ import annotations

import gc
import os
import signal
import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax
import keras
import numpy as np
import pytest
from jax.experimental.compilation_cache import compilation_cache

import paceline
from marks import slow_where
from paceline.compat.interception import Engine, FunctionCall
from paceline.errors import BuildError
from paceline.executor.process import search_process
from paceline.program.initial_weights import NAMES

pytestmark = pytest.mark.usefixtures("collector_of_a_user")

X = np.random.default_rng(0).normal(size=(32, 3)).astype(np.float32)
Y = (X.sum(1) > 0).astype(np.int32)


def state(random_state: Callable[[], Any]) -> dict[str, Any]:
    """All that a search might change, in a form that compares."""
    config = keras.config
    return {
        "random": random_state(),
        "gc": (gc.isenabled(), gc.get_threshold(), gc.get_freeze_count()),
        "jax.random": [getattr(jax.random, name) for name in NAMES],
        "jax.config": {n: v for n, v in jax.config.values.items() if n != "jax_platforms"},
        "keras": (config.dtype_policy().name, config.floatx(), config.image_data_format()),
        "fit": (vars(keras.Model).get("fit"), keras.Model.fit),
        "warnings": (list(warnings.filters), warnings.showwarning),
        "streams": (
            sys.stdout,
            sys.stderr,
            sys.excepthook,
            threading.excepthook,
            sys.unraisablehook,
        ),
        "signals": [
            signal.getsignal(one) for one in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
        ],
        "environment": dict(os.environ),
        "folder": Path.cwd(),
        "errors": np.geterr(),
    }


@pytest.fixture
def before(
    cache_folder: Path, random_state: Callable[[], Any]
) -> Iterator[Callable[[], dict[str, Any]]]:
    """The state now; JAX has no folder for its compilation cache, as for most users."""
    folder = jax.config.jax_compilation_cache_dir
    jax.config.update("jax_compilation_cache_dir", None)
    compilation_cache.reset_cache()
    yield lambda: state(random_state)
    jax.config.update("jax_compilation_cache_dir", folder)
    compilation_cache.reset_cache()


def changed(before: dict[str, Any], after: dict[str, Any]) -> set[str]:
    return {name for name, value in before.items() if after[name] != value}


class Build:
    """Builds a model, and notes what is changed meanwhile.

    Args:
        now: The state.
        error: Raised by the second call and later ones.
    """

    def __init__(
        self, now: Callable[[], dict[str, Any]], error: BaseException | None = None
    ) -> None:
        self._now, self._error, self._calls = now, error, 0
        self._outside = now()
        self.meanwhile: set[str] = set()

    def __call__(self, hp: Any) -> keras.Model:
        self.meanwhile |= changed(self._outside, self._now())
        self._calls += 1
        if self._error is not None and self._calls > 1:
            raise self._error
        model = keras.Sequential([keras.layers.Input((3,)), keras.layers.Dense(2)])
        rate = hp.Float("rate", 0.01, 0.1) if hp is not None else 0.1
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile(keras.optimizers.SGD(rate), loss)
        return model


def search(build: Build) -> None:
    tuner = paceline.Tuner(build, objective="loss", sampler="random", seed=1, study="s")
    tuner.search(X, Y, epochs=1, n_trials=2, batch_size=16, verbose=0)


def test_after_a_search(before):
    outside, build = before(), Build(before)
    search(build)
    assert {"gc", "jax.random", "jax.config"} <= build.meanwhile
    assert changed(outside, before()) == set()


def test_the_best_model_is_built_as_in_a_search(before):
    """Without it, each process would compile the initial weights of each shape anew."""
    build = Build(before)
    tuner = paceline.Tuner(build, objective="loss", sampler="random", seed=1, study="s")
    tuner.search(X, Y, epochs=1, n_trials=1, batch_size=16, verbose=0)
    outside = before()
    build.meanwhile.clear()
    assert tuner.best_model().built
    assert {"jax.random", "jax.config"} <= build.meanwhile
    assert changed(outside, before()) == set()


@pytest.mark.slow
def test_after_a_search_whose_models_fail(before):
    outside, build = before(), Build(before, ValueError("no model"))
    with pytest.raises(BuildError, match="no model"):
        search(build)
    assert changed(outside, before()) == set()


def test_after_an_interrupted_search(before):
    outside, build = before(), Build(before, KeyboardInterrupt("by the user"))
    with pytest.raises(KeyboardInterrupt, match="by the user"):
        search(build)
    assert changed(outside, before()) == set()


@pytest.mark.slow
def test_after_a_bench(before):
    outside, build = before(), Build(before)
    paceline.bench(
        build,
        X,
        Y,
        batch_sizes=[16],
        parallel_trials=[1],
        mesh=1,
        measure_for=60,
        on_note=lambda text: None,
    )
    assert {"gc", "jax.config"} <= build.meanwhile
    assert "jax.random" not in build.meanwhile  # what Keras takes is measured
    assert changed(outside, before()) == set()


@pytest.mark.parametrize("closed_early", slow_where([False, True], bool))
def test_after_intercepted_fits(before, closed_early):
    outside, build = before(), Build(before)

    def function() -> None:
        build(None).fit(X, Y, epochs=1, batch_size=16, verbose=0)

    with Engine() as engine:
        outcomes = engine.run(
            [FunctionCall(0, function, seed=1), FunctionCall(1, function, seed=2)]
        )
        assert next(outcomes).error is None
        if closed_early:
            outcomes.close()
        assert all(outcome.error is None for outcome in outcomes)
    assert {"gc", "jax.random", "jax.config", "fit"} <= build.meanwhile
    assert changed(outside, before()) == set()


@pytest.mark.parametrize("first_ends_first", slow_where([False, True], lambda first: not first))
def test_after_the_last_of_two_searches_at_once(before, first_ends_first):
    outside = before()
    inside, leave = threading.Event(), threading.Event()

    def other() -> None:
        with search_process(random_state=False):
            inside.set()
            leave.wait(60)

    thread = threading.Thread(target=other)
    with search_process(random_state=False):
        within = before()
        thread.start()
        assert inside.wait(60)
        if not first_ends_first:
            leave.set()
            thread.join(60)
        assert changed(within, before()) <= {"gc"}  # the count of frozen objects goes down
        assert gc.get_freeze_count() > 0
    if first_ends_first:
        assert changed(within, before()) <= {"gc"}
        assert gc.get_freeze_count() > 0
        assert gc.get_threshold() == within["gc"][1]
        leave.set()
        thread.join(60)
    assert changed(outside, before()) == set()


def test_a_search_inside_of_another_leaves_it_as_it_is(before):
    outside = before()
    with search_process("bfloat16"):
        within = before()
        with search_process("float32"):
            assert keras.config.dtype_policy().name == "float32"
        assert changed(within, before()) <= {"gc"}
        assert gc.get_freeze_count() > 0
    assert changed(outside, before()) == set()
