"""The catalogue itself: it is complete, its flags are true, and Keras repeats itself on it.

That packed trials equal these models is tested elsewhere; here only Keras runs.
"""

from __future__ import annotations

import jax
import keras
import numpy as np
import pytest

import zoo
from marks import slow_where
from numerics.alike import is_like_others
from paceline.program import keras_private
from paceline.search_space import HyperParameters
from zoo import optimizers
from zoo.rounding import rounds

# A few whose fit is quick: all are fitted where packed trials are compared with them.
FITTED = ["custom_train_step_extra_log", "ema"]

every_case = pytest.mark.parametrize("case", zoo.CASES.values(), ids=zoo.CASES.keys())


def test_every_optimizer_of_keras_has_a_case() -> None:
    missing = set(optimizers.exported()) - set(optimizers.BUILT_IN)
    assert not missing, f"add {sorted(missing)} to BUILT_IN in zoo/optimizers.py"


@every_case
def test_values_are_floats_under_the_names_that_build_declares(case: zoo.Case) -> None:
    assert 3 <= len(case.hparams) <= 4
    for hparams in case.hparams:
        assert all(isinstance(value, float) for value in hparams.values())
    hp = HyperParameters(values=case.hparams[0])
    case.build(hp)
    assert hp.hparams == case.hparams[0]
    for name in case.hparams[0]:
        assert len({hparams[name] for hparams in case.hparams}) > 1, f"{name} never differs"


@every_case
def test_data_has_a_remainder_batch(case: zoo.Case) -> None:
    for data in (case.data(), case.val_data() if case.val_data else case.data()):
        lengths = {len(leaf) for leaf in jax.tree.leaves(data)}
        assert len(lengths) == 1
        assert 0 < lengths.pop() % case.batch_size < case.batch_size


def _trace(case: zoo.Case):
    """The train step's jaxpr under float64, on a full batch."""
    zoo.fresh_session()
    keras.utils.set_random_seed(3)
    model = case.build(HyperParameters(values=case.hparams[0]))
    batch = jax.tree.map(lambda a: _batch_of(a, case.batch_size), case.data())
    keras_private.symbolic_build(model, batch)
    state = (
        model.trainable_variables,
        model.non_trainable_variables,
        model.optimizer.variables,
        model.metrics_variables,
    )
    shapes = jax.tree.map(lambda v: jax.ShapeDtypeStruct(v.shape, v.dtype), state)
    return jax.make_jaxpr(model.train_step)(shapes, batch)


def _batch_of(array: np.ndarray, batch_size: int) -> jax.ShapeDtypeStruct:
    dtype = keras.config.floatx() if array.dtype.kind == "f" else array.dtype
    return jax.ShapeDtypeStruct((batch_size, *array.shape[1:]), dtype)


@pytest.fixture(scope="module")
def keras_keeps_float32() -> bool:
    """Whether this Keras computes in float32 under float64 at all: 3.10 does not, 3.15 does."""
    with zoo.float64():
        vector = jax.ShapeDtypeStruct((3,), "float64")
        return rounds(jax.make_jaxpr(keras.ops.mean)(vector))


@pytest.mark.parametrize(
    "case",
    [
        pytest.param(case, id=name, marks=[pytest.mark.slow] if is_like_others(name) else [])
        for name, case in zoo.CASES.items()
    ],
)
@pytest.mark.filterwarnings("ignore")
def test_float64_exact_is_what_the_traced_step_says(
    case: zoo.Case, keras_keeps_float32: bool
) -> None:
    if not case.packable:
        pytest.skip("never traced")
    if not case.float64_exact and not keras_keeps_float32:
        pytest.skip("exact with this Keras; the flag is for later ones")
    with zoo.float64():
        assert rounds(_trace(case)) is not case.float64_exact


@pytest.mark.parametrize("name", slow_where(FITTED, lambda name: name == "ema"))
def test_keras_repeats_itself_and_moves_a_little_when_nudged(name: str) -> None:
    case = zoo.CASES[name]
    weights = zoo.EpochWeights()
    first = zoo.reference(case, case.hparams[0], seed=3, callbacks=[weights])
    assert all(len(values) == case.epochs for values in first[0].values())
    assert all(np.isfinite(value).all() for value in first[0].values())
    averaged = not np.array_equal(first[1][0], weights.epochs[-1][0])
    assert averaged == (name == "ema")
    again = zoo.reference(case, case.hparams[0], seed=3)
    assert first[0] == again[0]
    assert zoo.distance(first, again).weights == 0.0
    moved = zoo.self_perturbation(case, case.hparams[0], seed=3, alone=first)
    assert 0.0 < moved.weights < 1e-3
