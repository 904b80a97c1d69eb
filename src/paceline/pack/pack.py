"""A pack: trials of one program that train together, one slot each.

The number of slots is fixed when the program is compiled. Admitting and evicting change values,
never a shape, so nothing is traced or compiled again. A slot without a trial computes and is not
read.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from paceline.data.arrays import epoch_order
from paceline.data.batched import EpochBatches
from paceline.data.chunks import ChunkedArrays, ChunkedBatches, chunked_order
from paceline.data.folds import Fold
from paceline.pack.callbacks.driver import CallbackDriver
from paceline.pack.plan import Arrays, CompiledPlan
from paceline.pack.slot_view import SlotView
from paceline.program.canonical import Constant
from paceline.program.trace import State


@dataclass
class SlotTrial:
    """A trial on its way through a pack, or a member of one (``members.py``).

    Attributes:
        number: The trial's number, or the member's.
        seed: Decides its order of examples.
        epochs: Epochs it is to train.
        state: Its initial variables; dropped once it sits in a slot.
        train, test: Its constants in the two steps; test is None without validation data.
        epoch: Epochs trained so far.
        fold: The examples it trains and validates on; None: all of both data sets.
        order: Called for each epoch, from 0: numbers of its training examples, i32[N]; None: they
            follow from the seed. Where the data are a stream, they always do.
        driver: Its callbacks; None without.
        first_epoch: The number of its first epoch, from 0, as ``validation_freq`` counts.
    """

    number: int
    seed: int
    epochs: int
    state: State | None
    train: Sequence[Constant]
    test: Sequence[Constant] | None
    epoch: int = 0
    fold: Fold | None = None
    order: Callable[[int], np.ndarray] | None = None
    driver: CallbackDriver | None = None
    first_epoch: int = 0


@dataclass(frozen=True)
class EpochTimes:
    """Seconds that one epoch of a pack took, all slots together."""

    train: float
    validate: float


class Pack:
    """Slots, and what is in them.

    Args:
        program: The group's.
        data: Training data on the device.
        n_examples: N, those that one slot trains on.
        validation: Validation data on the device, or None.
        shuffle: Whether each epoch has an order of its own.
        log_names, val_log_names: Names of the logs of the two steps.
        n_own: V where riders have folds; None where all validate on all of ``validation``.
        cut: How the data are cut into epochs; None: each goes over all of them.
        batch_size: B, where there is a cut.
        validation_freq: As ``fit`` takes it.
    """

    def __init__(
        self,
        program: CompiledPlan,
        data: Any,
        n_examples: int,
        validation: Any | None,
        shuffle: bool,
        log_names: tuple[str, ...],
        val_log_names: tuple[str, ...],
        n_own: int | None = None,
        cut: EpochBatches | None = None,
        batch_size: int = 1,
        validation_freq: int | Collection[int] = 1,
    ) -> None:
        self.program = program
        self.riders: list[SlotTrial | None] = [None] * program.n_slots
        self._data, self._n_examples = data, n_examples
        self._validation, self._n_own = validation, n_own
        self._shuffle, self._freq = shuffle, validation_freq
        self._cut = cut or EpochBatches(-(-n_examples // batch_size))
        self._batch_size = batch_size
        self._names = [*log_names, *(f"val_{name}" for name in val_log_names)]
        self._state: list[Arrays] | None = None
        self._metrics: Arrays = []
        self._constants: tuple[Arrays, Arrays] | None = None
        self._waiting: dict[int, State] = {}
        self.began: float | None = None  # when the epoch that trains now did, by perf_counter
        self._admitted: dict[int, State] = {}  # states of this epoch's newcomers, until it is over
        self._fetched: list[list[np.ndarray]] | None = None  # all slots, after this epoch
        self._fetches = 0  # states asked for since
        self._view: SlotView | None = None  # what callbacks look at between two epochs

    @property
    def free(self) -> list[int]:
        """Slots without a trial."""
        return [slot for slot, rider in enumerate(self.riders) if rider is None]

    @property
    def live(self) -> list[SlotTrial]:
        """The trials that train now."""
        return [rider for rider in self.riders if rider is not None]

    def takes(self, rider: SlotTrial) -> bool:
        """Whether a trial would read the same data next as those that train now.

        Where passes over the data are cut into epochs, or not every epoch is validated, slots must
        be at the same place: a program trains as many steps in all of them.
        """
        if not self.live:
            return True
        other = self.live[0]
        if not self._cut.meet(rider.epoch, other.epoch):
            return False
        ours, theirs = rider.first_epoch + rider.epoch, other.first_epoch + other.epoch
        return ours == theirs or (isinstance(self._freq, int) and (ours - theirs) % self._freq == 0)

    def admit(self, rider: SlotTrial, slot: int | None = None) -> None:
        """Puts a trial into a free slot, or that one; it trains from the next epoch on."""
        slot = self.free[0] if slot is None else slot
        assert rider.state is not None
        self.riders[slot] = rider
        self._waiting[slot] = rider.state
        rider.state = None
        self._constants = None
        if rider.driver is not None:
            rider.driver.attach(_Place(self, slot))

    def read(self, slot: int, part: int, leaf: int) -> np.ndarray:
        """A copy of one variable of a slot as it is now."""
        if slot in self._waiting:
            return np.array(self._waiting[slot].lists()[part][leaf])
        return self._seen.read(slot, part, leaf)

    def write(self, slot: int, part: int, leaf: int, value: np.ndarray) -> None:
        """Replaces one variable of a slot, from the next epoch on."""
        if slot in self._waiting:
            lists = [list(part) for part in self._waiting[slot].lists()]
            lists[part][leaf] = np.array(value)
            self._waiting[slot] = State(*lists)  # a new one: folds of a trial begin with the same
        else:
            self._seen.write(slot, part, leaf, value)

    @property
    def _seen(self) -> SlotView:
        if self._view is None:
            assert self._state is not None
            self._view = SlotView(self.program, [*self._state, self._metrics])
        return self._view

    def _flush(self) -> None:
        """Has what callbacks wrote in the slots."""
        if self._view is not None:
            *self._state, self._metrics = self._view.written()
            self._view = None

    def exchange(self, program: CompiledPlan) -> None:
        """Goes on with another compile of the same group: more constants are inputs now."""
        self.program = program
        self._constants = None

    def evict(self, number: int) -> None:
        """Takes a trial out; its slot is free at once."""
        slot = self._slot_of(number)
        rider, self.riders[slot] = self.riders[slot], None
        self._waiting.pop(slot, None)
        if rider is not None and rider.driver is not None:
            rider.driver.attach(None)

    def replace(self, number: int, state: State) -> None:
        """Gives a trial other values of its variables, from its next epoch on."""
        self._waiting[self._slot_of(number)] = state

    def take_out(self, number: int) -> SlotTrial:
        """Takes a trial out with its state as it is now, on the host, to be admitted again."""
        self._flush()
        slot = self._slot_of(number)
        rider, state = self.riders[slot], self._state
        assert rider is not None
        self.riders[slot] = None
        if rider.driver is not None:
            rider.driver.attach(None)
        if slot in self._waiting:  # it has not trained here yet
            rider.state = self._waiting.pop(slot)
            return rider
        assert state is not None
        trainable, non_trainable, optimizer = (self.program.row(part, slot) for part in state)
        metrics = self.program.row(self._metrics, slot)
        rider.state = State(trainable, non_trainable, optimizer, metrics)
        return rider

    def states(self) -> dict[int, State]:
        """The state of every live trial as it is now, on the host; the trials stay."""
        self._flush()
        found = {}
        whole: list[list[np.ndarray]] | None = None
        for slot, rider in enumerate(self.riders):
            if rider is None:
                continue
            if slot in self._waiting:
                found[rider.number] = self._waiting[slot]
                continue
            if whole is None:
                assert self._state is not None
                whole = self.program.fetch([*self._state, self._metrics])
            found[rider.number] = State(*([a[slot] for a in part] for part in whole))
        return found

    def rescue(self) -> tuple[list[SlotTrial], list[SlotTrial]]:
        """Takes all trials out after an epoch that failed.

        Returns:
            Those that can be admitted again as they were before that epoch, and those whose state
            went with the memory that the failed program had been given.
        """
        saved, lost = [], []
        held = self._state is not None and not any(
            array.is_deleted() for part in self._state for array in part
        )
        for slot, rider in enumerate(self.riders):
            if rider is None:
                continue
            state = self._waiting.get(slot) or self._admitted.get(slot)
            if state is not None:
                rider.state = state
                saved.append(rider)
            elif held:
                saved.append(self.take_out(rider.number))
            else:
                lost.append(rider)
            if rider.driver is not None:
                rider.driver.attach(None)
        self.riders = [None] * len(self.riders)
        return saved, lost

    def weights(self, number: int) -> Callable[[], tuple[list[np.ndarray], list[np.ndarray]]]:
        """A way to fetch a trial's trainable and non-trainable variables as they are now.

        It must be called before the pack trains on.
        """
        self._flush()
        slot = self._slot_of(number)
        state = self._state
        assert state is not None
        return lambda: (self.program.row(state[0], slot), self.program.row(state[1], slot))

    def state(self, number: int) -> Callable[[], State]:
        """A way to fetch all of a trial's variables as they are after this epoch.

        It must be called before the pack trains on.
        """
        self._flush()
        slot = self._slot_of(number)

        def fetch() -> State:
            parts = [*(self._state or ()), self._metrics]
            self._fetches += 1
            if self._fetched is None and self._fetches == 1:
                return State(*(self.program.row(part, slot) for part in parts))
            if self._fetched is None:  # several are asked for: all at once costs less
                self._fetched = self.program.fetch(parts)
            return State(*([array[slot] for array in part] for part in self._fetched))

        return fetch

    def _slot_of(self, number: int) -> int:
        for slot, rider in enumerate(self.riders):
            if rider is not None and rider.number == number:
                return slot
        raise KeyError(number)

    def run_epoch(self) -> tuple[dict[int, dict[str, float]], EpochTimes]:
        """Trains and validates every live trial for one epoch.

        Returns:
            Trial number -> the epoch's logs, and the time it took.
        """
        self.began = began = time.perf_counter()
        self._fetched, self._fetches = None, 0
        self._flush()
        self._settle()
        assert self._state is not None and self._constants is not None
        leader = self.live[0]
        if isinstance(self._data, ChunkedBatches):
            self._data.seek(leader.epoch)
        orders = [None if rider is None else self._order(rider) for rider in self.riders]
        some = next(order for order in orders if order is not None)
        order = np.stack([some if order is None else order for order in orders])
        state, logs = self.program.train(
            [*self._state, self._metrics], self._constants[0], self._data, order
        )
        logs = [np.asarray(logs)]
        trained = time.perf_counter()
        if self._validation is not None and self._validates(leader):
            # Validation moves state too: recurrent layers draw dropout seeds there, as in Keras.
            state[1], val_logs = self.program.validate(
                [*state, self._metrics], self._constants[1], self._validation, self._own()
            )
            logs.append(np.asarray(val_logs))
        jax.block_until_ready(state)
        self._state = state
        self._admitted.clear()
        values = np.concatenate(logs, axis=1)
        results: dict[int, dict[str, float]] = {}
        for slot, rider in enumerate(self.riders):
            if rider is not None:
                rider.epoch += 1
                results[rider.number] = dict(zip(self._names, values[slot].tolist(), strict=False))
        return results, EpochTimes(trained - began, time.perf_counter() - trained)

    def _validates(self, rider: SlotTrial) -> bool:
        epoch = rider.first_epoch + rider.epoch + 1
        return epoch % self._freq == 0 if isinstance(self._freq, int) else epoch in self._freq

    def _order(self, rider: SlotTrial) -> np.ndarray:
        """The examples, or from a reel the batches, of a trial's next epoch."""
        if isinstance(self._data, ChunkedBatches):
            return self._data.order(rider.seed, rider.epoch, self._shuffle)
        number, first, count = self._cut.of(rider.epoch)
        start = first * self._batch_size
        stop = min(self._n_examples, (first + count) * self._batch_size)
        if isinstance(self._data, ChunkedArrays):
            size = self._data.size
            order = chunked_order(rider.seed, rider.epoch, stop - start, self._shuffle, size)
            order += np.int32(start)
        elif rider.order is not None:
            order = rider.order(number)[start:stop]
        else:
            order = epoch_order(rider.seed, number, self._n_examples, self._shuffle)[start:stop]
        return order if rider.fold is None else rider.fold.train[order]

    def _own(self) -> np.ndarray | None:
        """What each slot validates on, i32[S, V]; None where that is the same for all."""
        if self._n_own is None:
            return None
        anything = np.arange(self._n_own, dtype=np.int32)  # a slot without a trial is not read
        folds = [rider.fold if rider is not None else None for rider in self.riders]
        return np.stack([anything if fold is None else fold.validation for fold in folds])

    def _settle(self) -> None:
        """Moves newly admitted trials onto the device, and lays out the constants of all."""
        if self._constants is None:
            riders = self.live
            rows = [rider or riders[0] for rider in self.riders]
            train, test = self.program.lifted
            self._constants = (
                self.program.lay([[rider.train[i].value for i in train] for rider in rows]),
                self.program.lay([[(rider.test or ())[i].value for i in test] for rider in rows]),
            )
        if not self._waiting:
            return
        some = next(iter(self._waiting.values()))
        if self._state is None or len(self._waiting) == len(self.riders):
            everyone = [self._waiting.get(slot, some) for slot in range(len(self.riders))]
            *self._state, self._metrics = self.program.place(everyone)
        else:
            for slot, state in self._waiting.items():
                *self._state, self._metrics = self.program.put(
                    [*self._state, self._metrics], slot, state
                )
        self._admitted.update(self._waiting)
        self._waiting.clear()


@dataclass(frozen=True)
class _Place:
    """One slot of a pack."""

    pack: Pack
    slot: int

    def read(self, part: int, leaf: int) -> np.ndarray:
        return self.pack.read(self.slot, part, leaf)

    def write(self, part: int, leaf: int, value: np.ndarray) -> None:
        self.pack.write(self.slot, part, leaf, value)
