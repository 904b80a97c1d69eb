"""A study as a storage keeps it: an ordinary Optuna study with one attribute of ours.

What a study says of itself in its storage, beside its trials: the attribute ``paceline``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from optuna.trial import FrozenTrial

from paceline.errors import StudyError
from paceline.search_space import Space
from paceline.study import trial_codec
from paceline.study.objective import Direction

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


class StudyMetadata:
    """A study's attribute, and what of it grows while the study is searched.

    Args:
        study: Its name, for messages.
        stored: What the storage holds of the study; None for a new one.
        session: Of this search: every one that begins has its own.

    Attributes:
        meta: The attribute, JSON values.
        space: What is known of the search space.
        session: A search that goes on from a snapshot has the one that the snapshot was taken in.

    Raises:
        StudyError: The attribute was written by a newer version, or cannot be read.
    """

    def __init__(self, study: str, stored: StoredStudy | None, session: str) -> None:
        self.meta: dict[str, Any] = stored.meta if stored is not None else {}
        self.session = session
        self.space: Space = stored_space(study, self.meta)
        self._n_parameters = len(self.space.parameters)

    def write(self, meta: Mapping[str, Any]) -> None:
        """Replace the attribute; the format's version, space and session are added."""
        space = self.space.to_json()
        self._n_parameters = len(space)
        more = {"format": FORMAT, "space": space, "session": self.session}
        self.meta = trial_codec.plain({**meta, **more})

    @property
    def outgrown(self) -> bool:
        """Whether the space has parameters that the attribute does not."""
        return len(self.space.parameters) > self._n_parameters

    def share(self) -> None:
        """Others search the study: nobody goes back to this session."""
        self.session = f"shared-{self.session.removeprefix('shared-')}"
