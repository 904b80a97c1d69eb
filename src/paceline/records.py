"""What the search side and the device side both speak of, as it is written to files.

An executor records stays in slots, packs and compiled steps. The search gives each stay the number
of its trial, and stores the same records. This file also has the types of numbers and texts in
files, which ``msgspec`` checks.

Notation
    A moment is in seconds: of ``time.perf_counter`` while an executor has the record, and since the
    search began once it is written.
"""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import UNSET, Meta, Struct, UnsetType, field

Count = Annotated[int, Meta(ge=0, le=2**53)]  # of trials, epochs, examples, bytes
Numbers = list[Count]
Whole = Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)]  # of 64 bits, as a bound or a choice
#: JSON has no NaN and no infinities.
NOT_FINITE = Literal["nan", "inf", "-inf"]
#: A float as ``trial_codec.plain`` writes it.
Real = float | NOT_FINITE
Scalar = bool | Whole | float | str | None
Text = str | None
Moment = Annotated[float, Meta(ge=0, le=1e10)]  # 300 years of a search are enough


class BatchShape(Struct):
    """Shapes and dtypes of a batch, as ``data.arrays.shapes_to_json`` writes them."""

    shape: list[Count] | UnsetType = UNSET
    dtype: str | UnsetType = UNSET
    entries: dict[str, BatchShape] | UnsetType = field(default=UNSET, name="dict")
    items: list[BatchShape] | UnsetType = field(default=UNSET, name="list")
    parts: list[BatchShape] | UnsetType = field(default=UNSET, name="tuple")


class SlotStay(Struct, tag_field="kind", tag="stay"):
    """A trial was in a slot of a pack. A trial that was paused, or moved, has several stays."""

    trial: Count  # its number; while an executor has the record, the number of the job
    pack: Count  # packs are numbered as they are first seen
    slot: Count  # its number in the pack
    began: Moment  # when the first epoch in the slot began
    ended: Moment  # when the last one ended
    epochs: Count = 0  # trained in the slot
    program: Text = None  # short fingerprint of the pack's program
    plan: Text = None  # the pack's
    worker: Text = None  # the machine of a cluster; None: the one that searched


class PackCreated(Struct, tag_field="kind", tag="pack"):
    """A pack was created with this number of slots."""

    pack: Count
    slots: Count
    began: Moment  # when it was first seen
    program: Text = None
    plan: Text = None


class StepCompiled(Struct, tag_field="kind", tag="compile"):
    """A step was lowered and compiled, or found in the cache."""

    began: Moment  # as if it had been done in one go
    ended: Moment
    program: Text = None  # None if no trial is of it any more
    plan: Text = None
    slots: Count = 0  # that it trains
    from_cache: bool = False
