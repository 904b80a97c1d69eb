"""A function to run, and what came of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Call:
    """A function to run.

    Attributes:
        number: For people, and to tell calls apart; any number, each once.
        function: Takes nothing, returns anything.
        seed: ``keras.utils.set_random_seed`` gets it before the function is called; None: drawn
            from Python's ``random``.
    """

    number: int
    function: Callable[[], Any]
    seed: int | None = None


@dataclass(frozen=True)
class FitRecord:
    """One ``fit`` of a function's.

    Attributes:
        epochs: Epochs it trained.
        seconds: In a pack, its share of the time that the pack took; else what it took.
        program: Short fingerprint of the compiled program; None in Keras' own ``fit``.
        plan: stacked, mapped, sequential or fit.
        why_alone: Why it was not packed; None where it was.
    """

    epochs: int
    seconds: float
    program: str | None
    plan: str
    why_alone: str | None


@dataclass
class Outcome:
    """What came of a call.

    Attributes:
        call: The call.
        value: What the function returned; None where it raised.
        error: What it raised, or None.
        fits: Its fits, in order.
        began, ended: Seconds since the epoch, as ``time.time`` has them. Other functions ran, too,
            between the two.
        seconds: Of this function alone: its own code, and its fits' shares of their packs.
    """

    call: Call
    value: Any = None
    error: Exception | None = None
    fits: list[FitRecord] = field(default_factory=list)
    began: float = 0.0
    ended: float = 0.0
    seconds: float = 0.0

    @property
    def number(self) -> int:
        """The call's."""
        return self.call.number
