"""The data on the devices: whole, or a stream of chunks where they do not fit."""

from __future__ import annotations

from typing import Any, NamedTuple

from paceline.data.batched import BatchedDataset
from paceline.data.chunks import EpochData
from paceline.executor.group import Group
from paceline.executor.memory import free_bytes, limited, slot_bytes
from paceline.executor.planner import Planner, layout_of
from paceline.pack.mesh import MeshLayout
from paceline.pack.plan import CompiledPlan


class Room(NamedTuple):
    """What a device's memory holds of a program.

    Attributes:
        fitting: Slots of a pack that fit: all of them, or a power of two for each device.
        each: Bytes of a slot.
        rows: Devices that slots are spread over.
        free: Bytes beside the data, on each of them.
    """

    fitting: int
    each: float
    rows: int
    free: float


class DeviceData:
    """Training and validation data, sent once for all packs that share devices.

    Args:
        planner: Told what users may want to know.
    """

    def __init__(self, planner: Planner) -> None:
        self._planner = planner
        self._on_device: dict[Any, tuple[Any, Any]] = {}  # by key
        self._arrays: dict[Any, dict[int, Any]] = {}  # by devices and host array

    def of(self, group: Group, layout: MeshLayout | None) -> tuple[EpochData, Any]:
        """Training and validation data of a group, on the devices of a layout."""
        chunk, key = group.work.chunk, _key(group, layout)
        if key not in self._on_device:
            # Whatever the mesh, every device of it holds the same.
            there = self._arrays.setdefault(layout.devices if layout else None, {})
            train, validation = group.work.train, group.work.validation
            where = layout.everywhere if layout else None
            arrays = None
            if isinstance(train, BatchedDataset):
                pass
            elif chunk is None:
                arrays = train.on_device(there=there, sharding=where)
            else:
                self._planner.note(
                    f"the training data ({size_text(train.nbytes)}) do not fit on the device: "
                    f"chunks of {chunk:,} examples are sent to it in turn, and examples are "
                    "shuffled within a chunk"
                )
            placed = (
                None if validation is None else validation.on_device(there=there, sharding=where)
            )
            self._on_device[key] = arrays, placed
        arrays, placed = self._on_device[key]
        return group.work.epoch_data(arrays, layout.everywhere if layout else None), placed

    def room(self, group: Group, program: CompiledPlan, lanes: int) -> Room:
        """How many slots of a group's packs fit beside the data."""
        layout, free = layout_of(program), free_bytes()
        rows = layout.trial if layout else 1  # each has a share of the slots, and all of the data
        executables = [executable for role in program.roles() for executable in role]
        data = group.work.resident_bytes
        given = data / 2 if group.work.chunk else data  # of two chunks a program is given one
        each = slot_bytes(executables, program.n_slots // rows, given)
        # What is on the device already is not free any more; only a limit knows nothing of it.
        if limited() or _key(group, layout) not in self._on_device:
            validation = group.work.validation
            beside = validation.nbytes_beside(group.work.train) if validation else 0
            free -= data + beside
        fit = free / (lanes * each) if each else float("inf")
        if fit * rows >= program.n_slots:
            return Room(program.n_slots, each, rows, max(0.0, free))
        fitting = rows << int(fit).bit_length() - 1 if fit >= 1 else 0
        return Room(fitting, each, rows, max(0.0, free))

    def clear(self) -> None:
        """Drops all."""
        self._on_device.clear()
        self._arrays.clear()


def _key(group: Group, layout: MeshLayout | None) -> tuple[Any, ...]:
    # Chunks are cut into batches: of another size they are another stream.
    work = group.work
    data = id(work.train), id(work.validation)
    return layout, data, None if work.chunk is None else (work.chunk, work.batch_size)


def size_text(n_bytes: float) -> str:
    """Bytes for people."""
    for unit in ("bytes", "kB", "MB"):
        if n_bytes < 1000:
            return f"{n_bytes:.3g} {unit}"
        n_bytes /= 1000
    return f"{n_bytes:.3g} GB"
