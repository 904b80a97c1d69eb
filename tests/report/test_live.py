"""The live view: which screen, what it costs, and that it never raises."""

from __future__ import annotations

import io
import sys
import threading
import time
import types

import pytest
from rich.console import Console

from paceline.report import live
from paceline.report.notebook import NotebookScreen
from paceline.report.progress import Progress
from paceline.report.screens import LineScreen, PanelScreen, QuietScreen, Screen

PROGRESS = Progress(
    "digits", "training", 4, 1, 0, 0, 3, 10, 5.0, 2.0, 15.0, "val_accuracy", 0, 0.5, {"lr": 0.1}
)


class FakeClock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


class BrokenScreen(Screen):
    """Everything raises, as on a terminal that went away."""

    interval = 0.001

    def open(self):
        raise BrokenPipeError("open")

    def status(self, text):
        raise OSError("status")

    def draw(self, progress):
        raise RuntimeError("draw")

    def note(self, text):
        raise ValueError("note")

    def close(self, last_line):
        raise BrokenPipeError("close")


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_lines_show_the_newest_record_with_the_clock_moved_on():
    stream, clock = io.StringIO(), FakeClock()
    view = live.LiveView(LineScreen(stream), clock=clock)
    view.draw()
    assert stream.getvalue() == ""
    view.update(PROGRESS)
    clock.now += 7
    view.draw()
    assert stream.getvalue() == (
        "paceline: digits: 1 of 4 trials (3 running), 2 trial-epochs/s, "
        "best val_accuracy 0.5000 (trial 0), 0:12, about 0:08 left\n"
    )


def test_lines_come_every_30_seconds():
    assert LineScreen.interval == 30


def test_a_note_is_shown_at_once_and_once():
    stream = io.StringIO()
    view = live.LiveView(LineScreen(stream))
    for _ in range(3):
        view.note("3 trials go to fit: eager")
    assert stream.getvalue() == "paceline: 3 trials go to fit: eager\n"


def test_a_note_does_not_steer_the_terminal():
    lines, terminal = io.StringIO(), io.StringIO()
    LineScreen(lines).note("trial 1 failed: \x1b[2J")
    PanelScreen(Console(file=terminal, color_system=None), "s").note("trial 1 failed: \x1b[2J")
    assert lines.getvalue() == terminal.getvalue() == "paceline: trial 1 failed: \\x1b[2J\n"


def test_quiet_keeps_notes_only():
    stream = io.StringIO()
    with live.LiveView(QuietScreen(stream), last_line=False) as view:
        view.status("loading")
        view.update(PROGRESS)
        view.draw()
        view.note("the test part steers the search")
    assert stream.getvalue() == "paceline: the test part steers the search\n"


def test_a_last_line_is_left_where_it_is_wanted():
    for wanted in (True, False):
        stream = io.StringIO()
        with live.LiveView(LineScreen(stream), last_line=wanted) as view:
            view.update(PROGRESS)
        assert ("digits: 1 of 4 trials" in stream.getvalue()) is wanted


def test_nothing_raises_into_training():
    before = threading.active_count()
    with live.LiveView(BrokenScreen(), last_line=True) as view:
        view.status("loading")
        view.update(PROGRESS)
        view.note("a note")
        time.sleep(0.02)  # the thread draws, and fails, several times
        view.draw()
    assert threading.active_count() == before


def test_closing_twice_does_no_harm():
    stream = io.StringIO()
    view = live.LiveView(LineScreen(stream), last_line=True)
    with view:
        view.update(PROGRESS)
    view.close()
    assert stream.getvalue().count("\n") == 1


def test_an_update_costs_next_to_nothing():
    view = live.LiveView(LineScreen(io.StringIO()))
    began = time.perf_counter()
    for _ in range(1000):
        view.update(PROGRESS)
    # 0.2 microseconds each measured; 20 allowed for a busy machine.
    assert time.perf_counter() - began < 0.02


@pytest.mark.parametrize("width", [80, 200])
def test_a_panel_is_drawn_and_erased(width):
    stream = Terminal()
    console = Console(file=stream, width=width, force_terminal=True, color_system=None)
    screen = PanelScreen(console, "digits")
    with live.LiveView(screen) as view:
        view.status("loading digits.py")
        view.update(PROGRESS)
        view.draw()
        view.note("a note [type=a]")
    text = stream.getvalue()
    assert "loading digits.py" in text
    assert "1 of 4" in text
    assert "paceline: a note [type=a]" in text
    assert text.endswith("\x1b[1A\x1b[2K")  # the cursor is back where the panel began
    assert "\x1b[?25h" in text  # and visible


def test_a_redirected_stdout_is_not_drawn_into(monkeypatch, capsys):
    stream = Terminal()
    console = Console(file=stream, width=80, force_terminal=True, color_system=None)
    with live.LiveView(PanelScreen(console, "digits")):
        sys.stdout.write("printed by build\n")
    assert capsys.readouterr().out == "printed by build\n"
    assert "printed by build" not in stream.getvalue()


def screen_of(view: live.LiveView) -> Screen:
    return view._screen


def test_the_screen_suits_the_place(monkeypatch):
    assert isinstance(screen_of(live.live_view("s", quiet=True)), QuietScreen)
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    assert type(screen_of(live.live_view("s"))) is LineScreen
    monkeypatch.setattr(sys, "stderr", Terminal())
    monkeypatch.setenv("TERM", "xterm-256color")
    assert isinstance(screen_of(live.live_view("s")), PanelScreen)
    monkeypatch.setenv("TERM", "dumb")
    assert type(screen_of(live.live_view("s"))) is LineScreen


def test_a_forced_colour_makes_no_panel_in_a_file(monkeypatch):
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    monkeypatch.setenv("FORCE_COLOR", "1")
    assert type(screen_of(live.live_view("s"))) is LineScreen


class FakeDisplay:
    """IPython's display(): collects what one output shows over time."""

    def __init__(self) -> None:
        self.shown: list[str] = []
        self.handles = 0

    def display(self, content, *, raw, display_id):
        assert raw
        assert display_id
        self.handles += 1
        self.update(content, raw=True)
        return self

    def update(self, content, *, raw):
        assert raw
        self.shown.append(content["text/plain"])


def put_ipython(monkeypatch, shell: object) -> FakeDisplay:
    display = FakeDisplay()
    ipython = types.SimpleNamespace(get_ipython=lambda: shell)
    monkeypatch.setitem(sys.modules, "IPython", ipython)
    monkeypatch.setitem(sys.modules, "IPython.display", display)
    return display


def test_a_notebook_gets_one_output_that_is_replaced(monkeypatch, capsys):
    display = put_ipython(monkeypatch, types.SimpleNamespace(kernel=object()))
    view = live.live_view("digits", last_line=True)
    assert isinstance(screen_of(view), NotebookScreen)
    with view:
        view.status("loading digits.py")
        view.update(PROGRESS)
        view.draw()
        view.draw()
        view.note("a note")
    assert display.handles == 1
    assert display.shown[0] == "paceline: loading digits.py"
    assert display.shown[1].startswith("digits: 1 of 4 trials")
    assert capsys.readouterr().out == "paceline: a note\n"


@pytest.mark.parametrize(
    "shell", [None, types.SimpleNamespace(), types.SimpleNamespace(kernel=None)]
)
def test_ipython_in_a_terminal_is_no_notebook(monkeypatch, shell):
    put_ipython(monkeypatch, shell)
    assert live.notebook_display() is None


def test_without_ipython_there_is_no_notebook(monkeypatch):
    monkeypatch.delitem(sys.modules, "IPython", raising=False)
    assert live.notebook_display() is None
    assert "IPython" not in sys.modules


def test_something_else_called_ipython_is_no_notebook(monkeypatch):
    monkeypatch.setitem(sys.modules, "IPython", types.SimpleNamespace())
    monkeypatch.setitem(sys.modules, "IPython.display", types.SimpleNamespace())
    assert live.notebook_display() is None


def test_the_clock_moves_before_the_first_record():
    clock, stream = FakeClock(), Terminal()
    screen = PanelScreen(Console(file=stream, force_terminal=True, width=60), "digits")
    view = live.LiveView(screen, clock=clock)
    screen.interval = 60
    with view:
        view.status("loading the data")
        clock.now += 7
        view.draw()
    assert "0:07  loading the data" in stream.getvalue()


def test_a_note_wraps_at_words():
    stream = Terminal()
    console = Console(file=stream, force_terminal=True, width=40)
    PanelScreen(console, "digits").note("word " * 20 + "[red]last[/red]")
    lines = stream.getvalue().rstrip().split("\n")
    assert len(lines) == 4
    assert all(len(line) <= 40 and not line.startswith("ord") for line in lines)
    assert lines[-1].rstrip().endswith("[red]last[/red]")
