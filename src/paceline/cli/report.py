"""``paceline report`` and ``dashboard``, pages about a study: need neither JAX nor Keras."""

from __future__ import annotations

import sys
from importlib.util import find_spec
from typing import TYPE_CHECKING, Annotated, Any

import typer

from paceline.cli import arguments, studies
from paceline.cli import output as terminal
from paceline.cli.options import Storage, StudyName, complete_study, journals
from paceline.errors import StudyError, UsageError
from paceline.report import formats

if TYPE_CHECKING:
    from paceline.report.html.subject import ReportSubject


def report(
    study: StudyName,
    output: Annotated[
        str,
        typer.Option("--output", "-o", metavar="FILE.html", help="Where to write the page."),
    ] = "report.html",
    compare: Annotated[
        str | None,
        typer.Option(
            metavar="STUDY2",
            help="Another study to compare it with.",
            show_default="none",
            autocompletion=complete_study,
        ),
    ] = None,
    storage: Storage = None,
) -> None:
    """Write a report about a study: one HTML page with figures, which needs no network."""
    from paceline.report.html.page import write_report

    target = arguments.output_file(output, (".html", ".htm"))
    subject = read_subject(study, storage)
    other = None if compare is None else read_subject(compare, storage)
    write_report(target, subject, other)
    size = formats.size(target.stat().st_size)
    terminal.print_result(
        f"{target}: {size}, needs no network. Open it in a browser, or send it to someone."
    )


def read_subject(name: str, storage: str | None) -> ReportSubject:
    """Read a study for a report; raises what ``studies.open_study`` raises."""
    from paceline.report.html.subject import ReportSubject

    study = studies.open_study(name, storage)
    folder = studies.DIRECTORY / name
    return ReportSubject.beside(folder, name, study.meta, study.trials, study.stored_trials)


def dashboard(
    study: Annotated[
        str | None,
        typer.Argument(
            metavar="[STUDY]",
            help="Name of the study.",
            show_default="the one last used",
            autocompletion=complete_study,
        ),
    ] = None,
    storage: Storage = None,
    port: Annotated[
        int, typer.Option(metavar="N", min=0, max=65535, help="Port; 0: any free port.")
    ] = 8080,
    browser: Annotated[bool, typer.Option("--browser/--no-browser", help="Open a browser.")] = True,
) -> None:
    """Serve optuna-dashboard and a page of the running packs on this machine."""
    import webbrowser

    if find_spec("optuna_dashboard") is None:
        raise UsageError(
            'the dashboard needs optuna-dashboard. Run pip install "paceline[dashboard]". Or use '
            "`paceline report`, which works without it."
        )
    if study is None:
        study = _latest()
        terminal.say(f"showing the study {study!r}, which was last used")
    studies.open_study(study, storage)  # raises if there is none

    from optuna_dashboard import wsgi  # pyright: ignore[reportMissingImports] - an extra

    from paceline.report.dashboard.app import DashboardApp, make_server

    name = study
    store = _storage_of(study, storage)
    app = DashboardApp(
        study,
        studies.DIRECTORY / study,
        wsgi(store),
        lambda: read_subject(name, storage),
        study_id=store.get_study_id_from_name(study),
    )
    with make_server(app, port) as server:
        address = f"http://127.0.0.1:{server.server_address[1]}/"
        terminal.print_result(
            f"{address} shows {study}; press Ctrl-C to end it.\n"
            "It has no login: anyone who can use this machine can open it and change the study.\n"
            f"From another machine: ssh -L {server.server_address[1]}:127.0.0.1:"
            f"{server.server_address[1]} THIS_MACHINE"
        )
        sys.stdout.flush()
        if browser:
            webbrowser.open(address)
        try:
            server.serve_forever()
        except KeyboardInterrupt:
            terminal.say("the dashboard has stopped")


def _storage_of(study: str, storage: str | None) -> Any:
    """The study's storage as Optuna's own object; optuna-dashboard uses its private methods."""
    from optuna.storages import JournalStorage, get_storage
    from optuna.storages.journal import JournalFileBackend

    from paceline.study.storage.folder import journal_path

    path = journal_path(storage, study, studies.DIRECTORY)
    if path is None:
        assert storage is not None  # a study without a storage has a journal
        return get_storage(storage)
    return JournalStorage(JournalFileBackend(str(path)))


def _latest() -> str:
    found = journals(studies.DIRECTORY)
    if not found:
        raise StudyError(
            f"there is no study in {studies.DIRECTORY}. `paceline search` makes one. To show a "
            "study of another storage, use its name and --storage."
        )
    return max(found, key=lambda path: path.stat().st_mtime).parent.name
