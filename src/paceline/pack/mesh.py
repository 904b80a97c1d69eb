"""Devices as a mesh: slots spread over the axis ``trial``, each slot's batch over ``data``.

Slots on different devices share nothing, so a program over ``trial`` alone runs on each device by
itself, and no device waits for another. With fewer trials than devices the batch of each trial is
split too; then the devices of a trial exchange gradients and batch statistics.

Notation
    S: slots; ``trial`` divides S. B: examples per trial and step; ``data`` divides B.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from paceline.errors import UsageError

TRIAL, DATA = "trial", "data"
_TEXT = re.compile(r"(\d+)(?:x(\d+))?")


@dataclass(frozen=True)
class MeshLayout:
    """Devices in ``trial`` rows of ``data`` devices."""

    devices: tuple[Any, ...]  # trial * data devices, row by row
    trial: int  # number of rows, over which slots are spread
    data: int  # devices of a row, over which the batch of each of its slots is split

    @cached_property
    def mesh(self) -> Mesh:
        """The devices as a JAX mesh with the axes ``trial`` and ``data``."""
        grid = np.empty(len(self.devices), object)
        grid[:] = self.devices
        return Mesh(grid.reshape(self.trial, self.data), (TRIAL, DATA))

    @property
    def over_slots(self) -> NamedSharding:
        """Sharding of arrays [S, ...]: each row of devices holds its slots."""
        return NamedSharding(self.mesh, PartitionSpec(TRIAL))

    @property
    def everywhere(self) -> NamedSharding:
        """Sharding of arrays that every device holds as a whole."""
        return NamedSharding(self.mesh, PartitionSpec())

    def shapes(self, tree: Any, *, over_slots: bool) -> Any:
        """Shapes and dtypes with a sharding, of a nest of arrays, or of shapes and dtypes.

        ``over_slots``: whether the arrays are [S, ...]; False: every device holds all of them.
        """
        sharding = self.over_slots if over_slots else self.everywhere
        return jax.tree.map(
            lambda a: jax.ShapeDtypeStruct(a.shape, a.dtype, sharding=sharding), tree
        )

    def spread(
        self, function: Callable[..., Any], over_slots: Sequence[bool]
    ) -> Callable[..., Any]:
        """A function of a whole pack, run by all devices; its results are spread over slots.

        ``function`` works for any number of slots, and returns arrays [S, ...]. ``over_slots``: for
        each argument, whether its arrays are [S, ...].
        """
        if self.data == 1:
            # Each device runs the function on its own slots: devices have nothing to exchange.
            specs = tuple(PartitionSpec(TRIAL) if each else PartitionSpec() for each in over_slots)
            return jax.shard_map(
                function,
                mesh=self.mesh,
                in_specs=specs,
                out_specs=PartitionSpec(TRIAL),
                check_vma=False,
            )

        def run(*args: Any) -> Any:
            return jax.lax.with_sharding_constraint(function(*args), self.over_slots)

        return run

    def split(self, batch: Any, size: int) -> Any:
        """A slot's batch, inside a program, split over the devices of a row.

        ``batch``: a nest of arrays [B, ...]. ``size``: B; a batch that the devices do not divide
        stays whole.
        """
        if self.data == 1 or size % self.data:
            return batch
        return jax.lax.with_sharding_constraint(
            batch, NamedSharding(self.mesh, PartitionSpec(DATA))
        )

    def slot_of(self, array: Any, slot: int) -> np.ndarray:
        """One slot of an array [S, ...] on the host, read from the device that has it.

        Where the host's memory is the device's, what is returned is that memory.
        """
        for shard in array.addressable_shards:
            start, stop, _ = shard.index[0].indices(array.shape[0])
            if start <= slot < stop:
                return np.asarray(shard.data)[slot - start]
        raise IndexError(slot)

    @property
    def vmap_axis(self) -> str | None:
        """The mesh axis of ``vmap`` over slots in a program that splits batches; else None."""
        return TRIAL if self.data > 1 else None


def check_mesh(mesh: Any) -> tuple[int, int | None] | None:
    """The user's mesh: the number of devices over trials, and over a batch (None: not said).

    ``mesh`` is "auto", which returns None; a number of devices; or (trial, data), also as text:
    "8", "4x2".
    """
    if mesh is None or mesh == "auto":
        return None
    sizes: tuple[Any, ...] = tuple(mesh) if isinstance(mesh, (tuple, list)) else (mesh,)
    found = _TEXT.fullmatch(mesh) if isinstance(mesh, str) else None
    if found:
        sizes = tuple(int(part) for part in found.groups() if part is not None)
    whole = all(type(size) is int and size >= 1 for size in sizes)
    if not whole or not 1 <= len(sizes) <= 2:
        raise UsageError(
            "mesh must be a number of devices, (trial, data) such as (4, 2) (--mesh 4x2), or "
            f"'auto', got {mesh!r}."
        )
    return sizes[0], sizes[1] if len(sizes) == 2 else None


def check_use(mesh: tuple[int, int | None] | None, plan: str, executor: str) -> None:
    """Refuses a mesh of several devices that the user's plan or executor would not use."""
    if mesh is None or mesh[0] * (mesh[1] or 1) == 1:
        return
    text = f"mesh: {mesh[0]} x {mesh[1] or 1} devices"
    if plan == "sequential":
        raise UsageError(f"{text}, but the plan sequential trains on one. Leave out mesh or plan.")
    if plan == "looped" and mesh[1] not in (None, 1):
        raise UsageError(f"{text}, but the plan looped cannot split batches. Use mesh={mesh[0]}.")
    if executor == "fit":
        raise UsageError(f"{text}, but Keras' fit uses only one. Leave out mesh or executor.")


def local_devices(given: tuple[int, int | None] | None) -> list[Any]:
    """The devices a search uses: those asked for, else all accelerators, else one CPU.

    Threads use the cores of a CPU; its devices are used only when they are asked for.
    ``given`` is from ``check_mesh``. Raises UsageError where JAX finds fewer devices.
    """
    devices = jax.local_devices()
    if given is None:
        return devices[:1] if devices[0].platform == "cpu" else devices
    n = given[0] * (given[1] or 1)
    if n > len(devices):
        platform = devices[0].platform
        hint = (
            f"set JAX_NUM_CPU_DEVICES={n} before the first import of jax, or "
            if platform == "cpu"
            else ""
        )
        have = f"{len(devices)} {platform} device{'' if len(devices) == 1 else 's'}"
        raise UsageError(
            f"mesh: you asked for {n} devices, but JAX finds {have}; {hint}ask for fewer."
        )
    return devices[:n]


def lay_out(
    devices: Sequence[Any], given: tuple[int, int | None] | None, n_trials: int, batch_size: int
) -> tuple[MeshLayout | None, str | None]:
    """How the trials of a program are spread over devices; and a sentence for the user, or None.

    The layout is None for a single device; the sentence is there where devices stay idle. ``given``
    is from ``check_mesh``; ``n_trials`` are the program's, as far as is known; ``batch_size``, B,
    is never changed. Raises UsageError where the batch cannot be split as the user asks.
    """
    n = len(devices)
    if given is not None and given[1] is not None:
        trial, data = given[0], given[1]
        if batch_size % data:
            raise UsageError(
                f"mesh: a batch of {batch_size} cannot be split over {data} devices. Use "
                f"{_largest(batch_size, data)} devices."
            )
    else:
        # As many rows as there are trials, if all rows get the same number of devices.
        trial = max(t for t in range(1, n + 1) if n % t == 0 and (t <= n_trials or t == 1))
        data = _largest(batch_size, n // trial)
    if trial * data == 1:
        return None, None if n == 1 else _idle(n, 1, batch_size)
    note = _idle(n, trial * data, batch_size) if trial * data < n else None
    return MeshLayout(tuple(devices[: trial * data]), trial, data), note


def _largest(batch_size: int, limit: int) -> int:
    """The largest number up to ``limit`` that divides the batch."""
    return max(d for d in range(1, limit + 1) if batch_size % d == 0)


def _idle(n: int, used: int, batch_size: int) -> str:
    return (
        f"only {used} of {n} devices are used: there are fewer trials than devices, and a batch "
        f"of {batch_size} cannot be split evenly over the others"
    )
