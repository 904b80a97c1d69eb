"""What users' own ``evaluate``, ``predict`` and their like are given: right numbers, or none."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest
from keras import layers

from paceline.compat.interception.fit_patch import intercepted
from paceline.errors import DataError
from paceline.executor.batch_checks import batches_checked, methods_patched

N, ROWS = 48, 10
RNG = np.random.default_rng(0)
X = RNG.random((N, 3)).astype("float32")
WIDE = RNG.integers(2_500_000_000, 3_500_000_000, N)
TIMES = np.stack([np.arange(N), 10**9 * np.arange(N) + 1_700_000_000_000], axis=1)
TOKENS = RNG.integers(0, ROWS, (N, 4))


def dense(width: int = 3, dtype: str = "float32", *, compiled: bool = True) -> Any:
    found = keras.Sequential([keras.Input((width,), dtype=dtype), layers.Dense(1, "linear", True)])
    found.layers[0].set_weights([np.full((width, 1), 0.5, "float32"), np.zeros(1, "float32")])
    if compiled:
        found.compile(keras.optimizers.SGD(1e-9), "mae", metrics=["mse"])
    return found


def words(built: bool = True) -> Any:
    inputs = [keras.Input((4,), dtype="int32")] if built else []
    table = layers.Embedding(ROWS, 3, embeddings_initializer="ones", name="words")
    pool = [layers.GlobalAveragePooling1D(), layers.Dense(1, kernel_initializer="ones")]
    found = keras.Sequential([*inputs, table, *pool])
    found.compile(keras.optimizers.SGD(1e-9), "mse")
    return found


def fit(model: Any, x: Any, y: Any) -> Any:
    return model.fit(x, y, epochs=1, batch_size=16, shuffle=False, verbose=0).history


def evaluate(model: Any, x: Any, y: Any) -> Any:
    return model.evaluate(x, y, batch_size=16, verbose=0)


def predict(model: Any, x: Any, y: Any) -> Any:
    return model.predict(x, batch_size=16, verbose=0).tolist()


def predict_sets(model: Any, x: Any, y: Any) -> Any:
    class Batches(keras.utils.PyDataset):
        def __len__(self) -> int:
            return 3

        def __getitem__(self, i: int) -> Any:
            return x[i * 16 : i * 16 + 16], y[i * 16 : i * 16 + 16]

    return model.predict(Batches(), verbose=0).tolist()


def train_on_batch(model: Any, x: Any, y: Any) -> Any:
    return [model.train_on_batch(x, y), model.train_on_batch(x=x, y=y, sample_weight=X[:, 0])]


def test_on_batch(model: Any, x: Any, y: Any) -> Any:
    return model.test_on_batch(x, y=y, return_dict=True)


def predict_on_batch(model: Any, x: Any, y: Any) -> Any:
    return model.predict_on_batch(x).tolist()


test_on_batch.__test__ = False  # type: ignore[attr-defined]
METHODS = [fit, evaluate, predict, predict_sets, train_on_batch, test_on_batch, predict_on_batch]
GIVEN_Y = [fit, evaluate, train_on_batch, test_on_batch]
ALL = pytest.mark.parametrize("method", METHODS)


@pytest.mark.parametrize("method", GIVEN_Y)
def test_targets_beyond_32_bits_count_as_floats_do(method: Callable[..., Any]) -> None:
    expected = method(dense(), X, WIDE.astype("float32"))
    with batches_checked():
        assert method(dense(), X, WIDE) == expected
    # without the block they are other numbers: the reason of all this
    assert method(dense(), X, WIDE) != expected


@ALL
def test_features_beyond_32_bits_count_as_floats_do(method: Callable[..., Any]) -> None:
    expected = method(dense(2), TIMES.astype("float32"), X[:, 0])
    with batches_checked():
        assert method(dense(2), TIMES, X[:, 0]) == expected


@pytest.mark.parametrize("method", [predict, predict_on_batch])
def test_a_model_that_is_not_compiled_predicts(method: Callable[..., Any]) -> None:
    expected = method(dense(2), TIMES.astype("float32"), None)
    with batches_checked():
        assert method(dense(2, compiled=False), TIMES, None) == expected


@ALL
def test_what_is_no_float_to_the_model_is_refused(method: Callable[..., Any]) -> None:
    what = r"a batch of the data: x, column 1, holds 1,7\d\d,000,000,000, which needs more than"
    model = keras.Sequential([keras.Input((2,), dtype="int64"), layers.Rescaling(1e-12)])
    model.compile("sgd", "mae")
    with batches_checked(), pytest.raises(DataError, match=what):
        method(model, TIMES, TIMES[:, :1] * 0.0)


@ALL
@pytest.mark.parametrize("value", [ROWS, -1])
@pytest.mark.parametrize("built", [True, False])
def test_numbers_beyond_an_embedding_are_refused(
    method: Callable[..., Any], value: int, built: bool
) -> None:
    tokens = TOKENS.copy()
    tokens[40, 1] = value
    with batches_checked():
        method(words(built), TOKENS, X[:, 0])
        with pytest.raises(
            DataError, match=rf"'words' looks up must be from 0 to 9.*got {value}\."
        ):
            method(words(built), tokens, X[:, 0])


@ALL
def test_arrays_in_the_byte_order_of_files_are_right(method: Callable[..., Any]) -> None:
    expected = method(dense(), X, X[:, 0])
    with batches_checked():
        assert method(dense(), X.astype(">f4"), X[:, 0].astype(">f8")) == expected


def test_each_model_is_asked_about_its_own_batches() -> None:
    other, far = dense(4), TOKENS + 5 * ROWS

    class Asks(keras.callbacks.Callback):
        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            found.append(other.predict(far, verbose=0))
            with pytest.raises(DataError, match="from 0 to 9"):
                self.model.predict(far, verbose=0)

    found: list[Any] = []
    with batches_checked():
        words().fit(TOKENS, X[:, 0], epochs=2, verbose=0, callbacks=[Asks()])
    np.testing.assert_allclose(found[1][:, 0], far.sum(axis=1) / 2, rtol=1e-6)


def test_keras_says_what_it_thinks_of_other_arguments() -> None:
    with batches_checked():
        with pytest.raises(TypeError, match="unexpected keyword argument 'z'"):
            dense().test_on_batch(X, z=1)
        with pytest.raises(Exception, match="shape"):
            dense().test_on_batch([[0.0, 1.0, 2.0]], [1.0])


def test_the_methods_are_those_of_keras_before_and_after() -> None:
    names = ("fit", "evaluate", "predict_on_batch")
    before = [getattr(keras.Model, name) for name in names]
    with methods_patched():
        ours = keras.Model.fit
        assert ours is not before[0]
        with intercepted():
            assert keras.Model.fit not in (ours, before[0])
        assert keras.Model.fit is ours
    assert [getattr(keras.Model, name) for name in names] == before
    with intercepted():
        assert keras.Model.fit is not before[0]
    assert [getattr(keras.Model, name) for name in names] == before


def test_a_patch_of_another_library_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    with batches_checked():
        ours = keras.Model.predict

        def theirs(*given: Any, **named: Any) -> Any:
            return ours(*given, **named)

        monkeypatch.setattr(keras.Model, "predict", theirs)
    assert keras.Model.predict is theirs
    assert predict(dense(), X, None) == ours(dense(), X, verbose=0).tolist()
