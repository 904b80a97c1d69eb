"""Which Ray cluster a search uses, and how much of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from paceline.errors import UsageError


@dataclass(frozen=True)
class RaySettings:
    """The attributes of ``paceline.Ray``, which documents them."""

    address: str | None = None
    workers: int | str = "auto"
    cpus: int | None = None
    gpus: int | None = None
    resources: Mapping[str, float] = field(default_factory=dict)
    runtime_env: Mapping[str, Any] | None = None

    def __post_init__(self) -> None:
        if self.workers != "auto":
            _whole("workers", self.workers, 1, "how many processes train")
        if self.cpus is not None:
            _whole("cpus", self.cpus, 1, "the cores of each worker")
        if self.gpus is not None:
            if isinstance(self.gpus, float) and not self.gpus.is_integer():
                raise UsageError(
                    f"gpus: {self.gpus} is a fraction of a GPU, and one process must have a GPU "
                    "alone; give gpus=1: a pack fills it with many trials."
                )
            _whole("gpus", self.gpus, 0, "the GPUs of each worker")
            if self.gpus > 1:
                raise UsageError(
                    f"gpus: {self.gpus}, and a worker trains on one; give gpus=1, and more workers."
                )


def _whole(name: str, value: Any, least: int, what: str) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise UsageError(
            f"{name}: {value!r}, but it says {what}: give a whole number from {least}."
        )
