"""The variables of the best trials as their training ended, to train on from there.

The best models on disk (``best.py``) are those of the best epoch, for people to use. To go on with
a trial as if it had been meant to train longer takes all of its variables after its last epoch:
weights, seeds, the optimizer's and the metrics'. One file each, as many as there are best models.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np

from paceline.executor.base import Parts
from paceline.program.state_arrays import get_parts, put_parts
from paceline.tuner.checkpoint import files as checkpoint
from paceline.tuner.checkpoint.files import Snapshot

_NAME = re.compile(r"trial-(\d+)-epoch-(\d+)-([0-9a-f]{16})\.safetensors")


class LastVariables:
    """Keeps the last variables of the k best complete trials.

    Args:
        folder: Where files go; made at the first save.
        keep: k.
        rank: Sorts trials by value, the best first.
        values: Number -> value, of all complete trials.

    Attributes:
        awaited: Trials that go on in this search: what is saved of them stays.
    """

    def __init__(
        self,
        folder: Path,
        keep: int,
        rank: Callable[[float], float],
        values: Mapping[int, float],
    ) -> None:
        self._folder, self._keep, self._rank = folder, keep, rank
        self._values = dict(values)
        self.awaited: set[int] = set()
        self._held: dict[int, tuple[int, Parts]] = {}
        self._saved = {number: path for number, path in _found(folder) if number in self._values}

    def offer(self, number: int, epoch: int, value: float, fetch: Callable[[], Parts]) -> None:
        """Takes a complete trial's variables where it is among the k best.

        Args:
            number: The trial.
            epoch: Its last.
            value: The objective.
            fetch: Copies the variables from the device; called only when they are kept.
        """
        self._values[number] = value
        kept = sorted({*self._held, *self._saved, number}, key=self._place)[: self._keep]
        if number in kept:
            # Copies: what is fetched may be a view of all slots.
            self._held[number] = epoch, [[np.array(leaf) for leaf in part] for part in fetch()]
        self._held = {n: held for n, held in self._held.items() if n in kept}

    def load(self, number: int, epoch: int) -> Parts | None:
        """A trial's variables after an epoch, its last; None where they are not kept."""
        if number in self._held:
            found, parts = self._held[number]
            return parts if found == epoch else None
        path = self._saved.get(number)
        match = _NAME.fullmatch(path.name) if path is not None else None
        if path is None or match is None or int(match[2]) != epoch:
            return None
        snapshot, _ = checkpoint.load_checkpoint(path, match[3])
        if snapshot is None:
            return None
        arrays, value = snapshot.arrays, self._values[number]
        try:
            if not math.isclose(snapshot.facts.get("value", value), value, rel_tol=1e-9):
                return None  # of another trial: the storage was removed, or cut, and this was not
            sizes = [int(size) for size in snapshot.facts["sizes"]]
            return get_parts("", sizes, arrays)
        except (KeyError, TypeError, ValueError):
            return None

    def save(self) -> None:
        """Writes what is held, and removes what is no longer among the best and not awaited.

        Raises:
            OSError: It cannot be written.
        """
        for number, (epoch, parts) in self._held.items():
            arrays: dict[str, np.ndarray] = {}
            sizes = put_parts("", parts, arrays)
            value = self._values[number]
            facts = {"number": number, "epoch": epoch, "value": value, "sizes": sizes}
            stem = f"trial-{number}-epoch-{epoch}"
            self._saved[number] = checkpoint.save_checkpoint(
                self._folder, stem, Snapshot(facts, arrays)
            )
        self._held.clear()
        kept = {*sorted(self._saved, key=self._place)[: self._keep], *self.awaited}
        self._saved = {n: path for n, path in self._saved.items() if n in kept}
        names = {path.name for path in self._saved.values()}
        for _, path in _found(self._folder):
            if path.name not in names:
                path.unlink(missing_ok=True)

    def _place(self, number: int) -> tuple[float, int]:
        """Of equals the later trial first: it has gone on with the earlier one."""
        return self._rank(self._values[number]), -number


def _found(folder: Path) -> list[tuple[int, Path]]:
    try:
        paths = sorted(folder.iterdir())
    except OSError:
        return []
    return [(int(match[1]), path) for path in paths if (match := _NAME.fullmatch(path.name))]
