"""Whether a search is comparable with earlier ones of its study."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from paceline.errors import UsageError
from paceline.tuner.arguments.arguments import SearchArguments
from paceline.tuner.arguments.config import TunerConfig
from paceline.tuner.arguments.provenance import (
    ERA,
    code,
    compiled_with,
    digests,
    numerics,
    versions,
)

#: How often a trial trains: trials with others compare, though not quite.
_MEMBERS = ("repeats", "folds")


def compare(
    before: Mapping[str, Any],
    config: TunerConfig,
    arguments: SearchArguments,
    note: Callable[[str], None],
) -> None:
    """Notes why values of a search do not compare with earlier values of its study."""
    study = config.study
    build, then = code(config.builder.code_digest), before.get("build")
    if build and isinstance(then, dict) and then.get("python") == build["python"]:
        if then != build:
            note(
                f"the code of build(hp) has changed since trial 0 of study {study!r}, so old and "
                "new results aren't comparable. Use overwrite=True (--overwrite) to start over, "
                "or another study name to keep both"
            )
    if others := unlike(before, arguments):
        note(
            f"study {study!r} was searched with {', '.join(others)}, so old and new results "
            "aren't comparable. To start over, use another study name"
        )
    if new := [f"{name} changed from {was} to {now}" for name, now, was in _new_versions(before)]:
        note(
            f"{', '.join(new)} since the last search on study {study!r}. Resumed trials may "
            "differ in the last digits"
        )
    constraints = config.constraints.to_json() if config.constraints else {}
    if before.get("constraints", {}) != constraints:
        note(
            f"new trials must satisfy {_constraints(constraints)}, earlier ones of study "
            f"{study!r} had to satisfy {_constraints(before.get('constraints', {}))}. Rejected "
            "configurations are not tried again"
        )
    now, was = arguments.to_meta(), before.get("search", {})
    epochs = now["epochs"]
    if was.get("epochs") != epochs and epochs is not None:
        note(
            f"new trials have {epochs} epochs, earlier ones of study {study!r} had "
            f"{was.get('epochs') or 'epochs that depend on hp'}"
        )
    for name in _MEMBERS:
        if was.get(name) != now.get(name):
            note(
                f"new trials have {now.get(name, 'no')} {name}, earlier ones of study {study!r} "
                f"had {was.get(name, 'no')} {name}, so their values aren't quite comparable"
            )


def unlike(before: Mapping[str, Any], arguments: SearchArguments) -> list[str]:
    """Differences from the last search on a study that affect the values of a trial.

    What an earlier version has not kept in the study's metadata is not compared.
    """
    data = digests(arguments)
    found = [
        what
        for name, what in (("data", "other data"), ("validation", "other validation data"))
        if data[name] is not None and before.get(name) not in (None, data[name])
    ]
    was, now = before.get("search", {}), arguments.to_meta()
    for name in ERA:
        values = was.get(name), now.get(name)
        # None stands for a function of hp, and for arguments that earlier versions left out.
        if name not in _MEMBERS and None not in values and values[0] != values[1]:
            found.append(f"{name} {values[0]} instead of {values[1]}")
    if before.get("numerics") not in (None, numerics()):
        found.append(f"other numbers than {numerics()}")
    return found


def check_alike(before: Mapping[str, Any], arguments: SearchArguments) -> None:
    """Checks that trials of a study may be trained on: that one training would come of it."""
    if others := unlike(before, arguments):
        raise UsageError(
            f"continue_best: trials were searched with {', '.join(others)}, so the halves of a "
            "history would not be comparable. Search as before, or without continue_best."
        )


def changes(before: Mapping[str, Any], arguments: SearchArguments) -> tuple[str, ...]:
    """Differences from the search of a trial, a sentence each.

    ``before`` is the study's metadata, whose ``search`` are the arguments of the trial's search.
    """
    found = []
    callbacks = (before.get("search") or {}).get("callbacks")
    if callbacks != arguments.to_meta().get("callbacks"):
        names = callbacks if isinstance(callbacks, str) else ", ".join(callbacks or ["none"])
        found.append(f"the search had other callbacks ({names}). Pass callbacks= as in the search")
    data = digests(arguments)
    for name, what in (("data", "the data"), ("validation", "the validation data")):
        if before.get(name) not in (None, data[name]):
            found.append(f"{what} differ from those of the search")
    if before.get("numerics") not in (None, numerics()):
        found.append(f"models compute in {numerics()}, which the search did not")
    found += [f"{name} changed from {was} to {now}" for name, now, was in _new_versions(before)]
    return tuple(found)


def _new_versions(before: Mapping[str, Any]) -> list[tuple[str, str, str]]:
    """Name, version now and version before of all that a history depends on and has changed."""
    was = {**(before.get("versions") or {}), **(before.get("compiled_with") or {})}
    now = {**versions(), **compiled_with()}
    return [(name, of, was[name]) for name, of in now.items() if was.get(name, of) != of]


def _constraints(stored: Mapping[str, Any]) -> str:
    """Constraints as ``Constraints.to_json`` has them, in words."""
    texts = [
        name if bounds is None else " and ".join(f"{name} {op} {limit:,}" for op, limit in bounds)
        for name, bounds in stored.items()
    ]
    return ", ".join(texts) or "no constraints"
