"""The weights of the best trials: held while the search runs, saved as ordinary Keras files."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from paceline.executor.base import Weights
from paceline.objective import is_better

MANIFEST = "manifest.json"


@dataclass(frozen=True)
class _Held:
    value: float
    epoch: int
    weights: Weights | None  # None: on disk, from an earlier session


class BestModels:
    """Keeps the weights of the k best trials, each at its best epoch.

    Args:
        folder: Where files go; made at the first save.
        keep: k.
        direction: maximize or minimize.
    """

    def __init__(self, folder: Path, keep: int, direction: Any) -> None:
        self._folder, self._keep, self._direction = folder, keep, direction
        self._held: dict[int, _Held] = {}
        self._saved: dict[int, dict[str, Any]] = _read_manifest(folder)
        for number, entry in self._saved.items():
            self._held[number] = _Held(entry["value"], entry["epoch"], None)

    def offer(self, number: int, epoch: int, value: float, fetch: Callable[[], Weights]) -> None:
        """Takes a trial's weights when its new best value is among the k best.

        Args:
            number: The trial.
            epoch: The epoch of ``value``, from 1.
            value: The objective; the trial's best so far.
            fetch: Copies the weights from the device; called only when they are kept.
        """
        mine = self._held.get(number)
        if mine is not None and not is_better(value, mine.value, self._direction):
            return
        others = {n: held for n, held in self._held.items() if n != number}
        if len(others) >= self._keep:
            worst = self._ranked(others)[-1]
            if not is_better(value, others[worst].value, self._direction):
                return
            others.pop(worst)
        self._held = {**others, number: _Held(value, epoch, fetch())}

    def drop(self, number: int) -> None:
        """Forgets a trial, because it failed."""
        self._held.pop(number, None)

    def weights(self, number: int) -> Weights | None:
        """A trial's weights, where this process holds them."""
        held = self._held.get(number)
        return held.weights if held else None

    def path(self, number: int) -> Path | None:
        """A trial's saved model, its digest checked; None when there is none or it is damaged."""
        entry = self._saved.get(number)
        if entry is None:
            return None
        path = self._folder / entry["file"]
        if not path.is_file() or _digest(path) != entry["sha256"]:
            return None
        return path

    def save(self, rebuild: Callable[[int, Weights], Any]) -> None:
        """Writes every held model that is not on disk yet, then removes those no longer among the best.

        Args:
            rebuild: ``(number, weights) -> keras.Model`` to save.
        """
        if not self._held:
            return
        self._folder.mkdir(parents=True, exist_ok=True)
        entries: dict[int, dict[str, Any]] = {}
        for number, held in self._held.items():
            old = self._saved.get(number)
            if old is not None and old["epoch"] == held.epoch and old["value"] == held.value:
                entries[number] = old
            elif held.weights is not None:
                entries[number] = self._write(number, held, rebuild(number, held.weights))
        stale = {e["file"] for e in self._saved.values()} - {e["file"] for e in entries.values()}
        self._saved = entries
        text = json.dumps({str(n): entry for n, entry in entries.items()}, indent=1)
        _write_atomically(self._folder / MANIFEST, text.encode())
        for name in stale:
            (self._folder / name).unlink(missing_ok=True)

    def _write(self, number: int, held: _Held, model: Any) -> dict[str, Any]:
        name = f"trial-{number}-epoch-{held.epoch}.keras"
        temporary = self._folder / f".{os.getpid()}-{name}"
        try:
            model.save(temporary)
            os.replace(temporary, self._folder / name)
        finally:
            temporary.unlink(missing_ok=True)
        return {
            "file": name,
            "epoch": held.epoch,
            "value": held.value,
            "sha256": _digest(self._folder / name),
        }

    def _ranked(self, held: dict[int, _Held]) -> list[int]:
        """Trial numbers, best first; of equals the earlier trial."""
        sign = -1 if self._direction == "maximize" else 1
        return sorted(held, key=lambda n: (sign * held[n].value, n))


def apply_weights(model: Any, weights: Weights) -> None:
    """Gives a built model the weights of a trial."""
    trainable, non_trainable = weights
    for variables, values in (
        (model.trainable_variables, trainable),
        (model.non_trainable_variables, non_trainable),
    ):
        for variable, value in zip(variables, values, strict=True):
            variable.assign(value)


def _read_manifest(folder: Path) -> dict[int, dict[str, Any]]:
    try:
        data = json.loads((folder / MANIFEST).read_text())
    except (OSError, ValueError):
        return {}
    entries: dict[int, dict[str, Any]] = {}
    for number, entry in data.items():
        # Only names we could have written: a manifest from elsewhere must not point out of the folder.
        name = str(entry.get("file", ""))
        if name == Path(name).name and name.endswith(".keras") and np.isfinite(entry["value"]):
            entries[int(number)] = entry
    return entries


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _write_atomically(path: Path, data: bytes) -> None:
    temporary = path.with_name(f".{os.getpid()}-{path.name}")
    temporary.write_bytes(data)
    os.replace(temporary, path)
