"""A pack: trials of one program that train together, one slot each.

The number of slots is fixed when the program is compiled. Admitting and evicting a trial change
values, never a shape, so nothing is traced or compiled again. A free slot computes like the others,
and its results are dropped.

Notation
    S: slots. N: examples that one slot trains on. V: examples that one slot validates on.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import jax
import numpy as np

from paceline.data.chunks import EpochData, GivenOrder, ResidentArrays
from paceline.data.folds import Fold
from paceline.pack.callbacks.driver import CallbackDriver
from paceline.pack.plan import Arrays, CompiledPlan
from paceline.pack.slot_rows import SlotStack, on_host
from paceline.pack.slot_view import SlotView
from paceline.program.canonical import Constant
from paceline.program.padding.widths import PaddedLayout
from paceline.program.trace import State


class BatchCallbacks(Protocol):
    """What a pack calls between the training batches of a slot; ``CallbackDriver`` is one."""

    @property
    def in_batches(self) -> bool:
        """Whether it is to be called around the next training batch."""
        ...

    def attach(self, slot: PackSlot | None) -> None:
        """Gives it the variables of a slot; None: the trial has left its slot."""
        ...

    def begin_batch(self, step: int) -> None:
        """Called before a batch; ``step`` counts from 0. Must not raise."""
        ...

    def end_batch(self, step: int, logs: Mapping[str, float]) -> None:
        """Called after a batch with the logs of the epoch so far. Must not raise."""
        ...


@dataclass
class SlotTrial:
    """A trial that trains in a slot; one fold or one repetition of a trial that has several."""

    number: int  # each fold or repetition has one of its own
    seed: int  # decides the order of the training examples
    epochs: int  # to train
    # The variables to start from; None while the trial is in a slot and those count.
    state: State | None
    # Constants of the training step and, with validation data, of the validation step.
    constants: Sequence[Sequence[Constant]]
    epoch: int = 0  # epochs trained so far
    # The examples to train on and to validate on; None: all of both data sets.
    fold: Fold | None = None
    # Gives the order of the training examples, i32[N], for each pass over the data; None: the seed
    # decides it. Data that are sent in chunks always follow the seed.
    order: GivenOrder | None = None
    driver: CallbackDriver | None = None  # the trial's callbacks
    batch_callbacks: BatchCallbacks | None = None  # of a trial without driver
    first_epoch: int = 0  # number of the first epoch, from 0, as ``validation_freq`` counts
    # Where its variables lie within those of the program; None: they are as large.
    padded_layout: PaddedLayout | None = None
    # Epochs that were reported: those after ``epoch`` are trained again, and not reported.
    known: int = 0
    # Whether its callbacks were told of the beginning of a batch that has yet to be trained.
    in_batch: bool = False

    def shapes(self, program: State) -> State:
        """Shapes and dtypes of the trial's variables, from those of the program."""
        return program if self.padded_layout is None else self.padded_layout.own

    def embed(self, state: State) -> State:
        """The trial's variables as the program takes them."""
        return state if self.padded_layout is None else self.padded_layout.embed(state)

    def cut(self, part: int, leaves: list[np.ndarray]) -> list[np.ndarray]:
        """A list of ``State.lists`` as the trial has it, from that of the program."""
        return leaves if self.padded_layout is None else self.padded_layout.cut(part, leaves)

    def own(self, lists: Iterable[list[np.ndarray]]) -> State:
        """The trial's variables, from the four lists of the program."""
        return State(*(self.cut(part, leaves) for part, leaves in enumerate(lists)))

    @property
    def between(self) -> BatchCallbacks | None:
        """What is called between its batches, where it asks for that."""
        return self.batch_callbacks if self.driver is None else self.driver

    def attach(self, slot: PackSlot | None) -> None:
        """Gives the trial's callbacks the variables of a slot; None: of no slot."""
        if self.between is not None:
            self.between.attach(slot)


@dataclass(frozen=True)
class EpochTimes:
    """Seconds that one epoch of a pack took, all slots together."""

    train: float
    validate: float


class Pack:
    """The slots of one compiled program, and the trials that train in them.

    Args:
        program: The compiled program of the trials' group.
        data: Training data.
        validation: Validation data on the device, a nest of arrays [examples, ...], or None.
        shuffle: Whether the examples of each epoch are shuffled; "batch": within each batch.
        log_names: Names of the logs of the training step and, with validation data, of the
            validation step.
        n_own: V where trials have folds; None if all trials validate on all of ``validation``.
        validation_freq: The epochs to validate after, as ``fit`` takes them.
    """

    def __init__(
        self,
        program: CompiledPlan,
        data: EpochData,
        validation: Any | None,
        shuffle: bool | str,
        log_names: Sequence[tuple[str, ...]],
        n_own: int | None = None,
        validation_freq: int | Collection[int] = 1,
    ) -> None:
        self.program = program
        self.slots: list[SlotTrial | None] = [None] * program.n_slots  # None: the slot is free
        self._data, self._shuffle = data, shuffle
        self._validation, self._n_own = validation, n_own
        self._freq = validation_freq
        names, *validation = log_names
        self._n_logs = len(names)
        self._names = [*names, *(f"val_{name}" for each in validation for name in each)]
        self._state: list[Arrays] | None = None
        self._metrics: Arrays = []
        self._constants: list[Arrays] | None = None  # of each step
        self._waiting: dict[int, State] = {}
        # When this epoch began, by ``time.perf_counter``; None before the first one.
        self.began: float | None = None
        self._admitted: dict[int, State] = {}  # states of this epoch's newcomers, until it is over
        # Slots whose callbacks are called between this epoch's batches, and how many of these have
        # been trained, until it is over.
        self._acting: dict[int, tuple[SlotTrial, BatchCallbacks]] = {}
        self._n_trained = 0
        self._fetched: list[list[np.ndarray]] | None = None  # state of all slots after this epoch
        self._fetches = 0  # how often ``state`` has fetched a trial's state since this epoch
        self._view: SlotView | None = None  # what callbacks read and write between two epochs
        self._stack: SlotStack | None = None  # what ``lend_out`` lent of the present state

    @property
    def free(self) -> list[int]:
        """Numbers of the slots without a trial, ascending."""
        return [slot for slot, trial in enumerate(self.slots) if trial is None]

    @property
    def live(self) -> list[SlotTrial]:
        """The trials that train now."""
        return [trial for trial in self.slots if trial is not None]

    @property
    def on_device(self) -> bool:
        """Whether the pack has its variables on the device, and so takes memory there."""
        return self._state is not None

    def takes(self, trial: SlotTrial) -> bool:
        """Whether a trial's next epoch has the same steps as the next epoch of the trials here.

        A program trains as many steps in all slots, and validates all slots or none. So if a pass
        over the data is several epochs, or not every epoch is validated, all trials must be at the
        same place.
        """
        if not self.live:
            return True
        other = self.live[0]
        if not self._data.epochs.meet(trial.epoch, other.epoch):
            return False
        ours, theirs = trial.first_epoch + trial.epoch, other.first_epoch + other.epoch
        return ours == theirs or (isinstance(self._freq, int) and (ours - theirs) % self._freq == 0)

    def admit(self, trial: SlotTrial, slot: int | None = None) -> None:
        """Puts a trial, with a state to start from, into a slot (None: the first free one).

        The trial trains from the next epoch on.
        """
        slot = self.free[0] if slot is None else slot
        assert trial.state is not None
        self.slots[slot] = trial
        self._waiting[slot] = trial.state
        trial.state = None
        self._constants = None
        trial.attach(PackSlot(self, slot))

    def read(self, slot: int, part: int, leaf: int) -> np.ndarray:
        """A copy of a slot's variable as it is now; ``part`` and ``leaf`` as in ``SlotView``."""
        if slot in self._waiting:
            return np.array(self._waiting[slot].lists()[part][leaf])
        padded_layout = self._embedding(slot)
        if padded_layout is None:
            return self._slot_view.read(slot, part, leaf)
        value = self._slot_view.read(slot, part, padded_layout.numbers[part][leaf])
        return padded_layout.cut_leaf(part, leaf, value)

    def write(self, slot: int, part: int, leaf: int, value: np.ndarray) -> None:
        """Replaces a slot's variable, from the next epoch on, by an array of its shape."""
        if slot in self._waiting:
            lists = [list(part) for part in self._waiting[slot].lists()]
            lists[part][leaf] = np.array(value)
            # A new State: the folds of a trial share the one they begin with.
            self._waiting[slot] = State(*lists)
        else:
            padded_layout = self._embedding(slot)
            if padded_layout is not None:
                value = padded_layout.embed_leaf(part, leaf, value)
                leaf = padded_layout.numbers[part][leaf]
            self._slot_view.write(slot, part, leaf, value)

    def _embedding(self, slot: int) -> PaddedLayout | None:
        trial = self.slots[slot]
        return None if trial is None else trial.padded_layout

    @property
    def _slot_view(self) -> SlotView:
        if self._view is None:
            self._view = SlotView(self.program, self._lists)
        return self._view

    @property
    def _lists(self) -> list[Arrays]:
        """The four lists of all slots' variables, as an epoch begins with them."""
        assert self._state is not None
        return [*self._state, self._metrics]

    def _flush(self) -> None:
        """Writes what callbacks changed into the slots."""
        if self._view is not None:
            self.detach()
            *self._state, self._metrics = self._view.written()
            self._view = None

    def exchange(self, program: CompiledPlan) -> None:
        """Replaces the program by another compile of its group, which has more inputs."""
        self.program = program
        self._constants = None

    def evict(self, number: int) -> None:
        """Takes a trial out and drops its state; its slot is free at once."""
        slot = self._slot_of(number)
        trial, self.slots[slot] = self.slots[slot], None
        self._waiting.pop(slot, None)
        if trial is not None:
            trial.attach(None)

    def replace(self, number: int, state: State) -> None:
        """Gives a trial other values of its variables, from its next epoch on."""
        self._waiting[self._slot_of(number)] = state

    def _as_it_is(self, number: int) -> tuple[int, SlotTrial]:
        """The slot of a trial, with what callbacks wrote in it, and the trial."""
        self._flush()
        slot = self._slot_of(number)
        trial = self.slots[slot]
        assert trial is not None
        return slot, trial

    def take_out(self, number: int) -> SlotTrial:
        """Takes a trial out, with a copy of its state on the host, to be admitted again."""
        slot, trial = self._as_it_is(number)
        self.slots[slot] = None
        trial.attach(None)
        if slot in self._waiting:  # the trial has not trained here yet
            trial.state = self._waiting.pop(slot)
        else:
            trial.state = trial.own(self.program.row(part, slot) for part in self._lists)
        return trial

    def lend_out(self, number: int) -> SlotTrial:
        """Takes a trial out as ``take_out`` does; its state stays in the slot until ``detach``."""
        slot, trial = self._as_it_is(number)
        # With an padded_layout, a slot holds more than the trial's variables.
        if slot in self._waiting or trial.padded_layout is not None:
            return self.take_out(number)
        self.slots[slot] = None
        trial.attach(None)
        if self._stack is None:
            self._stack = SlotStack(self.program, self._lists)
        trial.state = self._stack.lend(slot)
        return trial

    def detach(self, *, done: bool = False) -> None:
        """Copies to the host what the pack has lent, before it writes to its arrays.

        Nothing is copied where only trials are here that have yet to be put into the slots: they
        get new arrays. ``done``: the pack writes no more: copy only where less than half of the
        slots are lent.
        """
        stack, self._stack = self._stack, None
        if stack is None:
            return
        live = {slot for slot, trial in enumerate(self.slots) if trial is not None}
        newcomers = self._view is None and live <= self._waiting.keys()
        if 2 * stack.n_lent < len(self.slots) if done else not newcomers:
            stack.detach()
        elif not done:
            self._state, self._metrics = None, []

    def states(self) -> dict[int, State]:
        """Trial number -> a copy of its state on the host; the trials stay in their slots."""
        self._flush()
        found = {}
        whole: list[list[np.ndarray]] | None = None
        for slot, trial in enumerate(self.slots):
            if trial is None:
                continue
            if slot in self._waiting:
                found[trial.number] = on_host(self._waiting[slot])
                continue
            if whole is None:
                whole = self.program.fetch(self._lists)
            found[trial.number] = trial.own([a[slot] for a in part] for part in whole)
        return found

    @property
    def is_within_epoch(self) -> bool:
        """Whether some batches of an epoch are trained, and others are not."""
        return self._n_trained > 0

    def rescue(self) -> tuple[list[SlotTrial], list[SlotTrial]]:
        """Takes all trials out after an epoch that failed: those to admit again, and those lost.

        The former are as they were before that epoch, or as their callbacks have left them when its
        first batch began. A program that fails may have overwritten the memory of the states it was
        given: the latter's are lost. Trials whose callbacks have seen a batch end are lost, too.
        """
        saved, lost = [], []
        held = self._state is not None and not self._n_trained
        held = held and not any(a.is_deleted() for part in self._state or () for a in part)
        for slot, trial in enumerate(self.slots):
            if trial is None:
                continue
            state = self._waiting.get(slot) or self._admitted.get(slot)
            if self._n_trained and slot in self._acting:
                lost.append(trial)
            elif state is not None:
                trial.state = state
                saved.append(trial)
            elif held:
                saved.append(self.take_out(trial.number))
            else:
                lost.append(trial)
            trial.attach(None)
        self.slots = [None] * len(self.slots)
        return saved, lost

    def weights(self, number: int) -> Callable[[], tuple[list[np.ndarray], list[np.ndarray]]]:
        """A function that fetches a trial's trainable and non-trainable variables.

        Call the function before the pack trains on: it reads the present state of the slot.
        """
        slot, trial = self._as_it_is(number)
        trainable, fixed, *_ = self._lists
        return lambda: (
            trial.cut(0, self.program.row(trainable, slot)),
            trial.cut(1, self.program.row(fixed, slot)),
        )

    def state(self, number: int) -> Callable[[], State]:
        """A function that fetches all of a trial's variables as they are after this epoch.

        Call the function before the pack trains on: it reads the present state of the slot.
        """
        slot, trial = self._as_it_is(number)

        def fetch() -> State:
            self._fetches += 1
            if self._fetched is None and self._fetches == 1:
                return trial.own(self.program.row(part, slot) for part in self._lists)
            # From the second trial on, one fetch of all slots costs less than one of each.
            if self._fetched is None:
                self._fetched = self.program.fetch(self._lists)
            return trial.own([array[slot] for array in part] for part in self._fetched)

        return fetch

    def _slot_of(self, number: int) -> int:
        for slot, trial in enumerate(self.slots):
            if trial is not None and trial.number == number:
                return slot
        raise KeyError(number)

    def run_epoch(self) -> tuple[dict[int, dict[str, float]], EpochTimes]:
        """Trains and validates every live trial for one epoch.

        Returns trial number -> the epoch's logs by name, and the seconds that the epoch took.
        Raises DataError where a data set in batches ended early, or has a batch of another shape.
        """
        self.began = began = time.perf_counter()
        self._fetched, self._fetches = None, 0
        found = {i: (t, t.between) for i, t in enumerate(self.slots) if t is not None and t.between}
        self._acting = {i: each for i, each in found.items() if each[1].in_batches}
        # Before new trials are moved: where memory does not suffice, they keep what this changes.
        self._begin_batch(0, self._acting)
        self._flush()
        self._upload_new_trials()
        assert self._state is not None and self._constants is not None
        leader = self.live[0]
        self._data.seek(leader.epoch)
        orders = [None if trial is None else self._order(trial) for trial in self.slots]
        # A free slot computes too; any order will do, since nobody reads its results.
        some = next(order for order in orders if order is not None)
        order = np.stack([some if order is None else order for order in orders])
        if self._acting:
            state, logs = self._train_by_batch(self._constants[0], order)
        else:
            (*state, _), logs = self.program.train(
                self._lists, self._constants[0], self._data, order
            )
        logs = [np.asarray(logs)]
        trained = time.perf_counter()
        if self._validation is not None and self._validates(leader):
            # Validation changes state too: recurrent layers draw seeds of dropout, as in Keras.
            state[1], val_logs = self.program.validate(
                [*state, self._metrics],
                self._constants[1],
                self._validation,
                self._validation_indices(),
            )
            logs.append(np.asarray(val_logs))
        jax.block_until_ready(state)
        self._state = state
        self._admitted.clear()
        self._acting, self._n_trained = {}, 0
        values = np.concatenate(logs, axis=1)
        results: dict[int, dict[str, float]] = {}
        for slot, trial in enumerate(self.slots):
            if trial is not None:
                trial.epoch += 1
                results[trial.number] = dict(zip(self._names, values[slot].tolist(), strict=False))
        return results, EpochTimes(trained - began, time.perf_counter() - trained)

    @property
    def by_batch(self) -> bool:
        """Whether a trial's callbacks are called between batches, by the thread that trains."""
        return any(t.between is not None and t.between.in_batches for t in self.live)

    def _begin_batch(
        self, step: int, acting: Mapping[int, tuple[SlotTrial, BatchCallbacks]]
    ) -> None:
        """Tells callbacks that a batch begins, unless they were told before memory ran out."""
        for trial, callbacks in acting.values():
            if not trial.in_batch:
                callbacks.begin_batch(step)
                trial.in_batch = True

    def _train_by_batch(self, lifted: Arrays, order: np.ndarray) -> tuple[list[Arrays], np.ndarray]:
        """Trains an epoch with a call of the program for each batch, and callbacks in between.

        A slot computes on when a callback has stopped its trial. So its variables are put aside
        then, and put back after the epoch's last batch.
        """
        assert self._state is not None and isinstance(self._data, ResidentArrays)
        first, size = self._metrics, self._data.batch_size
        acting = dict(self._acting)  # those that no callback has stopped
        others = len(self.live) - len(acting)  # trials that no callback ends within an epoch
        stopped: dict[int, State] = {}
        found = np.zeros((len(self.slots), self._n_logs))
        try:
            for step, start in enumerate(range(0, order.shape[1], size)):
                self._begin_batch(step, acting)
                self._flush()
                part = order[:, start : start + size]
                (*self._state, self._metrics), logs = self.program.train(
                    self._lists, lifted, self._data, part
                )
                values = np.asarray(logs)
                self._n_trained += 1
                running = [slot for slot in range(len(self.slots)) if slot not in stopped]
                found[running] = values[running]
                for slot, (trial, driver) in acting.items():
                    names, trial.in_batch = self._names[: self._n_logs], False
                    driver.end_batch(step, dict(zip(names, values[slot].tolist(), strict=True)))
                self._flush()
                for slot in [slot for slot, (_, d) in acting.items() if not d.in_batches]:
                    del acting[slot]
                    stopped[slot] = State(*(self.program.row(part, slot) for part in self._lists))
                if not acting and not others:
                    break
            if stopped:
                *self._state, self._metrics = self.program.put(self._lists, stopped)
        finally:
            self._metrics = first  # every epoch begins with them
        return list(self._state), found

    def _validates(self, trial: SlotTrial) -> bool:
        epoch = trial.first_epoch + trial.epoch + 1
        return epoch % self._freq == 0 if isinstance(self._freq, int) else epoch in self._freq

    def _order(self, trial: SlotTrial) -> np.ndarray:
        """The examples of a trial's next epoch: i32[examples of the epoch], or its batches."""
        order = self._data.order(trial.seed, trial.epoch, self._shuffle, trial.order)
        return order if trial.fold is None else trial.fold.train[order]

    def _validation_indices(self) -> np.ndarray | None:
        """The examples each slot validates on, i32[S, V]; None if all validate on all."""
        if self._n_own is None:
            return None
        anything = np.arange(self._n_own, dtype=np.int32)  # of a free slot, whose logs are dropped
        folds = [trial.fold if trial is not None else None for trial in self.slots]
        return np.stack([anything if fold is None else fold.validation for fold in folds])

    def _upload_new_trials(self) -> None:
        """Moves newly admitted trials onto the device, and lays out the constants of all."""
        if self._constants is None:
            some = self.live[0]  # a free slot computes too, with any constants
            rows = [trial or some for trial in self.slots]
            self._constants = [
                self.program.lay([[row.constants[role][i].value for i in own] for row in rows])
                for role, own in enumerate(self.program.lifted)
            ]
        if not self._waiting:
            return
        embedded: dict[int, State] = {}
        for slot, state in self._waiting.items():
            trial = self.slots[slot]
            assert trial is not None
            embedded[slot] = trial.embed(state)
        if self._state is None or len(embedded) == len(self.slots):
            anyone = next(iter(embedded.values()))
            everyone = [embedded.get(slot, anyone) for slot in range(len(self.slots))]
            *self._state, self._metrics = self.program.place(everyone)
        else:
            *self._state, self._metrics = self.program.put(self._lists, embedded)
        self._admitted.update(self._waiting)
        self._waiting.clear()


@dataclass(frozen=True)
class PackSlot:
    """One slot of a pack, as a trial's callbacks read and write it."""

    pack: Pack
    slot: int

    def read(self, part: int, leaf: int) -> np.ndarray:
        """As ``Slot``."""
        return self.pack.read(self.slot, part, leaf)

    def write(self, part: int, leaf: int, value: np.ndarray) -> None:
        """As ``Slot``."""
        self.pack.write(self.slot, part, leaf, value)
