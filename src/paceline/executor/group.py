"""A group: the trials of one program, with the templates of its steps."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from paceline.executor.base import Job
from paceline.executor.plan_choice import Candidate, PlanChoice
from paceline.pack.callbacks.driver import CallbackDriver
from paceline.pack.pack import Pack, SlotTrial
from paceline.pack.plan import CompiledPlan, Workload
from paceline.program import trace
from paceline.program.canonical import Canonical, Constant
from paceline.program.compile import Effort
from paceline.program.padding.widths import Embedding
from paceline.program.step_template import StepTemplate
from paceline.program.trace import State, Step


@dataclass(frozen=True)
class RestoredProgram:
    """How a group's program was compiled until its search stopped.

    Attributes:
        candidate: Plan and slots.
        effort: How well the program was compiled.
        layout: Devices that slots were spread over and batches were split over; None: one device.
    """

    candidate: Candidate
    effort: Effort
    layout: tuple[int, int] | None


@dataclass
class Group:
    """Trials of one program: those that wait for a slot, and the packs that train the others.

    Attributes:
        name: Short fingerprint, for people.
        work: The data that an epoch goes over.
        train, test: The steps; test is None without validation data.
        state: Shapes of a trial's variables.
        metrics: The metric variables at the start of an epoch.
        rng_differs: Whether its random numbers would be others under ``vmap``.
        convolves: Whether its training step holds a convolution.
        n_seen: Models whose constants are known, whether they are trials or not.
        n_trials: Trials taken in so far.
        example: Number of the first of these trials.
        queue: Trials without a slot, the next one first.
        program: The program that its packs run; None before the first is compiled.
        restored_program: How the program was compiled before the search stopped; None where nothing
            is known, and once the program has been compiled again.
        asked_round: The round in which its program was asked for.
        packs: At most one for each lane, while there are trials; in a stream all that have trials.
        most_slots: Slots of a pack that the memory allows; None while that is not known.
        plan_choice: Ways to train the group that are tried out; None where there is no choice.
        next_program: A program that is being compiled in the background, to replace ``program``.
    """

    name: str
    work: Workload
    train: StepTemplate
    test: StepTemplate | None
    state: State
    metrics: list[Any]
    rng_differs: bool
    convolves: bool
    n_seen: int = 0
    n_trials: int = 0
    example: int | None = None
    queue: deque[SlotTrial] = field(default_factory=deque)
    program: CompiledPlan | None = None
    restored_program: RestoredProgram | None = None
    asked_round: int = 0
    packs: list[Pack] = field(default_factory=list)
    most_slots: int | None = None
    plan_choice: PlanChoice | None = None
    next_program: CompiledPlan | None = None

    @property
    def roles(self) -> list[StepTemplate]:
        """The training step, and the validation step if there is one."""
        return [role for role in (self.train, self.test) if role is not None]

    @property
    def n_live(self) -> int:
        """Number of trials in slots."""
        return sum(len(pack.live) for pack in self.packs)

    def add_constants(
        self,
        train: Sequence[Constant],
        test: Sequence[Constant] | None = None,
        *,
        counts: bool = True,
    ) -> None:
        """Adds the constants of a model to those that the steps have met.

        Args:
            train: The constants in the training step.
            test: The constants in the validation step; None without validation data.
            counts: Whether the model may differ from those before; a repeat of a trial does not.

        Raises:
            Unpackable: A number differs both between models and between batch sizes.
        """
        self.train.admit(train)
        if self.test is not None and test is not None:
            self.test.admit(test)
        self.n_seen += counts

    @property
    def trials(self) -> list[SlotTrial]:
        """Trials that wait for a slot, in order, and then those in slots."""
        return [*self.queue, *(trial for pack in self.packs for trial in pack.live)]

    def waiting(self, number: int) -> SlotTrial | None:
        """The trial of that number if it waits for a slot, else None."""
        return next((trial for trial in self.queue if trial.number == number), None)

    def pack_of(self, number: int) -> Pack | None:
        """The pack in which a trial has a slot; None if the trial has none."""
        for pack in self.packs:
            if any(trial.number == number for trial in pack.live):
                return pack
        return None

    @property
    def nbytes(self) -> int:
        """Bytes of one trial's variables."""
        return sum(
            math.prod(a.shape) * a.dtype.itemsize for part in self.state.lists() for a in part
        )

    @property
    def active(self) -> bool:
        """Whether any trial waits or trains."""
        return bool(self.queue) or self.n_live > 0


def program_of(group: Group) -> CompiledPlan:
    """The program of a group that has one."""
    assert group.program is not None
    return group.program


def abandon_callbacks(trial: SlotTrial) -> None:
    """Releases the callbacks of a trial that trains no further; none of them is called again."""
    if trial.driver is not None:
        trial.driver.abandon()


def new_group(
    key: tuple[Any, ...],
    state: State,
    metrics: list[Any],
    work: Workload,
    steps: tuple[Step, Step | None],
    tails: tuple[Step | None, Step | None],
) -> Group:
    """A group without trials.

    Args:
        key: Its key; see ``key_of``.
        state: Shapes and dtypes of the variables of its program.
        metrics: As of ``Group``.
        work: As of ``Group``.
        steps: The train and the test step on full batches.
        tails: The same on the smaller batches.
    """
    (train, test), (train_tail, test_tail) = steps, tails
    flags: list[Canonical] = [s.canonical for s in (train, test) if s is not None]
    return Group(
        name=f"{key[0][:6]}{(key[1] or '')[:4]}",
        work=work,
        train=StepTemplate(train, train_tail),
        test=None if test is None else StepTemplate(test, test_tail),
        state=trace.shapes_only(state),
        metrics=metrics,
        rng_differs=any(c.batched_rng_differs for c in flags),
        convolves=train.canonical.convolves,
    )


def queue_job(
    group: Group,
    job: Job,
    state: State,
    steps: Sequence[Sequence[Constant]],
    embedding: Embedding | None,
) -> None:
    """Queues a job's members in its group; all members begin with one state."""
    train, test = steps[0], steps[1] if len(steps) > 1 else None
    group.add_constants(train, test, counts=job.counts)
    group.n_trials += 1
    if group.example is None:
        group.example = job.number
    trials = [
        SlotTrial(
            *(job.number + i, job.seed, job.epochs, state, train, test),
            fold=fold,
            order=job.order,
            driver=_driver(group, job, i),
            first_epoch=job.first_epoch,
            embedding=embedding,
        )
        for i, fold in enumerate(job.folds or (None,))
    ]
    # Executors begin with the first member last: ``tuner/members.py`` says why.
    group.queue.extend(reversed(trials))


def _driver(group: Group, job: Job, member: int) -> CallbackDriver | None:
    """The callbacks of a member of a job, each member with a model of its own to look at."""
    if not job.made:
        return None
    model, work = job.model, group.work
    return CallbackDriver(
        job.made[member],
        job.rebuild if member else lambda: model,
        work.train.batch_shapes(work.batch_size),
        {"epochs": job.first_epoch + job.epochs, "steps": work.epochs.of(0)[2]},
        job.seed,
    )
