"""Commands of a study that is there, ``paceline best`` or ``export``: their names and options.

What the commands do is loaded when one is called, so that ``--help`` is quick.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from paceline.cli import large_pages
from paceline.cli.options import Json, Quiet, Storage, StudyName, complete_study
from paceline.cli.output import exit_codes

Directory = Annotated[
    Path, typer.Option("--directory", metavar="FOLDER", help="Folder of the studies.")
]
RUNS = Path("runs")


def best(study: StudyName, storage: Storage = None, as_json: Json = False) -> None:
    """Print a study's best configuration, or the front of several objectives."""
    from paceline.cli import studies as command

    with exit_codes():
        command.show_best(study, storage=storage, as_json=as_json)


def trials(
    study: StudyName,
    storage: Storage = None,
    as_csv: Annotated[bool, typer.Option("--csv", help="Print CSV.")] = False,
    as_json: Json = False,
    where: Annotated[
        str | None,
        typer.Option(
            "--where", metavar="CONDITION", help='Only these: "lr<1e-3 and state=complete".'
        ),
    ] = None,
    sort: Annotated[
        str | None,
        typer.Option(
            "--sort",
            metavar="COLUMN",
            help="In this order; value: the best first.",
            show_default="number",
        ),
    ] = None,
    reverse: Annotated[bool, typer.Option("--reverse", help="Turn the order round.")] = False,
    top: Annotated[
        int | None,
        typer.Option("--top", metavar="N", min=1, help="The first N; without --sort the best N."),
    ] = None,
    limit: Annotated[
        int | None,
        typer.Option(
            "--limit",
            metavar="N",
            min=1,
            help="Print N trials, from the first on.",
            show_default="50; all with --csv or --json",
        ),
    ] = None,
    every: Annotated[bool, typer.Option("--all", help="Print all trials.")] = False,
) -> None:
    """Print the trials of a study."""
    from paceline.cli import arguments
    from paceline.cli import studies as command

    with exit_codes():
        command.show_trials(
            study,
            storage=storage,
            as_csv=as_csv,
            as_json=as_json,
            where=where,
            sort="value" if top is not None and sort is None else sort,
            reverse=reverse,
            limit=arguments.row_limit(top=top, limit=limit, every=every),
        )


def export(
    study: StudyName,
    output: Annotated[
        str | None,
        typer.Option(
            "--output",
            "-o",
            metavar="FILE.keras",
            help="Where to write the model.",
            show_default="best.keras",
        ),
    ] = None,
    bundle: Annotated[
        str | None,
        typer.Option(
            metavar="FILE.zip",
            help="Write the model with its hyperparameters, results, manifest and a predict.py.",
            show_default="none",
        ),
    ] = None,
    trial: Annotated[
        int | None,
        typer.Option(
            metavar="N", min=0, help="The model of this trial, if kept.", show_default="the best"
        ),
    ] = None,
    storage: Storage = None,
) -> None:
    """Write a study's best model, trained, as a Keras file or as a bundle."""
    from paceline.cli import studies as command

    with exit_codes():
        command.export(study, storage=storage, output=output, bundle=bundle, trial=trial)


def reproduce(
    study: StudyName,
    trial: Annotated[int, typer.Argument(metavar="TRIAL", min=0, help="The trial's number.")],
    storage: Storage = None,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Train a trial again, alone, and show how it differs from its record."""
    large_pages.take()
    from paceline.cli import search as command

    with exit_codes():
        command.reproduce(study, trial, storage=storage, as_json=as_json, quiet=quiet)


def ensemble(
    study: StudyName,
    models: Annotated[
        int,
        typer.Option(
            "--models", metavar="K", min=1, help="Models at most, repeated ones included."
        ),
    ] = 5,
    output: Annotated[
        str,
        typer.Option("--output", "-o", metavar="FILE.keras", help="Where to write the model."),
    ] = "ensemble.keras",
    storage: Storage = None,
    quiet: Quiet = False,
) -> None:
    """Join the models that `paceline search --keep-best N` kept into the best mean of them."""
    from paceline.cli import search as command

    with exit_codes():
        command.ensemble(study, k=models, file=output, storage=storage, quiet=quiet)


def report(
    study: StudyName,
    output: Annotated[
        str,
        typer.Option("--output", "-o", metavar="FILE.html", help="Where to write the page."),
    ] = "report.html",
    compare: Annotated[
        str | None,
        typer.Option(
            metavar="STUDY2",
            help="Another study to put beside it.",
            show_default="none",
            autocompletion=complete_study,
        ),
    ] = None,
    storage: Storage = None,
) -> None:
    """Write a report of a study: one HTML page with figures, which needs no network."""
    from paceline.cli import report as command

    with exit_codes():
        command.write(study, storage=storage, output=output, compare=compare)


def dashboard(
    study: Annotated[
        str | None,
        typer.Argument(
            metavar="[STUDY]",
            help="Name of the study.",
            show_default="the one searched last",
            autocompletion=complete_study,
        ),
    ] = None,
    storage: Storage = None,
    port: Annotated[
        int, typer.Option(metavar="N", min=0, max=65535, help="Port; 0: any that is free.")
    ] = 8080,
    browser: Annotated[bool, typer.Option("--browser/--no-browser", help="Open a browser.")] = True,
) -> None:
    """Serve optuna-dashboard and a page of the running packs on this machine."""
    from paceline.cli import dashboard as command

    with exit_codes():
        command.serve(study, storage=storage, port=port, browser=browser)


def repair(study: StudyName, storage: Storage = None, as_json: Json = False) -> None:
    """Repair a study's damaged journal: keep what is whole, list what was lost."""
    from paceline.cli import studies as command

    with exit_codes():
        command.repair(study, storage=storage, as_json=as_json)


def studies(directory: Directory = RUNS, storage: Storage = None, as_json: Json = False) -> None:
    """List the studies in a folder, or in a storage."""
    from paceline.cli import catalogue

    with exit_codes():
        catalogue.list_studies(directory, storage, as_json=as_json)


def rm(
    study: StudyName,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    directory: Directory = RUNS,
    storage: Storage = None,
) -> None:
    """Remove a study: its folder, and with --storage what that storage holds of it."""
    from paceline.cli import catalogue

    with exit_codes():
        catalogue.remove(study, directory, storage, ask=not yes)
