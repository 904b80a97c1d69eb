"""Numbers beyond an Embedding are found before anything trains, in all data."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import pandas as pd
import pytest
from keras import layers

import paceline
from paceline.data.arrays import prepare
from paceline.data.batched import inspect_dataset
from paceline.errors import DataError
from paceline.executor.tokens import TokenChecks

N, LENGTH, ROWS = 40, 5, 10
T = np.random.default_rng(0).integers(0, ROWS, (N, LENGTH))
Y = np.zeros(N, "float32")


def with_one(value: int, column: int = 2) -> np.ndarray:
    tokens = T.copy()
    tokens[7, column] = value
    return tokens


def model(mask_zero: bool = False, rows: int = ROWS, built: bool = True) -> Any:
    table = layers.Embedding(rows, 3, mask_zero=mask_zero, name="words")
    inputs = [keras.Input((LENGTH,))] if built else []
    made = keras.Sequential([*inputs, table, layers.GlobalAveragePooling1D(), layers.Dense(1)])
    made.compile("sgd", "mse")
    return made


class Batches(keras.utils.PyDataset):
    """The last batch holds what the others do not."""

    def __init__(self, value: int) -> None:
        super().__init__()
        self.value = value

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> Any:
        tokens = (with_one(self.value) if index == 3 else T)[:10]
        return tokens, Y[:10]


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (ROWS, r"'words' looks up must be from 0 to 9 .*, got 10\. Set input_dim=11"),
        (-1, r"got -1\. Renumber them from 0\."),
        (-(ROWS + 1), "got -11"),
        (999_999, "got 999,999"),
    ],
)
@pytest.mark.parametrize("kind", ["int64", "int16", ">i4", "float64", "frame", "batches"])
def test_numbers_beyond_an_embedding(value: int, message: str, kind: str) -> None:
    if kind in ("int16", ">i4") and value > 2**15 - 1:
        pytest.skip("int16 has no such number")
    checks = TokenChecks()
    if kind == "batches":
        data: Any = inspect_dataset(Batches(value), None)
        right: Any = inspect_dataset(Batches(0), None)
    else:
        tokens = with_one(value) if kind == "frame" else with_one(value).astype(kind)
        x = pd.DataFrame(tokens, columns=list("abcde")) if kind == "frame" else tokens
        data, right = prepare(x, Y), prepare(T, Y)
    with pytest.raises(DataError, match=f"^training data: .* the Embedding .*{message}"):
        checks.check(model(), data, "training data")
    checks.check(model(), right, "training data")


def test_zero_is_the_padding_of_a_mask() -> None:
    with pytest.raises(DataError, match=r"got -1\. Renumber them from 0, which is the padding"):
        TokenChecks().check(model(mask_zero=True), prepare(with_one(-1), Y), "training data")
    TokenChecks().check(model(mask_zero=True), prepare(T, Y), "training data")


def test_the_input_and_the_column_are_named() -> None:
    table: Any = keras.Input((4,), name="table")
    words: Any = keras.Input((LENGTH,), name="words")
    one = layers.Embedding(ROWS, 3, name="kind")(keras.ops.cast(table[:, 1], "int32"))
    two = layers.Flatten()(layers.Embedding(ROWS, 3, name="of words")(words))
    made = keras.Model({"table": table, "words": words}, layers.Concatenate()([one, two, table]))
    made.compile("sgd", "mse")
    numbers = np.random.default_rng(0).normal(size=(N, 4)) * 1000  # but column 1 they are no tokens
    numbers[:, 1] = T[:, 0]
    right = prepare({"table": numbers, "words": T})
    TokenChecks().check(made, right, "training data")
    wrong = numbers.copy()
    wrong[3, 1] = 77
    data = prepare({"table": wrong, "words": T})
    with pytest.raises(
        DataError, match=r"of x\['table'\]\[..., 1\] that .* 'kind' looks up must .* 77"
    ):
        TokenChecks().check(made, data, "training data")
    data = prepare({"table": numbers, "words": with_one(10)})
    with pytest.raises(
        DataError, match=r"of x\['words'\] that .* 'of words' looks up must .* got 10"
    ):
        TokenChecks().check(made, data, "training data")


def test_what_was_right_is_traced_once(monkeypatch: pytest.MonkeyPatch) -> None:
    from paceline.executor import tokens

    traced = []
    original = tokens.lookups
    monkeypatch.setattr(tokens, "lookups", lambda *a: traced.append(1) or original(*a))
    checks, data = TokenChecks(), prepare(T, Y)
    for _ in range(3):
        checks.check(model(), data, "training data")
    assert len(traced) == 1
    checks.check(model(rows=ROWS + 1), data, "training data")
    checks.check(model(), prepare(T, Y), "training data")
    assert len(traced) == 3
    with keras.device("cpu:0"):  # a model without Embeddings costs nothing
        dense = keras.Sequential([keras.Input((LENGTH,)), layers.Dense(1)])
    checks.check(dense, data, "training data")
    assert len(traced) == 3


def test_a_model_that_its_data_build_is_built_once_more() -> None:
    made: list[Any] = []

    def build() -> Any:
        made.append(model(built=False))
        return made[-1]

    checks, data = TokenChecks(), prepare(T, Y)
    unbuilt = model(built=False)
    assert checks.check(unbuilt, data, "training data", build)
    assert not checks.check(unbuilt, data, "training data", build)
    assert len(made) == 1 and not unbuilt.built
    with pytest.raises(DataError, match="validation data: .* got 10"):
        checks.check(unbuilt, prepare(with_one(10), Y), "validation data", build)


@pytest.mark.parametrize("built", [True, False])
@pytest.mark.parametrize("executor", ["auto", pytest.param("fit", marks=pytest.mark.slow)])
def test_a_search_finds_them_in_the_data_of_each_trial(built: bool, executor: str) -> None:
    def build(hp: Any) -> Any:
        return model(rows=hp.Choice("rows", [ROWS, ROWS - 1]), built=built)

    def search(x: Any, validation: Any, **more: Any) -> Any:
        tuner = paceline.Tuner(build, sampler="grid", executor=executor, **more)
        tuner.search(x, Y, validation_data=(validation, Y), epochs=1, n_trials=2)
        return tuner

    with pytest.raises(DataError, match="training data: .* got 10"):
        search(with_one(10), T)
    with pytest.raises(DataError, match="validation data: .* got -1"):
        search(T, with_one(-1))
    assert T.max() == ROWS - 1  # too much for the second trial alone
    tuner = search(T, T, study="second")
    assert [tuner.trial(n).state for n in range(2)] == ["complete", "failed"]
    assert "(input_dim=9), got 9. Set input_dim=10" in str(tuner.results()["reason"][1])


def test_a_check_changes_no_number_of_a_trial_that_its_data_build(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def search(study: str) -> Any:
        def build(hp: Any) -> Any:
            hp.Float("unused", 0.0, 1.0)
            return model(built=False)

        tuner = paceline.Tuner(build, sampler="random", study=study)
        tuner.search(T, Y + 1, validation_split=0.2, epochs=1, n_trials=2)
        return [tuner.trial(n).history["loss"] for n in range(2)]

    found = search("checked")
    monkeypatch.setattr(TokenChecks, "check", lambda *_: False)
    assert found == search("unchecked")


@pytest.mark.parametrize("where", ["training", "validation"])
def test_batches_that_only_fit_reads(where: str) -> None:
    sets = {"training": Batches(0), "validation": Batches(0)}
    sets[where] = Batches(ROWS)

    def build(hp: Any) -> Any:
        hp.Float("unused", 0.0, 1.0)
        return model()

    tuner = paceline.Tuner(build, sampler="random", executor="fit")
    with pytest.raises(paceline.PacelineError, match=r"a batch of the data: .* got 10\. Set input"):
        tuner.search(sets["training"], validation_data=sets["validation"], epochs=1, n_trials=1)
