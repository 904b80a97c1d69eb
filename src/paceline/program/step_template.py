"""Trials that share a program: one template, and each trial's values for constants that differ.

The fingerprints of the train and the test step are the key of a group. Constants that are equal in
every trial seen stay constants, so that XLA can fold them; constants that differ become inputs
("lifted"). Where a later trial differs in another constant, every floating-point constant becomes
an input, so that a program is compiled twice at most.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from paceline.program.canonical import Constant, Unpackable
from paceline.program.trace import Step

#: Numbers that XLA folds away or that operators treat specially (padding, masks). They stay
#: constants while only one trial has been seen.
_SPECIAL = (0.0, 1.0, np.inf, -np.inf)
_MIXED = (
    "a number of its step depends on a hyperparameter and the batch size, and changes in the "
    "last, smaller batch. Use a batch size that divides the data"
)


@dataclass
class StepTemplate:
    """The train or the test step of a group."""

    full: Step  # the first trial's step on a full batch
    tail: Step | None  # the first trial's step on the smaller batch; None: all batches are full
    # Numbers of the constants that have differed between trials.
    observed: set[int] = field(default_factory=set)
    # Numbers of the constants that are inputs of the compiled step, ascending.
    lifted: tuple[int, ...] = ()
    widened: bool = False  # whether ``lifted`` has been chosen a second time, as all constants
    settled: bool = False  # whether ``lifted`` has been chosen, perhaps as none

    def admit(self, constants: Sequence[Constant]) -> None:
        """Notes in which constants a trial's step on a full batch differs from the template.

        Raises Unpackable where a constant differs both between trials and between batch sizes.
        """
        ours = self.full.canonical.constants
        differ = {
            index
            for index, (a, b) in enumerate(zip(ours, constants, strict=True))
            if a is not b and not same(a.value, b.value)
        }
        if self.tail is not None:
            tail = self.tail.canonical.constants
            if len(tail) != len(ours) or any(
                not same(ours[i].value, tail[i].value) for i in differ
            ):
                raise Unpackable(_MIXED)
        self.observed |= differ

    def verify_tail(self, constants: Sequence[Constant], tail: Step) -> None:
        """Checks on a second trial that the smaller batch's constants follow from the full batch's.

        ``constants`` are those of the trial's full batch, ``tail`` is its step on the smaller
        batch. Raises Unpackable where they do not follow.
        """
        assert self.tail is not None
        full, small = self.full.canonical.constants, self.tail.canonical.constants
        if tail.canonical.fingerprint != self.tail.canonical.fingerprint or len(full) != len(small):
            raise Unpackable(_MIXED)
        for i, constant in enumerate(tail.canonical.constants):
            differs = not same(constants[i].value, full[i].value)
            expected = constants[i] if differs else small[i]
            if not same(constant.value, expected.value):
                raise Unpackable(_MIXED)

    @property
    def stale(self) -> bool:
        """Whether a constant differs between trials and is not an input of the compiled step."""
        return not self.observed <= set(self.lifted)

    def settle(self, n_seen: int) -> None:
        """Chooses the lifted constants for the next compile.

        ``n_seen``: trials of the group so far; one trial does not show which constants differ.
        """
        constants = self.full.canonical.constants
        if self.settled and not self.stale:
            return
        if self.settled:
            self.widened = True
            chosen = {i for i, c in enumerate(constants) if c.liftable}
        elif n_seen < 2:
            chosen = {i for i, c in enumerate(constants) if c.liftable and not _special(c)}
        else:
            chosen = set(self.observed)
        self.lifted = tuple(sorted(chosen | self.observed | set(self.full.always_lifted)))
        self.settled = True

    @property
    def tail_lifted(self) -> tuple[int, ...]:
        """Numbers of the lifted constants that the smaller batch shares with the full one.

        The two steps are the same code on another shape, so constant i is constant i of both. A
        constant that depends on the batch size (the 1/B of a mean) differs between the two
        templates, and stays a constant.
        """
        if self.tail is None:
            return ()
        full, tail = self.full.canonical.constants, self.tail.canonical.constants
        return tuple(i for i in self.lifted if same(full[i].value, tail[i].value))


def same(a: np.ndarray, b: np.ndarray) -> bool:
    """Whether two constants have the same shape and the same bits (NaN equals itself)."""
    return a.shape == b.shape and a.tobytes() == b.tobytes()


def _special(constant: Constant) -> bool:
    return (
        constant.value.ndim > 0
        or float(constant.value) in _SPECIAL
        or bool(np.isnan(constant.value.astype(np.float64)))
    )
