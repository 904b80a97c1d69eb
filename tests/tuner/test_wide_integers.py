"""Integers beyond 32 bits: the right numbers, as on TensorFlow, or an error; never others."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pandas as pd
import pytest
from keras import layers

import paceline
from marks import slow_where
from paceline.compat.interception import Engine, FunctionCall
from paceline.compat.talos.evaluate import outputs
from paceline.tuner.after.predict_script import as_floats

N, SIZE = 48, 16
RNG = np.random.default_rng(0)
X = RNG.random((N, 3)).astype("float32")
Y = RNG.integers(2_500_000_000, 3_500_000_000, N)
TABLE = pd.DataFrame({"a": range(N), "ms": 10**9 * np.arange(N) + 1_700_000_000_000})
CALL: dict[str, Any] = {"epochs": 2, "n_trials": 1, "shuffle": False}
CAST = r"needs more than the 32 bits .* the model does not cast it to a float at once\. Pass floats"


def compiled(model: Any, hp: Any, **arguments: Any) -> Any:
    optimizer = keras.optimizers.SGD(hp.Choice("lr", [1e-8, 1e-7]))
    model.compile(optimizer, "mae", metrics=["mse"], **arguments)
    return model


def dense(hp: Any) -> Any:
    return compiled(keras.Sequential([layers.Dense(1)]), hp)


def embedding(hp: Any) -> Any:
    found = [layers.Embedding(50, 2), layers.Flatten(), layers.Dense(1)]
    return compiled(keras.Sequential([keras.Input((2,), dtype="int32"), *found]), hp)


def embedding_of_floats(hp: Any) -> Any:
    found = [layers.Embedding(50, 2), layers.Flatten(), layers.Dense(1)]
    return compiled(keras.Sequential([keras.Input((2,)), *found]), hp)


def integer_input(hp: Any) -> Any:
    found = [layers.Rescaling(1e-12), layers.Dense(1)]
    return compiled(keras.Sequential([keras.Input((2,), dtype="int64"), *found]), hp)


def by_name(hp: Any) -> Any:
    inputs = {"a": keras.Input((3,), name="a"), "when": keras.Input((1,), name="when")}
    joined = layers.Concatenate()(list(inputs.values()))
    return compiled(keras.Model(inputs, layers.Dense(1)(joined)), hp)


class InThousands(keras.Sequential):
    def compute_loss(self, x: Any = None, y: Any = None, *args: Any, **kwargs: Any) -> Any:
        return super().compute_loss(x, y // 1000, *args, **kwargs)


def of_integers(hp: Any) -> Any:
    return compiled(InThousands([layers.Dense(1)]), hp)


class Batches(keras.utils.PyDataset):
    def __init__(self, x: Any, y: Any) -> None:
        super().__init__()
        self.x, self.y = x, y

    def __len__(self) -> int:
        return N // SIZE

    def __getitem__(self, index: int) -> Any:
        rows = slice(index * SIZE, (index + 1) * SIZE)
        return self.x[rows], self.y[rows]


class Late(Batches):
    """Without an end; its targets are beyond 32 bits from the seventh batch on."""

    num_batches = None

    def __getitem__(self, index: int) -> Any:
        x, y = super().__getitem__(index % len(self))
        return x, y if index > 6 else y * 0 + 3


def tuner(build: Any, study: str, **settings: Any) -> paceline.Tuner:
    given: dict[str, Any] = {"objective": "min:loss", "on_note": len, "sampler": "grid"}
    return paceline.Tuner(build, study=study, **(given | settings))


def history(study: str, build: Any, data: Any, executor: str = "packed", **call: Any) -> Any:
    found = tuner(build, study, executor=executor)
    found.search(*data, **(CALL | call))
    return found.trial(0).history


def generated(x: Any, y: Any) -> Iterator[Any]:
    while True:
        yield from (Batches(x, y)[i] for i in range(N // SIZE))


def arrays(x: Any, y: Any) -> Any:
    return (x, y), {"batch_size": SIZE, "validation_data": (x, y)}


def split(x: Any, y: Any) -> Any:
    return (x, y), {"validation_split": 0.25, "class_weight": {0: 2.0}}


def lists(x: Any, y: Any) -> Any:
    return arrays(x, y.tolist())


def frames(x: Any, y: Any) -> Any:
    table = pd.DataFrame(x).assign(y=y)
    return arrays(table[[0, 1, 2]], table["y"])


def weights(x: Any, y: Any) -> Any:
    return (x, x[:, 0]), {"sample_weight": y}


def files(x: Any, y: Any) -> Any:
    np.save("y.npy", y)
    return arrays(x, np.load("y.npy", mmap_mode="r"))


def unsigned(x: Any, y: Any) -> Any:
    return arrays(x, 2 * y if y.dtype == "float32" else (2 * y).astype("uint64"))


def data_sets(x: Any, y: Any) -> Any:
    return (Batches(x, y),), {"validation_data": Batches(x, y)}


def generators(x: Any, y: Any) -> Any:
    return (generated(x, y),), {"steps_per_epoch": 3}


KINDS = [arrays, split, frames, weights, data_sets, generators, lists, files, unsigned]
QUICK = [*((kind, "packed") for kind in KINDS[:6]), (data_sets, "fit"), (generators, "fit")]
ALL = slow_where(itertools.product(KINDS, ("packed", "fit")), lambda case: case not in QUICK)


@pytest.mark.parametrize(("kind", "executor"), ALL)
def test_targets_and_weights_count_as_floats_do(kind: Callable[..., Any], executor: str) -> None:
    found = []
    for study, y in {"integers": Y, "floats": Y.astype("float32")}.items():
        data, call = kind(X, y)
        found.append(history(study, dense, data, executor, **call))
    assert found[0] == found[1]
    if kind is not weights:
        assert all(value > 2e9 for value in found[0]["loss"])


@pytest.mark.parametrize("executor", ["packed", "fit"])
@pytest.mark.parametrize(
    ("build", "x"), [(dense, TABLE), (by_name, {"a": X, "when": TABLE["ms"].to_numpy()})]
)
def test_features_count_as_floats_do(build: Any, x: Any, executor: str) -> None:
    floats = keras.tree.map_structure(lambda a: np.asarray(a, "float32"), x)
    data = {"integers": x, "floats": floats}
    found = [history(study, build, (x, X[:, 0]), executor) for study, x in data.items()]
    assert found[0] == found[1]


@pytest.mark.parametrize("executor", ["auto", "fit"])
@pytest.mark.parametrize(
    ("build", "data", "where"),
    [
        (embedding, (TABLE, X[:, 0]), "training data: x, column 'ms', holds 1,747,000,000,000"),
        (embedding_of_floats, (TABLE, X[:, 0]), "training data: x, column 'ms', holds"),
        (integer_input, (TABLE, X[:, 0]), "training data: x, column 'ms', holds"),
        (embedding, (Batches(TABLE.to_numpy(), X),), "training data: x, column 1, holds"),
        (of_integers, (X, Y), f"training data: y holds {Y.max():,}"),
    ],
)
def test_what_is_no_float_to_the_model_is_refused(
    build: Any, data: Any, where: str, executor: str
) -> None:
    with pytest.raises(paceline.DataError, match=f"{where}.*{CAST}"):
        tuner(build, "s", executor=executor).search(*data, **CALL)
    assert not Path("runs").exists()


def test_validation_data_are_looked_at_too() -> None:
    call = CALL | {"validation_data": (TABLE, X[:, 0])}
    with pytest.raises(paceline.DataError, match="validation data: x, column 'ms', holds 1,747,"):
        tuner(embedding, "s").search(TABLE % 50, X[:, 0], **call)
    assert not Path("runs").exists()


@pytest.mark.parametrize("executor", ["auto", "fit"])
def test_a_trial_of_another_model_fails_alone(executor: str) -> None:
    def build(hp: Any) -> Any:
        return [dense, embedding][hp.Int("kind", 0, 1)](hp)

    found = tuner(build, "s", executor=executor)
    found.search(TABLE, X[:, 0], **(CALL | {"n_trials": 4}))
    trials = found._require_study().trials
    assert sorted(t.state for t in trials) == ["complete"] * 2 + ["failed"] * 2
    for trial in trials:
        assert (trial.state == "failed") == (trial.hparams["kind"] == 1)
        assert trial.state == "complete" or "'ms'" in trial.error or "column 1" in trial.error


@pytest.mark.slow
def test_a_batch_that_comes_late_is_an_error_in_packs_and_a_float_in_fit() -> None:
    call: dict[str, Any] = {"epochs": 4, "steps_per_epoch": 3}
    with pytest.raises(paceline.DataError, match=r"x: batch 8 of the Late: y holds 3,\d+,\d+,\d+,"):
        history("s", dense, (Late(X, Y),), **call)
    found = [history(f"{y.dtype}", dense, (Late(X, y),), "fit", **call) for y in (Y, Y * 1.0)]
    assert found[0] == found[1]
    assert found[0]["loss"][-1] > 2e9


def test_what_fits_into_32_bits_stays_as_it_is() -> None:
    y = np.array([2**31 - 1, -(2**31)] * (N // 2))
    found = [history(f"{each.dtype}", dense, (X, each)) for each in (y, y.astype("int32"))]
    assert found[0] == found[1]


@pytest.mark.parametrize(
    ("kind", "executor"),
    slow_where(
        itertools.product([arrays, frames, data_sets, generators, files], ("packed", "fit")),
        lambda case: case not in [(arrays, "fit"), (data_sets, "packed")],
    ),
)
def test_arrays_in_the_byte_order_of_files_are_right(kind: Any, executor: str) -> None:
    found = []
    for study, order in {"own": "=", "foreign": ">"}.items():
        data, call = kind(X.astype(f"{order}f4"), X[:, 0].astype(f"{order}f4"))
        found.append(history(study, dense, data, executor, **call))
    assert found[0] == found[1]


def test_a_fit_in_a_function_of_the_users_sees_floats() -> None:
    def function(build: Any, x: Any, y: Any, **call: Any) -> Any:
        keras.utils.set_random_seed(1)
        model = build(paceline.HyperParameters())
        return model.fit(x, y, epochs=1, verbose=0, **call).history["loss"]

    def outcomes(y: Any) -> Any:
        packed = FunctionCall(0, lambda: function(dense, X, y), 0)
        alone = FunctionCall(1, lambda: function(dense, X, y, shuffle="batch"), 1)
        refused = FunctionCall(2, lambda: function(of_integers, X, y), 2)
        with Engine() as engine:
            return sorted(engine.run([packed, alone, refused]), key=lambda each: each.number)

    packed, alone, refused = outcomes(Y)
    expected = outcomes(Y.astype("float32"))
    assert [packed.value, alone.value] == [each.value for each in expected[:2]]
    assert [packed.fits[0].plan, alone.fits[0].plan] == ["vectorized", "fit"]
    assert isinstance(refused.error, paceline.DataError)
    assert "y holds 3," in str(refused.error)


def test_what_predicts_for_the_user_sees_floats() -> None:
    hp = paceline.HyperParameters()
    model = compiled(keras.Sequential([keras.Input((2,)), layers.Dense(1)]), hp)
    x, floats = TABLE.to_numpy(), TABLE.to_numpy("float32")
    expected = model.predict(floats, verbose=0)
    np.testing.assert_array_equal(outputs(model, x), expected)
    np.testing.assert_array_equal(as_floats(x, model), floats)
    what = "a batch of the data: x, column 1, holds"
    with pytest.raises(paceline.DataError, match=f"{what} 1,731,.*{CAST}"):
        outputs(embedding(hp), x)


@pytest.mark.slow
def test_an_ensemble_is_measured_on_floats() -> None:
    notes: list[str] = []
    found = tuner(dense, "s", keep_best=2, objective="val_loss", on_note=notes.append)
    found.search(TABLE, Y, **(CALL | {"n_trials": 2, "validation_data": (TABLE, Y)}))
    for kind in ("int64", "float32"):
        found.ensemble(2, validation_data=(TABLE.astype(kind), Y.astype(kind)))
    assert notes[-1].startswith("ensemble of trials")
    assert notes[-2] == notes[-1]
