"""``paceline report``: needs neither JAX nor Keras."""

from __future__ import annotations

from paceline.cli import arguments, studies
from paceline.cli import output as terminal
from paceline.report import formats
from paceline.report.html.subject import ReportSubject
from paceline.report.html.writing import write_report


def write(name: str, *, storage: str | None, output: str, compare: str | None) -> None:
    """Write the report of a study, whole or not at all.

    Args:
        name: The study's name.
        storage: URL of the storage; None for the journal in ``runs``.
        output: The file to write.
        compare: Another study to put beside it; None for none.

    Raises:
        UsageError: The file cannot be of that name, or cannot be written.
        StudyError: There is no such study.
        StorageError: The storage cannot be read.
    """
    target = arguments.output_file(
        output, (".html", ".htm"), "a report's file ends in .html; give a name such as report.html"
    )
    subject = read_subject(name, storage)
    other = None if compare is None else read_subject(compare, storage)
    write_report(target, subject, other)
    size = formats.size(target.stat().st_size)
    terminal.print_result(
        f"{target}: {size}, needs no network. Open it in a browser, or send it to someone."
    )


def read_subject(name: str, storage: str | None) -> ReportSubject:
    """Read a study as reports take it.

    Raises:
        StudyError, StorageError: As from ``studies.open_study``.
    """
    study = studies.open_study(name, storage)
    folder = studies.DIRECTORY / name
    return ReportSubject.beside(folder, name, study.meta, study.trials, study.stored_trials)
