"""The ``paceline`` command: names, options and help texts.

The other modules of ``paceline.cli`` hold what the commands do. ``paceline --help`` and the
commands that only read load neither JAX nor Keras: heavy modules are imported when they are used.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING, Annotated

import typer

from paceline.cli import large_pages, read, restart, steer
from paceline.cli import output as terminal
from paceline.cli.options import (
    Budget,
    Constraint,
    Data,
    Deadline,
    Enqueue,
    Executor,
    Json,
    KeepBest,
    LearnFrom,
    MaxEpochsTotal,
    Mesh,
    OtherExecutor,
    Precision,
    Quiet,
    StartWithDefault,
    StopAfter,
    Storage,
    StudyName,
    Target,
    Timeout,
    Track,
    TrialTimeout,
    Widths,
)
from paceline.cli.output import exit_codes

if TYPE_CHECKING:
    from paceline.executor.process import StopSignal

app = typer.Typer(
    name="paceline",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line.

    Args:
        arguments: Words after the name of the program; None: the words of this process.

    Raises:
        SystemExit: Always. The code is 0 for success, 1 if the command failed, 2 for wrong usage or
            input, 130 after Ctrl-C, SIGTERM or SIGHUP.
    """
    restart.own = arguments is None
    if restart.own:
        terminal.replace_closed_streams()
        terminal.check_folder()
    stop: StopSignal | None = None
    try:
        with ExitStack() as stack:
            if not _asks_for_help(sys.argv[1:] if arguments is None else arguments):
                # Heard from here on. The module loads nothing heavy, and a help text does without.
                from paceline.executor.process import StopSignal

                stop = stack.enter_context(StopSignal.of_process())
                restart.release_signals()
            app(args=arguments, prog_name="paceline")
    except SystemExit as end:
        code = end.code
        if stop is not None and stop.asked and code == terminal.FAILED:  # Typer's for an interrupt
            code = terminal.INTERRUPTED
        if restart.own:
            terminal.leave(code)
        raise SystemExit(code) from None
    except KeyboardInterrupt:  # while Typer makes the commands, before any of them catches it
        terminal.say("interrupted")
        raise SystemExit(terminal.INTERRUPTED) from None
    except OSError as error:  # of Typer, which prints help texts
        terminal.close_stdout()
        terminal.say(f"failed: stdout cannot be written: {error.strerror or error}")
        raise SystemExit(terminal.FAILED) from None


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


@app.command()
def search(
    model: Annotated[
        str,
        typer.Argument(
            metavar="FILE.py[:build]",
            help="File with build(hp) and, unless --data is given, data().",
        ),
    ],
    data: Data = None,
    trials: Annotated[
        str | None,
        typer.Option(
            metavar="N|+N",
            help="Total of the study's trials, or so many more.",
            show_default="32",
        ),
    ] = None,
    epochs: Annotated[
        int | None, typer.Option(metavar="N", help="Epochs of each trial.", show_default="10")
    ] = None,
    batch_size: Annotated[int, typer.Option(metavar="N", help="Examples in a step.")] = 32,
    objective: Annotated[
        list[str] | None,
        typer.Option(
            metavar="[max:|min:]NAME",
            help="Metric to optimise; more: others, params, flops, bytes, latency.",
            show_default="val_ and the model's first metric, or val_loss",
        ),
    ] = None,
    sampler: Annotated[
        str,
        typer.Option(metavar="NAME", help="tpe, cmaes, random, qmc, gp, grid, nsga2, nsga3, auto."),
    ] = "tpe",
    pruner: Annotated[
        str,
        typer.Option(
            metavar="NAME",
            help="none, median, percentile[:P], hyperband, threshold:VALUE, patience[:EPOCHS], "
            "asha[:MIN_EPOCHS[:FACTOR]], pbt[:EVERY[:SHARE]] or, with repeats or folds, "
            "wilcoxon[:P].",
        ),
    ] = "none",
    repeats: Annotated[
        int, typer.Option(metavar="N", help="Train each trial from so many seeds; the mean counts.")
    ] = 1,
    folds: Annotated[
        int | None,
        typer.Option(
            metavar="K",
            help="Cross-validate each trial on K folds of the training data; the mean counts.",
            show_default="none",
        ),
    ] = None,
    seed: Annotated[int, typer.Option(metavar="N", help="Everything random follows from it.")] = 0,
    timeout: Timeout = None,
    deadline: Deadline = None,
    budget: Budget = None,
    trial_timeout: TrialTimeout = None,
    target: Target = None,
    stop_after: StopAfter = None,
    max_epochs_total: MaxEpochsTotal = None,
    enqueue: Enqueue = None,
    start_with_default: StartWithDefault = False,
    learn_from: LearnFrom = None,
    study: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Name of the study.", show_default="the file's"),
    ] = None,
    fresh: Annotated[
        bool,
        typer.Option("--fresh", help="Begin the study anew, instead of what is there of it."),
    ] = False,
    storage: Storage = None,
    slots: Annotated[str, typer.Option(metavar="N|auto", help="Trials trained at once.")] = "auto",
    plan: Annotated[
        str, typer.Option(metavar="NAME", help="auto, stacked, mapped or sequential.")
    ] = "auto",
    widths: Widths = "auto",
    executor: Executor = "auto",
    mesh: Mesh = "auto",
    precision: Precision = None,
    track: Track = None,
    keep_best: KeepBest = 1,
    constraint: Constraint = None,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Search for the best configuration of a model; an existing study goes on."""
    large_pages.take()
    from paceline.cli import search as command

    with exit_codes():
        command.search(
            model,
            data=data,
            trials=trials,
            epochs=epochs,
            batch_size=batch_size,
            objective=objective,
            sampler=sampler,
            pruner=pruner,
            repeats=repeats,
            folds=folds,
            seed=seed,
            timeout=timeout,
            deadline=deadline,
            budget=budget,
            trial_timeout=trial_timeout,
            stopping=(target, stop_after, max_epochs_total),
            enqueue=enqueue,
            start_with_default=start_with_default,
            learn_from=learn_from,
            study=study,
            fresh=fresh,
            storage=storage,
            slots=slots,
            plan=plan,
            widths=widths,
            executor=executor,
            mesh=mesh,
            precision=precision,
            track=track,
            keep_best=keep_best,
            constraint=constraint,
            as_json=as_json,
            quiet=quiet,
        )


@app.command()
def resume(
    study: StudyName,
    trials: Annotated[
        str | None,
        typer.Option(
            metavar="N|+N",
            help="Total of the study's trials, or so many more.",
            show_default="as before",
        ),
    ] = None,
    epochs: Annotated[
        int | None,
        typer.Option(metavar="N", help="Epochs of each new trial.", show_default="as before"),
    ] = None,
    best: Annotated[
        int | None,
        typer.Option(
            metavar="K",
            help="First have the best K trials go on to --epochs.",
            show_default="none",
        ),
    ] = None,
    timeout: Timeout = None,
    deadline: Deadline = None,
    trial_timeout: TrialTimeout = None,
    target: Target = None,
    stop_after: StopAfter = None,
    max_epochs_total: MaxEpochsTotal = None,
    storage: Storage = None,
    executor: OtherExecutor = None,
    track: Track = None,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Go on with a study where it stopped."""
    large_pages.take()
    from paceline.cli import search as command

    with exit_codes():
        command.resume(
            study,
            trials=trials,
            epochs=epochs,
            best=best,
            storage=storage,
            timeout=timeout,
            deadline=deadline,
            trial_timeout=trial_timeout,
            stopping=(target, stop_after, max_epochs_total),
            executor=executor,
            track=track,
            as_json=as_json,
            quiet=quiet,
        )


app.command()(read.reproduce)
app.command()(read.best)
app.command()(read.trials)
app.command()(read.report)
app.command()(read.dashboard)
app.command()(read.export)
app.command()(read.ensemble)
app.command()(read.studies)
app.command()(read.rm)
app.command()(steer.enqueue)
app.command()(steer.stop)
app.command()(steer.pause)
app.command()(read.repair)


@app.command()
def bench(
    files: Annotated[
        list[str],
        typer.Argument(
            metavar="FILE.py[:build]",
            help="File with build(hp) and, unless --data is given, data().",
        ),
    ],
    data: Data = None,
    batch_sizes: Annotated[
        str | None,
        typer.Option(
            metavar="N,N,...",
            help="Examples in a step.",
            show_default="32,64,128,256,512,1024",
        ),
    ] = None,
    devices: Annotated[
        str | None,
        typer.Option(
            metavar="NAME,NAME,...",
            help="cpu, gpu, tpu: each in a process of its own.",
            show_default="the one a search would use",
        ),
    ] = None,
    keras_backends: Annotated[
        str | None,
        typer.Option(
            metavar="NAME,NAME,...",
            help="jax, tensorflow, torch: each in a process of its own; all but jax in Keras' fit.",
            show_default="jax",
        ),
    ] = None,
    mesh: Annotated[
        str,
        typer.Option(
            metavar="N|auto",
            help="Devices to compare with one: trials spread over them, each batch split over "
            "them; auto: all accelerators.",
        ),
    ] = "auto",
    slots: Annotated[
        str | None,
        typer.Option(
            metavar="N,N,...",
            help="Trials trained at once; one, and as many as a search would, in any case.",
            show_default="1,4,16",
        ),
    ] = None,
    budget: Annotated[
        str,
        typer.Option(metavar="TIME", help="Stop measuring after this long: 90s, 5m, or none."),
    ] = "5m",
    hparams: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=VALUE",
            help="A hyperparameter's value; may be given several times.",
            show_default="the defaults",
        ),
    ] = None,
    precision: Precision = None,
    epochs: Annotated[
        int | None,
        typer.Option(metavar="N", help="Train at each batch size too, and compare accuracy."),
    ] = None,
    objective: Annotated[
        str | None,
        typer.Option(metavar="[max:|min:]NAME", help="What to compare accuracy by."),
    ] = None,
    scale_lr: Annotated[
        str | None,
        typer.Option(
            metavar="RULE", help="Learning rate by batch size, with --epochs: linear or sqrt."
        ),
    ] = None,
    target: Annotated[
        float | None,
        typer.Option(metavar="VALUE", help="Which batch size reaches it soonest? With --epochs."),
    ] = None,
    plan_trials: Annotated[
        int | None,
        typer.Option(metavar="N", help="How long would a search of so many trials take?"),
    ] = None,
    plan_epochs: Annotated[int, typer.Option(metavar="N", help="Epochs of its trials.")] = 10,
    plan_batch_size: Annotated[
        int | None,
        typer.Option(metavar="N", help="Its batch size.", show_default="the one measured first"),
    ] = None,
    plan_pruner: Annotated[
        str, typer.Option(metavar="NAME", help="Its pruner, as for search.")
    ] = "none",
    workers: Annotated[
        int | None, typer.Option(metavar="N", help="And on so many Ray workers? Does Ray pay?")
    ] = None,
    quota: Annotated[
        str | None,
        typer.Option(
            metavar="NAME=TIME,...", help="gpu=30h,session=9h: how many sessions does it take?"
        ),
    ] = None,
    merge: Annotated[
        bool,
        typer.Option("--merge", help="Show several results (.json) as one: FILEs."),
    ] = False,
    executor: Annotated[
        str, typer.Option(metavar="NAME", help="auto, or fit to measure Keras' own fit only.")
    ] = "auto",
    fit: Annotated[
        bool, typer.Option("--fit", help="Keras' own fit at every batch size, not at one only.")
    ] = False,
    seed: Annotated[int, typer.Option(metavar="N", help="Of weights and order.")] = 0,
    output: Annotated[
        str | None,
        typer.Option(
            "--output", "-o", metavar="FILE", help="Write a page (.html) or the records (.json)."
        ),
    ] = None,
    as_json: Json = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="No line for each cell.")] = False,
) -> None:
    """Measure which batch size, how many trials at once and which plan train a model fastest."""
    large_pages.take()
    from paceline.cli import bench as command

    with exit_codes():
        command.bench(
            files,
            merge=merge,
            data=data,
            batch_sizes=batch_sizes,
            devices=devices,
            keras_backends=keras_backends,
            mesh=mesh,
            slots=slots,
            budget=budget,
            hparams=hparams or [],
            precision=precision,
            epochs=epochs,
            objective=objective,
            scale_lr=scale_lr,
            target=target,
            plan_trials=plan_trials,
            plan_epochs=plan_epochs,
            plan_batch_size=plan_batch_size,
            plan_pruner=plan_pruner,
            workers=workers,
            quota=quota,
            executor=executor,
            fit=fit,
            seed=seed,
            output=output,
            as_json=as_json,
            quiet=quiet,
        )


@app.command()
def devices(as_json: Json = False) -> None:
    """Show the devices a search would use."""
    from paceline.cli import devices as command

    with exit_codes():
        command.show(as_json)
