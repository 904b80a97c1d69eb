"""A trial as a storage keeps it: an ordinary Optuna trial with a few attributes."""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import msgspec
import optuna
from optuna.distributions import (
    BaseDistribution,
    CategoricalDistribution,
    distribution_to_json,
)
from optuna.trial import FrozenTrial, create_trial
from optuna.trial import TrialState as OptunaState

from paceline.study.storage.events import (
    EpochReported,
    Record,
    StudyDescribed,
    TrialAnnotated,
    TrialCreated,
    TrialFinished,
)
from paceline.study.storage.schema import UNREADABLE, TrialAttributes, shown, why
from paceline.study.trial import Trial, TrialState

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
#: Attributes of a stored trial beside the user's: the token of the worker that trains it, and a
#: mark that its worker has withdrawn it, since an earlier trial has the same configuration.
OWNER, WITHDRAWN = "paceline:owner", "paceline:withdrawn"
# Fields of a Trial that are attributes of the stored one, beside hparams, history and value.
_ATTRIBUTES = (
    "seed",
    "epochs",
    "seconds",
    "program",
    "plan",
    "not_packed",
    "worker",
    "error",
    "best_epoch",
    "continues",
    "continued_at",
    "rejected",
    "batch",
)
#: Whether Optuna reads each constraint of a trial from an attribute of its own, as from 5.0 on.
NAMED = hasattr(optuna.Trial, "set_constraint")
#: The end of the attribute in which Optuna's NSGA samplers note the generation of a trial.
_GENERATION = ":generation"
_CONSTRAINTS = "constraints"  # with a colon and a name from 5.0 on, a list of all of them before


def constraint_attributes(amounts: Mapping[str, float]) -> dict[str, Any]:
    """Return constraints as the system attributes that the installed Optuna reads.

    ``amounts``: by how much each constraint is violated; 0 or less where it holds.
    """
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

    ``attrs`` are system attributes, of Optuna's trial or of one of Paceline's study in memory. The
    amounts are JSON values, above 0 where a constraint is violated; none where no sampler has
    evaluated any. Optuna's samplers keep a tuple, and what Paceline writes before Optuna 5 is a
    list.
    """
    found = attrs.get(_CONSTRAINTS)
    if not isinstance(found, tuple):
        return {}
    most = sys.float_info.max  # no JSON has an infinity
    return {_CONSTRAINTS: [min(max(float(amount), -most), most) for amount in found]}


def violation_of(stored: FrozenTrial) -> float | None:
    """Return by how much a stored trial violates its constraints; None where it has none.

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
    """Return the system attributes of a stored trial that hold constraints and what samplers note.

    Who takes the trial over stores them again.
    """
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
    """Return the stored form of a trial that begins to run.

    Its hparams, its seed and why it is rejected are stored as attributes; ``values`` are stored
    values. ``draw`` is the draw of random search that it tries (None with other samplers),
    ``owner`` the token of the worker that trains it, and ``attributes`` are system attributes: its
    constraints, and what its sampler noted.
    """
    attrs: dict[str, Any] = {"hparams": plain(trial.hparams), "seed": trial.seed}
    if draw is not None:
        attrs["draw"] = draw
    if trial.continues is not None:
        attrs["continues"] = trial.continues
    if trial.continued_at is not None:
        attrs["continued_at"] = trial.continued_at
    if trial.rejected is not None:
        attrs["rejected"] = trial.rejected
    if trial.enqueued:
        attrs["enqueued"] = True
    return create_trial(
        state=OptunaState.RUNNING,
        params=dict(values),
        distributions=dict(distributions),
        user_attrs=attrs,
        system_attrs={**({} if owner is None else {OWNER: owner}), **(attributes or {})},
    )


def owner_of(stored: FrozenTrial) -> str | None:
    """Return the token of the worker that trains a stored trial; None where it names none."""
    owner = stored.system_attrs.get(OWNER)
    return owner if isinstance(owner, str) else None


def identity(trial: FrozenTrial) -> str:
    """Return a text that differs between the trials that one worker begins."""
    attrs = trial.user_attrs
    return f"{owner_of(trial)} {attrs.get('seed')} {attrs.get('continues')} {attrs.get('hparams')}"


def set_fields(trial: Trial, attrs: Mapping[str, Any]) -> dict[str, Any]:
    """Set fields of a trial by name, and return those attributes that are no fields."""
    other: dict[str, Any] = {}
    for name, value in attrs.items():
        if name in _ATTRIBUTES or name in ("history", "costs"):
            setattr(trial, name, value)
        else:
            other[name] = value
    return other


def end_of(
    trial: Trial, other: Mapping[str, Any], n: int = 1
) -> tuple[list[float] | None, dict[str, Any]]:
    """Return the values and the attributes to store at the end of a trial.

    ``other`` are attributes that are no fields of it, ``n`` the objectives of its study.
    """
    attrs: dict[str, Any] = {
        name: getattr(trial, name) for name in _ATTRIBUTES if name not in ("seed", *other)
    }
    attrs |= {"history": trial.history, **other}
    if trial.members:
        attrs |= {"members": trial.members, "spread": trial.spread}
    if trial.costs:
        attrs["costs"] = trial.costs
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
        raise ValueError(f"a trial of {n} objective{'s'[: n > 1]} has the values {values}")


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


def from_frozen(stored: FrozenTrial) -> Trial | None:
    """Return a stored trial as users see it; None for one that waits to be run or is withdrawn.

    A trial that another program stored has its parameters as hparams, and what it reported in place
    of a history.
    """
    state = _STATES.get(stored.state)
    if state is None or WITHDRAWN in stored.system_attrs:
        return None
    attrs = _known_attributes(stored.user_attrs)
    values = list(map(float, stored.values or ()))
    value = values[0] if values else attrs.get("value")
    trial = Trial(
        stored.number,
        state,
        value=None if value is None else float(value),
        hparams=dict(attrs.get("hparams", stored.params)),
        epochs=len(stored.intermediate_values),
        history={
            name: list(map(float, column)) for name, column in attrs.get("history", {}).items()
        },
        members=[list(map(float, epoch)) for epoch in attrs.get("members", [])],
        values=values if len(values) > 1 else [],
        costs=dict(attrs.get("costs", {})),
        violates=bool(violation_of(stored)),
        by_others=not is_ours(attrs),
        reported={} if "history" in attrs else dict(sorted(stored.intermediate_values.items())),
        enqueued=attrs.get("enqueued", False),
    )
    for name in _ATTRIBUTES:
        if name in attrs:
            setattr(trial, name, attrs[name])
    if trial.state == "pruned" and trial.rejected is not None:
        trial.state = "rejected"
    return trial


def note_best_so_far(trial: Trial, stored: FrozenTrial, maximize: bool) -> None:
    """Give a trial under way its best epoch and the value then, of what it has reported."""
    best = best_so_far(stored, maximize) if trial.state == "running" else None
    if best is not None and trial.value is None:
        trial.best_epoch, trial.value = best


def best_so_far(stored: FrozenTrial, maximize: bool) -> tuple[int, float] | None:
    """Return the best epoch of a stored trial, from 1, and the first objective then.

    None where no epoch has a number.
    """
    known = [(e, v) for e, v in stored.intermediate_values.items() if not math.isnan(v)]
    sign = -1 if maximize else 1
    return min(known, key=lambda pair: (sign * pair[1], pair[0]), default=None)


def to_json(trial: Trial, *, afresh: bool) -> dict[str, Any]:
    """Return a trial under way as JSON values; ``update_from_json`` takes them.

    ``afresh``: it begins again, from its first epoch.
    """
    if afresh:
        trial = Trial(trial.number, hparams=trial.hparams, seed=trial.seed)
    left_out = ("error", "rejected")  # of trials that have ended
    fields = {name: getattr(trial, name) for name in _ATTRIBUTES if name not in left_out}
    fields |= {"state": trial.state, "value": trial.value, "history": trial.history}
    return plain({**fields, "members": trial.members, "hparams": trial.hparams})


def update_from_json(trial: Trial, was: Mapping[str, Any]) -> None:
    """Restore a trial that is under way again from ``to_json``."""
    set_fields(trial, {name: was[name] for name in _ATTRIBUTES if name in was})
    trial.state = was["state"]
    trial.value = None if was["value"] is None else float(was["value"])
    trial.history = {name: [float(v) for v in column] for name, column in was["history"].items()}
    trial.members = [[float(value) for value in epoch] for epoch in was["members"]]


def journal_fields(trial: FrozenTrial) -> dict[str, Any]:
    """Return a trial as Optuna's line of a journal tells it that begins a trial."""
    several = trial.values is not None and len(trial.values) > 1
    fields = {
        "state": int(trial.state),
        "value": None if several else trial.value,
        "values": trial.values if several else None,
        "datetime_start": utc_text(trial.datetime_start),
        "distributions": {
            name: distribution_to_json(kind) for name, kind in trial.distributions.items()
        },
        "params": {
            name: trial.distributions[name].to_internal_repr(value)
            for name, value in trial.params.items()
        },
        "user_attrs": trial.user_attrs,
        "system_attrs": trial.system_attrs,
        "intermediate_values": trial.intermediate_values,
    }
    if trial.datetime_complete is not None:
        fields["datetime_complete"] = utc_text(trial.datetime_complete)
    return fields


def external_value(kind: BaseDistribution, stored: float) -> Any:
    """Return a parameter's value of the number that stands for it in a journal.

    Raises ValueError where the number stands for no value of the distribution.
    """
    n = len(kind.choices) if isinstance(kind, CategoricalDistribution) else math.inf
    if not (0 if n < math.inf else -math.inf) <= stored < n:  # false for NaN
        raise ValueError(f"the value {stored!r} is none of {shown(str(kind))}")
    return kind.to_external_repr(stored)


def local_time(text: str | None) -> datetime | None:
    """Return a stored time as Optuna shows it: without a zone, by this machine's clock."""
    if text is None:
        return None
    # Through a timestamp it takes a third of the time of ``astimezone``.
    return datetime.fromtimestamp(datetime.fromisoformat(text).timestamp())


def utc_text(time: datetime | None) -> str | None:
    """Return a time by this machine's clock as it is stored."""
    return None if time is None else time.astimezone(UTC).isoformat(timespec="microseconds")


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


def folded(batch: list[Record]) -> list[Record]:
    """Return a batch in which each new trial's later records are part of its first one.

    A slow storage (SQLite syncs the disk for every call) gets large batches, in which many trials
    begin and end: each of them then takes one call instead of some twenty.
    """
    new: dict[int, FrozenTrial] = {}
    others: list[Record] = []
    for record in batch:
        if isinstance(record, TrialCreated):
            new[record.number] = record.template
        if isinstance(record, TrialCreated | StudyDescribed) or record.number not in new:
            others.append(record)
            continue
        template = new[record.number]
        match record:
            case EpochReported(_, epoch, value):
                template.intermediate_values[epoch] = value
            case TrialAnnotated(_, attrs):
                template.user_attrs = {**template.user_attrs, **attrs}
            case TrialFinished(_, state, values, attrs, when, noted):
                template.user_attrs = {**template.user_attrs, **attrs}
                template.system_attrs = {**template.system_attrs, **noted}
                template.state, template.values = OPTUNA_STATES[state], values
                template.datetime_complete = when
    return others


def best_record(trial: Trial, ties: Sequence[int] = ()) -> dict[str, Any]:
    """Return the best trial as summaries have it: with repeats or folds also its spread.

    ``ties`` are the numbers of other trials with the same value.
    """
    return {
        "number": trial.number,
        "state": trial.state,
        "value": trial.value,
        "hparams": trial.hparams,
        "epochs": trial.epochs,
        "best_epoch": trial.best_epoch,
        **({"spread": trial.spread} if trial.members else {}),
        **({"ties": list(ties)} if ties else {}),
    }


def front_record(trial: Trial, objectives: Sequence[str]) -> dict[str, Any]:
    """Return a complete trial of the front as summaries have it: ``best_record`` and its values."""
    return {**best_record(trial), "values": dict(zip(objectives, trial.values, strict=True))}
