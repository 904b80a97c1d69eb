"""Writing the report of a study to a file."""

from __future__ import annotations

from pathlib import Path

from paceline.errors import UsageError
from paceline.program.files import written_atomically
from paceline.report.html.page import GENERATOR, report_page
from paceline.report.html.subject import ReportSubject

#: Bytes at the beginning of a report among which it says what has made it.
_BEGINNING = 4096


def check_path(path: str | Path) -> Path:
    """Check the .html file that a report is to be written to, before any work is done."""
    target = Path(path)
    if target.suffix not in (".html", ".htm"):
        raise UsageError(f"path: {target} does not end in .html; give a name such as report.html.")
    if not target.parent.is_dir():
        raise UsageError(f"path: the folder {target.parent} does not exist; make it first.")
    if target.is_dir():
        raise UsageError(f"path: {target} is a folder; give a file in it.")
    return target


def write_report(path: Path, subject: ReportSubject, other: ReportSubject | None = None) -> None:
    """Write the report of a study to an .html file, which may replace a report but nothing else.

    ``other`` is put beside the study, unless it is None.
    """
    _check_replaced(path)
    page = report_page(subject, other)
    try:
        with written_atomically(path) as part:
            part.write_text(page, encoding="utf-8")
    except OSError as error:
        raise UsageError(f"{path} cannot be written: {error.strerror or error}.") from error


def _check_replaced(path: Path) -> None:
    """Refuse to replace a page that somebody else has written."""
    try:
        with path.open("rb") as file:
            begins = file.read(_BEGINNING)
    except OSError:  # it is not there; or what hinders is said where the report is written
        return
    if begins and GENERATOR.encode() not in begins:
        raise UsageError(
            f"{path} is there and is no report of Paceline's: it stays. Name another file, or "
            "remove it."
        )
