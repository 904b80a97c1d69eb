"""Two studies side by side."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from paceline.report import formats
from paceline.report.html.facts import manifest_of
from paceline.report.html.figures import ReportFigure, drawn, figure_html, shown_trials
from paceline.report.html.markup import dim, table
from paceline.report.html.subject import ReportSubject
from paceline.report.html.verdict import shape_of
from paceline.report.plots import history_figure


def compare_figure(subject: ReportSubject, other: ReportSubject) -> ReportFigure | None:
    """Draw the best value until each trial, of both studies; None if they cannot be compared."""
    if not subject.reached or not other.reached or subject.objective != other.objective:
        return None
    subjects = [subject, other]
    return drawn("compare", "", history_figure(subjects, list(map(shown_trials, subjects))))


def compare_part(
    subject: ReportSubject, other: ReportSubject, figure: ReportFigure | None
) -> Iterator[str]:
    """Give what two studies came to, and what differs in how they were made."""
    first, second = dict(_results(subject)), dict(_results(other))
    if subject.reached and other.reached and subject.objective == other.objective:
        values = [each.reached[0].value or 0.0 for each in (subject, other)]
        name = f"best {subject.objective}"
        first[name], second[name] = formats.apart(*values)
    yield '<h2 id="compare">Side by side</h2>'
    yield _rows(subject, other, first, second)
    if figure is not None:
        yield from figure_html(figure)
    else:
        yield dim(
            f"{subject.name} has the objective {subject.objective}, {other.name} has "
            f"{other.objective}. Values are compared only for an objective that both have."
        )
    yield "<h3>Best configurations</h3>"
    yield _rows(subject, other, *(_best(each) for each in (subject, other)))
    ranges = [{n: shape_of(d) for n, d in s.distributions.items()} for s in (subject, other)]
    for title, (one, two) in (
        ("Differences in setup", [manifest_of(s.meta) for s in (subject, other)]),
        ("Differences in ranges", ranges),
    ):
        names = [name for name in {**one, **two} if one.get(name) != two.get(name)]
        yield f"<h3>{title}</h3>"
        if not names:
            yield dim("Nothing.")
        else:
            chosen = [{n: each.get(n, "-") for n in names} for each in (one, two)]
            yield _rows(subject, other, *chosen)


def _rows(
    subject: ReportSubject, other: ReportSubject, first: dict[str, str], second: dict[str, str]
) -> str:
    names = list({**first, **second})
    rows = [(name, first.get(name, "-"), second.get(name, "-")) for name in names]
    return table(("", subject.name, other.name), rows)


def _results(subject: ReportSubject) -> Iterator[tuple[str, str]]:
    best = subject.reached[0] if subject.reached else None
    yield f"best {subject.objective}", formats.metric(None if best is None else best.value)
    if best is not None:
        where = formats.reached(best.state, best.epochs, best.best_epoch)
        yield "best trial", f"{best.number}, {where}"
        if best.value_std is not None:
            yield "standard deviation over its runs", formats.metric(best.value_std)
    yield "trials", f"{len(subject.trials):,}"
    counts = Counter(formats.state(trial.state) for trial in subject.trials)
    for state, count in counts.items():
        yield state, f"{count:,}"
    yield "epochs of all trials", f"{sum(trial.epochs for trial in subject.trials):,}"
    seconds = [s.spent.seconds.get("total", 0.0) for s in subject.timelines if s.spent is not None]
    yield "seconds of searching", formats.seconds(sum(seconds)) if seconds else "not recorded"


def _best(subject: ReportSubject) -> dict[str, str]:
    best = subject.reached[0] if subject.reached else None
    values = {} if best is None else best.hparams
    return {name: formats.hparam(value) for name, value in values.items()}
