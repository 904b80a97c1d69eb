"""How a command ends: exit codes, messages on stderr, JSON as the last line of stdout."""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
import traceback
from collections.abc import Iterator
from typing import Any

import typer

from paceline.errors import PacelineError
from paceline.report import numbers

FAILED = 1
WRONG_INPUT = 2
INTERRUPTED = 130


class Interrupted(Exception):
    """Ctrl-C, after everything worth keeping was kept; the message says how to go on."""


class Failed(Exception):
    """The command ran to its end, and what it was to do did not succeed."""


@contextlib.contextmanager
def exit_codes() -> Iterator[None]:
    """Turn what a command raises into a message and an exit code.

    Raises:
        SystemExit: 2 for every PacelineError, 130 for Ctrl-C, 1 for anything else.
    """
    try:
        yield
    except PacelineError as error:
        say(f"error: {error}")
        raise SystemExit(WRONG_INPUT) from None
    except Failed as failure:
        say(f"failed: {failure}")
        raise SystemExit(FAILED) from None
    except Interrupted as stop:
        say(str(stop))
        raise SystemExit(INTERRUPTED) from None
    except KeyboardInterrupt:
        say("interrupted")
        raise SystemExit(INTERRUPTED) from None
    except BrokenPipeError:
        # `paceline trials STUDY | head` is no fault. The stream is closed here, or Python would
        # complain about it once more at exit.
        with contextlib.suppress(OSError):
            sys.stdout.close()
        raise SystemExit(FAILED) from None
    except Exception as error:
        traceback.print_exc()
        say(f"failed: {type(error).__name__}: {error}")
        raise SystemExit(FAILED) from None


def leave(code: object) -> None:
    """End this process at once where it was interrupted and Python's own end would take long.

    Python waits for threads at its end, and one in which XLA compiles may take minutes. As a
    daemon it would be killed in the midst of C++, which aborts the process.
    """
    compiling = sys.modules.get("paceline.program.compile")  # a command that reads has none
    if code == INTERRUPTED and compiling is not None and compiling.busy():
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(INTERRUPTED)


def say(text: str) -> None:
    """Print a message for the user on stderr."""
    typer.echo(f"paceline: {visible(text)}", err=True)


def say_plain(text: str) -> None:
    """Print a result on stderr, where stdout is kept for JSON."""
    typer.echo(text, err=True)


def width() -> int | None:
    """Columns of the terminal; None where nobody reads a result as it is printed."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else None


def text_width() -> int:
    """Columns for text and tables that people read, also where they go to a file or a pager."""
    return shutil.get_terminal_size((numbers.READABLE, 24)).columns  # COLUMNS, else the terminal's


def print_result(text: str) -> None:
    """Print a result for people on stdout."""
    typer.echo(visible(text))


def visible(text: str) -> str:
    """Return a text that cannot steer a terminal: names and errors may be a stranger's."""
    return "".join(c if c.isprintable() or c in "\n\t" else ascii(c)[1:-1] for c in text)


def print_json(value: Any) -> None:
    """Print one line of strict JSON on stdout; nothing may follow it."""
    typer.echo(numbers.to_json(value))
