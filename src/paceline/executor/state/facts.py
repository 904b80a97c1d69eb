"""What checkpoints hold of executors: groups of jobs with their programs, and Keras' ``fit``.

Executors make these facts and read them again; the file of a checkpoint is compared with these
types before anything resumes. A job is a trial, or a member of one.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, NotRequired, TypedDict

from msgspec import Meta, Struct

from paceline.records import Count, Numbers


class ProgramFacts(Struct):
    """How the program of a group is compiled."""

    plan: str
    slots: Annotated[int, Meta(ge=1, le=2**20)]
    quick: Annotated[int, Meta(ge=0, le=2)]  # ``CompileEffort``
    layout: tuple[Count, Count] | None  # devices that slots and batches are spread over; None: one


class TemplateFacts(Struct):
    """Which constants of a group's step are inputs; see ``StepTemplate``."""

    constants: Count
    observed: Numbers
    lifted: Numbers
    settled: bool
    widened: bool


#: What a callback held: as ``callback_state`` in ``pack/callbacks/state.py`` has it.
CallbackFacts = TypedDict(
    "CallbackFacts",
    {
        "class": str,
        "attributes": dict[str, Any],
        "lost": list[str],
        "variables": NotRequired[dict[str, Any]],
        "same": NotRequired[dict[str, tuple[Count, str]]],
        "length": NotRequired[Count],
    },
)


class CallbackDriverFacts(TypedDict):
    """What the callbacks of a job held: as ``CallbackDriver.saved`` has it."""

    callbacks: list[CallbackFacts]
    random: NotRequired[Any]


class GroupFacts(Struct, omit_defaults=True):
    """A group of jobs that share a program. The jobs are put back in the order of these lists."""

    name: str
    example: Count | None
    seen: Count
    trials: Count
    most_slots: Count | None
    program: ProgramFacts | None  # None if it is to be chosen again
    met: Count  # ``Group.asked_round``
    roles: list[TemplateFacts]
    packs: list[Annotated[list[Count | None], Meta(max_length=2**20)]]  # the job in each slot
    queue: Numbers  # jobs that wait, in order; elsewhere those that train come first
    parked: Numbers  # jobs that are paused
    epochs: dict[Count, Count]  # job -> epochs that the search knows of
    callbacks: dict[Count, CallbackDriverFacts]  # of jobs that have trained an epoch
    # Job that has trained no epoch -> callback -> bytes of its log before the job began.
    logs: dict[Count, dict[str, Count]] = {}
    held: dict[Count, Count] = {}  # job -> epoch of the state that is held, where that is behind
    best: dict[Count, float | None] = {}  # job elsewhere -> its best value until now
    alone: bool = False  # as of ``LocalGroup``


class DemandFacts(Struct):
    """What is still to come; see ``TrialDemand``."""

    alike: Count
    expected: Count
    unasked: Count


class RoundBegin(Struct):
    """What was there when a round began.

    Whether a compiler is waited for depends on the cache. So in lockstep, trials that are asked for
    meanwhile count from the next round on, as they do if there is nothing to wait for. A round that
    is broken off while it waits is repeated with the trials that it had.
    """

    numbers: frozenset[Count]  # of the trials that waited for a slot or were in one
    all_asked: bool  # whether no more were to come


class RoundFacts(Struct):
    """How far the rounds of packs are; see ``PackRounds``."""

    number: Count
    begun: RoundBegin | None = None  # of the round that waits for a compiler; None: none does


class SharingFacts(Struct):
    """What decided which trials of several widths share programs; see ``WidthFamilies``.

    A resumed search asks the same jobs: others could lead to another decision.
    """

    # Jobs that began families, and how many steps had been made before each.
    deciding: list[tuple[Count, Count]] = []
    steps: Count = 0  # by which families are made while packs train
    alone: Numbers = []  # jobs that came before their families were made


class PackFacts(Struct, omit_defaults=True):
    """All groups, and the devices that their programs were made for."""

    device: list[Any]
    sharing: SharingFacts
    groups: list[GroupFacts]
    asking: DemandFacts
    rounds: RoundFacts | None = None
    stream: Literal["on", "over"] | None = None  # as ``PackStream.state``


class FitFacts(Struct):
    """The job that Keras' ``fit`` trains; see ``FitState``."""

    job: Count
    epoch: Count
    random: Annotated[list[Any], Meta(min_length=5, max_length=5)]
    history: list[CallbackFacts]  # of the model's own record
    callbacks: list[CallbackFacts]
