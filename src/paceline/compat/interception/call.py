"""A function for the engine to run, and its outcome."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Call:
    """A function that the engine is to run.

    Attributes:
        number: A number that no other call has; it appears in notes.
        function: Takes no arguments, returns anything.
        seed: Given to ``keras.utils.set_random_seed`` before the function is called; None: a seed
            drawn from Python's ``random``.
    """

    number: int
    function: Callable[[], Any]
    seed: int | None = None


@dataclass(frozen=True)
class FitRecord:
    """A record of one ``fit`` call of a function.

    Attributes:
        epochs: Epochs that were trained.
        seconds: Seconds of the fit; in a pack, its share of the seconds of the pack.
        program: Short fingerprint of the compiled program; None for Keras' own ``fit``.
        plan: "stacked", "mapped", "sequential" or "fit".
        why_alone: Why the fit did not train in a pack; None if it did.
    """

    epochs: int
    seconds: float
    program: str | None
    plan: str
    why_alone: str | None


@dataclass
class Outcome:
    """The outcome of a call: what its function returned or raised.

    Attributes:
        call: The call.
        value: What the function returned; None if it raised.
        error: What the function raised; None if it returned.
        fits: The function's fits, in order.
        began, ended: When the function began and ended, in seconds since 1970. Other functions ran
            between the two as well.
        seconds: Seconds of this function alone: its own code, and the shares of its fits in packs.
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
        """The number of the call."""
        return self.call.number
