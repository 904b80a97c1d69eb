"""Groups: the trials of one program. Each trial is traced, or recognised, and joins its group.

Trials whose steps have one canonical form share a program: the constants that differ between them
become inputs of it. A model that consists of Keras' own classes need not be traced if
``ConstantPredictor`` knows how such a model's constants follow from its hyperparameters.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import cache, partial
from typing import Any, ClassVar, Generic, TypeVar

from paceline.data.inputs import TrialInputs
from paceline.executor.base import Job, SearchData, SiblingModelBuilder, UserNotifier
from paceline.executor.batch_checks import batches_checked
from paceline.executor.model_builder import (
    SmallerBatchSteps,
    alike_key,
    key_of,
    kind_of,
    stock_structure,
    traced_model,
    traced_sizes,
    with_variables,
    workload_of,
)
from paceline.executor.sharing.width_families import WidthFamilies
from paceline.executor.state.facts import ProgramFacts, SharingFacts
from paceline.pack.callbacks.driver import CallbackDriver
from paceline.pack.callbacks.model_variables import why_not_beside
from paceline.pack.callbacks.packable import why_not_packed, why_not_traced
from paceline.pack.pack import Pack, SlotTrial
from paceline.pack.plan import CompiledPlan, Workload
from paceline.program import trace
from paceline.program.canonical import Constant, Unpackable
from paceline.program.formulas import constant_formulas
from paceline.program.formulas.model_structure import ModelStructure
from paceline.program.padding.widths import PaddedLayout
from paceline.program.step_template import StepTemplate
from paceline.program.trace import State, Step


@dataclass(eq=False)
class TrialGroup(ABC):
    """Trials of one program: what they have in common, and those that wait to be trained."""

    name: str  # short fingerprint, for people
    work: Workload  # the data that an epoch goes over
    roles: Sequence[StepTemplate]  # as ``TracedModel.steps``
    state: State  # shapes of a trial's variables
    metrics: list[Any]  # the metric variables at the start of an epoch
    rng_differs: bool  # whether its random numbers would be others under ``vmap``
    convolves: bool  # whether its training step holds a convolution
    n_seen: int = 0  # models whose constants are known, whether they are trials or not
    n_trials: int = 0  # taken in so far
    example: int | None = None  # number of the first of these trials
    queue: deque[SlotTrial] = field(default_factory=deque)  # without a slot, the next one first
    #: Whether trials train on other machines.
    away: ClassVar[bool] = False

    @property
    @abstractmethod
    def live(self) -> list[SlotTrial]:
        """The trials that train."""

    @property
    @abstractmethod
    def has_program(self) -> bool:
        """Whether its program is compiled, or asked for."""

    @property
    def is_settled(self) -> bool:
        """Whether it is settled how its program is compiled."""
        return self.has_program

    @property
    def train(self) -> StepTemplate:
        """The training step."""
        return self.roles[0]

    @property
    def n_live(self) -> int:
        """Number of trials that train."""
        return len(self.live)

    def add_constants(self, steps: Sequence[Sequence[Constant]], *, counts: bool = True) -> None:
        """Adds the constants of a model to those that the steps have met.

        ``counts``: whether the model may differ from those before; a repeat of a trial does not.
        Raises Unpackable if a number differs both between models and between batch sizes.
        """
        for role, constants in zip(self.roles, steps, strict=True):
            role.admit(constants)
        self.n_seen += counts

    def count_in(
        self, number: int, steps: Sequence[Sequence[Constant]], *, counts: bool = True
    ) -> None:
        """Counts a trial of that number; the rest as of ``add_constants``."""
        self.add_constants(steps, counts=counts)
        self.n_trials += 1
        self.example = number if self.example is None else self.example

    @property
    def trials(self) -> list[SlotTrial]:
        """Trials that wait, in order, and then those that train."""
        return [*self.queue, *self.live]

    def waiting(self, number: int) -> SlotTrial | None:
        """The trial of that number if it waits, else None."""
        return next((trial for trial in self.queue if trial.number == number), None)

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


@dataclass(eq=False)
class LocalGroup(TrialGroup):
    """A group whose trials train in packs of this process."""

    program: CompiledPlan | None = None  # that its packs run; None before the first is compiled
    # How the program was compiled before the search stopped; None if nothing is known, and once the
    # program has been compiled again.
    restored_program: ProgramFacts | None = None
    asked_round: int = 0  # when its program was asked for
    # At most one for each thread, while there are trials; in a stream all that have trials.
    packs: list[Pack] = field(default_factory=list)
    most_slots: int | None = None  # of a pack, as the memory allows; None while that is not known
    # Whether memory ran out while several packs trained: those of this group train alone now.
    alone: bool = False
    # Ways to train it that are tried out, a ``PlanChoice``; None if there is no choice.
    plan_choice: Any = None
    # Being compiled in the background, to replace ``program``.
    next_program: CompiledPlan | None = None

    @property
    def live(self) -> list[SlotTrial]:
        """The trials in slots."""
        return [trial for pack in self.packs for trial in pack.live]

    @property
    def on_device(self) -> bool:
        """Whether trials of it take memory of the device."""
        return any(pack.on_device and pack.live for pack in self.packs)

    def drop_pack(self, pack: Pack) -> None:
        """Drops a pack, if it is still there: without trials, it may be dropped while it trains."""
        self.packs[:] = [each for each in self.packs if each is not pack]

    @property
    def has_program(self) -> bool:
        """Whether its program is compiled, or asked for."""
        return self.program is not None

    @property
    def is_settled(self) -> bool:
        """Whether its program is compiled, or will be as it was before the search stopped."""
        return self.has_program or self.restored_program is not None


def program_of(group: LocalGroup) -> CompiledPlan:
    """The program of a group that has one."""
    assert group.program is not None
    return group.program


#: The kind of group that an executor trains.
G = TypeVar("G", bound=TrialGroup)


@dataclass(eq=False, repr=False)
class TrialGrouper(Generic[G]):
    """Sorts trials into groups."""

    data: SearchData
    # Size of a chunk of training data; None: all of them are on the device.
    chunk_bytes: float | None = None
    # Tells why trials of several widths do not share a program.
    notes: UserNotifier = field(default_factory=UserNotifier)
    kind: Any = field(default=LocalGroup, kw_only=True)  # class of the groups; decides ``G``
    # Which trials of several widths share programs, and why; see ``WidthFamilies``.
    sharing: SharingFacts = field(init=False, default_factory=SharingFacts)
    # None until a trial asks for one.
    families: WidthFamilies | None = field(init=False, default=None)
    # ``WaitingTrialMerger``, once trials that wait have been joined.
    _waiting: Any = field(init=False, default=None)
    # Structure and one of its groups, by key -> where the variables of its trials lie there.
    _padded_layouts: dict[tuple[Any, ...], PaddedLayout] = field(init=False, default_factory=dict)
    _by_key: dict[tuple[Any, ...], G] = field(init=False, default_factory=dict)
    _smaller: SmallerBatchSteps = field(init=False, default_factory=SmallerBatchSteps)
    _predictor: constant_formulas.ConstantPredictor = field(
        init=False, default_factory=constant_formulas.ConstantPredictor
    )
    # Structures and groups looked up on disk.
    _looked_up: set[tuple[Any, ...]] = field(init=False, default_factory=set)
    # Models that were not to be trained.
    _met: set[tuple[Any, ...]] = field(init=False, default_factory=set)
    # Structure -> what building the optimizer adds to the model's state; None if some of it is not
    # always zero.
    _optimizer_starts: dict[str, list[Any] | None] = field(init=False, default_factory=dict)

    @property
    def groups(self) -> list[G]:
        """All groups that have had a trial, in the order in which the groups were met."""
        return [group for group in self._by_key.values() if group.n_trials]

    @property
    def n_programs(self) -> int:
        """Number of groups that were met, those of models that are not to be trained among them."""
        return len(self._by_key)

    @property
    def waiting(self) -> int:
        """Number of trials that have been traced and have no slot."""
        return sum(len(group.queue) for group in self.groups)

    def find_waiting(self, number: int) -> tuple[G, SlotTrial] | None:
        """The trial of that number, with its group; None if it does not wait."""
        found = ((group, group.waiting(number)) for group in self.groups)
        return next(((group, trial) for group, trial in found if trial is not None), None)

    def reorder(self, groups: Sequence[G]) -> None:
        """Puts these groups first, in this order."""
        first = {id(group): at for at, group in enumerate(groups)}
        items = sorted(self._by_key.items(), key=lambda pair: first.get(id(pair[1]), len(first)))
        self._by_key = dict(items)

    def add(self, job: Job) -> G:
        """Queues a trial in its group, whose name becomes the job's program.

        Raises Unpackable if the step cannot be traced, or cannot be shared, or a callback acts
        within an epoch; the message says why.
        """
        setting = job.setting or self.data.inputs(job.batch_size)
        if setting.why_fit is not None:
            raise Unpackable(setting.why_fit)
        trace.check_packable(job.model, preprocessed=setting.preprocessed)
        if job.callbacks is not None:
            made = job.make_callbacks()[0]
            away, resident = self.kind.away, self.chunk_bytes is None
            why = why_not_packed(made, by_batch=self.data.by_batch and resident and not away)
            # ``CallbackDriver`` looks at what hooks before an epoch have set.
            why = why or why_not_traced(made, job.model, before=False)
            if why := why or why_not_beside(made, job.model, away=away):
                raise Unpackable(why)
        if job.batch_callbacks is not None and self.chunk_bytes is not None:
            raise Unpackable(
                "a callback acts between training batches, but the data are sent in chunks"
            )
        structure = stock_structure(job.model, setting, self.data.fold)
        known = None if structure is None or self._is_alone(job) else (job, setting, structure)
        group = known and (self._recognise(*known) or self._queue_untraced(*known))
        group = group or self._trace(job, setting, structure)
        job.program = group.name
        return group

    def pretrace(
        self, model: Any, setting: TrialInputs | int, widths: SiblingModelBuilder | None = None
    ) -> G | None:
        """Traces a model that is not to be trained, to learn how the constants of its kind follow.

        A number as ``setting`` is a batch size, on the executor's data. ``widths`` are given where
        the model may share the program of a family. Returns the model's group; None if nothing can
        be learnt from the model. Raises Unpackable if the model cannot be packed.
        """
        if isinstance(setting, int):
            setting = self.data.inputs(setting)
        trace.check_packable(model, preprocessed=setting.preprocessed)
        structure = stock_structure(model, setting, self.data.fold)
        family = None if structure is None else alike_key(structure, setting)
        numbers = () if structure is None else structure.numbers
        found = None if family is None else self._predictor.predict(family, numbers)
        key, steps, *_ = found or self._steps(model, setting, structure, widths)
        # The same numbers count once, whether a formula gave the constants or a trace.
        if family is None or (family, key, numbers) not in self._met:
            self._by_key[key].add_constants(steps)
            self._met.add((family, key, numbers))
        if family is not None and found is None:
            self._learn(family, key, numbers, steps)
        return self._by_key[key]

    def by_itself(self, model: Any, setting: TrialInputs) -> G:
        """The group of a model that shares no other program; arguments as of ``pretrace``."""
        trace.check_packable(model, preprocessed=setting.preprocessed)
        key, steps, *_ = self._steps(model, setting, None, None)
        self._by_key[key].add_constants(steps)
        return self._by_key[key]

    def _work(self, setting: TrialInputs) -> Workload:
        data = self.data
        return workload_of(setting, data.fold, self.chunk_bytes, by_batch=data.by_batch)

    def _is_alone(self, job: Job) -> bool:
        """Whether a job came before its family was made."""
        return job.widths is not None and job.widths.job in self.sharing.alone

    def _recognise(self, job: Job, setting: TrialInputs, structure: ModelStructure) -> G | None:
        """Queues a trial whose constants follow from its structure; None: it must be traced."""
        found = self._predictor.predict(alike_key(structure, setting), structure.numbers)
        if found is None:
            return None
        key, steps = found
        group = self._by_key[key]
        padded_layout = self._padded_layouts.get((alike_key(structure, setting), key))
        state = None
        if job.model.built:
            built = job.model.optimizer.built
            start = None if built else self._optimizer_starts.get(structure.structure)
            like = group.state if padded_layout is None else padded_layout.own
            state = trace.quick_state(job.model, like, group.metrics, start)
        if state is None:
            state = trace.build_state(job.model, group.work.batch)
        return self._queue(key, job, state, steps, padded_layout)

    def _queue_untraced(
        self, job: Job, setting: TrialInputs, structure: ModelStructure
    ) -> G | None:
        """Queues a trial that follows from others of its family; None: it must be traced."""
        if self.families is None or job.widths is None:
            return None
        work = self._work(setting)
        model, kind = job.model, kind_of(work, setting)

        def own(metrics: list[Any]) -> State:
            state = trace.quick_state(model, None, metrics) if model.built else None
            return state or trace.build_state(model, work.batch)

        found = self.families.foresee(kind, structure, job.widths, own)
        group = None if found is None else self._by_key.get(key_of(found[0].full, kind))
        if found is None or group is None:
            return None
        in_family, state = found
        _queue_job(group, job, state, in_family.constants, in_family.padded_layout)
        return group

    def _trace(self, job: Job, setting: TrialInputs, structure: ModelStructure | None) -> G:
        """Traces a trial's steps and queues the trial."""
        key, steps, state, padded_layout = self._steps(job.model, setting, structure, job.widths)
        group = self._queue(key, job, state, steps, padded_layout)
        if structure is not None and not self._is_alone(job):
            self._learn(alike_key(structure, setting), key, structure.numbers, steps)
        return group

    def _queue(
        self,
        key: tuple[Any, ...],
        job: Job,
        state: State,
        steps: Sequence[Sequence[Constant]],
        padded_layout: PaddedLayout | None,
    ) -> G:
        """Queues a trial with those of its steps, or where these have been joined with others."""
        found = self._waiting and self._waiting.ride_of(key, self._by_key[key])
        if found is not None:
            key, in_family = found
            steps, padded_layout = in_family.constants_in_family(steps), in_family.padded_layout
        _queue_job(self._by_key[key], job, state, steps, padded_layout)
        return self._by_key[key]

    def work_ahead(self) -> bool:
        """Does a part of what trials to come will need; returns False if there is nothing."""
        return self.families is not None and self.families.work_ahead()

    def join_waiting(self, make: Callable[[], Any]) -> None:
        """Has trials of several widths that wait share programs, by ``WaitingTrialMerger``."""
        self._waiting = self._waiting or make()
        self._waiting.join(self._by_key)

    def _learn(
        self,
        family: tuple[str, int],
        key: tuple[Any, ...],
        numbers: tuple[float, ...],
        steps: list[tuple[Constant, ...]],
    ) -> None:
        """Learns from a traced model, and from formulas of earlier searches."""
        self._predictor.add(family, key, numbers, steps)
        if (family, key) in self._looked_up:
            return
        self._looked_up.add((family, key))
        group = self._by_key[key]
        for old in constant_formulas.load_formulas(self._formulas_file(family, group)):
            if old.group != key:
                for numbers, _ in old.rows:
                    self._predictor.exclude(family, key, numbers)
                continue
            for numbers, constants in old.like(steps):
                self._predictor.add(family, key, numbers, constants)

    def save_formulas(self) -> None:
        """Writes what was learnt of the models' constants to disk, for later searches."""
        for family, shelf in self._predictor.by_structure():
            file = self._formulas_file(family, self._by_key[shelf[0].group])
            without_formula = any(
                each.unpredictable or len(each.met) > len(each.traced) for each in shelf
            )
            kept = (
                []
                if without_formula
                else [constant_formulas.StoredFormulas.of(each) for each in shelf]
            )
            constant_formulas.store_formulas(file, kept)

    def _formulas_file(self, family: tuple[str, int], group: G) -> str:
        name, work = family[0], group.work
        shapes = [work.train.batch_shapes(work.batch_size), work.rest]
        if work.validation is not None:
            size = work.validation_batch_size
            shapes += [work.validation.batch_shapes(size), work.validation_rest]
        return constant_formulas.formulas_key(name, *shapes)

    def _steps(
        self,
        model: Any,
        setting: TrialInputs,
        structure: ModelStructure | None,
        widths: SiblingModelBuilder | None,
    ) -> tuple[tuple[Any, ...], list[tuple[Constant, ...]], State, PaddedLayout | None]:
        """Traces a model's steps.

        Returns the key of the model's group (new or existing), the constants of its training and
        validation steps, and its state. The last value says how its group's program trains it, if
        not as traced.
        """
        work = self._work(setting)
        traced, start = traced_model(model, work, structure)
        if structure is not None:
            starts, name = self._optimizer_starts, structure.structure
            # Once building an optimizer has added something else than zeros, it stays None.
            if starts.setdefault(name, start) is not None:
                starts[name] = start
        kind, in_family = kind_of(work, setting), None
        tails = cache(partial(self._smaller.tails, model, traced, work, kind))
        # A family's validation step has no place for variables of the optimizer.
        if widths is not None and not traced.steps[-1].reads_optimizer:
            self.families = self.families or WidthFamilies(self.notes, self.sharing)
            widths = with_variables(widths, work)
            sizes = partial(traced_sizes, work=work)
            in_family = self.families.admit(traced, widths, kind, work.steps, sizes, tails)
        steps = traced.steps if in_family is None else in_family.full
        key = key_of(steps, kind)
        if in_family is not None and structure is not None:
            self._padded_layouts[alike_key(structure, setting), key] = in_family.padded_layout
        group = self._by_key.get(key)
        if group is None:
            if in_family is None:
                shapes, small = traced.state, tails()
            else:
                shapes, small = in_family.family, [step.small for step in in_family.steps]
            pairs, metrics = zip(steps, small, strict=True), traced.state.metrics
            self._by_key[key] = new_group(self.kind, key, shapes, metrics, work, pairs)
        elif group.n_seen == 1 and structure is None and in_family is None:
            # The second trial's smaller batch is traced too: its constants must follow the full
            # one's. In Keras' own classes no number mixes a hyperparameter with the batch size.
            for role, step, tail in zip(group.roles, steps, tails(), strict=True):
                if tail is not None:
                    role.verify_tail(step.canonical.constants, tail)
        constants = [step.canonical.constants for step in steps]
        return key, constants, traced.state, None if in_family is None else in_family.padded_layout


def new_group(
    kind: type[G],
    key: tuple[Any, ...],
    state: State,
    metrics: list[Any],
    work: Workload,
    steps: Iterable[tuple[Step, Step | None]],
) -> G:
    """A group without trials; ``steps`` are those on the full and on the smaller batch."""
    roles = [StepTemplate(full, small) for full, small in steps]
    return kind(
        name=f"{key[0][:6]}{(key[1] or '')[:4]}",
        work=work,
        roles=roles,
        state=trace.shapes_only(state),
        metrics=metrics,
        rng_differs=any(role.full.canonical.batched_rng_differs for role in roles),
        convolves=roles[0].full.canonical.convolves,
    )


def _queue_job(
    group: TrialGroup,
    job: Job,
    state: State,
    steps: Sequence[Sequence[Constant]],
    padded_layout: PaddedLayout | None,
) -> None:
    """Queues a job's members in its group; all members begin with one state."""
    group.count_in(job.number, steps, counts=job.counts)
    trials = [
        SlotTrial(
            *(job.number + i, job.seed, job.epochs, state, steps),
            fold=fold,
            order=job.order,
            driver=_driver(group, job, i),
            batch_callbacks=job.batch_callbacks,
            first_epoch=job.first_epoch,
            padded_layout=padded_layout,
        )
        for i, fold in enumerate(job.folds or (None,))
    ]
    # Executors begin with the first member last: ``tuner/search/members.py`` says why.
    group.queue.extend(reversed(trials))


def _driver(group: TrialGroup, job: Job, member: int) -> CallbackDriver | None:
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
        batches_checked,
    )
