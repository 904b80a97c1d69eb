"""Configurations that are not trials yet: drafts, the queue before the sampler, and those tried.

A ``Draft`` is being proposed. ``EnqueuedTrials`` come before what a sampler chooses.
``TriedConfigurations`` recognises one that was tried already.
"""

from __future__ import annotations

import collections
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from paceline.search_space import HyperParameters, Parameter
from paceline.study import trial_codec
from paceline.study.samplers.values import Chooser


class BuildFailed(Exception):
    """A build raised ``cause``. ``accept`` the draft and ``finish`` it as failed.

    ``hp`` has what the build had met.
    """

    def __init__(self, draft: Draft, hp: HyperParameters, cause: Exception) -> None:
        super().__init__(f"{type(cause).__name__}: {cause}")
        self.draft, self.hp, self.cause = draft, hp, cause


@dataclass(eq=False)
class Draft:
    """A configuration that is being proposed; ``Study.accept`` makes it a trial."""

    number: int  # the trial's
    seed: int  # the trial's: 31 bits, from the study's seed and the number
    attempt: int  # how many proposals for this number were turned down before
    values: dict[str, Any]  # given by the user: plain name -> real value
    chooser: Chooser  # returns the real value of a parameter
    sampled_number: int  # its number in the study in memory that samplers learn from
    # Storage name -> parameter and real value chosen, in the order met.
    chosen: dict[str, tuple[Parameter, Any]] = field(default_factory=dict)
    draw: int | None = None  # the number of its draw, in random search only
    failed: bool = False  # whether the build raised
    continues: int | None = None  # the number of the trial that it continues
    continued_at: int | None = None  # the epoch after which it does so as a copy
    hp: HyperParameters | None = None  # what a ``Searcher`` has suggested
    waited: bool = False  # whether another program has added the trial, so that the storage has it
    # Name of a constraint -> by how much it is violated; 0 or less where it holds.
    constraints: dict[str, float] = field(default_factory=dict)
    rejected: str | None = None  # why the trial is not trained; None where it is
    enqueued: bool = False  # whether the user asked for its values, or for some of them

    def choose(self, parameter: Parameter) -> Any:
        """Return the real value of a parameter; the same one however often it is asked for."""
        if parameter.storage_name not in self.chosen:
            self.chosen[parameter.storage_name] = parameter, self.chooser(parameter)
        return self.chosen[parameter.storage_name][1]


class EnqueuedTrials:
    """A queue of values that are tried before those that a sampler chooses.

    ``resumed`` is of ``state``, in a session that continues another, or empty; ``asked_for`` are
    the hparams of earlier trials that the user had asked for.
    """

    def __init__(
        self, resumed: Mapping[str, Any], asked_for: Iterable[Mapping[str, Any]] = ()
    ) -> None:
        self.refused: dict[str, Any] | None = None  # the last values of a user that were an error
        # Each: plain name -> real value, and whether the user asked for these values.
        self._queue: collections.deque[tuple[dict[str, Any], bool]] = collections.deque(
            (dict(values), users) for values, users in resumed.get("queue", ())
        )
        # What the user enqueued in the session that is continued: the script enqueues it once more.
        self._given: list[dict[str, Any]] = [dict(values) for values in resumed.get("given", ())]
        self._given_again = collections.Counter(map(key_of, self._given))
        self._asked_for = set(map(key_of, asked_for))

    def __bool__(self) -> bool:
        return bool(self._queue)

    def enqueue(self, values: Mapping[str, Any], *, users: bool) -> None:
        """Add values, plain name -> real value, behind those that wait already.

        The sampler chooses the others. ``users``: the user asked for them, so that a value or name
        that build does not know is an error; otherwise it is left out.
        """
        if users:
            key = key_of(values)
            if self._given_again[key]:
                self._given_again[key] -= 1
                return
            self._given.append(dict(values))
        self._queue.append((dict(values), users))

    def are_asked_for(self, values: Mapping[str, Any], users: bool) -> bool:
        """Whether the user asked for values, now or before their trial began again."""
        return users or key_of(values) in self._asked_for

    def refuse(self, values: dict[str, Any]) -> None:
        """Note values of the user that were an error."""
        self.refused = values

    def pop(self) -> tuple[dict[str, Any], bool]:
        """Return the next values, and whether the user asked for them."""
        return self._queue.popleft()

    def waiting(self) -> list[tuple[dict[str, Any], bool]]:
        """All values that wait, in order; ``put_back`` takes them."""
        return list(self._queue)

    def put_back(self, waiting: list[tuple[dict[str, Any], bool]]) -> None:
        """Replace the queue by what ``waiting`` returned before."""
        self._queue = collections.deque(waiting)

    def state(self) -> dict[str, Any]:
        """Return the queue as JSON values."""
        return {
            "queue": [[trial_codec.plain(values), users] for values, users in self._queue],
            "given": trial_codec.plain(self._given),
        }


def key_of(hparams: Mapping[str, Any]) -> str:
    """Return a text that is equal for equal values; 1, 1.0 and True are not equal."""
    return json.dumps(dict(hparams), sort_keys=True)


class TriedConfigurations:
    """The configurations that need not be tried again.

    Those of trials are known by their values. Those that builds of this process have met are known
    as paths of choices, too: a build that makes the same choices asks for the same parameters, so a
    path that is known from end to end needs no build to be recognised. Paths of an earlier process
    are not used: the user may have changed the build since.
    """

    def __init__(self) -> None:
        self._seen: set[str] = set()
        # Values chosen so far -> the parameter asked for next; None where the build ended.
        self._next: dict[tuple[Any, ...], Parameter | None] = {}

    def note(self, hparams: Mapping[str, Any]) -> None:
        """Note the values of a trial: plain name -> real value."""
        self._seen.add(key_of(hparams))

    def seen(self, hparams: Mapping[str, Any]) -> bool:
        """Return whether some trial had exactly these values.

        Those that were interrupted do not count: they are tried again.
        """
        return key_of(hparams) in self._seen

    def note_draft(self, draft: Draft) -> None:
        """Note the choices of a draft whose build was run."""
        # Given values are no choices, so the choices would not be the whole path; and where a
        # build failed, another build of the same choices may go further.
        if not draft.values and not draft.failed:
            self.add_path(draft.chosen.values())

    def add_path(self, choices: Iterable[tuple[Parameter, Any]]) -> None:
        """Note the choices that a build asked for, in order."""
        path: tuple[Any, ...] = ()
        for parameter, value in choices:
            self._next[path] = parameter
            path += (value,)
        self._next[path] = None

    def leads_to_known(self, choose: Chooser) -> bool:
        """Return whether the choices of ``choose`` are those of a known path."""
        path: tuple[Any, ...] = ()
        while path in self._next:
            parameter = self._next[path]
            if parameter is None:
                return True
            path += (choose(parameter),)
        return False


def real_values(stored: Mapping[str, Any], parameters: Mapping[str, Parameter]) -> dict[str, Any]:
    """Return plain name -> real value of values as another program has them, by storage names.

    Raises SpaceError for a value that its hyperparameter cannot have.
    """
    found = {}
    for name, value in stored.items():
        parameter = parameters.get(name)
        plain = name if parameter is None else parameter.name
        found[plain] = value if parameter is None else parameter.from_storage(value)
    return found
