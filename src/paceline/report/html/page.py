"""The report of a study as one HTML page: figures by Plotly, everything else by hand.

All that comes from a study is escaped in the page. The page's content security policy forbids it to
load anything.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from html import escape
from pathlib import Path

from paceline.errors import UsageError
from paceline.program.files import written_atomically
from paceline.report import formats
from paceline.report.html import compare, facts
from paceline.report.html.figures import ReportFigure, figure_html, figures_of
from paceline.report.html.importance import importances_of
from paceline.report.html.markup import dim, items, table
from paceline.report.html.subject import ReportSubject
from paceline.report.html.verdict import Verdict, verdict_of

_HERE = Path(__file__).parent
#: By which a page is known as a report, and the bytes at its beginning among which that stands.
GENERATOR = '<meta name="generator" content="Paceline">'
_BEGINNING = 4096
#: Plotly makes functions of strings for parallel coordinates, which is what 'unsafe-eval' allows;
#: nothing may be loaded or sent.
_POLICY = (
    "default-src 'none'; script-src 'unsafe-inline' 'unsafe-eval'; style-src 'unsafe-inline'; "
    "img-src data: blob:; font-src data:"
)


def report_page(subject: ReportSubject, other: ReportSubject | None = None) -> str:
    """Return a report as HTML, with another study put beside it unless ``other`` is None."""
    importances = importances_of(subject)
    verdict = verdict_of(subject, importances)
    figures = list(figures_of(subject, importances))
    compared = None if other is None else compare.compare_figure(subject, other)
    every = [*figures, *([compared] if compared else [])]
    title = f"{subject.name}: {', '.join(subject.objectives) or subject.objective}"
    return "\n".join(
        [
            "<!doctype html>",
            '<html lang="en"><head><meta charset="utf-8">',
            f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            GENERATOR,
            f"<title>{escape(title)}</title>",
            f"<style>{_HERE.joinpath('page.css').read_text(encoding='utf-8')}</style>",
            *_scripts(every),
            "</head><body>",
            *_top(subject),
            *_verdict(verdict),
            *([] if other is None else compare.compare_part(subject, other, compared)),
            *_best(subject),
            *_figures(figures),
            *facts.line_part(subject),
            *facts.front_part(subject),
            *facts.trials_part(subject),
            *facts.starts_part(subject),
            *facts.ensemble_part(subject),
            *facts.failures_part(subject),
            *facts.rejections_part(subject),
            *facts.programs_part(subject),
            *facts.accounts_part(subject),
            *facts.manifest_part(subject),
            "</body></html>",
            "",
        ]
    )


def check_path(path: str | Path) -> Path:
    """Check the .html file that a report is to be written to, before any work is done."""
    target = Path(path)
    if target.suffix not in (".html", ".htm"):
        raise UsageError(f"path must end in .html, got {target}. Pass a name such as report.html.")
    if not target.parent.is_dir():
        raise UsageError(f"path: the folder {target.parent} does not exist. Create it first.")
    if target.is_dir():
        raise UsageError(f"path: {target} is a folder. Pass a file in it.")
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
            f"{path} exists and is not a report of Paceline, so it was not replaced. Use another "
            "file, or remove it."
        )


def _scripts(figures: Sequence[ReportFigure]) -> Iterator[str]:
    if not figures:
        return
    from plotly.offline import get_plotlyjs

    yield f"<script>{get_plotlyjs()}</script>"
    yield f"<script>{_HERE.joinpath('page.js').read_text(encoding='utf-8')}</script>"
    for figure in figures:
        yield (f'<script type="application/json" id="json-{figure.name}">{figure.json}</script>')


def _top(subject: ReportSubject) -> Iterator[str]:
    yield f"<h1>{escape(formats.visible(subject.name))}</h1>"
    yield from map(dim, facts.headline(subject))


def _verdict(verdict: Verdict) -> Iterator[str]:
    yield '<h2 id="verdict">Verdict</h2><div class="verdict">'
    for sentences in (verdict.best, verdict.sure, verdict.mattered):
        if sentences:
            yield f"<p>{escape(' '.join(sentences))}</p>"
    if verdict.following:
        yield "<p>What to try next:</p>"
        yield items(verdict.following)
    yield "</div>"


def _best(subject: ReportSubject) -> Iterator[str]:
    if not subject.reached:
        return
    best = subject.reached[0]
    which = f"Best by {subject.objective}" if subject.objectives else "Best configuration"
    yield f'<h2 id="best">{escape(which)}</h2><div class="two">'
    yield table(
        ("hyperparameter", "value"),
        [(name, formats.hparam(value)) for name, value in best.hparams.items()],
    )
    epoch = best.best_epoch or best.epochs
    there = {n: values[epoch - 1] for n, values in best.history.items() if len(values) >= epoch > 0}
    if there:
        last = zip(there, formats.metrics(list(there.values())), strict=True)
        yield table(("metric", f"in epoch {epoch}"), list(last))
    yield "</div>"


def _figures(figures: Sequence[ReportFigure]) -> Iterator[str]:
    slices = [figure for figure in figures if not figure.wide]
    for figure in figures:
        if figure.wide:
            yield f'<h2 id="{figure.name}">{escape(figure.title)}</h2>'
            yield from figure_html(figure)
        elif figure is slices[0]:
            yield '<h2 id="slices">Slices</h2><div class="slices">'
            for each in slices:
                yield f"<div>{''.join(figure_html(each))}</div>"
            yield "</div>"
