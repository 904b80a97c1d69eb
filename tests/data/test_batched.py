"""Data sets in batches: in packs each trial sees what Keras' own ``fit`` would show it."""

from __future__ import annotations

import threading
from typing import Any

import keras
import numpy as np
import pytest

import paceline
import toys
from paceline.data.adapters import copied
from paceline.data.batched import inspect_dataset
from paceline.data.chunks import ChunkedBatches
from paceline.errors import DataError
from streams import BATCH, XV, YV, Batches, Turning, X, Y, alone, endless, same, search


@pytest.mark.slow
@pytest.mark.parametrize(
    "plan",
    [
        "vectorized",
        *(pytest.param(plan, marks=pytest.mark.slow) for plan in ("looped", "sequential")),
    ],
)
def test_a_py_dataset_with_a_smaller_last_batch(plan):
    data, validation = Batches(), Batches(XV, YV)
    tuner = search(data, validation_data=validation, plan=plan)
    assert tuner.results()["plan"].tolist() == [plan] * 4
    for number in (3,) if plan == "vectorized" else (0, 3):  # a refill, and of the first pack
        same(
            tuner,
            number,
            alone(
                tuner.trial(number),
                toys.dense,
                Batches(),
                epochs=2,
                shuffle=False,
                validation_data=Batches(XV, YV),
            ),
        )


@pytest.mark.slow  # quickly: tests/tuner/test_batched_search.py
def test_a_generator_goes_on_from_epoch_to_epoch():
    tuner = search(endless(), steps_per_epoch=3, n_trials=3)  # epochs end within a pass
    call = {"epochs": 2, "steps_per_epoch": 3, "shuffle": False}
    for number in (0, 2):
        same(tuner, number, alone(tuner.trial(number), toys.dense, endless(), **call))


@pytest.mark.slow
@pytest.mark.parametrize(
    "steps",  # of 4 batches
    [2, 3, 9],
)
def test_passes_are_cut_into_epochs_as_keras_cuts_them(steps):
    expected: dict[str, Any] = {"epochs": 5, "steps_per_epoch": steps, "shuffle": False}
    tuner = search(Batches(), steps_per_epoch=steps, epochs=5)
    arrays = search(X, "arrays", y=Y, steps_per_epoch=steps, epochs=5, batch_size=BATCH)
    history = alone(tuner.trial(3), toys.dense, Batches(), **expected)
    same(tuner, 3, history)
    same(arrays, 3, history)


def deep(hp: Any) -> Any:
    """Models of two programs."""
    model = toys.dense(hp)
    if hp.Choice("deep", [False, True]):
        model.add(keras.layers.Dense(model.output_shape[-1], activation="softmax"))
    return toys.compiled(model, 0.1)


@pytest.mark.slow
@pytest.mark.parametrize("executor", ["auto", "fit"])
def test_a_data_set_that_changes_after_each_epoch_begins_anew_in_each_trial(executor):
    tuner = search(Turning(), n_trials=4, build=deep, sampler="grid", executor=executor)
    for number in range(4):
        call = {"epochs": 2, "shuffle": False}
        same(tuner, number, alone(tuner.trial(number), deep, Turning(), **call))


def contents(data: ChunkedBatches, epoch: int) -> list[float]:
    """The first value of each batch of an epoch."""
    data.seek(epoch)
    order = data.order(0, epoch, False)[None]
    return [float(np.asarray(chunk.data[0])[0, 0]) for chunk in data.chunks(order)]


def test_each_pack_has_a_data_set_that_changes_as_it_is_at_first():
    source = inspect_dataset(Turning(), None)
    one, other = (ChunkedBatches(source, source.batch_size) for _ in range(2))
    epochs = [contents(one, epoch) for epoch in range(3)]
    assert epochs[0] != epochs[1] != epochs[2]
    assert [contents(other, epoch) for epoch in range(3)] == epochs
    assert contents(other, 1) == epochs[1]  # back, as after a checkpoint
    assert contents(ChunkedBatches(source, source.batch_size), 2) == epochs[2]
    assert not source.epochs.meet(1, 2)


def test_copies_of_a_data_set_share_what_is_large_or_cannot_be_copied(monkeypatch):
    class Shuffled(Turning):
        def __init__(self) -> None:
            super().__init__()
            self.lock, self.order, self.me = threading.Lock(), np.arange(3), self

        def on_epoch_end(self) -> None:
            self.order += 1

    monkeypatch.setattr("paceline.data.adapters._LARGE", X.nbytes)
    first = Shuffled()
    second = copied(first, 2)
    assert first.order.tolist() == [0, 1, 2] and second.order.tolist() == [2, 3, 4]
    assert second.lock is first.lock and second.me is second
    assert np.shares_memory(second.arrays[0], first.arrays[0])
    assert copied(5) == 5

    class InPlace(Turning):
        def on_epoch_end(self) -> None:
            self.arrays[0][:] = self.arrays[0][::-1]

    with pytest.raises(DataError, match="InPlace changes a large array in place, which packs"):
        inspect_dataset(InPlace(), None)


def test_a_py_dataset_that_can_be_iterated_over_is_no_generator():
    class Iterates(Batches):
        def __iter__(self) -> Any:
            return self

        def __next__(self) -> Any:
            raise AssertionError

    assert inspect_dataset(Iterates(), None).epochs.n_batches == len(Batches())


def test_a_data_set_that_grows_is_an_error_where_only_reading_tells_its_length():
    class DataLoader:
        def __init__(self) -> None:
            self.n = 1

        def __iter__(self) -> Any:
            self.n += 1
            return iter([(X[:4], Y[:4])] * self.n)

    DataLoader.__module__ = "torch.utils.data"
    source = inspect_dataset(DataLoader(), None)
    data = ChunkedBatches(source, 8)
    data.seek(0)
    with pytest.raises(DataError, match="yields more than 2 batches, its length when"):
        list(data.chunks(data.order(0, 0, False)[None]))


NUMBERS: dict[str, Any] = {
    "epochs": 6,
    "initial_epoch": 1,
    "validation_freq": 2,
    "validation_steps": 2,
    "validation_data": (XV, YV),
    "class_weight": {0: 2.0, 1: 0.5},
    "shuffle": False,
}


def test_numbers_of_fit():
    epochs: list[int] = []

    class Notes(keras.callbacks.Callback):
        def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
            epochs.append(epoch)

        def __deepcopy__(self, memo: Any) -> Any:
            return Notes()

    more = {"callbacks": [Notes()], "batch_size": 8}
    arrays = search(X, y=Y, **more, **NUMBERS)  # the fourth trial waits for its turn
    assert sorted(epochs) == sorted([1, 2, 3, 4, 5] * 4)
    same(arrays, 3, alone(arrays.trial(3), toys.dense, X, y=Y, batch_size=8, **NUMBERS))
    assert [np.isnan(v) for v in arrays.history(3)["val_loss"]] == [False, True, False, True, False]


@pytest.mark.slow
def test_numbers_of_fit_with_batches():
    call = NUMBERS | {"validation_freq": [3, 6]}
    batches = search(Batches(size=8), **call)
    same(batches, 3, alone(batches.trial(3), toys.dense, Batches(size=8), **call))


@pytest.mark.slow
def test_batch_order_of_a_shuffled_py_dataset_follows_from_the_seed():
    many = search(Batches(size=8), "many", shuffle=True)
    one = search(Batches(size=8), "one", shuffle=True, plan="sequential", parallel_trials="auto")
    still = search(Batches(size=8), "still")
    for number in range(4):
        ours = many.history(number)["loss"]
        np.testing.assert_allclose(ours, one.history(number)["loss"], rtol=1e-5)
        assert not np.allclose(ours, still.history(number)["loss"], rtol=1e-4)


@pytest.mark.slow
def test_chunks_hold_a_few_batches_on_several_devices(monkeypatch):
    monkeypatch.setattr("paceline.executor.training.memory.batches_bytes", lambda: 2.5 * 16 * 32)
    tuner = search(Batches(workers=2), mesh=4, parallel_trials=4)
    call = {"epochs": 2, "shuffle": False}
    same(tuner, 3, alone(tuner.trial(3), toys.dense, Batches(), **call))


class Changing(Batches):
    """Another data set after some passes."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.how = how

    def __getitem__(self, index: int) -> tuple[Any, ...]:
        x, y = super().__getitem__(index)
        if self.ends < 2 or index != 2:
            return x, y
        if self.how == "shape":
            return x[:, :5], y
        if self.how == "size":
            return x[:9], y[:9]
        raise OSError("disk full")


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ("shape", r"x: batch 3 of the Changing has x of shape \(16, 5\) .* Make all batches alike"),
        ("size", "x: batch 3 of the Changing has 9 examples, but the batches before had 16 or 2"),
        ("error", "x: batch 3 of the Changing cannot be read: OSError: disk full"),
    ],
)
def test_data_that_change_while_they_are_trained_on(how, message):
    with pytest.raises(paceline.DataError, match=message):
        search(Changing(how))


@pytest.mark.slow
def test_a_generator_that_ends_early():
    def some():
        for _ in range(5):
            yield X[:16], Y[:16]

    with pytest.raises(paceline.DataError, match="x: the generator ended after 5 batches; let"):
        search(some(), steps_per_epoch=3)


def test_a_digest_stays_what_studies_have_kept():
    """Studies keep the digest and compare it when they go on: a new one means other data."""

    class Data(keras.utils.PyDataset):
        def __len__(self):
            return 3

        def __getitem__(self, index):
            n = 4 if index < 2 else 1
            return np.zeros((n, 5), "float32"), np.zeros((n,), "int32")

    assert inspect_dataset(Data(), None).digest() == "fb51214fd8d359dc"
    assert inspect_dataset(Data(), 2).digest() == "f5799e51e8430d47"
