"""Data larger than the device's memory: in chunks, every example once an epoch, the same trials."""

from __future__ import annotations

import keras
import numpy as np
import pytest

import paceline
from paceline.data.adapters import EpochBatches
from paceline.data.arrays import ArrayData, epoch_order
from paceline.data.chunks import ChunkedArrays, chunked_order
from paceline.executor.training import memory
from paceline.pack.plan import Workload
from streams import alone

N = 107
RNG = np.random.default_rng(0)
X = RNG.random((N, 40)).astype("float32")
Y = np.arange(N) % 3


def build(hp):
    model = keras.Sequential(
        [
            keras.layers.Input((40,)),
            keras.layers.Dense(8, activation="relu"),
            keras.layers.Dropout(hp.Float("dropout", 0.1, 0.5)),
            keras.layers.Dense(3, activation="softmax"),
        ]
    )
    model.compile(
        keras.optimizers.Adam(hp.Float("lr", 1e-4, 1e-2, sampling="log")),
        "sparse_categorical_crossentropy",
        metrics=["accuracy"],
    )
    return model


def searched(name: str, **options) -> tuple[paceline.Tuner, list[str]]:
    notes: list[str] = []
    arguments = {
        key: options.pop(key) for key in ("shuffle", "folds", "batch_size") if key in options
    }
    tuner = paceline.Tuner(
        build, objective="val_loss", study=name, sampler="random", on_note=notes.append, **options
    )
    validation = {} if "folds" in arguments else {"validation_data": (X[:30], Y[:30])}
    tuner.search(X, Y, epochs=2, n_trials=5, **validation, **{"batch_size": 16, **arguments})
    return tuner, notes


@pytest.fixture
def small_device(monkeypatch: pytest.MonkeyPatch):
    """Data of 17 kB stream, in chunks of two batches."""
    monkeypatch.setattr(
        "paceline.executor.training.memory.chunk_bytes_of",
        lambda train, validation: 2.5 * 16 * train / N,
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    "plan",
    ["vectorized", *(pytest.param(p, marks=pytest.mark.slow) for p in ("looped", "sequential"))],
)
def test_without_shuffling_a_stream_trains_as_resident_data_do(plan: str, small_device) -> None:
    streamed, notes = searched("streamed", shuffle=False, plan=plan)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("paceline.executor.training.memory.chunk_bytes_of", lambda *_: None)
        resident, silent = searched("resident", shuffle=False, plan=plan)
    assert [note for note in notes if "chunks of 32 examples" in note]
    assert not silent
    for number in range(5):
        for name, values in resident.history(number).items():
            np.testing.assert_allclose(streamed.history(number)[name], values, rtol=1e-6)


@pytest.mark.slow
def test_with_shuffling_slots_do_not_matter(small_device) -> None:
    many, _ = searched("many", parallel_trials=4)
    one, _ = searched("one", plan="sequential")
    for number in range(5):
        np.testing.assert_allclose(
            many.history(number)["val_loss"], one.history(number)["val_loss"], rtol=1e-5
        )


@pytest.mark.slow
def test_batch_sizes_do_not_share_a_stream(small_device) -> None:
    def sizes(hp):
        return hp.Choice("batch_size", [16, 32])

    streamed, notes = searched("streamed", shuffle=False, batch_size=sizes)
    assert len([note for note in notes if "chunks of 32 examples" in note]) == 2
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("paceline.executor.training.memory.chunk_bytes_of", lambda *_: None)
        resident, _ = searched("resident", shuffle=False, batch_size=sizes)
    for number in range(5):
        np.testing.assert_allclose(
            streamed.history(number)["val_loss"], resident.history(number)["val_loss"], rtol=1e-6
        )


@pytest.mark.parametrize("n", [64, 96, 100, 107, 31])
def test_every_example_once_an_epoch(n: int) -> None:
    data = ArrayData((np.arange(n, dtype="int32"),), n)
    chunked = ChunkedArrays(data, 32, 16, n, EpochBatches(-(-n // 16)))
    order = np.stack([chunked.order(seed, 0, True) for seed in range(3)])
    seen: list[list[int]] = [[], [], []]
    sizes = []
    for chunk in chunked.chunks(order):
        (values,) = chunk.data
        sizes.append(values.shape[0])
        rest = (n % 16) if len(sizes) == -(-n // 32) else 0
        for slot, own in enumerate(chunk.order):
            full = own[: chunk.steps * 16]
            seen[slot] += np.asarray(values)[np.concatenate([full, own[32 - rest :]])].tolist()
    assert set(sizes) == {32}
    assert all(sorted(each) == list(range(n)) for each in seen)
    assert seen[0] == order[0].tolist()
    assert seen[0] != seen[1]


def test_the_order_follows_from_the_seed_and_stays_within_chunks() -> None:
    order = chunked_order(3, 1, 100, True, 32)
    np.testing.assert_array_equal(order, chunked_order(3, 1, 100, True, 32))
    assert not np.array_equal(order, chunked_order(3, 2, 100, True, 32))
    np.testing.assert_array_equal(order // 32, np.arange(100) // 32)
    np.testing.assert_array_equal(chunked_order(3, 1, 100, False, 32), np.arange(100))


@pytest.mark.parametrize("chunk_bytes", [None, 128])  # 32 examples of 4 bytes
def test_batches_may_keep_their_examples(chunk_bytes: float | None) -> None:
    """As Keras' ``shuffle="batch"``: each batch has its own examples, in another order."""
    data = ArrayData((np.arange(50, dtype="int32"),), 50)
    found = Workload(data, None, 16, 16, chunk_bytes=chunk_bytes).epoch_data(data.on_device())
    assert isinstance(found, ChunkedArrays) == (chunk_bytes is not None)
    order = found.order(3, 1, "batch")
    np.testing.assert_array_equal(order // 16, np.arange(50) // 16)
    assert sorted(order) == list(range(50)) != order.tolist()
    assert not np.array_equal(order, found.order(3, 2, "batch"))


def test_the_epochs_of_a_pass_are_parts_of_one_order() -> None:
    data = ArrayData((np.arange(50, dtype="int32"),), 50)
    work = Workload(data, None, 16, 16, steps_per_epoch=2)  # passes of 32 and 18 examples
    resident = work.epoch_data(data.on_device())
    orders = [resident.order(3, epoch, True) for epoch in range(4)]
    assert [len(order) for order in orders] == [32, 18, 32, 18]
    for number in range(2):
        whole = np.concatenate(orders[2 * number : 2 * number + 2])
        np.testing.assert_array_equal(whole, epoch_order(3, number, 50, True))
    (chunk,) = resident.chunks(np.stack([orders[1]]))
    assert (chunk.steps, chunk.rest, chunk.order.shape) == (1, 2, (1, 32))
    np.testing.assert_array_equal(chunk.order[0, :16], orders[1][:16])
    np.testing.assert_array_equal(chunk.order[0, 30:], orders[1][16:])


def test_resident_data_follow_an_order_that_is_given_and_chunks_their_seed() -> None:
    data = ArrayData((np.arange(50, dtype="int32"),), 50)

    def backwards(_: int) -> np.ndarray:
        return np.arange(50, dtype=np.int32)[::-1]

    resident = Workload(data, None, 16, 16).epoch_data(data.on_device())
    assert resident.order(3, 0, True, backwards).tolist() == list(range(49, -1, -1))
    chunked = Workload(data, None, 16, 16, chunk_bytes=1).epoch_data(None)
    assert isinstance(chunked, ChunkedArrays)
    np.testing.assert_array_equal(chunked.order(3, 0, True, backwards), chunked.order(3, 0, True))


def test_chunks_are_whole_batches_and_at_least_one() -> None:
    data = ArrayData((np.zeros((100, 10), "float32"),), 100)
    assert Workload(data, None, 16, 16, chunk_bytes=40 * 40).chunk == 32
    assert Workload(data, None, 16, 16, chunk_bytes=1).chunk == 16
    assert Workload(data, None, 16, 16, chunk_bytes=1e9).chunk is None
    assert Workload(data, None, 16, 16).chunk is None
    assert Workload(data, None, 16, 16, chunk_bytes=1).resident_bytes == 2 * 16 * 40


def test_a_device_of_little_memory_is_given_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    """With the limit of memory that a user can set, and the memory analysis of real programs."""
    monkeypatch.setenv(memory.LIMIT, "24000")  # the data are 18 kB: more than 60 %
    _, notes = searched("small", parallel_trials=1)
    assert any("chunks of 16 examples" in note for note in notes), notes


def test_chunks_are_as_large_whatever_other_programs_take(monkeypatch: pytest.MonkeyPatch) -> None:
    """Their size decides the order of examples, also of a search that goes on."""
    total = memory.device_bytes(memory.jax.devices()[0])
    assert total is not None
    sizes = []
    for free in (0.95, 0.75, 0.51, 0.4):
        monkeypatch.setattr(memory, "host_bytes", lambda free=free: free * total)
        sizes.append(memory.chunk_bytes_of(2 * total, 0))
        assert sizes[-1] is not None and sizes[-1] <= 0.1 * 0.9 * free * total
    assert len(set(sizes[:3])) == 1 and sizes[3] == sizes[0] / 2
    for free in (0.0, -1.0):  # a device may say that more is in use than its limit
        monkeypatch.setattr(memory, "host_bytes", lambda free=free: free)
        assert memory.batches_bytes() <= 0


def test_what_may_be_on_the_device(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(memory.LIMIT, "1000000")
    assert memory.chunk_bytes_of(500_000, 99_999) is None
    assert memory.chunk_bytes_of(500_000, 100_001) == pytest.approx(100_000)
    with pytest.raises(paceline.UsageError, match=r"validation_data: 1 MB do not fit"):
        memory.chunk_bytes_of(10, 700_000)


@pytest.mark.slow
def test_a_file_larger_than_memory_is_never_read_whole(small_device, monkeypatch, tmp_path) -> None:
    np.save(tmp_path / "x.npy", X.astype("float64"))
    np.save(tmp_path / "y.npy", Y)
    x, y = (np.load(tmp_path / name, mmap_mode="r") for name in ("x.npy", "y.npy"))
    read: list[int] = []
    on_device = ArrayData.on_device

    def noted(self: ArrayData, **options):
        read.append(self.n)
        return on_device(self, **options)

    monkeypatch.setattr(ArrayData, "on_device", noted)
    tuner = paceline.Tuner(build, objective="val_loss", study="file", sampler="random", on_note=len)
    call = {"epochs": 2, "batch_size": 16, "shuffle": False}
    tuner.search(x, y, n_trials=2, validation_data=(X[:30], Y[:30]), **call)
    assert max(read) == 32
    history = alone(tuner.trial(1), build, X, Y, validation_data=(X[:30], Y[:30]), **call)
    for name, values in history.items():
        # Float32, 14 steps: 4e-7 measured.
        np.testing.assert_allclose(tuner.history(1)[name], values, rtol=1e-5)
