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
            _whole("workers", self.workers, 1, "the number of processes that train")
        if self.cpus is not None:
            _whole("cpus", self.cpus, 1, "the cores of each worker")
        if self.gpus is not None:
            if isinstance(self.gpus, float) and not self.gpus.is_integer():
                raise UsageError(
                    "gpus must not be a fraction, because a process needs a whole GPU, got "
                    f"{self.gpus}. Use gpus=1: a pack fills a GPU with many trials."
                )
            _whole("gpus", self.gpus, 0, "the GPUs of each worker")
            if self.gpus > 1:
                raise UsageError(
                    "gpus must be at most 1, because a worker trains on one GPU, got "
                    f"{self.gpus}. Use gpus=1 and more workers."
                )


def _whole(name: str, value: Any, least: int, what: str) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise UsageError(f"{name} ({what}) must be an integer of at least {least}, got {value!r}.")
