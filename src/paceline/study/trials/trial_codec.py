"""A trial as a storage keeps it: an ordinary Optuna trial with a few attributes."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, get_args

import msgspec
import optuna
from optuna.distributions import BaseDistribution
from optuna.trial import FrozenTrial, create_trial
from optuna.trial import TrialState as OptunaState

from paceline.records import NOT_FINITE
from paceline.study.storage.schema import UNREADABLE, TrialAttributes, why
from paceline.study.trials.trial import STORED, Trial, TrialState

OPTUNA_STATES: dict[str, OptunaState] = {
    "complete": OptunaState.COMPLETE,
    "pruned": OptunaState.PRUNED,
    "rejected": OptunaState.PRUNED,  # TPE learns nothing from a failed trial
    "failed": OptunaState.FAIL,
    "running": OptunaState.RUNNING,
}
_STATES: dict[OptunaState, TrialState] = {
    OptunaState.COMPLETE: "complete",
    OptunaState.PRUNED: "pruned",
    OptunaState.FAIL: "failed",
    OptunaState.RUNNING: "running",
}
#: Attributes of a stored trial: the token of its worker, and the mark of a withdrawn trial (an
#: earlier one has the same configuration).
OWNER, WITHDRAWN = "paceline:owner", "paceline:withdrawn"


def _holds_real(kind: Any) -> bool:
    return kind == NOT_FINITE or any(map(_holds_real, get_args(kind)))


# Fields of a trial, by the forms in which they are stored.
_BEGUN, _OPEN, _ENDED = (
    [name for name, stored in STORED.items() if form in stored.forms]
    for form in ("begun", "open", "ended")
)
# Those with floats, which may be NaN or infinite.
_REAL = {name for name, stored in STORED.items() if _holds_real(stored.kind)}
#: Whether Optuna reads each constraint of a trial from an attribute of its own, as from 5.0 on.
NAMED = hasattr(optuna.Trial, "set_constraint")
#: The end of the attribute in which Optuna's NSGA samplers note the generation of a trial.
_GENERATION = ":generation"
_CONSTRAINTS = "constraints"  # with a colon and a name from 5.0 on, a list of all of them before


def constraint_attributes(amounts: Mapping[str, float]) -> dict[str, Any]:
    """Return constraints (above 0: violated) as the attributes that the installed Optuna reads."""
    if NAMED:
        return {f"{_CONSTRAINTS}:{name}": amount for name, amount in amounts.items()}
    return {_CONSTRAINTS: list(amounts.values())} if amounts else {}


def constraints_of(stored: FrozenTrial) -> dict[str, Any]:
    """Return those of a stored trial's system attributes that hold constraints."""
    attrs = stored.system_attrs.items()
    return {key: value for key, value in attrs if key.partition(":")[0] == _CONSTRAINTS}


def has_evaluated(stored: FrozenTrial) -> bool:
    """Whether a stored trial may have the constraints that a ``constraints_func`` returned."""
    return isinstance(stored.system_attrs.get(_CONSTRAINTS), list | tuple)


def evaluated_constraints(attrs: Mapping[str, Any]) -> dict[str, Any]:
    """Return the attribute in which Optuna's samplers keep what a ``constraints_func`` returned.

    The amounts are JSON values, above 0 where a constraint is violated. Optuna's samplers keep a
    tuple, and what Paceline writes before Optuna 5 is a list.
    """
    found = attrs.get(_CONSTRAINTS)
    if not isinstance(found, tuple):
        return {}
    most = sys.float_info.max  # no JSON has an infinity
    return {_CONSTRAINTS: [min(max(float(amount), -most), most) for amount in found]}


def violation_of(stored: FrozenTrial) -> float | None:
    """Return by how much a stored trial violates its constraints; None if it has none.

    The sum of what is violated, as Optuna's samplers have it; else 0. Studies may have been begun
    with another release of Optuna, so both forms are read.
    """
    old = stored.system_attrs.get(_CONSTRAINTS)
    found = list(old) if isinstance(old, list | tuple) else []
    found += [v for key, v in stored.system_attrs.items() if key.startswith(f"{_CONSTRAINTS}:")]
    if not found:
        return None
    return sum((v for v in found if isinstance(v, int | float) and v > 0), 0.0)


def sampler_attributes(attrs: Mapping[str, Any]) -> dict[str, Any]:
    """Return those of a trial's system attributes that samplers go by later: NSGA's generation."""
    return {
        key: value
        for key, value in attrs.items()
        # CMA-ES has such numbers beside its pickles, and neither is kept.
        if key.endswith(_GENERATION) and not key.startswith("cma") and type(value) is int
    }


def kept_attributes(stored: FrozenTrial) -> dict[str, Any]:
    """Return the system attributes that whoever takes a stored trial over stores again."""
    return constraints_of(stored) | sampler_attributes(stored.system_attrs)


def to_frozen(
    trial: Trial,
    values: Mapping[str, Any],
    distributions: Mapping[str, BaseDistribution],
    *,
    draw: int | None = None,
    owner: str | None = None,
    attributes: Mapping[str, Any] | None = None,
) -> FrozenTrial:
    """Return the stored form of a trial that begins to run; ``values`` are stored values.

    ``draw`` is its draw of random search, ``owner`` the token of its worker. ``attributes`` are
    system attributes: its constraints, and notes of its sampler.
    """
    attrs = plain({"hparams": {}, **_attributes(trial, _BEGUN)})
    if draw is not None:
        attrs["draw"] = draw
    return create_trial(
        state=OptunaState.RUNNING,
        params=dict(values),
        distributions=dict(distributions),
        user_attrs=attrs,
        system_attrs={**({} if owner is None else {OWNER: owner}), **(attributes or {})},
    )


def owner_of(stored: FrozenTrial) -> str | None:
    """Return the token of the worker that trains a stored trial; None if it names none."""
    owner = stored.system_attrs.get(OWNER)
    return owner if isinstance(owner, str) else None


def identity(trial: FrozenTrial) -> str:
    """Return a text that differs between the trials that one worker begins."""
    attrs = trial.user_attrs
    return f"{owner_of(trial)} {attrs.get('seed')} {attrs.get('continues')} {attrs.get('hparams')}"


def _attributes(trial: Trial, names: Sequence[str]) -> dict[str, Any]:
    """Return fields by name, without those that are None, False, or empty lists and dicts."""
    found = {name: getattr(trial, name) for name in names}
    known = {name for name, v in found.items() if isinstance(v, str | int | float)}
    return {name: v for name, v in found.items() if v or (name in known and v is not False)}


def set_fields(trial: Trial, attrs: Mapping[str, Any]) -> dict[str, Any]:
    """Set fields of a trial by name, and return those attributes that are not fields."""
    other: dict[str, Any] = {}
    for name, value in attrs.items():
        if name in _ENDED:
            setattr(trial, name, value)
        else:
            other[name] = value
    return other


def end_of(
    trial: Trial, other: Mapping[str, Any], n: int = 1
) -> tuple[list[float] | None, dict[str, Any]]:
    """Return the values and the attributes to store at the end of a trial of ``n`` objectives."""
    attrs = {"history": {}, **_attributes(trial, _ENDED), **other}
    if trial.runs:
        attrs["value_std"] = trial.value_std
    values = trial.values or ([] if trial.value is None else [trial.value])
    # To Optuna, a failed trial has no value, and a trial has a value for each objective or none.
    if trial.state == "failed" or len(values) != n:
        attrs["value"], values = trial.value, []
    return values or None, {name: plain(attr) for name, attr in attrs.items() if attr is not None}


def check_attributes(attrs: Mapping[str, Any]) -> None:
    """Refuse attributes of one of Paceline's trials that are not of the schema, by a ValueError."""
    try:
        msgspec.convert(attrs, TrialAttributes)
    except UNREADABLE as error:
        raise ValueError(why(error, attrs, "an attribute of the trial")) from None


def is_ours(attrs: Mapping[str, Any]) -> bool:
    """Whether Paceline has made the trial that has these attributes: it gives each a seed, too."""
    return "hparams" in attrs and type(attrs.get("seed")) is int


def check_values(state: OptunaState, values: Sequence[float] | None, n: int) -> None:
    """Refuse values that a trial in a study of ``n`` objectives cannot have, by a ValueError."""
    known = values is not None and len(values) == n and not any(map(math.isnan, values))
    if not known and (state == OptunaState.COMPLETE or values):
        raise ValueError(f"a trial with {n} objective{'s'[: n > 1]} has the values {values}")


def _known_attributes(attrs: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the attributes without those that another program means differently."""
    try:
        check_attributes(attrs)
    except ValueError:
        if len(attrs) > 1:
            parts = [_known_attributes({name: value}) for name, value in attrs.items()]
            return {name: value for part in parts for name, value in part.items()}
        return {}
    return attrs


def from_frozen(stored: FrozenTrial, *, maximize: bool | None = None) -> Trial | None:
    """Return a stored trial as users see it; None for one that waits to be run or is withdrawn.

    A trial that another program stored has its parameters as hparams, and what it reported in place
    of a history. Where the direction is given, an unfinished trial has its best epoch so far, and
    the value then, of what it has reported.
    """
    state = _STATES.get(stored.state)
    if state is None or WITHDRAWN in stored.system_attrs:
        return None
    attrs = _known_attributes(stored.user_attrs)
    values = list(map(float, stored.values or ()))
    trial = Trial(
        stored.number,
        state,
        hparams=dict(stored.params),
        epochs=len(stored.intermediate_values),
        values=values if len(values) > 1 else [],
        violates=bool(violation_of(stored)),
        by_others=not is_ours(attrs),
        reported={} if "history" in attrs else dict(sorted(stored.intermediate_values.items())),
    )
    _set_stored(trial, attrs, STORED)
    if values:
        trial.value = values[0]
    if trial.state == "pruned" and trial.rejected is not None:
        trial.state = "rejected"
    if maximize is not None and trial.state == "running" and trial.value is None:
        trial.best_epoch, trial.value = best_so_far(stored, maximize) or (trial.best_epoch, None)
    return trial


def best_so_far(stored: FrozenTrial, maximize: bool) -> tuple[int, float] | None:
    """Return the best epoch of a stored trial, from 1, and the first objective then; None: none."""
    known = [(e, v) for e, v in stored.intermediate_values.items() if not math.isnan(v)]
    sign = -1 if maximize else 1
    return min(known, key=lambda pair: (sign * pair[1], pair[0]), default=None)


def to_json(trial: Trial, *, afresh: bool) -> dict[str, Any]:
    """Return an unfinished trial as JSON values; ``afresh``: it restarts from its first epoch."""
    if afresh:
        trial = Trial(trial.number, hparams=trial.hparams, seed=trial.seed)
    return plain({"state": trial.state, **{name: getattr(trial, name) for name in _OPEN}})


def update_from_json(trial: Trial, was: Mapping[str, Any]) -> None:
    """Restore a trial that runs again from ``to_json``."""
    trial.state = was["state"]
    _set_stored(trial, was, [name for name in _OPEN if name != "hparams"])


def _set_stored(trial: Trial, attrs: Mapping[str, Any], names: Iterable[str]) -> None:
    """Set those fields of these names that there are among attributes."""
    for name in names:
        if name in attrs:
            value = attrs[name]
            if name in _REAL:
                value = _numbers(value)
            setattr(trial, name, dict(value) if isinstance(value, dict) else value)


def _numbers(stored: Any) -> Any:
    """Return numbers of which ``plain`` has made texts, in lists and by name."""
    if isinstance(stored, dict):
        return {name: _numbers(each) for name, each in stored.items()}
    if isinstance(stored, list):
        return list(map(_numbers if stored and isinstance(stored[0], list) else float, stored))
    return None if stored is None else float(stored)


def plain(value: Any) -> Any:
    """Return ``value`` as JSON values; NaN and infinities as text, which ``float`` reads again."""
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else str(float(value))
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if hasattr(value, "tolist"):  # NumPy's scalars and arrays
        return plain(value.tolist())
    return str(value)
