"""What a notebook shows of a search: a live view that stays as a summary, and a short interrupt.

The view is one output of the cell, which is replaced, without widgets. So every notebook shows it,
and a saved notebook keeps its last state.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TextIO

from paceline.report import formats, panel
from paceline.report.progress import Progress, TrialRow
from paceline.report.screens import LineScreen
from paceline.search_space import html
from paceline.study.trials.table import TrialTable

#: Hyperparameters of a trial that a row shows.
_HPARAMS = 4
#: Trials that a tuner shows.
_BEST = 10


class SearchInterrupted(KeyboardInterrupt):
    """Ctrl-C in a notebook: IPython shows its lines instead of a traceback."""

    def __init__(self, lines: Sequence[str]) -> None:
        super().__init__(" ".join(lines))
        self._lines = list(lines)

    def _render_traceback_(self) -> list[str]:
        return self._lines


def interrupted(stop: KeyboardInterrupt, summary: Mapping[str, Any] | None) -> KeyboardInterrupt:
    """Return what to raise for Ctrl-C: in IPython one that shows two lines, else the same.

    ``summary`` is the search's; None: it has written nothing.
    """
    if not in_ipython():
        return stop
    if summary is None:
        lines = ["Interrupted before the search began; nothing was written."]
        return SearchInterrupted([*lines, "Run the cell again to search."])
    counts = dict(summary["n_trials"])
    running = counts.pop("running", 0)
    lines = [
        f"Interrupted: {sum(counts.values()):,} finished trials are kept, {running:,} unfinished "
        "ones are saved."
    ]
    look = " tuner.results() shows the trials." if sum(counts.values()) else ""
    return SearchInterrupted([*lines, f"Run the cell again to continue.{look}"])


def in_ipython() -> bool:
    """Whether IPython runs this code, in a notebook or a terminal."""
    return _shell() is not None


def _shell() -> Any:
    """What IPython runs this code in; None elsewhere. IPython is not imported for it."""
    ipython: Any = sys.modules.get("IPython")
    try:
        return None if ipython is None else ipython.get_ipython()
    except Exception:  # some other module that is called IPython
        return None


class NotebookScreen(LineScreen):
    """A table in the output of a notebook's cell, and the same in a line where HTML is not shown.

    ``display`` is IPython's; ``stream`` gets the notes.
    """

    interval = 1.0

    def __init__(self, display: Callable[..., Any], stream: TextIO) -> None:
        super().__init__(stream)
        self._display = display
        self._handle: Any = None

    def status(self, text: str) -> None:  # noqa: D102
        self._show(f"paceline: {text}", html.block(f"paceline: {text}"))

    def draw(self, progress: Progress) -> None:  # noqa: D102
        self._show(panel.line(progress), progress_html(progress))

    def close(self, last: Progress | None) -> None:  # noqa: D102
        if last is not None:
            self.draw(panel.ended(last))

    def _show(self, plain: str, markup: str) -> None:
        content = {"text/plain": formats.visible(plain), "text/html": markup}
        if self._handle is None:
            self._handle = self._display(content, raw=True, display_id=True)
        else:
            self._handle.update(content, raw=True)


def progress_html(progress: Progress) -> str:
    """Return the state of a search as HTML."""
    parts = []
    if progress.n_trials:
        parts.append(html.bar(panel.finished(progress) / progress.n_trials))
    parts += [_line(text) for text in panel.facts(progress)]
    if progress.rows:
        names = (progress.objective, *progress.others)
        head = ("trial", "state", *names, "epoch", "curve", "hyperparameters")
        rows = _rows(progress.rows, progress.best_number, progress.others)
        parts.append(html.table(head, rows))
        if any(row.epochs for row in progress.rows):
            parts.append(
                _line(
                    "The best trial first, then finished and paused trials, then those that train."
                )
            )
    return html.block(f"{progress.study}: {progress.doing}", *parts)


def tuner_text(study: str, trials: TrialTable | None) -> str:
    """Return what ``repr`` says of a tuner; ``trials`` is None if the study was not opened."""
    if trials is None:
        return f"Tuner({study!r})"
    best = trials.best
    said = "" if best is None else f", best {formats.metric(best.value)} (trial {best.number})"
    if trials.several:
        said = f", {len(trials.front):,} on the Pareto front"
    return f"Tuner({study!r}, {len(trials):,} trials{said})"


def tuner_html(study: str, trials: TrialTable | None) -> str:
    """Return a tuner as a table of its best trials, with the arguments of ``tuner_text``."""
    if trials is None:
        return html.block(f"{study}: no trials yet")
    states = Counter(formats.state(trial.state) for trial in trials)
    said = ", ".join(f"{count:,} {state}" for state, count in states.items())
    best = (trials.front if trials.several else trials.ranked)[:_BEST]
    values = formats.metrics([trial.value for trial in best])
    if trials.several:
        values = [", ".join(map(formats.metric, trial.values)) for trial in best]
    columns = {
        "trial": [trial.number for trial in best],
        "state": [formats.state(trial.state) for trial in best],
        "values" if trials.several else "value": values,
        "epoch": [f"{t.best_epoch} of {t.epochs}" if t.best_epoch else t.epochs for t in best],
        "program": [trial.program_id or "-" for trial in best],
        "hyperparameters": [_hparams(trial.hparams) for trial in best],
    }
    cut = {place for place, trial in enumerate(best) if trial.state != "complete"}
    rows = list(zip(*columns.values(), strict=True))
    parts = [html.table(list(columns), rows, faint=cut)] if rows else []
    return html.block(f"{study}: {said or 'no trials yet'}", *parts)


def _line(text: str) -> html.Markup:
    return html.Markup(f"<div>{html.text(text)}</div>")


def _rows(
    rows: Sequence[TrialRow], best: int | None, others: Sequence[str] = ()
) -> list[list[object]]:
    """The rows of a table of trials; each column of numbers is in one precision."""
    columns = [
        [f"{row.number} (best)" if row.number == best else row.number for row in rows],
        [formats.state(row.state) for row in rows],
        formats.metrics([row.value for row in rows]),
        *(panel.objective_cells(name, i, rows) for i, name in enumerate(others, 1)),
        [f"{row.epoch} of {row.epochs}" if row.epochs else row.epoch for row in rows],
        [html.curve(row.curve) for row in rows],
        [_hparams(row.hparams) for row in rows],
    ]
    return [list(row) for row in zip(*columns, strict=True)]


def _hparams(hparams: Mapping[str, Any]) -> str:
    shown = dict(list(hparams.items())[:_HPARAMS])
    more = len(hparams) - len(shown)
    return formats.hparams(shown) + (f" and {more} more" if more else "")


def notebook_display() -> Callable[..., Any] | None:
    """Return IPython's ``display`` inside a notebook, else None."""
    display: Any = sys.modules.get("IPython.display")
    # A notebook's shell has a kernel; IPython in a terminal has none.
    if display is None or getattr(_shell(), "kernel", None) is None:
        return None
    return getattr(display, "display", None)


def publish(method: str, arguments: Mapping[str, Any]) -> None:
    """Does in this notebook what ``displays_passed_on`` has passed on."""
    if (shell := _shell()) is not None:
        getattr(shell.display_pub, method)(**arguments)


def displays_passed_on(send: Callable[[str, Mapping[str, Any]], Any]) -> None:
    """Has IPython's ``display`` and ``clear_output`` call ``send`` from now on, in this process.

    Figures of Matplotlib are shown by ``display``, too. The process is none of IPython's.
    """
    from IPython.core.displaypub import DisplayPublisher
    from IPython.core.interactiveshell import InteractiveShell
    from traitlets import Type
    from traitlets.config import Config

    class Publisher(DisplayPublisher):
        def publish(self, data: Any, metadata: Any = None, **more: Any) -> None:
            kept = {name: more[name] for name in ("transient", "update") if name in more}
            send("publish", {"data": data, "metadata": metadata, **kept})

        def clear_output(self, wait: bool = False) -> None:
            send("clear_output", {"wait": wait})

    class Shell(InteractiveShell):
        display_pub_class = Type(Publisher)

    if InteractiveShell.initialized():  # by an earlier search
        shell: Any = InteractiveShell.instance()
        shell.display_pub = Publisher(parent=shell, shell=shell)
        return
    quiet = Config()
    quiet.HistoryManager.enabled = False
    Shell.instance(config=quiet, user_module=sys.modules["__main__"])
