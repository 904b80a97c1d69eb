"""What a search on the command line consists of, read from its options or from a study."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class SearchCommand:
    """A search that the command line is to run, for ``search`` or for ``resume``.

    Attributes:
        path: The user's file.
        function: Name of what builds the model in that file.
        data: What ``--data`` names; None: the ``data()`` of the file.
        study: Name of the study.
        storage: URL of the storage; None: a journal in ``runs/<study>/``.
        tuner: Further arguments of ``Tuner``.
        search: Further arguments of ``Tuner.search``.
        enqueue: File of configurations to try first; None without.
        budget: Seconds by which trials and epochs are chosen; None: they are in ``search``.
        timeout: Seconds that the search may take; None for no limit.
        deadline: When the search is to stop; None for no limit.
        constraints: What ``--constraint`` gave; empty: the ``constraints`` of the file.
        digest: Digest of the file when the study began; None for a new study.
        as_json: Whether the result is printed as JSON.
        quiet: Whether the live view is left out.
    """

    path: Path
    function: str
    data: str | None
    study: str
    storage: str | None
    tuner: dict[str, Any] = field(default_factory=dict)
    search: dict[str, Any] = field(default_factory=dict)
    enqueue: Path | None = None
    budget: float | None = None
    timeout: float | None = None
    deadline: datetime | None = None
    constraints: tuple[str, ...] = ()
    digest: str | None = None
    as_json: bool = False
    quiet: bool = False
