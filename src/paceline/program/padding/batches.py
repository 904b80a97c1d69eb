"""The step on a full batch and on the smaller last one, as one program.

Compiling a step is most of what a structure costs that few trials have. The smaller batch at the
end of an epoch is a second step of the same code. Here the full step takes its place: rows beyond
the smaller batch are padding, whose share of every sum over rows is filled with zero.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import numpy as np

from paceline.program import jax_compat
from paceline.program.compilation_cache import DiskCache, source_digest
from paceline.program.padding.axes import Axis, NotPaddable, unify
from paceline.program.padding.emission import emit
from paceline.program.padding.lockstep import MultiTraceWalk, PaddedValue
from paceline.program.padding.loops import RULES
from paceline.program.trace import Step


@dataclass(frozen=True)
class MaskedStep:
    """A step that takes batches of two sizes, the smaller one padded to the full one."""

    # The closed jaxpr. Its inputs are the number of examples that count, i32[]; constants that
    # differ between the two sizes, or between trials; the state and the batch. Its results are logs
    # and the state.
    closed: Any
    full: tuple[np.ndarray, ...]  # the constants that differ between the two sizes, on a full batch
    small: tuple[np.ndarray, ...]  # the same on the smaller batch


#: Whether two steps can be merged: known without a walk where lowered programs are on disk.
_PROVED = DiskCache("merged", kept=2000)


def merger(full: Step, small: Step, lifted: Sequence[int]) -> Callable[[], MaskedStep] | None:
    """What makes one step of these two, as ``merge`` does; None if it cannot.

    Whether it can is kept on disk, so that a program that is found there needs no walk.
    """
    digest = hashlib.sha256()
    parts = (source_digest(), jax.__version__, jax_compat.settings(), str(list(lifted)))
    for part in (*parts, full.canonical.fingerprint, small.canonical.fingerprint):
        digest.update(f"{part}\0".encode())
    name = f"{digest.hexdigest()}.txt"
    known = _PROVED.read(name)
    if known in (b"yes", b"no"):
        return partial(merge, full, small, lifted) if known == b"yes" else None
    try:
        step = merge(full, small, lifted)
    except NotPaddable:
        _PROVED.write(name, b"no")
        return None
    _PROVED.write(name, b"yes")
    return lambda: step


def merge(full: Step, small: Step, lifted: Sequence[int]) -> MaskedStep:
    """Makes one step of a trial's step on a full batch and its step on a smaller one.

    ``lifted``: numbers of the constants that differ between trials. Raises NotPaddable if it is not
    proved that the smaller batch's results are right.
    """
    closeds = [step.lift(lifted) for step in (full, small)]
    ins = []
    for pair in zip(*(closed.jaxpr.invars for closed in closeds), strict=True):
        a, b = (var.aval.shape for var in pair)
        if len(a) != len(b):
            raise NotPaddable("the traces differ: an input has another rank")
        ins.append(PaddedValue(tuple(map(_axis, zip(a, b, strict=True)))))
    rows = [axis for value in ins for axis in value.axes if axis.padded]
    if not rows:
        raise NotPaddable("no input has an axis of examples")
    for axis in rows[1:]:
        unify(rows[0], axis)
    body = MultiTraceWalk(RULES).body(closeds, ins)
    for axis in body.axes():
        for other in axis.symbols():
            # An axis that meets no input's, such as that of ones_like(y). If it is as long as the
            # batch in both traces, it is so in every step.
            unify(other, rows[0])
    symbol = rows[0].root()
    if symbol.parts:
        raise NotPaddable("the axis of examples is made of others")
    if any(value.padded for value in body.outs):
        raise NotPaddable("a result has a row for each example")
    choices = list(dict.fromkeys(body.all_choices()))
    return MaskedStep(
        emit(body, [symbol, *choices]),
        tuple(choice.values[0] for choice in choices),
        tuple(choice.values[1] for choice in choices),
    )


def _axis(sizes: tuple[int, ...]) -> Axis:
    axis = Axis(sizes)
    axis.require_prefix()
    return axis
