"""A function for the engine to run, and its outcome."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class FunctionCall:
    """A function that the engine is to run."""

    number: int  # that no other call has; it appears in notes
    function: Callable[[], Any]
    # For ``keras.utils.set_random_seed``, before the function is called; None: drawn from Python's
    # ``random``.
    seed: int | None = None
    # The user's function, for a look at its code, where ``function`` is one that calls it.
    of_user: Any = None


@dataclass(frozen=True)
class FitRecord:
    """A record of one ``fit`` call of a function."""

    epochs: int  # that were trained
    seconds: float  # of the fit; in a pack, its share of the seconds of the pack
    program: str | None  # short fingerprint of the compiled program; None for Keras' own ``fit``
    plan: str  # "vectorized", "looped", "sequential" or "fit"
    why_alone: str | None  # why the fit did not train in a pack; None if it did


@dataclass
class CallOutcome:
    """The outcome of a call: what its function returned or raised."""

    call: FunctionCall
    value: Any = None  # what the function returned; None if it raised
    error: Exception | None = None  # what it raised; None if it returned
    fits: list[FitRecord] = field(default_factory=list)  # in order
    began: float = 0.0  # in seconds since 1970, as ``ended``; other functions ran meanwhile
    ended: float = 0.0
    seconds: float = 0.0  # of its own code, and its fits' shares of their packs' seconds

    @property
    def number(self) -> int:
        """The number of the call."""
        return self.call.number
