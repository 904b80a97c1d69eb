"""A study as a storage keeps it: an ordinary Optuna study with one attribute of ours."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from optuna.trial import FrozenTrial

from paceline.errors import StudyError
from paceline.objective import Direction
from paceline.search_space import Space

# The attribute of an Optuna study that holds what only Paceline knows of it.
META = "paceline"
# Version of what it holds.
FORMAT = 1


@dataclass
class StoredStudy:
    """What a storage holds of a study.

    Attributes:
        direction: maximize or minimize.
        meta: The study's attribute ``paceline``; empty for a study made by other means.
        trials: All its trials, by number.
    """

    direction: Direction
    meta: dict[str, Any] = field(default_factory=dict)
    trials: list[FrozenTrial] = field(default_factory=list)


def check_name(name: Any) -> None:
    """Refuse a study name that is no plain name of a folder.

    Raises:
        StudyError: Empty, too long, hidden, or with a path or control characters in it.
    """
    if not isinstance(name, str) or not name.strip():
        raise StudyError(f"study name is {name!r}; give a name, such as fashion.")
    if "/" in name or "\\" in name or ".." in name or name.startswith("."):
        raise StudyError(
            f"study name is {name!r}, which is a path or begins with a dot; give a plain name, and "
            "the place with storage=journal:PATH."
        )
    if not name.isprintable() or name != name.strip() or len(name) > 128:
        raise StudyError(
            f"study name is {name[:140]!r}; use up to 128 printable characters, no blanks around."
        )


def stored_space(name: str, meta: Mapping[str, Any]) -> Space:
    """Return the space that a study's meta holds, an empty one where it holds none.

    Args:
        name: The study's name, for messages.
        meta: Its attribute ``paceline``.

    Raises:
        StudyError: It was written by a newer version, or cannot be read.
    """
    found = meta.get("format", FORMAT)
    if not isinstance(found, int) or found > FORMAT:
        raise StudyError(
            f'study "{name}" was written in format {found!r} by a newer Paceline, this one reads '
            f"up to {FORMAT}; pip install --upgrade paceline."
        )
    try:
        return Space.from_json(meta.get("space", []))
    except (KeyError, TypeError, ValueError) as error:
        raise StudyError(
            f'study "{name}": the stored space cannot be read ({type(error).__name__}: {error}); '
            "choose another study name."
        ) from error
