"""``paceline enqueue``, ``stop`` and ``pause``: steer the running or the next search on a study.

They write to the study's storage. A running search reads it between two epochs, in any process. The
next search reads it when it begins.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal

import typer

from paceline.cli import arguments
from paceline.cli import output as terminal
from paceline.cli.options import Storage, StudyName
from paceline.errors import StudyError

if TYPE_CHECKING:
    from paceline.study.storage.storage import StudyStorage
    from paceline.study.view import StudyView


def enqueue(
    study: StudyName,
    values: Annotated[
        list[str],
        typer.Argument(
            metavar="NAME=VALUE...", help="Hyperparameters. The sampler chooses others."
        ),
    ],
    storage: Storage = None,
) -> None:
    """Add a trial with these values, to be trained next."""
    from paceline.study.sharing import requests

    _, store, found = _opened(study, storage)
    number = requests.enqueue(store, found, study, arguments.hparam_values("values", values))
    terminal.print_result(
        f"trial {number} is queued. The running search, or the next one on {study}, trains it next."
    )


def stop(
    study: StudyName,
    trial: Annotated[
        int | None,
        typer.Argument(metavar="[TRIAL]", min=0, help="Stop only this trial, as pruned."),
    ] = None,
    storage: Storage = None,
) -> None:
    """Stop the search on a study as Ctrl-C does, or one of its trials."""
    from paceline.study.sharing import requests

    view, store, found = _opened(study, storage)
    if trial is None:
        view.check_searched()
        requests.ask(store, found, "stop")
        terminal.print_result(
            f"the search on {study} stops after this epoch; `paceline resume {study}` resumes it"
        )
        return
    requests.stop_trial(store, found, study, trial, "stopped by `paceline stop`")
    terminal.print_result(f"trial {trial} of {study} is pruned after this epoch")


def pause(study: StudyName, storage: Storage = None) -> None:
    """Pause the running search, and any search that you start later, until `unpause`."""
    _ask(study, storage, "pause")
    terminal.print_result(
        f"{study} pauses after this epoch; `paceline unpause {study}` continues it"
    )


def unpause(study: StudyName, storage: Storage = None) -> None:
    """Continue a paused study."""
    _ask(study, storage, "continue")
    terminal.print_result(f"{study} continues")


def _ask(study: str, storage: str | None, what: Literal["pause", "continue"]) -> None:
    from paceline.study.sharing import requests

    _, store, found = _opened(study, storage)
    requests.ask(store, found, what)


def _opened(study: str, storage: str | None) -> tuple[StudyView, StudyStorage, int]:
    """Return a stored study, its storage, and its id in the storage."""
    from paceline.cli import studies
    from paceline.study.storage.storage import StudyStorage

    view = studies.open_study(study, storage)
    store = StudyStorage.of(storage, study, studies.DIRECTORY)
    found = store.find(study)
    if found is None:
        raise StudyError(f"study {study!r} no longer exists")
    return view, store, found
