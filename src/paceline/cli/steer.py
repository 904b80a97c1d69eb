"""``paceline enqueue``, ``stop`` and ``pause``: steer a study, whether a search of it runs or not.

They write to the study's storage, where the search that runs looks for it between two epochs, in
whatever process it is, and the next one when it begins.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from paceline.cli import output as terminal
from paceline.cli.options import Storage, StudyName
from paceline.errors import StudyError, UsageError

if TYPE_CHECKING:
    from paceline.study.storage.storage import StudyStorage
    from paceline.study.view import StudyView


@terminal.exit_codes()
def enqueue(
    study: StudyName,
    values: Annotated[
        list[str],
        typer.Argument(metavar="NAME=VALUE...", help="Hyperparameters; the sampler chooses more."),
    ],
    storage: Storage = None,
) -> None:
    """Add a trial with given values, to be trained next."""
    from paceline.study.sharing import requests

    _, store, found = _opened(study, storage)
    number = requests.enqueue(store, found, study, _parsed(values))
    terminal.print_result(
        f"trial {number} waits: the search that runs trains it next, or the next search of "
        f"{study} does"
    )


@terminal.exit_codes()
def stop(
    study: StudyName,
    trial: Annotated[
        int | None,
        typer.Argument(metavar="[TRIAL]", min=0, help="Stop this trial alone, as pruned."),
    ] = None,
    storage: Storage = None,
) -> None:
    """Stop the search of a study as Ctrl-C does, or one trial of it."""
    from paceline.study.sharing import requests

    view, store, found = _opened(study, storage)
    if trial is None:
        view.check_searched()
        requests.ask(store, found, "stop")
        terminal.print_result(
            f"the search of {study} stops after this epoch; `paceline resume {study}` goes on"
        )
        return
    requests.stop_trial(store, found, study, trial, "stopped by `paceline stop`")
    terminal.print_result(f"trial {trial} of {study} is pruned; it ends after this epoch")


@terminal.exit_codes()
def pause(study: StudyName, storage: Storage = None) -> None:
    """Pause a study: its search waits, and so does one that begins later."""
    _ask(study, storage, "pause")
    terminal.print_result(
        f"{study} is paused after this epoch; `paceline unpause {study}` continues it"
    )


@terminal.exit_codes()
def unpause(study: StudyName, storage: Storage = None) -> None:
    """Continue a paused study."""
    _ask(study, storage, "continue")
    terminal.print_result(f"{study} continues")


def _ask(study: str, storage: str | None, what: Literal["pause", "continue"]) -> None:
    from paceline.study.sharing import requests

    _, store, found = _opened(study, storage)
    requests.ask(store, found, what)


def _opened(study: str, storage: str | None) -> tuple[StudyView, StudyStorage, int]:
    """Return what is stored of a study, the storage that holds it, and the storage's id of it."""
    from paceline.cli import studies
    from paceline.study.storage.storage import StudyStorage

    view = studies.open_study(study, storage)
    store = StudyStorage.of(storage, study, studies.DIRECTORY)
    found = store.find(study)
    if found is None:
        raise StudyError(f"there is no study {study!r} any more")
    return view, store, found


def _parsed(words: list[str]) -> dict[str, Any]:
    """Return name -> value of words such as ``lr=1e-3``; what is no JSON value is text."""
    found: dict[str, Any] = {}
    for word in words:
        name, sign, text = word.partition("=")
        if "," in text and "=" in text:
            raise UsageError(
                f"enqueue: {word!r} holds several values; put blanks between them, as in "
                f"{word.replace(',', ' ')}"
            )
        if not name or not sign:
            raise UsageError(f"enqueue: {word!r} is no NAME=VALUE; give such as lr=1e-3 units=64")
        try:
            value = json.loads(text)
        except ValueError:
            value = {"True": True, "False": False}.get(text, text)
        found[name] = value if isinstance(value, bool | int | float | str) else text
    return found
