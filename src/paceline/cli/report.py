"""``paceline report``: needs neither JAX nor Keras."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from paceline.cli import arguments, studies
from paceline.cli import output as terminal
from paceline.cli.options import Storage, StudyName, complete_study
from paceline.report import formats

if TYPE_CHECKING:
    from paceline.report.html.subject import ReportSubject


@terminal.exit_codes()
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
            help="Another study to put beside it.",
            show_default="none",
            autocompletion=complete_study,
        ),
    ] = None,
    storage: Storage = None,
) -> None:
    """Write a report of a study: one HTML page with figures, which needs no network."""
    from paceline.report.html.page import write_report

    target = arguments.output_file(
        output, (".html", ".htm"), "a report's file ends in .html; give a name such as report.html"
    )
    subject = read_subject(study, storage)
    other = None if compare is None else read_subject(compare, storage)
    write_report(target, subject, other)
    size = formats.size(target.stat().st_size)
    terminal.print_result(
        f"{target}: {size}, needs no network. Open it in a browser, or send it to someone."
    )


def read_subject(name: str, storage: str | None) -> ReportSubject:
    """Read a study as reports take it; raises what ``studies.open_study`` raises."""
    from paceline.report.html.subject import ReportSubject

    study = studies.open_study(name, storage)
    folder = studies.DIRECTORY / name
    return ReportSubject.beside(folder, name, study.meta, study.trials, study.stored_trials)
