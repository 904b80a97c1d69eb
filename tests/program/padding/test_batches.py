"""One step for full and smaller batches is, on each, the step that was traced on that size."""

from __future__ import annotations

from typing import Any

import jax
import keras
import numpy as np
import pytest

import zoo
from marks import slow_where
from paceline.program import jax_compat, trace
from paceline.program.padding.batches import merge
from paceline.search_space import HyperParameters

B, R = 16, 5
CASES = {name: case for name, case in zoo.CASES.items() if case.packable}
#: One case of each kind of operation; ``make test-slow`` takes all.
QUICK = [
    "dense",
]


def _batch(case: zoo.Case, size: int) -> Any:
    def rows(array: np.ndarray) -> np.ndarray:
        array = array.astype(keras.config.floatx()) if array.dtype.kind == "f" else array
        return array[:size]

    return jax.tree.map(rows, case.data())


def _shapes(nest: Any) -> Any:
    return jax.tree.map(lambda a: jax.ShapeDtypeStruct(a.shape, a.dtype), nest)


def _garbage(array: np.ndarray, size: int) -> np.ndarray:
    """A batch whose rows beyond ``size`` must not matter; whole numbers stay valid ones."""
    found = array.copy()
    found[size:] = np.nan if array.dtype.kind == "f" else array[0]
    return found


def _run(closed: Any, *args: Any) -> list[np.ndarray]:
    return [np.asarray(a) for a in jax.jit(jax_compat.jaxpr_as_fun(closed))(*args)]


def _traces(case: zoo.Case) -> tuple[list[Any], trace.Step, trace.Step]:
    keras.utils.set_random_seed(3)
    model = case.build(HyperParameters(values=case.hparams[0]))
    state = trace.build_state(model, _shapes(_batch(case, B)))
    full, small = (trace.trace_train(model, state, _shapes(_batch(case, n))) for n in (B, R))
    return jax.tree.leaves(state.lists()), full, small


def _apart(ours: list[np.ndarray], theirs: list[np.ndarray]) -> float:
    """The largest difference, relative to the larger number, or to 1 where that is larger."""
    found = 0.0
    for a, b in zip(ours, theirs, strict=True):
        x, y = a.astype(np.float64), b.astype(np.float64)
        assert np.array_equal(np.isnan(x), np.isnan(y))
        scale = np.maximum(1.0, np.maximum(abs(x), abs(y)))
        found = max(found, float(np.nanmax(abs(x - y) / scale, initial=0.0)))
    return found


@pytest.mark.parametrize("name", slow_where(CASES, lambda name: name not in QUICK))
@pytest.mark.filterwarnings("ignore")
def test_each_size_is_as_it_was_traced(name: str) -> None:
    case = CASES[name]
    with zoo.float64():
        state, full, small = _traces(case)
        step = merge(full, small, ())
        batch = _batch(case, B)
        whole = _run(step.closed, np.int32(B), *step.full, *state, *jax.tree.leaves(batch))
        # The same operations on the same numbers, fused otherwise.
        tight = 1e-12 if case.float64_exact else 1e-5
        assert _apart(whole, _run(full.closed, *state, *jax.tree.leaves(batch))) < tight
        rows = jax.tree.leaves(jax.tree.map(lambda a: _garbage(a, R), batch))
        some = _run(step.closed, np.int32(R), *step.small, *state, *rows)
        # Sums over rows are taken in another order: 16 numbers, 11 of them zeros.
        assert _apart(some, _run(small.closed, *state, *jax.tree.leaves(_batch(case, R)))) < tight
