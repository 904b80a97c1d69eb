"""What a search takes from earlier studies (``warm_start_from``): complete trials and their ranks.

Earlier studies are read once, before the first trial, and never written. What is learnt is stored
with the new study, so that a resumed search decides the same, whatever became of the earlier ones.
The objectives of two studies may have other scales, so a trial is known by its rank in its study.
"""

from __future__ import annotations

import contextlib
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from optuna.distributions import (
    BaseDistribution,
    CategoricalDistribution,
    FloatDistribution,
    IntDistribution,
    distribution_to_json,
    json_to_distribution,
)
from optuna.trial import FrozenTrial
from optuna.trial import TrialState as OptunaState

from paceline.errors import StudyError, UsageError
from paceline.search_space import Parameter
from paceline.study.metadata import StoredStudy, check_name
from paceline.study.trials.trial_codec import violation_of

#: Samplers that use earlier studies.
LEARNERS = ("tpe", "cmaes")
#: Trials that are learnt of one study: the best half of them, the others evenly over its ranks.
KEPT = 100
# At the end of a storage name whose stored value is ``low + high`` minus the real one.
_REVERSED = "[reversed]"


@dataclass(frozen=True)
class EarlierTrial:
    """A complete trial of an earlier study."""

    # Its place among the complete trials of its study: above 0 for the best, below 1 for the worst.
    # Those that violate a constraint come behind all others, as in Optuna.
    rank: float
    params: Mapping[str, Any]  # storage name -> stored value


@dataclass(frozen=True)
class EarlierStudy:
    """What is learnt of one earlier study."""

    study: str  # its name
    # Storage name -> distribution, of the parameters that its trials share in one form.
    kinds: Mapping[str, BaseDistribution]
    trials: Sequence[EarlierTrial]  # in the order of their numbers
    # Its objectives, of which the first ranks its trials. Not stored with the study that learns:
    # only the note at its beginning tells it.
    n_objectives: int = 1

    @classmethod
    def of(cls, name: str, stored: StoredStudy) -> EarlierStudy:
        """Return what is learnt of a study as a storage holds it."""
        sign = -1 if stored.directions[0] == "maximize" else 1
        complete = [
            trial
            for trial in stored.trials
            if trial.state == OptunaState.COMPLETE and not math.isnan(trial.values[0])
        ]

        def order(trial: FrozenTrial) -> tuple[float, float, int]:
            return violation_of(trial) or 0.0, sign * trial.values[0], trial.number

        complete.sort(key=order)
        kinds: dict[str, BaseDistribution] = {}
        for trial in sorted(complete, key=lambda trial: trial.number):
            kinds |= trial.distributions  # bounds may have changed: the last ones count
        ranked = []
        for place, trial in enumerate(complete):
            params = {n: value for n, value in trial.params.items() if _fits(kinds[n], value)}
            ranked.append((trial.number, EarlierTrial((place + 0.5) / len(complete), params)))
        rest = ranked[KEPT // 2 :]
        n_rest = min(len(rest), KEPT - KEPT // 2)
        kept = ranked[: KEPT // 2] + [rest[len(rest) * i // n_rest] for i in range(n_rest)]
        kept.sort(key=lambda pair: pair[0])
        return cls(name, kinds, [trial for _, trial in kept], len(stored.directions))

    def differs(self, parameters: Mapping[str, Parameter]) -> list[str]:
        """Return the storage names of the new study's parameters that are of another kind here."""
        return [
            name
            for name, parameter in parameters.items()
            if name in self.kinds and not _alike(self.kinds[name], parameter.distribution)
        ]

    def shares(self, parameters: Mapping[str, Parameter]) -> bool:
        """Whether some parameter of the new study is of the same kind here."""
        return any(
            name in self.kinds and _alike(self.kinds[name], parameter.distribution)
            for name, parameter in parameters.items()
        )

    def values(
        self, trial: EarlierTrial, space: Mapping[str, BaseDistribution]
    ) -> dict[str, Any] | None:
        """Return a trial's values of a space, which may be some of them: name -> stored value.

        ``space`` is of the new study, and so are the values. None if one is out of its bounds
        there.
        """
        found = {}
        for name, now in space.items():
            then = self.kinds.get(name)
            if then is None or name not in trial.params or not _alike(then, now):
                continue
            value = trial.params[name]
            if isinstance(now, FloatDistribution | IntDistribution):
                if name.endswith(_REVERSED) and isinstance(then, type(now)):
                    value += (now.low + now.high) - (then.low + then.high)
                if not now.low <= value <= now.high:
                    return None
            found[name] = value
        return found

    def to_json(self) -> dict[str, Any]:
        """Return it as JSON values, for the attribute ``paceline`` of the study that learns."""
        return {
            "study": self.study,
            "kinds": {
                name: json.loads(distribution_to_json(kind)) for name, kind in self.kinds.items()
            },
            "trials": [[trial.rank, dict(trial.params)] for trial in self.trials],
        }

    @classmethod
    def from_json(cls, stored: Mapping[str, Any]) -> EarlierStudy:
        """Return what ``to_json`` made; ValueError where ``stored`` holds something else."""
        kinds = {name: json_to_distribution(json.dumps(k)) for name, k in stored["kinds"].items()}
        trials = [EarlierTrial(float(rank), params) for rank, params in stored["trials"]]
        for trial in trials:
            if not 0 < trial.rank < 1:
                raise ValueError(f"a rank is {trial.rank}")
            for name, value in trial.params.items():
                if not _fits(kinds[name], value):
                    raise ValueError(f"{name} is {ascii(value)[:60]}")
        return cls(str(stored["study"]), kinds, trials)


def _alike(then: BaseDistribution, now: BaseDistribution) -> bool:
    """Whether values of one distribution mean the same in another: numbers, or equal choices."""
    if isinstance(then, CategoricalDistribution) and isinstance(now, CategoricalDistribution):
        return [(type(c), c) for c in then.choices] == [(type(c), c) for c in now.choices]
    return type(then) is type(now)


def _fits(kind: BaseDistribution, value: Any) -> bool:
    """Whether a value is of a distribution's type; it may be out of its bounds."""
    if isinstance(kind, CategoricalDistribution):
        return any(type(value) is type(choice) and value == choice for choice in kind.choices)
    types = int if isinstance(kind, IntDistribution) else int | float
    return isinstance(value, types) and not isinstance(value, bool) and math.isfinite(value)


def check_warm_start_from(warm_start_from: Any, sampler: Any) -> tuple[str, ...]:
    """Check the argument of ``Tuner`` beside its sampler; the studies are read later.

    It is one or several of: the name of a study, the path of its folder or journal, a storage URL.
    A URL ends with ``#NAME`` if the storage holds several studies.
    """
    if warm_start_from is None:
        return ()
    given = [warm_start_from] if isinstance(warm_start_from, str | Path) else warm_start_from
    if not isinstance(given, list | tuple) or not all(
        isinstance(each, str | Path) and str(each).strip() and str(each).isprintable()
        for each in given
    ):
        raise UsageError(
            "warm_start_from must be a study's name, its folder, a storage URL such as "
            f"sqlite:///study.db#NAME, or a list of these, got {warm_start_from!r}."
        )
    if given and not (isinstance(sampler, str) and sampler in (*LEARNERS, "auto")):
        name = sampler if isinstance(sampler, str) else type(sampler).__name__
        raise UsageError(
            f"warm_start_from: sampler {name!r} cannot use earlier studies. Use "
            f"{' or '.join(LEARNERS)}, or leave warm_start_from out."
        )
    return tuple(map(str, given))


def read_earlier_studies(
    warm_start_from: Sequence[str], directory: Path, own: tuple[str, Any]
) -> list[EarlierStudy]:
    """Read earlier studies, of ``check_warm_start_from``, and write nothing.

    ``own`` are name and storage of the study that learns. Raises UsageError where a text names no
    study, or the one that learns, and StudyError for one without complete trials.
    """
    return [_read(each, directory, own) for each in warm_start_from]


def _read(text: str, directory: Path, own: tuple[str, Any]) -> EarlierStudy:
    from paceline.study.storage.folder import check_pickles
    from paceline.study.storage.storage import StudyStorage

    storage, name = _place(text, directory)
    if storage is None:
        try:
            check_name(name)
        except StudyError:
            raise UsageError(
                f"warm_start_from: {text!r} is not a study's folder, a journal or the name of a "
                f"study in {directory}/. Check the path."
            ) from None
    store = StudyStorage.of(storage, name or "", directory)
    if name is None:
        names = store.names()
        if len(names) != 1:
            there = ", ".join(names) or "none"
            raise UsageError(
                f"warm_start_from: {_shown(text)} has {len(names)} studies ({there}). Name one, "
                f"as in {_shown(text)}#{names[0] if names else 'NAME'}."
            )
        name = names[0]
    if name == own[0] and _same_storage(name, directory, storage, own[1]):
        raise UsageError(
            f"warm_start_from: {name!r} is this search's own study, which continues with all its "
            "trials anyway. Name an earlier study, or rename this one."
        )
    stored = store.load(name)
    if stored is None:
        raise UsageError(
            f"warm_start_from: there is no study {name!r} in {store.label}. `paceline list` lists "
            "the studies in runs/."
        )
    check_pickles(name, stored.trials)
    learnt = EarlierStudy.of(name, stored)
    if not learnt.trials:
        raise StudyError(
            f"warm_start_from: study {name!r} has no complete trial. Name another study."
        )
    return learnt


def _place(text: str, directory: Path) -> tuple[str | None, str | None]:
    """Return the storage and the study's name that a text means; None: the only study there."""
    address, hash_sign, name = text.rpartition("#")
    # A password may hold a number sign.
    if not hash_sign or ("@" in name and ":" in address.partition("://")[2]):
        address, name = text, ""
    if "://" in address or address.startswith("journal:"):
        return address, name or None
    with contextlib.suppress(OSError, RuntimeError):  # too long for a path; no such user
        path = Path(text).expanduser()
        is_name = path.name == text and (directory / text / "journal.log").is_file()
        if path.is_file() and not is_name:
            return f"journal:{path}", None
        if (path / "journal.log").is_file():
            return f"journal:{path / 'journal.log'}", None
    return None, text


def _same_storage(name: str, directory: Path, storage: str | None, own: Any) -> bool:
    from paceline.study.storage.folder import journal_path

    if not isinstance(own, str | None):
        return False
    here, there = (journal_path(each, name, directory) for each in (storage, own))
    if here is None or there is None:
        return storage == own
    return here.resolve() == there.resolve()


def _shown(text: str) -> str:
    from paceline.study.storage.rdb import hide_password

    return hide_password(text)


def notes_on(
    learnt: Sequence[EarlierStudy], parameters: Mapping[str, Parameter]
) -> tuple[list[EarlierStudy], list[str]]:
    """Return those studies that say something of a space, and notes on what they do not say."""
    kept, notes = [], []
    for each in learnt:
        if not each.shares(parameters):
            notes.append(
                f"warm_start_from: study {each.study!r} has none of this study's hyperparameters "
                f"({', '.join(parameters)}), so it is not used"
            )
            continue
        kept.append(each)
        n, differs = len(each.trials), each.differs(parameters)
        text = (
            f"warm-starting from {n} trials of study {each.study!r}, which do not count as trials "
            "of this study"
        )
        if each.n_objectives > 1:
            text += f". Only the first of its {each.n_objectives} objectives is used"
        if differs:
            text += (
                f". Values of {', '.join(differs)} are not used, because that study declares "
                "another kind or other choices"
            )
        notes.append(text)
    return kept, notes


def names_others(
    warm_start_from: Sequence[str], directory: Path, learnt: Sequence[EarlierStudy]
) -> bool:
    """Whether an argument names other studies than those that were learnt, as far as names tell."""
    if len(warm_start_from) != len(learnt):
        return bool(warm_start_from)
    # None: the only study of a storage.
    names = [_place(text, directory)[1] for text in warm_start_from]
    pairs = zip(names, learnt, strict=True)
    return any(name is not None and Path(name).name != each.study for name, each in pairs)


def stored_earlier_studies(study: str, stored: Sequence[Mapping[str, Any]]) -> list[EarlierStudy]:
    """Return what a study has learnt from earlier ones, as it has stored it; else StudyError."""
    try:
        return [EarlierStudy.from_json(each) for each in stored]
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        raise StudyError(
            f"study {study!r}: its copy of earlier studies cannot be read "
            f"({type(error).__name__}: {error}). Choose another study name."
        ) from error
