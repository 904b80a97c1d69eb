"""One moment of a search, drawn: the panel of a terminal and the one line of everywhere else.

Colours are the terminal's own (green, cyan, bold, dim), so that light and dark ones stay readable.
Names that users chose go in as plain text, never as markup: ``units[type=a]`` is not a style.
"""

from __future__ import annotations

import textwrap
from dataclasses import replace

from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from paceline.report import numbers
from paceline.report.progress import Progress

WIDEST = 100  # columns; wider panels are harder to read, not easier
BAR = (10, 40)  # columns, least and most
BESIDE_BAR = 56  # columns that the label and the counts of a long search take
HPARAM_LINES = 2


def finished(progress: Progress) -> int:
    """Trials that will not go on: complete, pruned or failed."""
    return progress.n_complete + progress.n_pruned + progress.n_failed


def later(progress: Progress, seconds: float) -> Progress:
    """The same moment ``seconds`` later: nothing happened but the time that passed."""
    left = progress.seconds_left
    return replace(
        progress,
        seconds=progress.seconds + seconds,
        seconds_left=None if left is None else max(0.0, left - seconds),
    )


def line(progress: Progress) -> str:
    """The search on one line, without a line end."""
    parts = [f"{_count(progress)}{_others(progress, ' (', ')')}"]
    if progress.rate is not None:
        parts.append(f"{numbers.rate(progress.rate)} trial-epochs/s")
    if progress.best_value is not None:
        best = f"best {progress.objective} {numbers.metric(progress.best_value)}"
        parts.append(f"{best} (trial {progress.best_number})")
    parts.append(_time(progress))
    return f"{progress.study}: {', '.join(parts)}"


def last_line(progress: Progress) -> str:
    """The search on one line once it has ended."""
    return line(replace(progress, rate=None, seconds_left=None))


class LivePanel:
    """A panel that is drawn afresh each time rich asks for it.

    Args:
        title: Shown until the first Progress says the study's name.
    """

    def __init__(self, title: str) -> None:
        self.title = title
        self.status = "starting"
        self.progress: Progress | None = None

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        # Two columns stay free: a terminal echoes ^C behind the last line, and where that wraps,
        # the panel can no longer be erased.
        width = max(1, min(options.max_width - 2, WIDEST))
        try:
            yield self._draw(width)
        except Exception as error:  # a drawing fault must not reach the training
            yield Text(f"paceline: the live view failed ({error}); the search goes on")

    def _draw(self, width: int) -> RenderableType:
        progress = self.progress
        if progress is None:
            body, title = Text(self.status, no_wrap=True, overflow="crop"), self.title
        else:
            body, title = rows(progress, width - 4), f"{progress.study}, {progress.phase}"
        return Panel(
            body,
            title=Text.assemble(("paceline ", "bold"), title),
            title_align="left",
            border_style="cyan",
            width=width,
        )


def rows(progress: Progress, width: int) -> Table:
    """The rows of the panel.

    Args:
        progress: What to show.
        width: Columns there are.
    """
    table = Table.grid(padding=(0, 2), pad_edge=False)
    # Its width said: Rich before 14.3 gives the space between to the other column.
    table.add_column(style="dim", no_wrap=True, min_width=len("trials"))
    table.add_column(width=width - len("trials") - 2, overflow="crop")
    table.add_row("trials", _bar(progress, width - BESIDE_BAR))
    table.add_row("speed", _text(_speed(progress)))
    table.add_row("time", _text(_time(progress)))
    table.add_row("best", _best(progress))
    for text in _wrapped(numbers.hparams(progress.best_hparams), width - len("trials") - 2):
        table.add_row("", _text(text))
    return table


def _wrapped(text: str, width: int) -> list[str]:
    """At most HPARAM_LINES lines; a name and its value stay together."""
    glued = text.replace(" ", "\N{NO-BREAK SPACE}").replace(",\N{NO-BREAK SPACE}", ", ")
    lines = textwrap.wrap(glued, width, max_lines=HPARAM_LINES, placeholder=" ...")
    return [line.replace("\N{NO-BREAK SPACE}", " ") for line in lines] or [""]


def _text(text: str) -> Text:
    return Text(text, no_wrap=True, overflow="crop")


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
        return Text(f"no {progress.objective} yet", style="dim", no_wrap=True, overflow="crop")
    return Text.assemble(
        (numbers.metric(progress.best_value), "bold green"),
        f" {progress.objective}, trial {progress.best_number}",
        no_wrap=True,
        overflow="crop",
    )


def _count(progress: Progress, unit: str = " trials") -> str:
    if progress.n_trials is None:
        return f"{finished(progress):,}{unit}"
    return f"{finished(progress):,} of {progress.n_trials:,}{unit}"


def _others(progress: Progress, before: str, after: str) -> str:
    counts = {
        "running": progress.n_running,
        "pruned": progress.n_pruned,
        "failed": progress.n_failed,
    }
    said = ", ".join(f"{count:,} {name}" for name, count in counts.items() if count)
    return f"{before}{said}{after}" if said else ""


def _speed(progress: Progress) -> str:
    if progress.rate is None:
        return f"{progress.trial_epochs:,} trial-epochs so far" if progress.trial_epochs else "-"
    return f"{numbers.rate(progress.rate)} trial-epochs/s, {progress.trial_epochs:,} so far"


def _time(progress: Progress) -> str:
    spent = numbers.duration(progress.seconds)
    if progress.seconds_left is None:
        return spent
    return f"{spent}, about {numbers.duration(progress.seconds_left)} left"
