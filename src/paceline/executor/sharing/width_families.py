"""Families: trials of several widths, and of several choices, that share one program.

The first trial of its kind begins a family (``family_builder.py``). Each later trial is traced at
its own widths, and a walk over the traces proves that it may share the program. Or its steps follow
from traced trials (``program/formulas/width_formulas.py``).

Where time ends a search, its first model should be there soon. So a family is made step by step
while packs train. Until then trials of its kind have their own programs. How many steps there are
in a round does not depend on the clock: a search that resumes decides the same.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from paceline.executor.base import SiblingModelBuilder, UserNotifier
from paceline.executor.model_builder import Tails, TracedModel
from paceline.executor.process import random_state_kept
from paceline.executor.sharing.costs import Bands, tops_of
from paceline.executor.sharing.family import Family, TrialInFamily, operations_of
from paceline.executor.sharing.family_builder import FamilyBuilder, InSteps
from paceline.executor.state.facts import SharingFacts
from paceline.program.formulas.model_structure import ModelStructure
from paceline.program.formulas.width_formulas import WidthFormulas
from paceline.program.initial_weights import changes_kept
from paceline.program.padding.axes import NotPaddable
from paceline.program.trace import State


@dataclass(eq=False, repr=False)
class FamilyFounding:
    """A family that is being made, for the trials of one kind."""

    kind: tuple[Any, ...]  # as of ``WidthFamilies.admit``
    of_kind: tuple[Any, ...]  # kind and operations of the trial that began it
    widths: SiblingModelBuilder
    place: tuple[Any, ...]  # kind, bounds of its widths, and the band of the trial if there is one
    builder: FamilyBuilder
    steps: InSteps[Family | None]  # of ``builder``


class WidthFamilies:
    """The families of a search.

    ``notes`` tells why trials share no program that should wherever they can. ``facts`` are kept
    up to date: a resumed search decides by them as before.
    """

    def __init__(self, notes: UserNotifier, facts: SharingFacts) -> None:
        self._notes, self._facts = notes, facts
        self._families: dict[Any, Family | None] = {}  # None: such trials share no program
        # Kind and operations, and whether bands are known -> integers whose values keep trials in
        # families of their own.
        self._dividing: dict[Any, tuple[str, ...]] = {}
        self._bands: dict[Any, Bands] = {}  # by kind and bounds of widths
        self._apart: set[Any] = set()  # kinds and bounds of widths whose padding isn't worth it
        self._postponed: list[FamilyFounding] = []  # families that are made while packs train
        self._formulas = WidthFormulas()
        # Family -> the structures of the trials that it has admitted.
        self._structures: dict[Family, set[bytes]] = {}

    @property
    def saved(self) -> int:
        """Structures without a program of their own."""
        return sum(len(found) - 1 for found in self._structures.values() if found)

    def admit(
        self,
        traced: TracedModel,
        widths: SiblingModelBuilder,
        kind: tuple[Any, ...],
        steps: int,
        trace_sizes: Callable[[Any], tuple[TracedModel, Tails]],
        trace_tails: Callable[[], Tails],
    ) -> TrialInFamily | None:
        """A trial's steps within its family's program; None: it has a program of its own.

        ``kind`` is what the trials of a family share besides their steps; ``steps`` are training
        steps per epoch. ``trace_sizes`` traces a model on the full and on the smaller batches,
        ``trace_tails`` the trial's model on the smaller batches.
        """
        if widths.job in self._facts.alone:
            return None
        of_kind, band = (*kind, operations_of(traced)), self._band(kind, widths)
        key = self._key(of_kind, widths, band)
        if key not in self._families:
            place = band or (_bounds(kind, widths),)
            if any(founding.place == place for founding in self._postponed):
                self._facts.alone.append(widths.job or 0)
                return None
            if widths.job is not None:
                self._facts.deciding.append((widths.job, self._facts.steps))
            founding = self._begin(traced, widths, kind, of_kind, place, steps, trace_sizes)
            if founding is None:
                self._families[key] = None
            elif widths.outlook.core_seconds and widths.job is not None:
                self._postponed.append(founding)
                self._facts.alone.append(widths.job)
                return None
            else:
                while self._step(founding):
                    pass
                band = self._band(kind, widths)
                key = self._key(of_kind, widths, band)
        family, of_formulas = self._families[key], (*kind, *band)
        if family is None:
            self._learn(of_formulas, traced, None, [])
            return None
        try:
            # In Keras' own classes no number follows from hp and from the batch size at once.
            in_family = family.admit(traced, trace_tails() if traced.structure is None else None)
        except NotPaddable as error:
            self._learn(of_formulas, traced, None, [])
            self._tell(widths, f"a trial needs its own program: {error}")
            return None
        self._structures[family].add(in_family.structure)
        constants = family.beside_extents(in_family.variant, in_family.steps)
        self._learn(of_formulas, traced, (family, in_family.variant), constants)
        return in_family

    def foresee(
        self,
        kind: tuple[Any, ...],
        structure: ModelStructure,
        widths: SiblingModelBuilder,
        own: Callable[[list[Any]], State],
    ) -> tuple[TrialInFamily, State] | None:
        """A trial's steps within its family's program, and its variables; None: trace it.

        ``kind`` is as of ``admit``. ``own`` makes the variables, from the metrics' variables at the
        start of an epoch.
        """
        if widths.job in self._facts.alone:
            return None
        band = self._band(kind, widths)
        found = self._formulas.predict((*kind, *band), structure)
        if found is None:
            return None
        (family, variant), constants = found
        operations = list(family.members)[variant]
        if self._families.get(self._key((*kind, operations), widths, band)) is not family:
            return None  # it was decided before that trials of its kind do not share this one
        try:
            in_family, state = family.foresee(variant, constants, own)
        except NotPaddable:
            return None
        self._structures[family].add(in_family.structure)
        return in_family, state

    def _meet(
        self,
        kind: tuple[Any, ...],
        family: Family,
        widths: SiblingModelBuilder,
        band: tuple[Any, ...],
    ) -> None:
        """Learns how steps follow from the models of a new family."""
        self._structures[family] = set()
        keys = [self._key((*kind, operations), widths, band) for operations in family.members]
        for structure, variant, constants in family.examples():
            if self._families.get(keys[variant]) is family:
                self._formulas.add((*kind, *band), structure, (family, variant), constants)

    def _key(
        self, of_kind: tuple[Any, ...], widths: SiblingModelBuilder, band: tuple[Any, ...]
    ) -> tuple[Any, ...]:
        """The name of a trial's family."""
        names = self._dividing.get((of_kind, bool(band)), ())
        return (*of_kind, *(widths.hparams.get(name) for name in names), *band)

    def _band(self, kind: tuple[Any, ...], widths: SiblingModelBuilder) -> tuple[Any, ...]:
        """The name of a trial's band; empty where its kind has no bands, or none yet."""
        if not self._bands:
            return ()
        bounds = _bounds(kind, widths)
        bands = self._bands.get(bounds)
        if bands is None:
            return ()
        return (bounds, *tops_of(bands, widths.hparams))

    def work_ahead(self) -> bool:
        """Continues a family that is being made; returns False if there is none."""
        if not self._postponed:
            return False
        self._facts.steps += 1
        founding = self._postponed[0]
        if not self._step(founding):
            self._postponed.remove(founding)
        return True

    def _begin(
        self,
        traced: TracedModel,
        widths: SiblingModelBuilder,
        kind: tuple[Any, ...],
        of_kind: tuple[Any, ...],
        place: tuple[Any, ...],
        steps: int,
        trace_sizes: Callable[[Any], tuple[TracedModel, Tails]],
    ) -> FamilyFounding | None:
        """Begins the family of its first trial; None: such trials share no program."""
        ranges, choices = widths.ranges(), widths.choices()
        bounds = _bounds(kind, widths)
        if not ranges | choices or bounds in self._apart:
            return None
        builder = FamilyBuilder(traced, widths, steps, trace_sizes, self._bands.get(bounds))
        making = builder.family(ranges, choices)
        return FamilyFounding(kind, of_kind, widths, place, builder, making)

    def _step(self, founding: FamilyFounding) -> bool:
        """Continues a family until the next model; returns False once it is made."""
        family: Family | None = None
        try:
            # Its builds may freeze layers that the user's models share. A model that was built
            # before may draw its first values afterwards: once the data have told its inputs.
            with changes_kept(), random_state_kept():
                next(founding.steps)
            return True
        except StopIteration as end:
            family = end.value
        except Exception as error:
            # A user's build may refuse its largest widths, or what it builds may not fit.
            self._tell(founding.widths, f"widths are not trained together: {error}")
        self._end(founding, family)
        return False

    def _end(self, founding: FamilyFounding, family: Family | None) -> None:
        """Learns which trials share a program that was made, and which share none."""
        kind, of_kind, widths = founding.kind, founding.of_kind, founding.widths
        builder, bounds = founding.builder, _bounds(kind, widths)
        if builder.bands is not None:  # another band may do where this one does not
            self._bands.setdefault(bounds, builder.bands)
        for why in builder.refused:
            self._tell(widths, f"choices are not all trained together: {why}")
        if family is None and builder.bands is None and not widths.always:
            self._apart.add(bounds)
        band, dividing = self._band(kind, widths), tuple(builder.dividing)
        alike = [(*kind, digest) for digest in (() if family is None else family.members)]
        # Other bounds of such models have no bands yet: they find no answer, and choose.
        for each in (of_kind, *alike):
            self._dividing.setdefault((each, bool(band)), dividing)
            self._dividing.setdefault((each, False), dividing)
        for each in alike:
            self._families.setdefault(self._key(each, widths, band), family)
        self._families[self._key(of_kind, widths, band)] = family
        if family is not None:
            self._meet(kind, family, widths, band)

    def _learn(self, of_formulas: Any, traced: TracedModel, group: Any, constants: Any) -> None:
        """Learns how steps follow from a model of Keras' own classes; see ``WidthFormulas.add``."""
        if traced.structure is not None:
            self._formulas.add(of_formulas, traced.structure, group, constants)

    def _tell(self, widths: SiblingModelBuilder, text: str) -> None:
        if widths.always:
            self._notes.tell_once(text)


def _bounds(kind: tuple[Any, ...], widths: SiblingModelBuilder) -> tuple[Any, ...]:
    """A kind of trials, and what widths and choices they may have."""
    ranges = widths.ranges() | widths.choices()
    return (*kind, *((name, *values) for name, values in ranges.items()))
