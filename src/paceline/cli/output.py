"""How a command ends: exit codes, messages on stderr, JSON as the last line of stdout."""

from __future__ import annotations

import contextlib
import io
import os
import shutil
import sys
import textwrap
import traceback
import unicodedata
from collections.abc import Iterator
from typing import Any

import typer

from paceline.errors import PacelineError
from paceline.report import formats

FAILED = 1
WRONG_INPUT = 2
INTERRUPTED = 130


class CommandInterrupted(Exception):
    """Raised after Ctrl-C, when everything is saved; the message says how to resume."""


class CommandFailed(Exception):
    """Raised if the command ran to its end without success: for example, all trials failed."""


@contextlib.contextmanager
def exit_codes() -> Iterator[None]:
    """Turn what a command raises into a message and an exit code; decorates each command.

    A PacelineError exits with 2, Ctrl-C with 130, anything else with 1.
    """
    try:
        yield
    except PacelineError as error:
        say(f"error: {error}")
        raise SystemExit(WRONG_INPUT) from None
    except CommandFailed as failure:
        say(f"failed: {failure}")
        raise SystemExit(FAILED) from None
    except CommandInterrupted as stop:
        say(str(stop))
        raise SystemExit(INTERRUPTED) from None
    except KeyboardInterrupt:
        say("interrupted")
        raise SystemExit(INTERRUPTED) from None
    except BrokenPipeError:
        # `paceline trials STUDY | head` ends this way, which is not an error. The stream is closed
        # here because Python would print an error about it at exit.
        close_stdout()
        raise SystemExit(FAILED) from None
    except Exception as error:
        traceback.print_exc()
        say(f"failed: {type(error).__name__}: {error}")
        raise SystemExit(FAILED) from None


def leave(code: object) -> None:
    """End this process at once if XLA still compiles in a thread a step that no search needs.

    At its end Python waits for threads, and XLA may compile for minutes. If the thread were a
    daemon, Python would kill it in the middle of C++ code, which aborts the process.
    """
    compiling = sys.modules.get("paceline.program.compile")  # None in commands that only read
    if isinstance(code, int | None) and compiling is not None and compiling.busy():
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code or 0)


class _ClosedStream(io.TextIOBase):
    """Stands for a standard stream that was closed, as by ``>&-``; swallows what code prints."""

    def write(self, text: str) -> int:
        return len(text)


def replace_closed_streams() -> None:
    """Connect closed standard streams to the null device.

    Otherwise the next file that is opened gets the stream's number. What a library prints would go
    into that file, for example the journal of a study.
    """
    while (descriptor := os.open(os.devnull, os.O_RDWR)) <= 2:  # takes the lowest free number
        pass
    os.close(descriptor)
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, _ClosedStream())


def check_folder() -> None:
    """Exit with a message if somebody has removed the working folder."""
    try:
        os.getcwd()
    except OSError:
        say("error: the working folder no longer exists. `cd` to an existing folder.")
        raise SystemExit(WRONG_INPUT) from None


def close_stdout() -> None:
    """Close stdout, which cannot be written; otherwise Python prints an error at exit."""
    with contextlib.suppress(OSError):
        sys.stdout.close()


def say(text: str) -> None:
    """Print a message for the user on stderr, if the terminal or the disk still takes it."""
    with contextlib.suppress(OSError):
        lines = f"paceline: {formats.visible(text)}".split("\n")
        if sys.stderr.isatty():  # words stay whole; a command, which is indented, stays on its line
            columns = max(20, shutil.get_terminal_size().columns)
            lines = [part for line in lines for part in _wrapped(line, columns)]
        typer.echo("\n".join(lines), err=True)


def _wrapped(line: str, columns: int) -> list[str]:
    if line.startswith(" ") or not line.strip():
        return [line]
    return textwrap.wrap(line, columns, break_long_words=False, break_on_hyphens=False)


def say_plain(text: str) -> None:
    """Print a result on stderr, for commands whose stdout is JSON."""
    with contextlib.suppress(OSError):
        typer.echo(text, err=True)


def width() -> int | None:
    """Return the columns of the terminal; None if stdout goes to a file or a pipe."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else None


def text_width() -> int:
    """Return the columns for text that people read, which may go to a file or a pager."""
    return shutil.get_terminal_size((formats.READABLE, 24)).columns  # COLUMNS, else the terminal's


def print_result(text: str) -> None:
    """Print a result for people on stdout; raises Failed if stdout cannot be written."""
    _print(formats.visible(text))


def print_data(text: str) -> None:
    """Print a result for programs on stdout; on a terminal, print it for people.

    A file or a pipe gets all characters except control characters. A pager may read the pipe, and
    half a surrogate cannot be printed. Raises what ``print_result`` raises.
    """
    if sys.stdout.isatty():
        return print_result(text)
    wild = {c for c in set(text) - {"\n", "\t"} if unicodedata.category(c) in ("Cc", "Cs")}
    _print(text.translate({ord(c): ascii(c)[1:-1] for c in wild}))


def print_json(value: Any) -> None:
    """Print the last line of stdout, strict JSON; raises what ``print_result`` raises."""
    _print(formats.to_json(value))


def print_json_if_open(value: Any) -> None:
    """Print JSON as ``print_json`` does, for a command that ends for another reason.

    For example, a closed terminal has also interrupted the command.
    """
    try:
        print_json(value)
    except CommandFailed:
        pass
    except BrokenPipeError:
        close_stdout()


def _print(text: str) -> None:
    if isinstance(sys.stdout, _ClosedStream):
        raise CommandFailed("the result cannot be printed: stdout is closed")
    try:
        typer.echo(text)
    except BrokenPipeError:
        raise
    except OSError as error:
        close_stdout()
        raise CommandFailed(
            f"the result cannot be written to stdout: {error.strerror or error}"
        ) from None
