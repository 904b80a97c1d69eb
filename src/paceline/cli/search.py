"""``paceline search``, ``resume`` and ``reproduce``."""

# Annotations are objects here: Typer would compile strings for all options at each start.

import inspect
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer

from paceline.cli import arguments, output, restart, wall
from paceline.cli.options import (
    Data,
    Deadline,
    Json,
    MaxTotalEpochs,
    Model,
    PatienceTrials,
    Precision,
    Quiet,
    Storage,
    StudyName,
    Target,
    TargetColumn,
    Timeout,
    Track,
    TrialTimeout,
    ValidationSplit,
    count_option,
    trials_option,
)
from paceline.errors import UsageError

#: Trials of a study and epochs of a trial, by default.
_TRIALS, _EPOCHS = 32, 10
#: Options that ``Tuner`` and ``Tuner.search`` get only if they are not the default.
_MORE_OF_TUNER = ("executor", "trackers", "keep_best", "warm_start_from", "overwrite")
_MORE_OF_SEARCH = ("repeats", "folds", "trial_timeout", "enqueue_defaults")


def search(
    model: Model,
    data: Data = None,
    target: TargetColumn = None,
    validation_split: ValidationSplit = None,
    trials: Annotated[Any, trials_option(show_default="32")] = None,
    epochs: Annotated[
        int | None, count_option(help="Epochs of each trial.", show_default="10")
    ] = None,
    batch_size: Annotated[
        int | None, count_option(help="Examples per step.", show_default="32")
    ] = None,
    objective: Annotated[
        list[str] | None,
        typer.Option(
            metavar="[max:|min:]NAME",
            help="Metric to optimize. For several objectives, repeat the option with other "
            "metrics, params, flops, bytes or latency.",
            show_default="val_ and the model's first metric, or val_loss",
        ),
    ] = None,
    sampler: Annotated[
        str,
        typer.Option(metavar="NAME", help="tpe, cmaes, random, qmc, gp, grid, nsga2, nsga3, auto."),
    ] = "tpe",
    pruner: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            show_default="auto if time ends the search, else none",
            help="auto, none, median, percentile[:P], hyperband, threshold:VALUE, "
            "patience[:EPOCHS], asha[:MIN_EPOCHS[:FACTOR]], pbt[:EPOCHS[:FRACTION]] or, with "
            "repeats or folds, wilcoxon[:P].",
        ),
    ] = None,
    repeats: Annotated[
        int,
        count_option(help="Train each configuration with N different seeds and use the mean."),
    ] = 1,
    folds: Annotated[
        int | None,
        typer.Option(
            metavar="K",
            help="Cross-validate each trial on K folds of the training data and use the mean.",
            show_default="none",
        ),
    ] = None,
    seed: Annotated[int, typer.Option(metavar="N", help="Seed of everything random.")] = 0,
    timeout: Timeout = None,
    deadline: Deadline = None,
    budget: Annotated[
        str | None,
        typer.Option(
            metavar="TIME",
            help="Total time for the search: 40m. Paceline chooses how many trials fit.",
            show_default="none",
        ),
    ] = None,
    trial_timeout: TrialTimeout = None,
    target_value: Target = None,
    patience_trials: PatienceTrials = None,
    max_total_epochs: MaxTotalEpochs = None,
    enqueue: Annotated[
        str | None,
        typer.Option(
            metavar="FILE.json",
            help="Configurations to try first, as `paceline best STUDY --json` prints one.",
            show_default="none",
        ),
    ] = None,
    enqueue_defaults: Annotated[
        bool,
        typer.Option("--enqueue-defaults", help="Try the default of every hyperparameter first."),
    ] = False,
    warm_start_from: Annotated[
        list[str] | None,
        typer.Option(
            "--warm-start-from",
            metavar="STUDY",
            help="An earlier study that tpe and cmaes learn from: its name, its folder, or a "
            "storage URL#NAME. It stays as it is. You may repeat the option.",
            show_default="none",
        ),
    ] = None,
    study: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Name of the study.", show_default="the file's"),
    ] = None,
    overwrite: Annotated[
        bool,
        typer.Option("--overwrite", help="Start over, replacing the existing study."),
    ] = False,
    storage: Storage = None,
    parallel_trials: Annotated[
        Any,
        typer.Option(
            metavar="N|auto", parser=arguments.slot_count, help="Trials to train at once."
        ),
    ] = "auto",
    plan: Annotated[
        str, typer.Option(metavar="NAME", help="auto, vectorized, looped or sequential.")
    ] = "auto",
    share_widths: Annotated[
        Any,
        typer.Option(
            metavar="yes|no|auto",
            parser=arguments.yes_or_no,
            help="Whether trials with layers of different widths share one program; auto: if it "
            "is faster.",
        ),
    ] = "auto",
    executor: Annotated[
        str,
        typer.Option(
            metavar="NAME", help="Where trials train: auto, packed, fit or ray (a cluster)."
        ),
    ] = "auto",
    mesh: Annotated[
        str,
        typer.Option(
            metavar="N|TxD|auto",
            help="Devices to use: N, or TxD to spread trials over T groups of D devices that "
            "split each batch.",
        ),
    ] = "auto",
    precision: Precision = None,
    trackers: Track = None,
    keep_best: Annotated[
        int,
        typer.Option(
            metavar="N",
            min=1,
            help="Save the models of the N best trials, which `ensemble` can combine.",
        ),
    ] = 1,
    constraint: Annotated[
        list[str] | None,
        typer.Option(
            "--constraint",
            metavar="BOUND",
            help="Train only models within this bound: 'params<=200000', 'trainable_params<1e6'. "
            "You may repeat the option.",
            show_default="the constraints of the file",
        ),
    ] = None,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Search for the best configuration of a model, or continue an existing study."""
    options = dict(locals())  # before anything else has a name
    wall.take_process()
    from paceline.cli import user_file
    from paceline.cli.running import run
    from paceline.cli.search_command import OF_TUNER, SearchCommand

    path, function = user_file.split_target(model)
    if budget is not None:
        _check_budget(budget, {"--trials": trials, "--timeout": timeout, "--deadline": deadline})
        timeout = arguments.timeout_seconds(budget, "--budget")
    if pruner is not None:
        from paceline.study.pruners.pbt import PBT
        from paceline.study.pruners.pruners import check_pruner  # loads Optuna

        if isinstance(check_pruner(pruner), PBT) and budget is not None:
            raise UsageError(
                f"--budget {budget} cannot be used with --pruner {pruner}, which trains a "
                "population of fixed size. Use --trials and --timeout instead."
            )
    if constraint:
        from paceline.tuner.arguments.constraints import of_command

        of_command(constraint)
    if folds is not None and folds < 2:
        raise UsageError(f"--folds must be an integer of at least 2, got {folds}.")
    run(
        SearchCommand(
            path=user_file.find(path),
            function=function,
            data=data,
            target=target,
            validation_split=validation_split,
            study=study or path.stem,
            storage=storage,
            tuner={
                "objective": objective[0] if objective and len(objective) == 1 else objective,
                "pruner": pruner,
                **{name: options[name] for name in OF_TUNER},
                **_changed(options, _MORE_OF_TUNER),
            },
            search={
                "epochs": epochs or _EPOCHS,
                "batch_size": batch_size,
                "n_trials": trials or (_TRIALS if budget is None else None),
                **_changed(options, _MORE_OF_SEARCH),
                **arguments.stopping_rules(target_value, patience_trials, max_total_epochs),
            },
            enqueue=None if enqueue is None else Path(enqueue),
            timeout=timeout,
            deadline=deadline,
            constraints=tuple(constraint or ()),
            as_json=as_json,
            quiet=quiet,
        )
    )


def _check_budget(budget: str, others: dict[str, Any]) -> None:
    """Refuse other options that would end the search."""
    for option, value in others.items():
        if value is not None:
            raise UsageError(
                f"--budget {budget} chooses when the search ends, so it cannot be used with "
                f"{option}. Leave one of them out."
            )


def _changed(options: dict[str, Any], names: Sequence[str]) -> dict[str, Any]:
    """Return the options of ``search`` that are not the default; the tuner gets only these.

    A study remembers some of them, and the tuner has the same defaults.
    """
    declared = inspect.signature(search).parameters
    return {name: options[name] for name in names if options[name] != declared[name].default}


def resume(
    study: StudyName,
    trials: Annotated[Any, trials_option(show_default="as before")] = None,
    epochs: Annotated[
        int | None, count_option(help="Epochs of each new trial.", show_default="as before")
    ] = None,
    continue_best: Annotated[
        int | None,
        count_option(
            metavar="K",
            help="First train the best K trials further, up to --epochs.",
            show_default="none",
        ),
    ] = None,
    timeout: Timeout = None,
    deadline: Deadline = None,
    trial_timeout: TrialTimeout = None,
    target_value: Target = None,
    patience_trials: PatienceTrials = None,
    max_total_epochs: MaxTotalEpochs = None,
    storage: Storage = None,
    executor: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="Where trials train now: auto or ray (a cluster).",
            show_default="as before",
        ),
    ] = None,
    trackers: Track = None,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Resume a study where it stopped."""
    wall.take_process()
    from paceline.cli.running import run
    from paceline.cli.search_command import command_of

    if continue_best is not None and epochs is None:
        raise UsageError(
            f"--continue-best {continue_best} needs --epochs N, the epochs to train up to."
        )
    command = command_of(study, storage, as_json=as_json, quiet=quiet)
    changes = {
        "trial_timeout": trial_timeout,
        "n_trials": trials,
        "epochs": epochs,
        "continue_best": continue_best,
    }
    others = {"executor": executor, "trackers": trackers}
    run(
        replace(
            command,
            tuner={**command.tuner, **_given(others)},
            search={
                **command.search,
                **_given(changes),
                **arguments.stopping_rules(target_value, patience_trials, max_total_epochs),
            },
            timeout=timeout,
            deadline=deadline,
        )
    )


def _given(options: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in options.items() if value}


def reproduce(
    study: StudyName,
    trial: Annotated[int, typer.Argument(metavar="TRIAL", min=0, help="Number of the trial.")],
    storage: Storage = None,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Train a trial again, alone, and compare the result with the record."""
    restart.take_large_pages()
    from paceline.cli.running import prepare
    from paceline.cli.search_command import command_of
    from paceline.report import summary
    from paceline.report.live import live_view

    command = command_of(study, storage, as_json=as_json, quiet=quiet)
    with live_view(study, quiet=quiet) as view:
        tuner, call = prepare(command, view)
        view.status(f"training trial {trial} again")
        again = tuner.reproduce(trial, **call)
    if as_json:
        output.print_json(again.to_json())
    else:
        output.print_result(summary.reproduction_text(study, again.to_json()))
