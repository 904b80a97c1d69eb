"""Slots: who sits in one, what others notice of it (nothing), what is compiled (nothing)."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import pytest
from keras import layers

from compiled_programs import COMPILED
from paceline.data.arrays import ArrayData, prepare
from paceline.executor.model_builder import ModelBuilder
from paceline.pack import slot_view
from paceline.pack.pack import Pack, SlotTrial
from paceline.pack.plan import SequentialProgram, VectorizedProgram, Workload
from paceline.program import trace
from paceline.program.step_template import StepTemplate
from paceline.search_space import HyperParameters

N, N_VAL, BATCH = 50, 23, 16


def build(hp: HyperParameters) -> keras.Model:
    model = keras.Sequential(
        [
            layers.Input((6,)),
            layers.Dense(8, "relu"),
            layers.Dropout(hp.Float("rate", 0.1, 0.5)),
            layers.Dense(3, "softmax"),
        ]
    )
    model.compile(
        keras.optimizers.Adam(1e-2), loss="sparse_categorical_crossentropy", metrics=["accuracy"]
    )
    return model


def data(n: int) -> ArrayData:
    rng = np.random.default_rng(n)
    x = rng.normal(size=(n, 6)).astype("float32")
    return prepare(x, np.argmax(x[:, :3], axis=1).astype("int32"))


class Workshop:
    """A group of one structure, its compiled program, and trials for its packs."""

    def __init__(self, n_slots: int) -> None:
        self.train, self.validation = data(N), data(N_VAL)
        self._build = ModelBuilder(build)
        self._work = Workload(self.train, self.validation, BATCH, BATCH, by_batch=True)
        model = self._model(0.2, 0)
        state = trace.build_state(model, self.train.batch_shapes(BATCH))
        self.roles = [
            StepTemplate(
                make(model, state, part.batch_shapes(BATCH)),
                make(model, state, part.batch_shapes(part.n % BATCH)),
            )
            for make, part in (
                (trace.trace_train, self.train),
                (trace.trace_test, self.validation),
            )
        ]
        for role, step in zip(self.roles, self._steps(0.3), strict=True):
            role.admit(step.canonical.constants)
            role.settle(2)
        plan: Any = VectorizedProgram if n_slots > 1 else SequentialProgram
        slots = (n_slots,) if n_slots > 1 else ()
        self.program = plan(self.roles, trace.shapes_only(state), self._work, *slots)

    def _model(self, rate: float, seed: int) -> keras.Model:
        return self._build(HyperParameters(values={"rate": rate}), seed)

    def _steps(self, rate: float, seed: int = 0) -> list[trace.Step]:
        model = self._model(rate, seed)
        batch = self.train.batch_shapes(BATCH)
        state = trace.build_state(model, batch)
        self.state = state
        return [trace.trace_train(model, state, batch), trace.trace_test(model, state, batch)]

    def slot_trial(self, number: int, rate: float = 0.2, *, spoilt: bool = False) -> SlotTrial:
        constants = [step.canonical.constants for step in self._steps(rate, number)]
        state = self.state
        if spoilt:
            state.trainable[0] = np.full_like(np.asarray(state.trainable[0]), np.nan)
        return SlotTrial(number, number, 3, state, constants)

    def pack(self, *, shuffle: bool = True) -> Pack:
        return Pack(
            self.program,
            self._work.epoch_data(self.train.on_device()),
            self.validation.on_device(),
            shuffle,
            [role.full.log_names for role in self.roles],
        )


@pytest.fixture(scope="module")
def workshop() -> Workshop:
    return Workshop(4)


def run(pack: Pack, n_epochs: int = 1) -> list[dict[int, dict[str, float]]]:
    return [pack.run_epoch()[0] for _ in range(n_epochs)]


def test_trials_come_and_go_without_a_compile(workshop: Workshop) -> None:
    pack = workshop.pack()
    trials = [
        workshop.slot_trial(n, rate) for n, rate in enumerate((0.1, 0.2, 0.3, 0.4, 0.5, 0.15))
    ]
    for trial in trials[:3]:
        pack.admit(trial)
    run(pack)
    for old, new in ((1, 3), (0, 4)):
        pack.evict(old)
        pack.admit(trials[new])
        run(pack)  # the first refills compile what writes into a slot
    before = len(COMPILED)
    pack.admit(trials[5])
    run(pack)
    for number in (2, 3, 4):
        pack.evict(number)
    run(pack, 2)
    assert [trial.number for trial in pack.live] == [5]
    assert COMPILED[before:] == []


def test_logs_are_named_as_in_keras_and_only_live_slots_report(workshop: Workshop) -> None:
    pack = workshop.pack()
    pack.admit(workshop.slot_trial(7))
    (results,) = run(pack)
    assert results.keys() == {7}
    assert set(results[7]) == {"loss", "accuracy", "val_loss", "val_accuracy"}
    assert pack.free == [1, 2, 3]
    pack.evict(7)
    assert pack.free == [0, 1, 2, 3]
    with pytest.raises(KeyError, match="7"):
        pack.evict(7)


@pytest.mark.parametrize("spoilt", [False, True])
def test_a_neighbour_is_not_noticed_not_even_nan(workshop: Workshop, spoilt: bool) -> None:
    alone = workshop.pack()
    alone.admit(workshop.slot_trial(1))
    expected = run(alone, 3)
    together = workshop.pack()
    together.admit(workshop.slot_trial(1))
    together.admit(workshop.slot_trial(2, 0.4, spoilt=spoilt))
    found = run(together, 3)
    for epoch, (one, other) in enumerate(zip(expected, found, strict=True)):
        assert one[1] == other[1], f"epoch {epoch + 1}"
        assert np.isnan(other[2]["loss"]) == spoilt
        assert np.isnan(other[2]["val_loss"]) == spoilt


def test_a_slot_is_as_new_after_nan(workshop: Workshop) -> None:
    fresh = workshop.pack()
    fresh.admit(workshop.slot_trial(1))
    expected = run(fresh, 2)
    used = workshop.pack()
    used.admit(workshop.slot_trial(2, spoilt=True))
    used.admit(workshop.slot_trial(3))
    run(used, 2)
    used.evict(2)
    used.admit(workshop.slot_trial(1))
    for one, other in zip(expected, run(used, 2), strict=True):
        assert one[1] == other[1]


def test_a_trial_is_the_same_in_every_slot_and_company(workshop: Workshop) -> None:
    first, last = workshop.pack(), workshop.pack()
    first.admit(workshop.slot_trial(1))
    for number in (5, 6, 4):
        last.admit(workshop.slot_trial(number, 0.05 * number))
    run(last)  # the others are an epoch ahead
    last.admit(workshop.slot_trial(1))
    for one, other in zip(run(first, 3), run(last, 3), strict=True):
        for name, value in one[1].items():
            assert value == pytest.approx(other[1][name], abs=1e-6), name


def test_one_slot_at_a_time_gives_the_same(workshop: Workshop) -> None:
    stacked, sequential = workshop.pack(), Workshop(1).pack()
    stacked.admit(workshop.slot_trial(1))
    sequential.admit(workshop.slot_trial(1))
    for one, other in zip(run(stacked, 2), run(sequential, 2), strict=True):
        for name, value in one[1].items():
            # float32, two epochs: measured 1e-7.
            assert value == pytest.approx(other[1][name], abs=1e-5), name


def test_the_order_of_examples_is_the_seeds_alone(workshop: Workshop) -> None:
    def losses(shuffle: bool, seed: int) -> list[float]:
        pack = workshop.pack(shuffle=shuffle)
        trial = workshop.slot_trial(1)
        trial.seed = seed
        pack.admit(trial)
        return [epoch[1]["loss"] for epoch in run(pack, 2)]

    assert losses(True, 1) == losses(True, 1) != losses(True, 2)
    assert losses(False, 1) == losses(False, 2)


def test_weights_are_those_of_the_moment(workshop: Workshop) -> None:
    pack = workshop.pack()
    for number in (1, 2):
        pack.admit(workshop.slot_trial(number))
    run(pack)
    ours, theirs = pack.weights(1)(), pack.weights(2)()
    assert [w.shape for w in ours[0]] == [(6, 8), (8,), (8, 3), (3,)]
    assert not np.array_equal(ours[0][0], theirs[0][0])
    kept = ours[0][0].copy()
    run(pack)
    np.testing.assert_array_equal(ours[0][0], kept)
    assert not np.array_equal(pack.weights(1)()[0][0], kept)


def test_what_was_lent_is_copied_before_the_pack_trains_on(workshop: Workshop) -> None:
    """With a trial that stays; newcomers alone get new arrays, and nothing needs to be copied."""
    pack, other = workshop.pack(), workshop.pack()
    for each in (pack, other):
        each.admit(workshop.slot_trial(1))
        each.admit(workshop.slot_trial(2))
        run(each)
    truth = other.take_out(1).state
    lent = pack.lend_out(1)
    assert [t.number for t in pack.live] == [2] and lent.state is not None and truth is not None
    pack.detach()
    assert lent.state.trainable[0].row.stack is None
    run(pack)
    for ours, theirs in zip(lent.state.lists(), truth.lists(), strict=True):
        for a, b in zip(ours, theirs, strict=True):
            np.testing.assert_array_equal(np.asarray(a), np.asarray(b))

    alone = pack.lend_out(2)
    pack.admit(lent)
    pack.detach()
    assert alone.state is not None and alone.state.trainable[0].row.stack is not None
    before = np.asarray(alone.state.trainable[0])
    run(pack)
    np.testing.assert_array_equal(np.asarray(alone.state.trainable[0]), before)


@pytest.mark.parametrize("n_lent", [1, 2])
def test_a_pack_that_is_done_holds_memory_for_trials_of_half_its_slots(workshop, n_lent) -> None:
    pack = workshop.pack()
    for number in range(4):
        pack.admit(workshop.slot_trial(number))
    run(pack)
    lent = [pack.lend_out(number) for number in range(n_lent)]
    for number in range(n_lent, 4):
        pack.evict(number)
    pack.detach(done=True)
    assert (lent[0].state.trainable[0].row.stack is None) == (n_lent == 1)


def test_what_callbacks_write_reaches_no_trial_that_has_left_its_slot(
    workshop: Workshop, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(slot_view, "_SMALL", 0)  # as large variables, which go slot by slot
    pack = workshop.pack()
    for number in (1, 2):
        pack.admit(workshop.slot_trial(number))
    run(pack)
    lent = pack.lend_out(1)
    before = np.asarray(lent.state.trainable[0])  # type: ignore[union-attr]
    for slot in (0, 1):  # a callback of the trial that stays; slot 0 stands for a late one
        pack.write(slot, 0, 0, np.zeros_like(before))
    pack.evict(2)
    pack.admit(lent, 3)
    run(pack)
    other = workshop.pack()
    other.admit(workshop.slot_trial(1))
    run(other)
    run(other)
    for ours, theirs in zip(pack.states()[1].lists(), other.states()[1].lists(), strict=True):
        for a, b in zip(ours, theirs, strict=True):
            np.testing.assert_array_equal(np.asarray(a), np.asarray(b))


class Between:
    """Writes to its slot before each batch, and keeps what it was told."""

    def __init__(self) -> None:
        self.in_batches, self.calls = True, list[tuple[str, int]]()

    def attach(self, slot: Any) -> None:
        self._slot = slot

    def begin_batch(self, step: int) -> None:
        self.calls.append(("begin", step))
        self._slot.write(0, 0, self._slot.read(0, 0) * np.float32(0.9))

    def end_batch(self, step: int, logs: Any) -> None:
        self.calls.append(("end", step))


def acting(workshop: Workshop) -> tuple[Pack, list[SlotTrial]]:
    pack, trials = workshop.pack(), [workshop.slot_trial(number) for number in (0, 1)]
    for trial in trials:
        trial.batch_callbacks = Between()
        pack.admit(trial)
    return pack, trials


@pytest.mark.parametrize("epochs", [0, 1])
@pytest.mark.parametrize("step", [0, 2])
def test_where_memory_runs_out_between_batches_no_callback_is_told_twice(
    workshop: Workshop, monkeypatch: pytest.MonkeyPatch, epochs: int, step: int
) -> None:
    """At the first batch, trials train it elsewhere; later they are lost."""
    whole, expected = acting(workshop)
    pack, trials = acting(workshop)
    run(whole, epochs + 1)
    run(pack, epochs)
    train, calls = VectorizedProgram.train, list[int]()

    def failing(*args: Any) -> Any:
        calls.append(len(calls))
        if calls[-1] == step:
            raise RuntimeError("RESOURCE_EXHAUSTED")
        return train(*args)

    monkeypatch.setattr(VectorizedProgram, "train", failing)
    with pytest.raises(RuntimeError, match="RESOURCE_EXHAUSTED"):
        run(pack)
    assert pack.is_within_epoch == (step > 0)
    saved, lost = pack.rescue()
    assert (saved, lost) == ((trials, []) if step == 0 else ([], trials))
    if saved:
        other = workshop.pack()
        for trial in saved:
            other.admit(trial)
        run(other)
        for number in (0, 1):
            assert vars(trials[number].between)["calls"] == vars(expected[number].between)["calls"]
            ours, theirs = other.states()[number].lists(), whole.states()[number].lists()
            for a, b in zip(ours[0], theirs[0], strict=True):
                np.testing.assert_array_equal(np.asarray(a), np.asarray(b))
