"""``paceline search`` and ``resume``: load the file and its data, run the tuner, say the result."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any

import typer

from paceline.cli import arguments, datasets, output, restart, user_file
from paceline.cli import studies as stored
from paceline.cli.restart import Restart
from paceline.errors import DataError, PacelineError, StuckError, StudyError, UsageError
from paceline.report import summary
from paceline.report.live import LiveView, live_view


@dataclass(frozen=True)
class SearchCommand:
    """One search to run, from ``search`` or from ``resume``.

    Attributes:
        path, function: The user's file and what builds the model in it.
        data: As ``--data`` names it; None for the file's own ``data()``.
        study, storage: Where the trials are kept; storage None for ``runs/<study>/``.
        tuner: Further arguments of ``Tuner``.
        search: Further arguments of ``Tuner.search``.
        timeout: Seconds; None for no limit.
        deadline: When to stop; None for no limit.
        digest: The file's digest when the study began; None for a new study.
        as_json, quiet: How to print.
    """

    path: Path
    function: str
    data: str | None
    study: str
    storage: str | None
    tuner: dict[str, Any] = field(default_factory=dict)
    search: dict[str, Any] = field(default_factory=dict)
    timeout: float | None = None
    deadline: datetime | None = None
    digest: str | None = None
    as_json: bool = False
    quiet: bool = False


def search(
    target: str,
    *,
    data: str | None,
    trials: str,
    epochs: int,
    batch_size: int,
    objective: str | None,
    sampler: str,
    pruner: str,
    repeats: int,
    folds: int | None,
    seed: int,
    timeout: str | None,
    deadline: str | None,
    trial_timeout: str | None,
    study: str | None,
    storage: str | None,
    slots: str,
    plan: str,
    mesh: str,
    precision: str | None,
    as_json: bool,
    quiet: bool,
) -> None:
    """Check the arguments of ``paceline search`` and run it; raises as ``run`` does."""
    path, function = user_file.split_target(target)
    if pruner != "none":
        from paceline.study.pruners.pruners import check_pruner  # loads Optuna

        check_pruner(pruner)
    run(
        SearchCommand(
            path=user_file.find(path),
            function=function,
            data=data,
            study=study or path.stem,
            storage=storage,
            tuner={
                "objective": objective,
                "sampler": sampler,
                "pruner": None if pruner == "none" else pruner,
                "seed": seed,
                "slots": arguments.slot_count(slots),
                "plan": plan,
                "mesh": mesh,
                "precision": precision,
            },
            search={
                "epochs": arguments.positive("--epochs", epochs),
                "batch_size": arguments.positive("--batch-size", batch_size),
                "n_trials": arguments.trial_count(trials),
                **_members(repeats, folds),
                **_trial_timeout(trial_timeout),
            },
            timeout=None if timeout is None else arguments.timeout_seconds(timeout),
            deadline=None if deadline is None else arguments.deadline(deadline, _now()),
            as_json=as_json,
            quiet=quiet,
        )
    )


def _members(repeats: int, folds: int | None) -> dict[str, int]:
    """What gives a trial several members, as arguments of ``Tuner.search``; nothing by default."""
    found = {}
    if arguments.positive("--repeats", repeats) != 1:
        found["repeats"] = repeats
    if folds is not None:
        if folds < 2:
            raise UsageError(f"--folds {folds}: give a whole number of at least 2")
        found["folds"] = folds
    return found


def _trial_timeout(text: str | None) -> dict[str, float]:
    """The limit of a trial, as an argument of ``Tuner.search``; nothing where there is none."""
    if text is None:
        return {}
    return {"trial_timeout": arguments.timeout_seconds(text, "--trial-timeout")}


def resume(
    study: str,
    *,
    trials: str | None,
    epochs: int | None,
    best: int | None,
    storage: str | None,
    timeout: str | None,
    deadline: str | None,
    trial_timeout: str | None,
    as_json: bool,
    quiet: bool,
) -> None:
    """Go on with a study that ``paceline search`` began; raises as ``run`` does."""
    changes: dict[str, Any] = {**_trial_timeout(trial_timeout)}
    if trials is not None:
        changes["n_trials"] = arguments.trial_count(trials)
    if epochs is not None:
        changes["epochs"] = arguments.positive("--epochs", epochs)
    if best is not None:
        if epochs is None:
            raise UsageError(f"--best {best}: give --epochs N too, that these trials go on to")
        changes["continue_best"] = arguments.positive("--best", best)
    job = _job_of(study, storage, as_json, quiet)
    run(
        replace(
            job,
            search={**job.search, **changes},
            timeout=None if timeout is None else arguments.timeout_seconds(timeout),
            deadline=None if deadline is None else arguments.deadline(deadline, _now()),
        )
    )


def reproduce(study: str, trial: int, *, storage: str | None, as_json: bool, quiet: bool) -> None:
    """Train a trial again and print how it differs from its record.

    Raises:
        PacelineError: No such study or trial, or its file, data or model are not to be had.
    """
    os.environ.setdefault("KERAS_BACKEND", "jax")
    job = _job_of(study, storage, as_json, quiet)
    with live_view(study, quiet=quiet) as view:
        tuner, call = _prepare(job, view)
        view.status(f"training trial {trial} again")
        again = tuner.reproduce(trial, **call)
    if as_json:
        output.print_json(again.to_json())
    else:
        output.print_result(summary.reproduction_text(study, again.to_json()))


def _job_of(study: str, storage: str | None, as_json: bool, quiet: bool) -> SearchCommand:
    """What a study that ``paceline search`` made was searched with.

    Raises:
        StudyError, UsageError: It was not made so, or its file is gone.
    """
    meta = stored.open_study(study, storage).metadata.meta
    origin = _origin(meta)
    if origin is None:
        raise StudyError(
            f"study {study!r} was not made by `paceline search`, so its model is not known here; "
            "call search again in the notebook or script it came from, with the same study name"
        )
    path = Path(origin["file"])
    if path.resolve().is_relative_to(stored.DIRECTORY.resolve()):
        raise StudyError(
            f"study {study!r} says that it came from {path}, which lies among the studies: whoever "
            "made the study may have put it there, and it would be run. Move it elsewhere if you "
            f"trust it, and run `paceline search FILE.py --study {study}`"
        )
    if not path.exists():
        raise UsageError(
            f"study {study!r} came from {path}, which is gone; put the file back, or run "
            f"`paceline search NEW_FILE.py --study {study}`"
        )
    return SearchCommand(
        path=path,
        function=origin["function"],
        data=origin["data"],
        study=study,
        storage=storage,
        tuner=_tuner_arguments(meta),
        search=_search_arguments(meta),
        digest=origin["digest"],
        as_json=as_json,
        quiet=quiet,
    )


def _origin(meta: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """The file that a study's meta names in the way that ``search`` does; None if it does not."""
    found = meta.get("origin")
    if not isinstance(found, Mapping):
        return None
    texts = [found.get(name) for name in ("file", "function", "digest")]
    ours = all(isinstance(text, str) for text in texts)
    return found if ours and isinstance(found.get("data"), str | None) else None


def _tuner_arguments(meta: Mapping[str, Any]) -> dict[str, Any]:
    """What a study's meta says of the arguments of ``Tuner``."""
    stored_arguments = {
        name: meta[name]
        for name in ("sampler", "seed", "slots", "plan", "pruner", "precision")
        if meta.get(name) is not None
    }
    if mesh := meta.get("mesh"):  # devices, and those that split batches where that was said
        stored_arguments["mesh"] = tuple(mesh) if mesh[1] is not None else mesh[0]
    return {
        "objective": meta["objective"],
        "direction": meta["direction"],
        **stored_arguments,
    }


def _search_arguments(meta: Mapping[str, Any]) -> dict[str, Any]:
    """What a study's meta says of the arguments of ``Tuner.search``."""
    return {name: value for name, value in meta["search"].items() if value is not None}


def run(job: SearchCommand) -> None:
    """Run a search and print its result.

    Raises:
        PacelineError: Wrong input or a study that cannot be used.
        Interrupted: Ctrl-C; the message says how to go on.
        Failed: There were trials and all of them failed; the result is printed before.
    """
    os.environ.setdefault("KERAS_BACKEND", "jax")  # read once, when the user's file imports Keras
    with live_view(job.study, quiet=job.quiet) as view:
        again = Restart()
        stuck = partial(_stuck, job, again, view)
        tuner, call = _prepare(job, view, stuck)
        again.ends_in(call["timeout"])
        try:
            tuner.search(**call)
        except KeyboardInterrupt:
            raise output.Interrupted(_how_to_go_on(tuner, job)) from None
        except StuckError as error:
            stuck(error.what, True)
    result = tuner.summary()
    objective = "value" if view.latest is None else view.latest.objective
    text = summary.search_summary(result, objective, _next_steps(job, result))
    if job.as_json:
        typer.echo(text, err=True)
        output.print_json(result)
    else:
        output.print_result(text)
    if result["best"] is None and result["n_trials"].get("failed", 0) > 0:
        raise output.Failed("no trial completed; why is said above and by `paceline trials`")


def _stuck(job: SearchCommand, again: Restart, view: LiveView, text: str, can_go_on: bool) -> None:
    """Go on in another process, which the search of this one cannot; or end it.

    Args:
        job: What is searched.
        again: Makes the other process.
        view: Gives the terminal back.
        text: What happened.
        can_go_on: Whether the same would not happen again.

    Raises:
        Failed: The process is not ours to end.
    """
    view.close()
    if can_go_on and again.possible:
        output.say(f"{text}; going on in a new process")
        again.now()
    resume = stored.command("resume", job.study, job.storage)
    text = f"{text}; what has ended is kept. Go on with:\n  {resume}"
    if restart.own:
        restart.end(text)
    raise output.Failed(text)


def _prepare(
    job: SearchCommand, view: LiveView, when_stuck: Callable[[str, bool], None] | None = None
) -> tuple[Any, dict[str, Any]]:
    """Load what the search needs; return the tuner and the arguments of its ``search``."""
    view.status(f"loading {job.path.name}")
    user = user_file.load(job.path, job.function)
    if job.digest is not None and user.digest != job.digest:
        view.note(
            f"{job.path.name} has changed since study {job.study!r} began; it goes on as long as "
            "build(hp) declares the same hyperparameters"
        )
    _find_devices(view)
    view.status("loading the data")
    data = load_data(job.data, user)
    validation: dict[str, Any] = {"validation_data": (data.x_val, data.y_val)}
    if job.search.get("folds"):
        view.note("folds are made of the training data; the validation data is not used")
        validation = {}
    elif data.note is not None:
        view.note(data.note)
    view.status("loading Keras")
    from paceline.tuner.tuner import Tuner

    tuner = Tuner(
        user.build,
        study=job.study,
        storage=job.storage,
        directory=str(stored.DIRECTORY),
        progress=view.update,
        notes=view.note,
        when_stuck=when_stuck,
        origin={
            "file": str(user.path),
            "function": user.function,
            "digest": user.digest,
            "data": None if job.data is None else datasets.portable_spec(job.data),
        },
        **job.tuner,
    )
    goes_on, left = restart.inherited()
    return tuner, {
        "x": data.x,
        "y": data.y,
        **validation,
        **job.search,
        # Late, so that the time for loading counts towards a deadline.
        "timeout": left if goes_on else arguments.seconds_to_run(job.timeout, job.deadline, _now()),
    }


def _find_devices(view: LiveView) -> None:
    """Has JAX settle on its devices, or say why on others, after the file could choose them."""
    if os.environ.get("KERAS_BACKEND") != "jax":
        return  # another framework's search: JAX must not claim the device
    view.status("finding the devices")
    from paceline.cli import device_fallback

    device_fallback.choose_devices(view.note)


def load_data(spec: str | None, user: user_file.UserFile) -> datasets.Dataset:
    """What ``--data`` names, or else what the user's file returns."""
    if spec is not None:
        return datasets.load(spec)
    if user.data is None:
        raise UsageError(
            f"{user.path.name} has no data(), and --data is not given; write `def data()` that "
            f"returns (x, y), (x_val, y_val), or give --data {datasets.FORMS}"
        )
    try:
        return datasets.from_function(user.data, user.path.name)
    except PacelineError:
        raise
    except Exception as error:
        raise DataError(
            f"{user.path.name}: data() raised {user_file.describe(error, user.path)}"
        ) from error


def _how_to_go_on(tuner: Any, job: SearchCommand) -> str:
    counts = tuner.summary().get("n_trials", {})
    if not any(counts.values()):
        return "interrupted before the first trial; nothing was written"
    kept = _finished(counts)
    resume = stored.command("resume", job.study, job.storage)
    under_way = counts.get("running", 0)
    and_more = f", {under_way:,} under way are saved" if under_way else ""
    # On a line of its own, so that it can be copied from a narrow terminal as well.
    return f"interrupted; {kept:,} finished trials are kept{and_more}. Go on with:\n  {resume}"


def _next_steps(job: SearchCommand, result: Mapping[str, Any]) -> list[tuple[str, str]]:
    def command(name: str, *more: str) -> str:
        return stored.command(name, job.study, job.storage, *more)

    steps = []
    if result["best"]:
        steps = [
            (command("best"), "this configuration again"),
            (command("export", "-o", "best.keras"), "its trained model"),
        ]
    steps.append((command("trials"), "every trial"))
    counts = result["n_trials"]
    total = job.search.get("n_trials")
    short = isinstance(total, int) and _finished(counts) < total
    # A search that ends short of its trials although it had the time has tried every configuration,
    # and a grid has an end: most often this was it.
    cut_off = counts.get("running", 0) > 0 or job.timeout is not None or job.deadline is not None
    if short and cut_off:
        steps.append((command("resume"), f"go on to {total:,} trials"))
    elif cut_off or not (short or job.tuner.get("sampler") == "grid"):
        steps.append((command("resume", "--trials", "+32"), "32 more trials"))
    return steps


def _finished(counts: Mapping[str, int]) -> int:
    return sum(count for state, count in counts.items() if state != "running")


def _now() -> datetime:
    return datetime.now().astimezone()
