"""Trials that share a program: one template, and each trial's values for constants that differ.

A group is keyed by the fingerprints of its train and test step. Constants that are equal in every
trial seen stay constants, so that XLA can fold them; those that differ become inputs. A later trial
that differs elsewhere widens the set once, to every floating-point constant, so that a program is
compiled twice at most.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from paceline.program.canonical import Constant, Unpackable
from paceline.program.trace import Step

#: Numbers that XLA folds away or that operators treat specially (padding, masks). While nothing is
#: known of what differs they stay constants.
_SPECIAL = (0.0, 1.0, np.inf, -np.inf)
_MIXED = (
    "a hyperparameter and the batch size meet in one number of its step, which the last, smaller "
    "batch changes; choose a batch size that divides the data"
)


@dataclass
class StepTemplate:
    """The train or the test step of a group.

    Attributes:
        full: The template on a full batch.
        tail: The template on the last, smaller batch; None when the data divides evenly.
        observed: Constants seen to differ between trials.
        lifted: Constants that are inputs of the compiled step; holds ``observed``.
        settled: ``lifted`` has been chosen, perhaps as none.
        widened: ``lifted`` has been chosen again, as all there are.
    """

    full: Step
    tail: Step | None
    observed: set[int] = field(default_factory=set)
    lifted: tuple[int, ...] = ()
    widened: bool = False
    settled: bool = False

    def admit(self, constants: Sequence[Constant]) -> None:
        """Notes in which constants a trial's step differs from the template.

        Args:
            constants: Those of the trial's step on a full batch.

        Raises:
            Unpackable: A number differs both between trials and between batch sizes.
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

        Raises:
            Unpackable: They do not.
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
        """Whether the compiled step lacks an input that is needed now."""
        return not self.observed <= set(self.lifted)

    def settle(self, n_seen: int) -> None:
        """Chooses the lifted constants for the next compile.

        Args:
            n_seen: How many trials of the group have been seen; with one, nothing is known of what
                differs.
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
        self.lifted = tuple(sorted(chosen | self.observed))
        self.settled = True

    @property
    def tail_lifted(self) -> tuple[int, ...]:
        """The constants the smaller batch takes from the full one's, by number.

        The two steps are the same code on another shape, so constant i is constant i; a number that
        hangs on the batch size (the 1/B of a mean) differs between the two templates and stays what
        it is.
        """
        if self.tail is None:
            return ()
        full, tail = self.full.canonical.constants, self.tail.canonical.constants
        return tuple(i for i in self.lifted if same(full[i].value, tail[i].value))


def same(a: np.ndarray, b: np.ndarray) -> bool:
    """Whether two constants are equal to the bit (NaN equals itself)."""
    return a.shape == b.shape and a.tobytes() == b.tobytes()


def _special(constant: Constant) -> bool:
    return (
        constant.value.ndim > 0
        or float(constant.value) in _SPECIAL
        or bool(np.isnan(constant.value.astype(np.float64)))
    )
