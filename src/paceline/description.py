"""What a study says of itself in its storage, beside its trials: the attribute ``paceline``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from paceline import trial_record
from paceline.search_space import Space
from paceline.study_record import FORMAT, StoredStudy, stored_space


class Description:
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
        self.meta = trial_record.plain({**meta, **more})

    @property
    def outgrown(self) -> bool:
        """Whether the space has parameters that the attribute does not."""
        return len(self.space.parameters) > self._n_parameters

    def share(self) -> None:
        """Others search the study: nobody goes back to this session."""
        self.session = f"shared-{self.session.removeprefix('shared-')}"
