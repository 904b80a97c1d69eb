"""The memory of devices: how much is free, how much a program takes, and the data placed in it.

Training data stay on the device as a whole. Data that do not fit are sent in chunks.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

import jax

from paceline.data.batched import BatchedDataset
from paceline.data.chunks import EpochData
from paceline.errors import UsageError
from paceline.executor.base import SearchData, UserNotifier
from paceline.executor.process import host_bytes
from paceline.executor.sharing.grouping import LocalGroup, TrialGrouper, program_of
from paceline.pack.mesh import MeshLayout
from paceline.pack.plan import CompiledPlan
from paceline.pack.slot_rows import host_is_device
from paceline.program.compile import Executable

#: Environment variable that limits the memory of packs, in bytes: for trying out a smaller device.
LIMIT = "PACELINE_MEMORY_BYTES"
#: Share of the free memory that packs may take.
_SHARE = 0.9
#: Share of that memory above which training data are sent in chunks, and the share of one chunk.
#: Two chunks are on the device.
_DATA, _CHUNK = 0.6, 0.1
#: Bytes of a chunk of a data set that is read while it is trained on. A larger chunk would only
#: make training wait longer for the first one.
_BATCHES = 2**26


class SlotCapacity(NamedTuple):
    """How many slots of a program a device's memory holds."""

    fitting: int  # slots of a pack that fit: all of them, or a power of two for each device
    each: float  # bytes that one slot takes
    rows: int  # devices that the slots are spread over
    free: float  # bytes that are free beside the data, on each of these devices


class DeviceData:
    """Training and validation data on the devices, sent once for all packs that share devices."""

    def __init__(self, notes: UserNotifier) -> None:
        self._notes = notes
        self._on_device: dict[Any, tuple[Any, Any]] = {}  # by _key
        self._arrays: dict[Any, dict[int, Any]] = {}  # devices -> id of a host array -> its copy

    def of(self, group: LocalGroup, layout: MeshLayout | None) -> tuple[EpochData, Any]:
        """A group's training data for one pack, and validation data (arrays [V, ...]; or None).

        They are on the devices of ``layout``; None: on the default device.
        """
        chunk, key = group.work.chunk, _key(group, layout)
        if key not in self._on_device:
            # Every device of a mesh holds the same data, whatever the shape of the mesh.
            there = self._arrays.setdefault(layout.devices if layout else None, {})
            train, validation = group.work.train, group.work.validation
            where = layout.everywhere if layout else None
            arrays = None
            if isinstance(train, BatchedDataset):
                pass  # read batch by batch, by every pack for itself
            elif chunk is None:
                arrays = train.on_device(there=there, sharding=where)
            else:
                self._notes.tell(
                    f"the training data ({size_text(train.nbytes)}) do not fit on the device, so "
                    f"chunks of {chunk:,} examples are sent in turn. Examples are shuffled within "
                    "a chunk"
                )
            placed = (
                None if validation is None else validation.on_device(there=there, sharding=where)
            )
            self._on_device[key] = arrays, placed
        arrays, placed = self._on_device[key]
        return group.work.epoch_data(arrays, layout.everywhere if layout else None), placed

    def room(
        self,
        group: LocalGroup,
        program: CompiledPlan,
        packs_at_once: int,
        beside: Sequence[LocalGroup] = (),
    ) -> SlotCapacity:
        """How many slots of each pack fit beside the data, where ``packs_at_once`` share memory.

        The trials of the groups ``beside`` are in this memory, too, or will be.
        """
        layout, free = program.layout, free_bytes()
        rows = layout.trial if layout else 1  # each device has a share of the slots, and all data
        n_slots = program.n_slots // rows
        variables, temporaries = _pack_bytes(group, program)
        each = (variables + temporaries) / n_slots
        # The device's free memory already excludes what is on it. A limit of the user's is the same
        # before and after.
        key = _key(group, layout)
        is_extra = limited() or key not in self._on_device
        data = {key[1]: _data_bytes(group) if is_extra else 0.0}
        held, most = 0.0, 0.0  # by all packs beside, and what the largest of them needs to train
        for other in beside:
            there = [pack for pack in other.packs if pack.live and pack.on_device]
            n_packs = max(len(there), min(packs_at_once, len(other.trials)))
            sizes = _pack_bytes(other, there[0].program if there else program_of(other))
            held += sizes[0] * (n_packs if limited() else n_packs - len(there))
            most = max(most, sizes[1])
            if limited():
                data.setdefault(_key(other, layout)[1], _data_bytes(other))
        free -= sum(data.values()) + held
        fit = free / (packs_at_once * each) if each else float("inf")
        if most and variables:  # packs train in turn: the memory to train with is not added up
            fit = min(fit, (free / packs_at_once - most) / variables * n_slots)
        if fit * rows >= program.n_slots:
            return SlotCapacity(program.n_slots, each, rows, max(0.0, free))
        fitting = rows << int(fit).bit_length() - 1 if fit >= 1 else 0
        return SlotCapacity(fitting, each, rows, max(0.0, free))

    def can_hold(self, group: LocalGroup, program: CompiledPlan, nbytes: int) -> bool:
        """Whether variables of paused trials may stay on a group's devices while its packs train.

        ``nbytes`` counts the variables of all trials that are paused there.
        """
        if host_is_device():
            return True  # the same memory, and ``PausedStates`` has a limit for it
        room = self.room(group, program, 1)
        each_device = room.each * program.n_slots / room.rows
        # Of a limit of the user's, nothing that is there has been taken off.
        there = nbytes / room.rows if limited() else 0.0
        return room.free - there >= each_device

    def clear(self) -> None:
        """Drops all data."""
        self._on_device.clear()
        self._arrays.clear()


class MemorySharers:
    """Executors that train in turn on one device: where one lacks memory, it waits for the others.

    Each must be advanced as long as it has trials.
    """

    def __init__(self) -> None:
        self._members: list[tuple[TrialGrouper[LocalGroup], DeviceData]] = []

    def add(self, grouper: TrialGrouper[LocalGroup], data: DeviceData) -> None:
        """Adds an executor, by its groups and its data."""
        self._members.append((grouper, data))

    def remove(self, data: DeviceData) -> None:
        """Removes an executor that is closed."""
        self._members = [member for member in self._members if member[1] is not data]

    def beside(self, group: LocalGroup, begin: Sequence[LocalGroup] = ()) -> list[LocalGroup]:
        """The other groups of which trials are on the device, and those that ``begin`` now."""
        every = [one for grouper, _ in self._members for one in grouper.groups if one is not group]
        return [one for one in every if one in begin or one.on_device]

    def drop_unused(self, needed: DeviceData | None = None) -> None:
        """Drops packs without trials, and the data of executors without trials, not ``needed``."""
        for grouper, data in self._members:
            for group in grouper.groups:
                if not group.n_live:
                    group.packs.clear()
            if data is not needed and not any(group.active for group in grouper.groups):
                data.clear()

    def chunk_bytes(self, data: SearchData) -> float | None:
        """``search_chunk_bytes`` for a further executor; data that nobody uses make room for it."""
        with suppress(UsageError):
            if (found := search_chunk_bytes(data)) is None:
                return found
        self.drop_unused()
        return search_chunk_bytes(data)


def _key(group: LocalGroup, layout: MeshLayout | None) -> tuple[Any, ...]:
    # Chunks consist of batches, so chunks for another batch size are other chunks.
    work = group.work
    data = id(work.train), id(work.validation)
    return layout, data, None if work.chunk is None else (work.chunk, work.batch_size)


def _data_bytes(group: LocalGroup) -> float:
    """Bytes of a group's data on the device."""
    validation = group.work.validation
    beside = validation.nbytes_beside(group.work.train) if validation else 0
    return group.work.resident_bytes + beside


def _pack_bytes(group: LocalGroup, program: CompiledPlan) -> tuple[float, float]:
    """Bytes of a pack on each device beside the data: of its variables, and of what it trains with.

    Programs that are not compiled need only the former, as far as is known.
    """
    n_slots = program.n_slots // (program.layout.trial if program.layout else 1)
    variables = float(group.nbytes * n_slots)
    if not program.ready():
        return variables, 0.0
    executables = [executable for role in program.roles() for executable in role]
    data = group.work.resident_bytes
    given = data / 2 if group.work.chunk else data  # a program is given one of two chunks
    total = slot_bytes(executables, n_slots, given) * n_slots
    return min(variables, total), max(0.0, total - variables)


def size_text(n_bytes: float) -> str:
    """Bytes as people read them: "512 bytes", "3.2 MB"."""
    for unit in ("bytes", "kB", "MB"):
        if n_bytes < 1000:
            return f"{n_bytes:.3g} {unit}"
        n_bytes /= 1000
    return f"{n_bytes:.3g} GB"


def limited() -> bool:
    """Whether the user has set a limit. What packs take does not change that limit."""
    return bool(os.environ.get(LIMIT))


def free_bytes() -> float:
    """Bytes that packs may take on the default device; infinity where nothing states them."""
    given = os.environ.get(LIMIT)
    if given:
        if not given.isdigit():
            raise UsageError(f"{LIMIT} must be a number of bytes, an integer, got {given!r}.")
        return float(given)
    device = jax.devices()[0]
    stats = device.memory_stats()
    if stats and "bytes_limit" in stats:
        return _SHARE * (stats["bytes_limit"] - stats.get("bytes_in_use", 0))
    return float("inf") if device.platform != "cpu" else _SHARE * host_bytes()


def device_bytes(device: Any) -> int | None:
    """Bytes of a device's memory, or of the machine's for a CPU; None if nothing states them."""
    statistics = device.memory_stats()  # None on a CPU
    if statistics and "bytes_limit" in statistics:
        return int(statistics["bytes_limit"])
    if device.platform != "cpu":
        return None
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):  # the system does not know these names
        return None


def chunk_bytes_of(train_bytes: int, validation_bytes: int) -> float | None:
    """Bytes of a chunk of training data; None if all data fit on the device.

    Raises UsageError if the validation data, which are never sent in chunks, do not fit alone.
    """
    free = free_bytes()
    if validation_bytes > _DATA * free:
        raise UsageError(
            f"validation_data: {validation_bytes / 1e6:,.0f} MB do not fit into the "
            f"{free / 1e6:,.0f} MB that trials leave free on the device. Pass fewer examples."
        )
    if train_bytes + validation_bytes <= _DATA * free:
        return None
    return _steady(_CHUNK * free)


def batches_bytes() -> float:
    """Bytes of a chunk of data that come in batches."""
    return min(_BATCHES, _steady(_CHUNK * free_bytes()))


def _steady(most: float) -> float:
    """A size of at most this many bytes, the same as long as half of the device's memory is free.

    Examples are shuffled by chunks, so the size of a chunk decides their order. With less memory it
    is halved until it fits. A limit that the user gives is taken as it is.
    """
    total = None if os.environ.get(LIMIT) else device_bytes(jax.devices()[0])
    if total is None or most <= 0 or math.isinf(most):
        return most
    size = _CHUNK * _SHARE * total / 2
    while size > most:
        size /= 2
    return size


def slot_bytes(executables: Iterable[Executable], n_slots: int, data_bytes: float) -> float:
    """Bytes that one slot takes beside the data, in whichever program takes most.

    Each of the ``executables`` is given the whole data set, of ``data_bytes``.
    """
    most = 0.0
    for executable in executables:
        sizes = executable.memory
        if sizes is not None:
            most = max(most, sizes - data_bytes)
    return max(0.0, most) / n_slots


def is_out_of_memory(error: BaseException) -> bool:
    """Whether XLA raised the error because the device's memory does not suffice."""
    return isinstance(error, jax.errors.JaxRuntimeError) and "RESOURCE_EXHAUSTED" in str(error)


def search_chunk_bytes(data: SearchData) -> float | None:
    """Bytes of a chunk of a search's training data; None if all of them fit on the device."""
    train, validation = data.train, data.validation
    beside = validation.nbytes_beside(train) if validation else 0
    if isinstance(train, BatchedDataset):
        found = batches_bytes()
    else:
        found = chunk_bytes_of(train.nbytes, beside)
    if data.fold is not None and found is not None:
        raise UsageError(
            f"folds: their data stay on the device, but {size_text(train.nbytes)} do not fit next "
            "to the trials. Pass fewer examples."
        )
    return found
