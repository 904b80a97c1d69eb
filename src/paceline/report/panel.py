"""Draws one moment of a search: as a panel for a terminal, as one line for any other place.

Colours are those of the terminal (green, cyan, bold, dim), so that the panel is readable on light
and on dark terminals. Names that users chose are plain text, never markup: ``units[type=a]`` must
not be taken for a style.
"""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from dataclasses import replace

from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from paceline.report import formats
from paceline.report.progress import Progress, TrialRow, WorkerRow

WIDEST = 100  # columns of text; a wider one is harder to read. The table of trials may be wider
BAR = (10, 40)  # columns of the bar, least and most
BESIDE_BAR = 64  # columns for the label and the counts of a long search
HPARAM_LINES = 2
#: Workers of a cluster that have lines of their own.
WORKERS = 8
#: Lines of the terminal that are not for the table of trials: the rest of the panel, and some of
#: what was there before.
_OTHER_LINES = 14
#: Rows for which a table is worth its head.
_LEAST_ROWS = 2


def finished(progress: Progress) -> int:
    """Return the number of trials that have ended: complete, pruned or failed."""
    return progress.n_complete + progress.n_pruned + progress.n_failed


def later(progress: Progress, seconds: float) -> Progress:
    """Return the same record ``seconds`` later: only its times differ."""
    left = progress.seconds_left
    return replace(
        progress,
        seconds=progress.seconds + seconds,
        seconds_left=None if left is None else max(0.0, left - seconds),
    )


def line(progress: Progress) -> str:
    """Return the state of a search on one line, without a line end."""
    parts = [f"{_count(progress)}{_others(progress, ' (', ')')}"]
    if progress.rate is not None:
        parts.append(f"{formats.rate(progress.rate)} trial-epochs/s")
    if progress.best_value is not None:
        best = f"best {progress.objective} {formats.metric(progress.best_value)}"
        parts.append(f"{best} (trial {progress.best_number}{_front(progress)})")
    parts.append(_time(progress))
    return f"{progress.study}: {', '.join(parts)}"


def ended(progress: Progress) -> Progress:
    """Return the record of a search that has ended, without estimates."""
    return replace(progress, rate=None, seconds_left=None)


def facts(progress: Progress) -> list[str]:
    """Return the state of a search in a few lines: trials and time, the best one, the devices."""
    first = f"{_count(progress)}{_others(progress, ' (', ')')}, {_time(progress)}"
    if progress.rate is not None:
        first += f", {formats.rate(progress.rate)} trial-epochs/s"
    best = _best(progress).plain
    lines = [first, best if progress.best_value is None else f"best {best}"]
    if progress.best_hparams:
        lines.append(formats.hparams(progress.best_hparams))
    busy = None if progress.busy is None else f"slots {progress.busy:.0%} filled while training"
    where = ", ".join(part for part in (progress.devices, busy) if part)
    return [*lines, where] if where else lines


class LivePanel:
    """A panel that is drawn again each time Rich renders it; records bring its title."""

    def __init__(self, title: str) -> None:
        self.title = title
        self.status = "starting"
        self.waited = 0.0  # seconds without a record
        self.progress: Progress | None = None

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        # Two columns stay free because a terminal echoes ^C behind the last line. If that wrapped
        # to a new line, the panel could no longer be erased.
        width = max(1, options.max_width - 2)
        try:
            yield self._draw(width, options.height or console.size.height)
        except Exception as error:  # an error in drawing must not reach the training
            yield Text(f"paceline: the live view failed ({error}); the search continues")

    def _draw(self, width: int, height: int) -> RenderableType:
        progress, narrow = self.progress, min(width, WIDEST)
        body: RenderableType
        if progress is None:
            body = _text(f"{formats.duration(self.waited)}  {self.status}")
            return _panel(body, self.title, narrow)
        title = f"{progress.study}, {progress.doing}"
        body = rows(progress, narrow - 4)
        room = height - _OTHER_LINES - min(len(progress.workers), WORKERS + 1)
        if len(progress.rows) < _LEAST_ROWS or room < _LEAST_ROWS:
            return _panel(body, title, narrow)
        return _panel(Group(body, "", trials_table(progress, width - 4, room)), title, width)


def _panel(body: RenderableType, title: str, width: int) -> Panel:
    text = Text.assemble(("paceline ", "bold"), formats.visible(title))
    text.truncate(max(1, width - 6), overflow="ellipsis")
    return Panel(body, title=text, title_align="left", border_style="cyan", width=width)


def rows(progress: Progress, width: int) -> Table:
    """Return the rows of a panel of ``width`` columns."""
    table = Table.grid(padding=(0, 2), pad_edge=False)
    # The width is given because Rich before 14.3 would count the space between the columns for the
    # second one.
    table.add_column(style="dim", no_wrap=True, min_width=len("trials"))
    table.add_column(width=width - len("trials") - 2, overflow="crop")
    table.add_row("trials", _bar(progress, width - BESIDE_BAR))
    table.add_row("speed", _text(_speed(progress)))
    table.add_row("time", _text(_time(progress)))
    table.add_row("best", _best(progress))
    for text in _wrapped(formats.hparams(progress.best_hparams), width - len("trials") - 2):
        table.add_row("", _text(text))
    for at, worker in enumerate(progress.workers[:WORKERS]):
        table.add_row("" if at else "worker", _text(worker_line(worker)))
    if len(progress.workers) > WORKERS:
        table.add_row("", _text(f"and {len(progress.workers) - WORKERS} more workers"))
    return table


def worker_line(worker: WorkerRow) -> str:
    """Return what a worker does on one line."""
    rate = "" if worker.rate is None else f", {formats.rate(worker.rate)} trial-epochs/s"
    return f"{worker.name}, {worker.device}: {worker.busy} of {worker.slots} slots{rate}"


def trials_table(progress: Progress, width: int, room: int) -> Table:
    """Return the leading and the running trials: at most ``room`` rows, the best first.

    Hyperparameters that find no place in ``width`` columns are left out.
    """
    shown = progress.rows[:room]
    names = list(dict.fromkeys(name for row in shown for name in row.hparams))
    columns = {"trial": [str(row.number) for row in shown]}
    columns[progress.objective] = formats.metrics([row.value for row in shown])
    for i, name in enumerate(progress.others, 1):
        columns[name] = objective_cells(name, i, shown)
    at_state = len(columns) + 1
    columns["epoch"] = [f"{r.epoch} of {r.epochs}" if r.epochs else str(r.epoch) for r in shown]
    words = {"running": "unfinished"} if progress.phase == "done" else {}
    columns["state"] = [
        "best"
        if row.number == progress.best_number
        else words.get(row.state, formats.state(row.state))
        for row in shown
    ]
    left = width - sum(_width(head, cells) + 2 for head, cells in columns.items())
    for name in names:
        whole = formats.hparam_cells([row.hparams for row in shown], name, "")
        cells = [formats.visible(text)[:24] for text in whole]
        head = formats.visible(name)
        left -= _width(head, cells) + 2
        if left < 0:
            break
        columns[head] = cells
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="dim")
    for i, head in enumerate(columns):
        table.add_column(_text(head), no_wrap=True, justify="left" if i == at_state else "right")
    for row, cells in zip(shown, zip(*columns.values(), strict=True), strict=True):
        style = "bold green" if row.number == progress.best_number else ""
        table.add_row(*map(_text, cells), style=style)
    return table


def objective_cells(name: str, place: int, rows: Sequence[TrialRow]) -> list[str]:
    """Return the column of one of several objectives, empty where a trial has no values yet."""
    texts = formats.objectives(name, [row.values[place] if row.values else None for row in rows])
    return [text if row.values else "" for text, row in zip(texts, rows, strict=True)]


def _width(head: str, cells: Sequence[str]) -> int:
    return max(map(len, [head, *cells]))


def _wrapped(text: str, width: int) -> list[str]:
    """At most HPARAM_LINES lines; a name and its value stay together."""
    glued = (
        formats.visible(text)
        .replace(" ", "\N{NO-BREAK SPACE}")
        .replace(",\N{NO-BREAK SPACE}", ", ")
    )
    lines = textwrap.wrap(glued, width, max_lines=HPARAM_LINES, placeholder=" ...")
    return [line.replace("\N{NO-BREAK SPACE}", " ") for line in lines] or [""]


def _text(text: str) -> Text:
    return Text(formats.visible(text), no_wrap=True, overflow="crop")


def _bar(progress: Progress, width: int) -> RenderableType:
    text = _text(f"{_count(progress, unit='')}{_others(progress, '  ', '')}")
    if progress.n_trials is None:
        return text
    bar = ProgressBar(
        total=max(1, progress.n_trials),
        completed=finished(progress),
        width=min(max(width, BAR[0]), BAR[1]),
        complete_style="green",
        finished_style="green",
        style="dim",
    )
    grid = Table.grid(padding=(0, 2), pad_edge=False)
    grid.add_row(bar, text)
    return grid


def _best(progress: Progress) -> Text:
    if progress.best_value is None:
        nothing = f"no {formats.visible(progress.objective)} yet"
        return Text(nothing, style="dim", no_wrap=True, overflow="crop")
    return Text.assemble(
        (formats.metric(progress.best_value), "bold green"),
        f" {formats.visible(progress.objective)}, trial {progress.best_number}{_front(progress)}",
        no_wrap=True,
        overflow="crop",
    )


def _front(progress: Progress) -> str:
    n = progress.n_front
    return f"; {formats.count(n, 'trial')} on the Pareto front" if progress.others else ""


def _count(progress: Progress, unit: str = " trials") -> str:
    if progress.n_trials is None:
        return f"{finished(progress):,}{unit}"
    return f"{finished(progress):,} of {progress.n_trials:,}{unit}"


def _others(progress: Progress, before: str, after: str) -> str:
    counts = {
        "unfinished" if progress.phase == "done" else "running": progress.n_running,
        formats.state("pruned"): progress.n_pruned,
        "failed": progress.n_failed,
        "rejected": progress.n_rejected,
    }
    said = ", ".join(f"{count:,} {name}" for name, count in counts.items() if count)
    return f"{before}{said}{after}" if said else ""


def _speed(progress: Progress) -> str:
    if progress.rate is None:
        return f"{progress.trial_epochs:,} trial-epochs so far" if progress.trial_epochs else "-"
    return f"{formats.rate(progress.rate)} trial-epochs/s, {progress.trial_epochs:,} so far"


def _time(progress: Progress) -> str:
    spent = formats.duration(progress.seconds)
    if progress.seconds_left is None:
        return spent
    return f"{spent}, about {formats.duration(progress.seconds_left)} left"
