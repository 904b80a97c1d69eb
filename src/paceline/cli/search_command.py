"""A search on the command line, read from its options or from a study."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

from paceline.cli import studies
from paceline.errors import StudyError, UsageError

#: Options that ``Tuner`` always gets, and that a study remembers.
OF_TUNER = ("sampler", "seed", "parallel_trials", "plan", "share_widths", "mesh", "precision")
#: Arguments of ``Tuner`` that a study remembers as part of its origin.
OF_ORIGIN = ("executor", "keep_best")


@dataclass(frozen=True)
class SearchCommand:
    """A search that the command line runs, for ``search`` or for ``resume``."""

    path: Path  # the user's file
    function: str  # builds the model in that file
    data: str | None  # what --data names; None: the data() of the file
    study: str
    storage: str | None  # URL; None: a journal in runs/<study>/
    tuner: dict[str, Any] = field(default_factory=dict)  # further arguments of Tuner
    search: dict[str, Any] = field(default_factory=dict)  # further arguments of Tuner.search
    enqueue: Path | None = None  # configurations to try first
    timeout: float | None = None  # seconds
    deadline: datetime | None = None
    constraints: tuple[str, ...] = ()  # of --constraint; empty: the ``constraints`` of the file
    target: str | None = None  # the column of a table that is y
    validation_split: float | None = None  # share to hold out of data without a validation part
    digest: str | None = None  # of the file when the study began; None for a new study
    as_json: bool = False
    quiet: bool = False


def command_of(
    study: str, storage: str | None, *, as_json: bool = False, quiet: bool
) -> SearchCommand:
    """The command that ``paceline search`` ran for a study, read from the study."""
    meta = studies.study_meta(study, storage)
    origin = _origin(meta)
    if origin is None:
        raise StudyError(
            f"study {study!r} was not made by `paceline search`, so its model is unknown here. "
            "Call search again in its notebook or script, with the same study name."
        )
    path = Path(origin["file"])
    if path.resolve().is_relative_to(studies.DIRECTORY.resolve()):
        raise StudyError(
            f"study {study!r} names {path} as its model, a file in the folder of the studies. "
            "It may come from the author of the study, and resuming would run it. If you trust "
            f"it, move it elsewhere and run `paceline search FILE.py --study {study}`."
        )
    if not path.exists():
        raise UsageError(
            f"the model of study {study!r} is missing: {path}. Put the file back, or run "
            f"`paceline search NEW_FILE.py --study {study}`."
        )
    return SearchCommand(
        path=path,
        function=origin["function"],
        data=origin["data"],
        study=study,
        storage=storage,
        tuner={
            **_tuner_arguments(meta),
            **{name: origin[name] for name in OF_ORIGIN if name in origin},
        },
        search=_search_arguments(meta),
        target=origin.get("target"),
        validation_split=origin.get("validation_split"),
        digest=origin["digest"],
        constraints=tuple(origin.get("constraints", ())),
        as_json=as_json,
        quiet=quiet,
    )


def _origin(meta: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """The origin (file, function, digest, data) in a study's meta; None if it is not complete."""
    found = meta.get("origin")
    if not isinstance(found, Mapping):
        return None
    texts = [found.get(name) for name in ("file", "function", "digest")]
    given = found.get("constraints", [])
    texts += given if isinstance(given, list) else [None]
    ours = "data" in found and all(isinstance(text, str) for text in texts)
    ours = ours and isinstance(found.get("target"), str | None)
    ours = ours and isinstance(found.get("validation_split"), float | None)
    return found if ours and isinstance(found["data"], str | None) else None


def _tuner_arguments(meta: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of ``Tuner`` that a study's meta holds."""
    stored_arguments = {
        name: meta[name] for name in (*OF_TUNER, "pruner") if meta.get(name) is not None
    }
    if meta.get("pruner_reason"):
        stored_arguments["pruner"] = "auto"
    if meta.get("sampler_reason"):
        stored_arguments["sampler"] = "auto"
    if mesh := stored_arguments.get("mesh"):  # devices; devices that split each batch, or None
        stored_arguments["mesh"] = tuple(mesh) if mesh[1] is not None else mesh[0]
    objective: Any = {"objective": meta.get("objective"), "direction": meta.get("direction")}
    if names := meta.get("objectives"):
        pairs = zip(meta.get("directions", ()), names, strict=False)
        objective = {"objective": [f"{direction[:3]}:{name}" for direction, name in pairs]}
    return {**objective, **stored_arguments}


def _search_arguments(meta: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of ``Tuner.search`` that a study's meta holds."""
    from paceline.study.storage.schema import StoredSearch

    # A study of another version may hold others, which ``search`` would not take.
    known = set(StoredSearch.__struct_fields__) - {"callbacks"}
    found = meta.get("search", {}).items()
    return {name: value for name, value in found if value is not None and name in known}
