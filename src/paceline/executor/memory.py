"""How much memory there is, how much a program takes, and what an error about it looks like."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import jax

from paceline.errors import UsageError
from paceline.program.compile import Executable

#: Sets a limit, in bytes: for trying out what happens on a smaller device.
LIMIT = "PACELINE_MEMORY_BYTES"
#: Share of the free memory that packs may take.
_SHARE = 0.9
#: Share of those that data may take, before training data are sent in chunks; and share of a chunk,
#: of which there are two.
_DATA, _CHUNK = 0.6, 0.1
#: Bytes of a chunk of a data set that is read while it is trained on: more would only wait.
_BATCHES = 2**26


def limited() -> bool:
    """Whether the user has set a limit: what packs take does not show in it."""
    return bool(os.environ.get(LIMIT))


def free_bytes() -> float:
    """Memory that packs may take on the default device; infinity where it cannot be known."""
    given = os.environ.get(LIMIT)
    if given:
        if not given.isdigit():
            raise UsageError(f"{LIMIT} is {given!r}; give a whole number of bytes.")
        return float(given)
    device = jax.devices()[0]
    stats = device.memory_stats()
    if stats and "bytes_limit" in stats:
        return _SHARE * (stats["bytes_limit"] - stats.get("bytes_in_use", 0))
    return float("inf") if device.platform != "cpu" else _SHARE * host_bytes()


def host_bytes() -> float:
    """Memory of the host that is free; infinity where it cannot be known."""
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
    except OSError:  # not Linux
        return float("inf")
    sizes = {name: rest for name, _, rest in (line.partition(":") for line in lines)}
    available = sizes.get("MemAvailable", "").split()
    return 1024.0 * int(available[0]) if available else float("inf")


def device_bytes(device: Any) -> int | None:
    """Memory of a device, or of the machine for a CPU; None where nobody says."""
    statistics = device.memory_stats()  # None on a CPU
    if statistics and "bytes_limit" in statistics:
        return int(statistics["bytes_limit"])
    if device.platform != "cpu":
        return None
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):  # not every system can say
        return None


def chunk_bytes_of(train_bytes: int, validation_bytes: int) -> float | None:
    """Bytes of a chunk of training data where they must be sent in chunks; None where all fit.

    Raises:
        UsageError: The validation data alone do not fit.
    """
    free = free_bytes()
    if validation_bytes > _DATA * free:
        raise UsageError(
            f"validation_data: {validation_bytes / 1e6:,.0f} MB do not fit into the device's "
            f"{free / 1e6:,.0f} MB beside the trials; give fewer examples."
        )
    if train_bytes + validation_bytes <= _DATA * free:
        return None
    return _CHUNK * free


def batches_bytes() -> float:
    """Bytes of a chunk of data that come in batches."""
    return min(_BATCHES, _CHUNK * free_bytes())


def slot_bytes(executables: Iterable[Executable], n_slots: int, data_bytes: float) -> float:
    """What one slot takes beside the data, at the most of a pack's programs.

    Args:
        executables: The pack's programs; each is given the whole data set.
        n_slots: Slots of the pack.
        data_bytes: Size of the data set that its programs share.
    """
    most = 0.0
    for executable in executables:
        sizes = executable.memory()
        if sizes is not None:
            most = max(most, sizes - data_bytes)
    return max(0.0, most) / n_slots


def is_out_of_memory(error: BaseException) -> bool:
    """Whether XLA says that the device's memory does not suffice."""
    return isinstance(error, jax.errors.JaxRuntimeError) and "RESOURCE_EXHAUSTED" in str(error)
