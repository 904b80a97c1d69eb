"""What was learnt of a structure, on disk: the next search traces one trial of it, not several.

A search traces four or more models of a structure before it trusts how constants follow from
numbers (``learned.py``). Their numbers and constants are kept beside the compiled programs, with
the constants that were inputs at last, so that a second search makes the very same programs. It
still traces its first trial: only where that one falls into the group that was kept are the others
believed. What decides a step is in the key: structure, shapes, versions and this package's code.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax
import keras
import numpy as np

from paceline.program import jax_compat as jv
from paceline.program.canonical import Constant
from paceline.program.constant_laws import GroupLaws, Numbers, Steps
from paceline.program.disk_cache import DiskCache, source_digest
from paceline.program.step_template import StepTemplate

_DRAWER = DiskCache("structures", kept=500)
#: Bytes of a file, at most; constants may be arrays.
_MOST = 2**20


@dataclass(frozen=True)
class StoredLaws:
    """One group of a structure.

    Attributes:
        group: Its key.
        rows: Of each trial that was traced: its numbers, and per step its constants' bytes.
        lifted: Per step, the constants that were inputs of the compiled step.
        widened: Per step, whether that set had been widened.
    """

    group: tuple[Any, ...]
    rows: list[tuple[Numbers, list[list[bytes]]]]
    lifted: list[list[int]]
    widened: list[bool]

    def like(self, steps: Sequence[Sequence[Constant]]) -> Iterator[tuple[Numbers, Steps]]:
        """Its rows as constants of the shape and dtype of ``steps``; none that do not fit."""
        for numbers, values in self.rows:
            if [len(step) for step in steps] == [len(step) for step in values]:
                try:
                    yield (
                        numbers,
                        [
                            tuple(_as(c, v) for c, v in zip(*pair, strict=True))
                            for pair in zip(steps, values, strict=True)
                        ],
                    )
                except ValueError:  # of another size
                    continue

    def settle(self, roles: Sequence[StepTemplate]) -> None:
        """Has a group's steps take as inputs what they took before."""
        for role, lifted, widened in zip(roles, self.lifted, self.widened, strict=True):
            constants = role.full.canonical.constants
            fits = all(0 <= i < len(constants) and constants[i].liftable for i in lifted)
            if not role.settled and fits and role.observed <= set(lifted):
                role.lifted, role.widened, role.settled = tuple(lifted), widened, True


def remembered(learned: GroupLaws, roles: Sequence[StepTemplate]) -> StoredLaws:
    """What to keep of a group."""
    return StoredLaws(
        learned.group,
        [(n, [[c.value.tobytes() for c in step] for step in s]) for n, s in learned.traced.items()],
        [list(role.lifted) for role in roles],
        [role.widened for role in roles],
    )


def key_of(structure: str, *shapes: Any) -> str:
    """The file of a structure.

    Args:
        structure: Digest of a recipe.
        *shapes: Whatever else its steps depend on, as text or trees of shapes.
    """
    versions = (keras.__version__, jax.__version__, jax.default_backend(), jv.settings())
    parts = (source_digest(), *versions, structure, *(str(part) for part in shapes))
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()


def recall(key: str) -> list[StoredLaws]:
    """The groups kept under a key."""
    body = _DRAWER.read(f"{key}.json")
    if body is None:
        return []
    try:
        return [_from_json(each) for each in json.loads(body)]
    except (ValueError, TypeError, KeyError):  # not ours
        return []


def keep(key: str, groups: Sequence[StoredLaws]) -> None:
    """Keeps the groups of a structure; with none, forgets what was kept."""
    body = json.dumps([_to_json(group) for group in groups]).encode()
    if groups and len(body) <= _MOST:
        _DRAWER.write(f"{key}.json", body)
    else:
        _DRAWER.remove(f"{key}.json")


def _as(constant: Constant, raw: bytes) -> Constant:
    value = np.frombuffer(raw, constant.value.dtype).reshape(constant.value.shape)
    return (
        constant if value.tobytes() == constant.value.tobytes() else replace(constant, value=value)
    )


def _to_json(one: StoredLaws) -> dict[str, Any]:
    rows = [[list(n), [[c.hex() for c in step] for step in steps]] for n, steps in one.rows]
    return {"group": one.group, "rows": rows, "lifted": one.lifted, "widened": one.widened}


def _from_json(found: dict[str, Any]) -> StoredLaws:
    rows = [
        (tuple(map(float, n)), [[bytes.fromhex(c) for c in step] for step in steps])
        for n, steps in found["rows"]
    ]
    return StoredLaws(
        tuple(found["group"]),
        rows,
        [[int(i) for i in step] for step in found["lifted"]],
        [bool(each) for each in found["widened"]],
    )
