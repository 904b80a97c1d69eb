"""Trials of several widths that wait share a program, where no other models may be built.

A fit of a user's own function has a model, but cannot be built at other widths: the function runs
only for requested values. So the program is that of a waiting trial that is the largest in all its
variables (``family.py``). A second waiting trial shows which axes are padded. Trials that come
later share it where they fit in; wider ones have programs of their own.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from paceline.executor.model_builder import Tails, TracedModel, key_of
from paceline.executor.sharing.costs import MARGIN, PADDED
from paceline.executor.sharing.family import Family, TrialInFamily, family_of, operations_of
from paceline.executor.sharing.family_builder import in_structures, unknown_cost
from paceline.executor.sharing.grouping import LocalGroup, new_group
from paceline.pack.plan.base import step_flops
from paceline.program.canonical import Unpackable
from paceline.program.padding.axes import NotPaddable

Key = tuple[Any, ...]


class WaitingTrialMerger:
    """Which trials share the programs of others that waited with them."""

    def __init__(self) -> None:
        self._families: dict[Any, list[tuple[Key, Family]]] = {}  # by ``_kind``
        # Key of a group -> the group whose program its trials share; None: one of their own.
        self._hosts: dict[Key, tuple[Key, TrialInFamily] | None] = {}

    def join(self, groups: dict[Key, LocalGroup]) -> None:
        """Moves trials that wait, of groups without a program, to groups of several widths.

        The latter are added to ``groups``, which has all groups by their keys.
        """
        kinds: dict[Any, list[Key]] = {}
        for key, group in groups.items():
            reads = group.roles[-1].full.reads_optimizer
            if group.queue and group.program is None and key not in self._hosts and not reads:
                kinds.setdefault(_kind(key, group), []).append(key)
        for kind, keys in kinds.items():
            left = sorted(keys, key=lambda key: -groups[key].nbytes)
            while len(left) > PADDED:
                largest, *others = left
                fitting = [key for key in others if _fits(groups[largest], groups[key])]
                enough = len(fitting) >= PADDED
                moved = self._join(groups, kind, largest, fitting) if enough else []
                if moved is None:
                    break  # each try walks two traces, and the next one would fail as well
                left = [key for key in others if key not in moved]

    def ride_of(self, key: Key, group: LocalGroup) -> tuple[Key, TrialInFamily] | None:
        """The key of the group whose program trials of a group share, and how; None: their own."""
        if key not in self._hosts:
            families = self._families.get(_kind(key, group), ()) if self._families else ()
            admitted = ((other, _admitted(family, group)) for other, family in families)
            self._hosts[key] = next(
                ((other, in_family) for other, in_family in admitted if in_family), None
            )
        return self._hosts[key]

    def _join(
        self, groups: dict[Key, LocalGroup], kind: Any, largest: Key, fitting: Sequence[Key]
    ) -> list[Key] | None:
        """Joins groups that fit into the largest one, if that is faster.

        Returns the keys of those that share it; None if it is not proved of any.
        """
        whole, others = groups[largest], [groups[key] for key in fitting]
        if not _pays(whole, others):
            return []
        # The one that shows most axes: whose extents differ most from the largest one's.
        other = max(others, key=lambda group: _differing(whole, group))
        try:
            family = family_of(_traced(whole), _tails(whole), _traced(other), _tails(other))
        except NotPaddable:
            return None
        admitted = {key: _admitted(family, groups[key]) for key in (largest, *fitting)}
        found = {key: in_family for key, in_family in admitted.items() if in_family is not None}
        if len(found) <= PADDED:
            return []
        first = found.get(largest) or next(iter(found.values()))
        key = key_of(first.full, largest[2:])
        parts = whole.metrics, whole.work, first.steps
        joined = new_group(LocalGroup, key, first.family, *parts)
        trials = [(trial, found[key]) for key in found for trial in groups[key].queue]
        trials.sort(key=lambda pair: pair[0].number)
        constants = [in_family.constants_in_family(trial.constants) for trial, in_family in trials]
        try:
            for (trial, _), steps in zip(trials, constants, strict=True):
                joined.count_in(trial.number, steps)
        except Unpackable:
            return []
        groups[key] = joined
        self._families.setdefault(kind, []).append((key, family))
        for own, in_family in found.items():
            self._hosts[own] = key, in_family
            groups[own].queue.clear()
            groups[own].n_trials = 0
        for (trial, in_family), steps in zip(trials, constants, strict=True):
            trial.constants, trial.padded_layout = steps, in_family.padded_layout
            joined.queue.append(trial)
        return list(found)


def _kind(key: Key, group: LocalGroup) -> Any:
    """What trials have in common that may share a program."""
    names = [role.full.log_names for role in group.roles]
    return *key[2:], repr(names), operations_of(_traced(group))


def _traced(group: LocalGroup) -> TracedModel:
    return TracedModel(group.state, [role.full for role in group.roles])


def _tails(group: LocalGroup) -> Tails:
    return [role.tail for role in group.roles]


def _admitted(family: Family, group: LocalGroup) -> TrialInFamily | None:
    """How the trials of a group share a family's program; None if that is not proved."""
    try:
        return family.admit(_traced(group), _tails(group))
    except NotPaddable:
        return None


def _fits(whole: LocalGroup, group: LocalGroup) -> bool:
    """Whether no variable of a group is larger than that of another along any axis."""
    pairs = _extents(whole, group)
    return pairs is not None and all(b <= a for a, b in pairs)


def _extents(whole: LocalGroup, group: LocalGroup) -> list[tuple[int, int]] | None:
    """The extents of the variables of both; None if they do not go in pairs."""
    ours, own = (
        [leaf.shape for part in each.state.lists() for leaf in part] for each in (whole, group)
    )
    if list(map(len, ours)) != list(map(len, own)):
        return None
    return [pair for a, b in zip(ours, own, strict=True) for pair in zip(a, b, strict=True)]


def _differing(whole: LocalGroup, group: LocalGroup) -> int:
    """How many different extents become different ones."""
    return len({(a, b) for a, b in _extents(whole, group) or () if a != b})


def _pays(whole: LocalGroup, groups: Sequence[LocalGroup]) -> bool:
    """Whether training at the largest widths takes less than programs of their own."""
    if unknown_cost(whole.train.full):
        return False
    most = step_flops(whole.train.full.closed)
    extra = sum(
        (most - step_flops(group.train.full.closed)) * group.work.steps * trial.epochs
        for group in groups
        for trial in group.queue
    )
    return in_structures(extra) * MARGIN < 1 + len(groups) - PADDED
