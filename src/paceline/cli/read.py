"""``paceline best``, ``trials``, ``export`` and ``repair``: names, options and help texts."""

from __future__ import annotations

from typing import Annotated

import typer

from paceline.cli import studies
from paceline.cli.options import Json, Storage, StudyName
from paceline.cli.output import exit_codes


def best(study: StudyName, storage: Storage = None, as_json: Json = False) -> None:
    """Print a study's best configuration."""
    with exit_codes():
        studies.show_best(study, storage=storage, as_json=as_json)


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
    with exit_codes():
        studies.show_trials(
            study,
            storage=storage,
            as_csv=as_csv,
            as_json=as_json,
            where=where,
            sort="value" if top is not None and sort is None else sort,
            reverse=reverse,
            limit=0 if every else top if top is not None else limit,
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
    storage: Storage = None,
) -> None:
    """Write a study's best model, trained, as a Keras file or as a bundle."""
    with exit_codes():
        studies.export(study, storage=storage, output=output, bundle=bundle)


def repair(study: StudyName, storage: Storage = None, as_json: Json = False) -> None:
    """Repair a study's damaged journal: keep what is whole, list what was lost."""
    with exit_codes():
        studies.repair(study, storage=storage, as_json=as_json)
