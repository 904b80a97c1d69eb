"""The data on the devices: whole, or a stream of chunks where they do not fit."""

from __future__ import annotations

from typing import Any, NamedTuple

from paceline.data import ArrayData
from paceline.executor.intake import Group
from paceline.executor.memory import free_bytes, limited, slot_bytes
from paceline.executor.planner import Planner, layout_of
from paceline.mesh import Layout
from paceline.plan import Program
from paceline.stream import Stream


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


class Placement:
    """Training and validation data, sent once for all packs that share devices.

    Args:
        data: Training data.
        validation: Validation data, or None.
        planner: Told what users may want to know.
    """

    def __init__(self, data: ArrayData, validation: ArrayData | None, planner: Planner) -> None:
        self._data, self._validation, self._planner = data, validation, planner
        self._on_device: dict[Any, tuple[Any, Any]] = {}  # by key
        self._arrays: dict[Any, dict[int, Any]] = {}  # by devices and host array

    def of(self, group: Group, layout: Layout | None) -> tuple[Any, Any]:
        """Training and validation data of a group, on the devices of a layout."""
        chunk, key = group.work.chunk, _key(group, layout)
        if key not in self._on_device:
            # Whatever the mesh, every device of it holds the same.
            there = self._arrays.setdefault(layout.devices if layout else None, {})
            validation, where = self._validation, layout.everywhere if layout else None
            if chunk is None:
                data: Any = self._data.on_device(there=there, sharding=where)
            else:
                data = Stream(self._data, chunk, group.work.batch_size, where)
                self._planner.note(
                    f"the training data ({size_text(self._data.nbytes)}) do not fit on the device: "
                    f"chunks of {chunk:,} examples are sent to it in turn, and examples are "
                    "shuffled within a chunk"
                )
            placed = (
                None if validation is None else validation.on_device(there=there, sharding=where)
            )
            self._on_device[key] = data, placed
        return self._on_device[key]

    def room(self, group: Group, program: Program, lanes: int) -> Room:
        """How many slots of a group's packs fit beside the data."""
        layout, free = layout_of(program), free_bytes()
        rows = layout.trial if layout else 1  # each has a share of the slots, and all of the data
        executables = [executable for role in program.roles() for executable in role]
        data = group.work.resident_bytes
        given = data / 2 if group.work.chunk else data  # of two chunks a program is given one
        each = slot_bytes(executables, program.n_slots // rows, given)
        # What is on the device already is not free any more; only a limit knows nothing of it.
        if limited() or _key(group, layout) not in self._on_device:
            beside = self._validation.nbytes_beside(self._data) if self._validation else 0
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


def _key(group: Group, layout: Layout | None) -> tuple[Any, ...]:
    # Chunks are cut into batches: of another size they are another stream.
    chunk = group.work.chunk
    return layout, None if chunk is None else (chunk, group.work.batch_size)


def size_text(n_bytes: float) -> str:
    """Bytes for people."""
    for unit in ("bytes", "kB", "MB"):
        if n_bytes < 1000:
            return f"{n_bytes:.3g} {unit}"
        n_bytes /= 1000
    return f"{n_bytes:.3g} GB"
