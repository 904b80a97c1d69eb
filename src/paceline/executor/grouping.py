"""Taking trials in: each is traced, or recognised, and joins those that share its program."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from paceline.data.arrays import ArrayData
from paceline.data.batched import BatchedDataset
from paceline.data.inputs import TrialInputs
from paceline.executor.base import Job
from paceline.executor.group import Group
from paceline.pack.callbacks.driver import CallbackDriver
from paceline.pack.callbacks.packable import why_not_packed
from paceline.pack.pack import SlotTrial
from paceline.pack.plan import Workload
from paceline.program import trace
from paceline.program.canonical import Canonical, Constant, Unpackable
from paceline.program.constant_laws import (
    ConstantPredictor,
    StoredLaws,
    laws_key,
    load_laws,
    store_laws,
)
from paceline.program.model_structure import ModelStructure, structure_of
from paceline.program.step_template import StepTemplate
from paceline.program.trace import State, Step


class TrialGrouper:
    """Sorts trials into groups.

    Args:
        data: Training data.
        validation: Validation data, or None.
        validation_batch_size: None: as the trial's batch size, like Keras.
        fold: Examples that a job's folds train and validate on; None without folds.
        chunk_bytes: Of chunks of training data that are not on the device; None: they are.
    """

    def __init__(
        self,
        data: ArrayData | BatchedDataset,
        validation: ArrayData | None,
        validation_batch_size: int | None,
        fold: tuple[int, int] | None = None,
        chunk_bytes: float | None = None,
    ) -> None:
        self._data, self._validation, self._fold = data, validation, fold
        self._chunk_bytes = chunk_bytes
        self._validation_batch_size = validation_batch_size
        self._by_key: dict[tuple[Any, ...], Group] = {}
        self._library = ConstantPredictor()
        self._recalled: set[tuple[Any, ...]] = set()  # structures and groups looked up on disk
        # What building the optimizer adds to a structure's state; None where it is not always zero.
        self._starts: dict[str, list[Any] | None] = {}

    @property
    def groups(self) -> list[Group]:
        """All groups that trials have joined, in the order they were met."""
        return [group for group in self._by_key.values() if group.n_trials]

    @property
    def waiting(self) -> int:
        """Trials traced and not yet in a slot."""
        return sum(len(group.queue) for group in self.groups)

    def reorder(self, groups: Sequence[Group]) -> None:
        """Has these groups come first, in this order."""
        first = {id(group): at for at, group in enumerate(groups)}
        items = sorted(self._by_key.items(), key=lambda pair: first.get(id(pair[1]), len(first)))
        self._by_key = dict(items)

    def take(self, job: Job) -> Group:
        """Queues a trial in its group, whose name becomes the job's program.

        Raises:
            Unpackable: The step cannot be traced, or not be shared; the message says why.
        """
        trace.check_packable(job.model)
        if job.callbacks is not None:
            members = range(max(1, len(job.folds)))
            job.made = [job.callbacks(job.number + member) for member in members]
            if why := why_not_packed(job.made[0]):
                raise Unpackable(why)
        setting = job.setting or self._default(job.batch_size)
        recipe = _recipe(job.model, setting)
        group = None if recipe is None else self._recognise(job, setting, recipe)
        group = group or self._trace(job, setting, recipe)
        job.program = group.name
        return group

    def study(self, model: Any, setting: TrialInputs | int) -> Group | None:
        """Learns from a model that is not to be trained how the constants of its kind follow.

        Returns:
            Its group; None where nothing is to be learnt from it.

        Raises:
            Unpackable: It cannot be packed.
        """
        trace.check_packable(model)
        if isinstance(setting, int):  # of the data that the intake was made with
            setting = self._default(setting)
        recipe = _recipe(model, setting)
        if recipe is not None:
            found = self._library.predict(_shelf(recipe, setting), recipe.numbers)
            if found is not None:
                return self._by_key[found[0]]
        key, _, steps = self._steps(model, setting, recipe)
        self._by_key[key].note(*steps)
        if recipe is not None:
            self._learn(_shelf(recipe, setting), key, recipe.numbers, steps)
        return self._by_key[key]

    def _recognise(self, job: Job, setting: TrialInputs, recipe: ModelStructure) -> Group | None:
        """Queues a trial whose constants follow from its configuration; None: it must be traced."""
        found = self._library.predict(_shelf(recipe, setting), recipe.numbers)
        if found is None:
            return None
        key, steps = found
        group = self._by_key[key]
        state = None
        if job.model.built:
            start = None if job.model.optimizer.built else self._starts.get(recipe.structure)
            state = trace.quick_state(job.model, group.state, group.metrics, start)
        if state is None:
            shapes = group.work.train.batch_shapes(group.work.batch_size)
            state = trace.build_state(job.model, shapes)
        _queue(group, job, state, *steps)
        return group

    def _trace(self, job: Job, setting: TrialInputs, recipe: ModelStructure | None) -> Group:
        key, state, steps = self._steps(job.model, setting, recipe)
        group = self._by_key[key]
        _queue(group, job, state, *steps)
        if recipe is not None:
            self._learn(_shelf(recipe, setting), key, recipe.numbers, steps)
        return group

    def _learn(
        self,
        structure: tuple[str, int],
        key: tuple[Any, ...],
        numbers: tuple[float, ...],
        steps: list[tuple[Constant, ...]],
    ) -> None:
        """Learns from a traced model, and from earlier searches what they learnt of its group."""
        self._library.add(structure, key, numbers, steps)
        if (structure, key) in self._recalled:
            return
        self._recalled.add((structure, key))
        group = self._by_key[key]
        for old in load_laws(self._file(structure, group)):
            if old.group != key:
                for numbers, _ in old.rows:
                    self._library.exclude(structure, key, numbers)
                continue
            for numbers, constants in old.like(steps):
                self._library.add(structure, key, numbers, constants)
                if not all(role.settled for role in group.roles):
                    group.note(*constants)
            old.settle(group.roles)

    def keep(self) -> None:
        """Writes down what was learnt, for the next search."""
        for structure, shelf in self._library.by_structure():
            groups = [(each, self._by_key[each.group].roles) for each in shelf]
            if any(each.unpredictable or len(each.met) > len(each.traced) for each in shelf):
                store_laws(self._file(structure, self._by_key[shelf[0].group]), [])
            elif all(role.settled and not role.stale for _, roles in groups for role in roles):
                file = self._file(structure, self._by_key[shelf[0].group])
                store_laws(file, [StoredLaws.of(*group) for group in groups])

    def _file(self, structure: tuple[str, int], group: Group) -> str:
        name, work = structure[0], group.work
        shapes = [work.train.batch_shapes(work.batch_size), work.rest]
        if work.validation is not None:
            size = work.validation_batch_size
            shapes += [work.validation.batch_shapes(size), work.validation_rest]
        return laws_key(name, *shapes)

    def _steps(
        self, model: Any, setting: TrialInputs, recipe: ModelStructure | None
    ) -> tuple[tuple[Any, ...], State, list[tuple[Constant, ...]]]:
        """A traced model's group (made when it is new), its state and its steps' constants."""
        work = self._workload(setting)
        table = setting.class_weight
        batch = work.train.batch_shapes(work.batch_size)
        state, start = trace.optimizer_start(model, trace.weighed_shapes(batch, table))
        if recipe is not None and self._starts.setdefault(recipe.structure, start) is not None:
            self._starts[recipe.structure] = start
        train, test = trace.trace_train(model, state, batch, table), None
        if work.validation is not None:
            shapes = work.validation.batch_shapes(work.validation_batch_size)
            test = trace.trace_test(model, state, shapes)
        key = (
            train.canonical.fingerprint,
            test.canonical.fingerprint if test else None,
            work.batch_size,
            work.validation_batch_size,
            setting.group_key,
        )
        group = self._by_key.get(key)
        if group is None:
            tails = _tails(model, state, work, table)
            self._by_key[key] = _new_group(key, state, work, (train, test), tails)
        elif group.n_seen == 1 and recipe is None:
            # The second trial's smaller batch is traced too: its constants must follow the full
            # one's. In Keras' own classes no number mixes a hyperparameter with the batch size.
            tails = _tails(model, state, work, table)
            for role, step, tail in zip(
                (group.train, group.test), (train, test), tails, strict=True
            ):
                if role is not None and step is not None and tail is not None:
                    role.verify_tail(step.canonical.constants, tail)
        return key, state, [s.canonical.constants for s in (train, test) if s is not None]

    def _default(self, batch_size: int) -> TrialInputs:
        """The setting of jobs that have none."""
        size = self._validation_batch_size or batch_size
        return TrialInputs(self._data, self._validation, batch_size, size)

    def _workload(self, setting: TrialInputs) -> Workload:
        if setting.data is None:
            raise Unpackable(setting.why_fit or "its data are no arrays")
        work = Workload(
            setting.data,
            setting.validation,
            setting.batch_size,
            setting.validation_batch_size,
            self._fold,
            self._chunk_bytes,
            setting.steps_per_epoch,
        )
        if setting.validation is None:
            return work
        size = min(setting.validation_batch_size, work.n_validation)
        return replace(work, validation_batch_size=size)


def _recipe(model: Any, setting: TrialInputs) -> ModelStructure | None:
    # Class weights are constants that no object of the model holds.
    return structure_of(model) if setting.class_weight is None else None


def _shelf(recipe: ModelStructure, setting: TrialInputs) -> tuple[str, int]:
    """What trials must share for one to be recognised by another."""
    return recipe.structure + setting.group_key, setting.batch_size


def _new_group(
    key: tuple[Any, ...],
    state: State,
    work: Workload,
    steps: tuple[Step, Step | None],
    tails: tuple[Step | None, Step | None],
) -> Group:
    (train, test), (train_tail, test_tail) = steps, tails
    flags: list[Canonical] = [s.canonical for s in (train, test) if s is not None]
    return Group(
        name=f"{key[0][:6]}{(key[1] or '')[:4]}",
        work=work,
        train=StepTemplate(train, train_tail),
        test=None if test is None else StepTemplate(test, test_tail),
        state=trace.shapes_only(state),
        metrics=state.metrics,
        rng_differs=any(c.batched_rng_differs for c in flags),
        convolves=train.canonical.convolves,
    )


def _tails(model: Any, state: State, work: Workload, table: Any) -> tuple[Step | None, Step | None]:
    """The train and test step on the last, smaller batch, where there is one."""
    train = test = None
    if work.rest:
        train = trace.trace_train(model, state, work.train.batch_shapes(work.rest), table)
    if work.validation is not None and work.validation_rest:
        rest = work.validation.batch_shapes(work.validation_rest)
        test = trace.trace_test(model, state, rest)
    return train, test


def _queue(
    group: Group,
    job: Job,
    state: State,
    train: Sequence[Constant],
    test: Sequence[Constant] | None = None,
) -> None:
    group.note(train, test, counts=job.counts)
    group.n_trials += 1
    if group.example is None:
        group.example = job.number
    first = 0 if job.setting is None else job.setting.first_epoch
    riders = [
        SlotTrial(
            *(job.number + i, job.seed, job.epochs, state, train, test),
            fold=fold,
            order=job.order,
            driver=_driver(group, job, i),
            first_epoch=first,
        )
        for i, fold in enumerate(job.folds or (None,))
    ]
    group.queue.extend(reversed(riders))  # the first member last: see members.py


def _driver(group: Group, job: Job, member: int) -> CallbackDriver | None:
    """The callbacks of a member of a job; each has a model of its own to look at."""
    if not job.made:
        return None
    model, work = job.model, group.work
    first = 0 if job.setting is None else job.setting.first_epoch
    return CallbackDriver(
        job.made[member],
        job.rebuild if member else lambda: model,
        work.train.batch_shapes(work.batch_size),
        {"epochs": first + job.epochs, "steps": work.epochs.of(0)[2]},
    )
