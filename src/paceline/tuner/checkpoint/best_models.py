"""The weights of the best trials: held while the search runs, saved as ordinary Keras files."""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Callable, Container, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from paceline.executor.base import Weights
from paceline.program.files import write_atomically, written_atomically
from paceline.study.workers.worker import WORKERS

MANIFEST = "manifest.json"
#: Where models are in a study's folder, or in that of one of its workers.
FOLDER = "best"
_MODEL, _WEIGHTS = ".keras", ".weights.h5"
_HALF = re.compile(r"\.(tmp-)?\d+-")


@dataclass(frozen=True)
class _Held:
    value: float
    epoch: int
    weights: Weights | None  # None: on disk, from an earlier session


class BestModels:
    """Keeps the weights of the k best complete trials, each at its best epoch.

    A trial that still trains may fail or be stopped, so its weights are held beside those of the
    complete ones, not in their place.

    Args:
        folder: Where files go; made at the first save.
        keep: k.
        direction: maximize or minimize.
    """

    def __init__(self, folder: Path, keep: int, direction: Any) -> None:
        self._folder, self._keep, self._direction = folder, keep, direction
        self._open: dict[int, _Held] = {}
        self._complete: dict[int, _Held] = {}
        self._saved: dict[int, dict[str, Any]] = _read_manifest(folder)
        for number, entry in self._saved.items():
            self._complete[number] = _Held(entry["value"], entry["epoch"], None)

    def expect(self, values: Mapping[int, float]) -> None:
        """Leaves models of an earlier session alone that are of other trials than the study's.

        So it is where a storage was removed, or cut, and the models beside it were not.

        Args:
            values: Number -> value, of all complete trials.
        """
        for number, held in list(self._complete.items()):
            if held.weights is None and not _is_of(held.value, values.get(number)):
                del self._complete[number]

    def offer(self, number: int, epoch: int, value: float, fetch: Callable[[], Weights]) -> None:
        """Takes a running trial's weights when its new best value is among the k best.

        Args:
            number: The trial.
            epoch: The epoch of ``value``, from 1.
            value: The objective; the trial's best so far.
            fetch: Copies the weights from the device; called only when they are kept.
        """
        better = sum(self._rank(n, held) < self._rank(number, value) for n, held in self._values())
        if better < self._keep:
            self._open[number] = _Held(value, epoch, fetch())

    def complete(self, number: int) -> None:
        """Counts a trial among the complete ones; the worst beyond k are forgotten."""
        held = self._open.pop(number, None)
        if held is not None:
            self._complete[number] = held
            ranked = sorted(self._values(), key=lambda pair: self._rank(*pair))
            self._complete = {n: self._complete[n] for n, _ in ranked[: self._keep]}

    def drop(self, number: int) -> None:
        """Forgets a trial, because it failed."""
        self._open.pop(number, None)

    def forget(self, number: int) -> None:
        """Counts a trial no more, complete or not."""
        self._open.pop(number, None)
        self._complete.pop(number, None)

    @property
    def unsaved(self) -> bool:
        """Whether a complete trial is held that is not on disk."""
        return any(
            held.weights is not None and not self._is_saved(number, held)
            for number, held in self._complete.items()
        )

    def snapshot(self, arrays: dict[str, np.ndarray], without: Container[int]) -> dict[str, Any]:
        """What is held and not saved, as JSON values and, in ``arrays``, weights.

        Args:
            arrays: Name -> array, added to.
            without: Trials that are left out.
        """
        facts: dict[str, Any] = {}
        for where, trials in (("open", self._open), ("complete", self._complete)):
            facts[where] = {}
            for number, held in trials.items():
                if held.weights is None or number in without:
                    continue
                sizes = [len(part) for part in held.weights]
                facts[where][str(number)] = [held.value, held.epoch, *sizes]
                for part, leaves in enumerate(held.weights):
                    for at, leaf in enumerate(leaves):
                        arrays[f"best.{number}.{part}.{at}"] = leaf
        return facts

    def restore(self, facts: Mapping[str, Any], arrays: Mapping[str, np.ndarray]) -> None:
        """Holds what a snapshot held."""
        for where, trials in (("open", self._open), ("complete", self._complete)):
            for number, (value, epoch, *sizes) in facts[where].items():
                name = f"best.{number}"
                weights = tuple(
                    [arrays[f"{name}.{part}.{at}"] for at in range(n)]
                    for part, n in enumerate(sizes)
                )
                trials[int(number)] = _Held(value, epoch, (weights[0], weights[1]))

    def held(self, number: int) -> tuple[int, float, Weights] | None:
        """Of a running trial: its best epoch, the objective then, and the weights, if held."""
        held = self._open.get(number)
        if held is None or held.weights is None:
            return None
        return held.epoch, held.value, held.weights

    def weights(self, number: int) -> Weights | None:
        """A complete trial's weights, where this process holds them."""
        held = self._complete.get(number)
        return held.weights if held else None

    def path(self, number: int) -> Path | None:
        """A trial's saved model, its digest checked; None when there is none or it is damaged."""
        path = self.weights_path(number)
        return path if path is not None and path.suffix == _MODEL else None

    def weights_path(self, number: int) -> Path | None:
        """A file to load a trial's weights from: its model, or weights alone."""
        entry = self._saved.get(number) if number in self._complete else None
        return None if entry is None else _checked(self._folder, entry)

    def save(
        self, rebuild: Callable[[int, Weights], Any], note: Callable[[str], None] = lambda _: None
    ) -> None:
        """Writes every held model that is not on disk yet; removes those no longer among the best.

        Args:
            rebuild: ``(number, weights) -> keras.Model`` to save.
            note: Told of a model that Keras cannot save whole: its weights are saved alone.
        """
        if not self._complete:
            return
        self._folder.mkdir(parents=True, exist_ok=True)
        entries: dict[int, dict[str, Any]] = {}
        for number, held in self._complete.items():
            if self._is_saved(number, held):
                entries[number] = self._saved[number]
            elif held.weights is not None:
                try:
                    model = rebuild(number, held.weights)
                except Exception as error:  # the user's build, which worked for the trial
                    note(
                        f"the model of trial {number} cannot be saved: build(hp) failed this time: "
                        f"{type(error).__name__}: {error}"
                    )
                    continue
                entries[number] = self._write(number, held, model, note)
        stale = {e["file"] for e in self._saved.values()} - {e["file"] for e in entries.values()}
        # What a process that was killed left half written; nobody else writes here now.
        stale |= {path.name for path in self._folder.iterdir() if _HALF.match(path.name)}
        self._saved = entries
        text = json.dumps({str(n): entry for n, entry in entries.items()}, indent=1)
        write_atomically(self._folder / MANIFEST, text.encode())
        for name in stale:
            (self._folder / name).unlink(missing_ok=True)

    def _write(
        self, number: int, held: _Held, model: Any, note: Callable[[str], None]
    ) -> dict[str, Any]:
        stem = f"trial-{number}-epoch-{held.epoch}"
        try:
            name = self._put(stem + _MODEL, model.save)
        except OSError:
            raise
        except Exception as error:  # the user's class has no get_config, or a wrong one
            why = " ".join(str(error).split()).partition(". ")[0]
            note(
                f"the model of trial {number} cannot be saved whole, so its weights are saved "
                f"alone ({type(error).__name__}: {why})"
            )
            name = self._put(stem + _WEIGHTS, model.save_weights)
        return {
            "file": name,
            "epoch": held.epoch,
            "value": held.value,
            "sha256": _digest(self._folder / name),
        }

    def _put(self, name: str, write: Callable[[Path], None]) -> str:
        with written_atomically(self._folder / name) as temporary:
            write(temporary)
        return name

    def _is_saved(self, number: int, held: _Held) -> bool:
        old = self._saved.get(number)
        return old is not None and old["epoch"] == held.epoch and old["value"] == held.value

    def _values(self) -> list[tuple[int, float]]:
        return [(number, held.value) for number, held in self._complete.items()]

    def _rank(self, number: int, value: float) -> tuple[float, int]:
        """Sorts the best first; of equals the earlier trial, as the study does."""
        return (-value if self._direction == "maximize" else value, number)


def find_saved(folder: Path, number: int, value: float | None) -> Path | None:
    """A file to load a trial's weights from, whichever of a study's workers has saved it.

    Args:
        folder: The study's.
        number: The trial's.
        value: Likewise: another's file is none.
    """
    for best in (folder / FOLDER, *sorted(folder.glob(f"{WORKERS}/*/{FOLDER}"))):
        entry = _read_manifest(best).get(number)
        if entry is None or not _is_of(entry["value"], value):
            continue
        if (path := _checked(best, entry)) is not None:
            return path
    return None


def _is_of(value: float, trials: float | None) -> bool:
    """Whether a value is a trial's; databases may keep fewer digits."""
    return trials is not None and math.isclose(value, trials, rel_tol=1e-9)


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
        return {int(number): entry for number, entry in data.items() if _is_ours(entry)}
    except (OSError, ValueError, AttributeError):  # none, or a damaged one
        return {}


def _checked(folder: Path, entry: Mapping[str, Any]) -> Path | None:
    """A saved file, its digest checked; None when it is not there or damaged."""
    path = folder / entry["file"]
    return path if path.is_file() and _digest(path) == entry["sha256"] else None


def _is_ours(entry: Any) -> bool:
    """Whether an entry has all we write, and a name that does not point out of the folder."""
    try:
        name, value = str(entry["file"]), float(entry["value"])
        complete = int(entry["epoch"]) > 0 and isinstance(entry["sha256"], str)
    except (KeyError, TypeError, ValueError):
        return False
    plain = name == Path(name).name and not name.startswith(".")
    return complete and plain and name.endswith((_MODEL, _WEIGHTS)) and math.isfinite(value)


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
