"""The ``paceline`` command: a table of its commands, each of which declares its own options.

The modules of commands are light: ``paceline --help`` imports them all. Heavy modules are imported
in functions, when they are used; the commands that only read load neither JAX nor Keras.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING, Annotated

import typer

from paceline.cli import output as terminal
from paceline.cli import restart
from paceline.cli.bench import bench
from paceline.cli.devices import devices
from paceline.cli.export import ensemble, export
from paceline.cli.repair import repair
from paceline.cli.report import dashboard, report
from paceline.cli.search import reproduce, resume, search
from paceline.cli.steer import enqueue, pause, stop, unpause
from paceline.cli.studies import delete, list_studies
from paceline.cli.trials import best, trials

if TYPE_CHECKING:
    from paceline.executor.process import StopSignal

app = typer.Typer(
    name="paceline",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line; ``arguments`` are words after the program's name, None: this process's.

    Raises SystemExit, always. The code is 0 for success, 1 if the command failed, 2 for wrong usage
    or input, 130 after Ctrl-C, SIGTERM or SIGHUP.
    """
    restart.own = arguments is None
    if restart.own:
        terminal.replace_closed_streams()
        terminal.check_folder()
    stop_signal: StopSignal | None = None
    try:
        with ExitStack() as stack:
            stack.enter_context(terminal.exit_codes())  # also for values that Typer parses
            if not _asks_for_help(sys.argv[1:] if arguments is None else arguments):
                # Signals are heard from here on. The module loads nothing heavy, but a help text
                # does not need it.
                from paceline.executor.process import StopSignal

                stop_signal = stack.enter_context(StopSignal.of_process())
                restart.release_signals()
            _run_typer(arguments)
    except SystemExit as end:
        code = end.code
        if stop_signal is not None and stop_signal.asked and code == terminal.FAILED:
            code = terminal.INTERRUPTED  # Typer exits with FAILED after an interrupt
        if restart.own:
            terminal.leave(code)
        raise SystemExit(code) from None


def _run_typer(arguments: Sequence[str] | None) -> None:
    try:
        app(args=arguments, prog_name="paceline")
    except OSError as error:  # from Typer, which prints help texts
        terminal.close_stdout()
        raise terminal.CommandFailed(
            f"could not write to stdout: {error.strerror or error}"
        ) from None


def _asks_for_help(words: Sequence[str]) -> bool:
    """Whether the command prints a text and ends, so that a signal finds nothing to save."""
    return not words or any(word in ("--help", "-h", "--version") for word in words)


def _print_version(wanted: bool) -> None:
    if wanted:
        from paceline import __version__

        terminal.print_result(f"paceline {__version__}")
        raise typer.Exit


@app.callback()
def paceline(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Print the version."
        ),
    ] = False,
) -> None:
    """Hyperparameter search for Keras models: many trials train in one compiled program."""


#: In the order of the help text.
for command in (
    search,
    resume,
    reproduce,
    best,
    trials,
    report,
    dashboard,
    export,
    ensemble,
    list_studies,
    delete,
    enqueue,
    stop,
    pause,
    unpause,
    repair,
    bench,
    devices,
):
    name = command.__name__.partition("_")[0]  # ``list`` is Python's own
    app.command(name)(terminal.exit_codes()(command))
