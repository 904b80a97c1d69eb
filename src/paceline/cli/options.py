"""Options that several commands have."""

from __future__ import annotations

from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from paceline.cli import arguments

#: The folder of the studies.
DIRECTORY = Path("runs")


def journals(directory: Path) -> list[Path]:
    """The journals of the studies in a folder, by name; each study has its own folder."""
    return sorted(directory.glob("[!.]*/journal.log"))


def complete_study(incomplete: str) -> list[str]:
    """Names of studies in ``runs``, for completion in a shell; loads no storage."""
    names = [path.parent.name for path in journals(DIRECTORY)]
    return [name for name in names if name.isprintable() and name.startswith(incomplete)]


def _at_least_one(option: typer.CallbackParam, value: int | None) -> int | None:
    return arguments.positive(option.opts[0], value)


#: Declares an option whose value is an integer of at least 1.
count_option = partial(typer.Option, metavar="N", callback=_at_least_one)
#: Declares how many trials a study will have.
trials_option = partial(
    typer.Option,
    metavar="N|+N",
    parser=arguments.trial_count,
    help="Number of trials in the study, or +N to add N more.",
)
_MODEL = typer.Argument(
    metavar="FILE.py[:build]", help="File with build(hp) and, without --data, data()."
)
Model = Annotated[str, _MODEL]
Models = Annotated[list[str], _MODEL]
StudyName = Annotated[
    str,
    typer.Argument(metavar="STUDY", help="Name of the study.", autocompletion=complete_study),
]
Data = Annotated[
    str | None,
    typer.Option(
        metavar="DATA",
        help="Data in place of data(): FILE.npz, FILE.csv, FILE.parquet, digits or keras:NAME.",
    ),
]
TargetColumn = Annotated[
    str | None,
    typer.Option(
        "--target",
        metavar="COLUMN",
        help="Column of a table to predict.",
        show_default="none",
    ),
]
ValidationSplit = Annotated[
    float | None,
    typer.Option(
        "--validation-split",
        metavar="SHARE",
        callback=arguments.share,
        help="Share of the examples to hold out, if the data have no validation part.",
        show_default="0.2",
    ),
]
Precision = Annotated[
    str | None,
    typer.Option(
        metavar="NAME",
        help="float32 or bfloat16 (Keras' policy mixed_bfloat16).",
        show_default="the policy that the file sets",
    ),
]
Storage = Annotated[
    str | None,
    typer.Option(
        metavar="URL",
        help="Optuna storage URL, or journal:PATH.",
        show_default="a journal in runs/STUDY",
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON as the last line of stdout.")]
Quiet = Annotated[bool, typer.Option("--quiet", help="Show no live view.")]
Timeout = Annotated[
    float | None,  # seconds
    typer.Option(
        metavar="TIME",
        parser=arguments.timeout_seconds,
        help="Stop after this time: 90s, 30m, 1h30m.",
    ),
]
TrialTimeout = Annotated[
    float | None,  # seconds
    typer.Option(
        metavar="TIME",
        parser=lambda text: arguments.timeout_seconds(text, "--trial-timeout"),
        help="Fail a trial that takes longer to build and train: 90s, 10m.",
        show_default="no limit",
    ),
]
Target = Annotated[
    str | None,
    typer.Option(
        metavar="VALUE",
        help="End the search as soon as a trial's objective is this good.",
        show_default="none",
    ),
]
PatienceTrials = Annotated[
    str | None,
    typer.Option(
        metavar="N",
        help="End the search after N finished trials in a row without a better value.",
        show_default="none",
    ),
]
MaxTotalEpochs = Annotated[
    str | None,
    typer.Option(
        metavar="N",
        help="End the search when all its trials together have trained N epochs.",
        show_default="no limit",
    ),
]
Deadline = Annotated[
    datetime | None,
    typer.Option(
        metavar="CLOCK",
        parser=lambda text: arguments.deadline(text, datetime.now().astimezone()),
        help="Stop by this time of day: 17:30.",
    ),
]
Track = Annotated[
    list[str] | None,
    typer.Option(
        "--tracker",
        metavar="NAME",
        help="Log each trial to mlflow, wandb or tensorboard; you may repeat the option. "
        "mlflow+model and wandb+model store the best model, too.",
        show_default="none",
    ),
]
