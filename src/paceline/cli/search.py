"""``paceline search``, ``resume`` and ``reproduce``: load file and data, run the tuner, report."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any

from paceline.cli import arguments, datasets, ending, output, restart, studies, user_file
from paceline.cli.budget import check_budget, planned_search
from paceline.cli.restart import Restart
from paceline.cli.search_command import SearchCommand
from paceline.errors import DataError, PacelineError, StuckError, StudyError, UsageError
from paceline.report import summary
from paceline.report.live import LiveView, live_view

#: Trials of a study and epochs of a trial, where nobody says.
_TRIALS, _EPOCHS = "32", 10
#: Arguments of ``Tuner`` that a study remembers with where it came from.
_OF_ORIGIN = ("executor", "keep_best")


def search(
    target: str,
    *,
    data: str | None,
    trials: str | None,
    epochs: int | None,
    batch_size: int,
    objective: list[str] | None,
    sampler: str,
    pruner: str,
    repeats: int,
    folds: int | None,
    seed: int,
    timeout: str | None,
    deadline: str | None,
    budget: str | None,
    trial_timeout: str | None,
    stopping: tuple[str | None, str | None, str | None],
    enqueue: str | None,
    start_with_default: bool,
    learn_from: list[str] | None,
    study: str | None,
    fresh: bool,
    storage: str | None,
    slots: str,
    plan: str,
    widths: str,
    executor: str,
    mesh: str,
    precision: str | None,
    track: list[str] | None,
    keep_best: int,
    constraint: list[str] | None,
    as_json: bool,
    quiet: bool,
) -> None:
    """Check the arguments of ``paceline search`` and run it; the errors are those of ``run``."""
    path, function = user_file.split_target(target)
    if budget is not None:
        several = repeats != 1 or folds is not None
        check_budget(budget, trials, timeout, deadline, executor=executor, several=several)
    if pruner != "none":
        from paceline.study.pruners.pruners import check_pruner  # loads Optuna

        check_pruner(pruner)
    if constraint:
        from paceline.tuner.constraints import of_command

        of_command(constraint)
    run(
        SearchCommand(
            path=user_file.find(path),
            function=function,
            data=data,
            study=study or path.stem,
            storage=storage,
            tuner={
                "objective": _objective(objective),
                "sampler": sampler,
                "pruner": None if pruner == "none" else pruner,
                "seed": seed,
                "slots": arguments.slot_count(slots),
                "plan": plan,
                "widths": widths,
                "mesh": mesh,
                "precision": precision,
                **({"executor": executor} if executor != "auto" else {}),
                **({"track": track} if track else {}),
                **({"keep_best": keep_best} if keep_best != 1 else {}),
                **({"learn_from": learn_from} if learn_from else {}),
                **({"fresh": True} if fresh else {}),
            },
            search={
                "epochs": arguments.positive("--epochs", epochs)
                or (_EPOCHS if budget is None else None),
                "batch_size": arguments.positive("--batch-size", batch_size),
                "n_trials": arguments.trial_count(trials or _TRIALS),
                **_members(repeats, folds),
                **_trial_timeout(trial_timeout),
                **arguments.stopping_rules(*stopping),
                **({"start_with_default": True} if start_with_default else {}),
            },
            budget=None if budget is None else arguments.timeout_seconds(budget, "--budget"),
            enqueue=None if enqueue is None else Path(enqueue),
            timeout=None if timeout is None else arguments.timeout_seconds(timeout),
            deadline=None if deadline is None else arguments.deadline(deadline, _now()),
            constraints=tuple(constraint or ()),
            as_json=as_json,
            quiet=quiet,
        )
    )


def _objective(given: list[str] | None) -> str | list[str] | None:
    """The argument ``objective`` of ``Tuner``: a list where several are given."""
    if not given:
        return None
    return given[0] if len(given) == 1 else list(given)


def _members(repeats: int, folds: int | None) -> dict[str, int]:
    """The arguments of ``Tuner.search`` that give a trial several members; empty by default."""
    found = {}
    if arguments.positive("--repeats", repeats) != 1:
        found["repeats"] = repeats
    if folds is not None:
        if folds < 2:
            raise UsageError(f"--folds {folds}: give a whole number of at least 2")
        found["folds"] = folds
    return found


def _trial_timeout(text: str | None) -> dict[str, float]:
    """The argument of ``Tuner.search`` that limits the time of a trial; empty without a limit."""
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
    stopping: tuple[str | None, str | None, str | None],
    executor: str | None,
    track: list[str] | None,
    as_json: bool,
    quiet: bool,
) -> None:
    """Go on with a study that ``paceline search`` began; the errors are those of ``run``."""
    changes: dict[str, Any] = {
        **_trial_timeout(trial_timeout),
        **arguments.stopping_rules(*stopping),
    }
    if trials is not None:
        changes["n_trials"] = arguments.trial_count(trials)
    if epochs is not None:
        changes["epochs"] = arguments.positive("--epochs", epochs)
    if best is not None:
        if epochs is None:
            raise UsageError(f"--best {best}: give --epochs N too, that these trials go on to")
        changes["continue_best"] = arguments.positive("--best", best)
    command = _command_of(study, storage, as_json, quiet)
    others = (("executor", executor), ("track", track))
    run(
        replace(
            command,
            tuner={**command.tuner, **{name: value for name, value in others if value}},
            search={**command.search, **changes},
            timeout=None if timeout is None else arguments.timeout_seconds(timeout),
            deadline=None if deadline is None else arguments.deadline(deadline, _now()),
        )
    )


def reproduce(study: str, trial: int, *, storage: str | None, as_json: bool, quiet: bool) -> None:
    """Train a trial again and print how it differs from its record.

    Raises:
        PacelineError: There is no such study or trial, or its file, data or model cannot be loaded.
    """
    os.environ.setdefault("KERAS_BACKEND", "jax")
    command = _command_of(study, storage, as_json, quiet)
    with live_view(study, quiet=quiet) as view:
        tuner, call = _prepare(command, view)
        view.status(f"training trial {trial} again")
        again = tuner.reproduce(trial, **call)
    if as_json:
        output.print_json(again.to_json())
    else:
        output.print_result(summary.reproduction_text(study, again.to_json()))


def ensemble(study: str, *, k: int, file: str, storage: str | None, quiet: bool) -> None:
    """Join the kept models of a study into one, and write that.

    Raises:
        PacelineError: As from ``reproduce`` and ``Tuner.ensemble``, or the file cannot be written.
    """
    os.environ.setdefault("KERAS_BACKEND", "jax")
    target = arguments.output_file(
        file, (".keras",), "a model's file ends in .keras; give a name such as ensemble.keras"
    )
    command = _command_of(study, storage, as_json=False, quiet=quiet)
    if command.search.get("folds"):
        raise UsageError(
            f"study {study!r} has folds, and an ensemble is selected on data that no fold was "
            "trained on: give some to tuner.ensemble(validation_data=...) in Python"
        )
    with live_view(study, quiet=quiet) as view:
        tuner, call = _prepare(command, view)
        view.status("putting models together")
        model = tuner.ensemble(k, validation_data=call["validation_data"])
        studies.write_model(target, model.save)
    lines = studies.model_lines(target, "the ensemble", studies.study_meta(study, storage))
    output.print_result("\n".join(lines))


def _command_of(study: str, storage: str | None, as_json: bool, quiet: bool) -> SearchCommand:
    """The command that ``paceline search`` ran for a study, read from the study.

    Raises:
        StudyError: ``paceline search`` did not make the study, or its file lies among the studies.
        UsageError: The user's file is gone.
    """
    meta = studies.study_meta(study, storage)
    origin = _origin(meta)
    if origin is None:
        raise StudyError(
            f"study {study!r} was not made by `paceline search`, so its model is not known here; "
            "call search again in the notebook or script it came from, with the same study name"
        )
    path = Path(origin["file"])
    if path.resolve().is_relative_to(studies.DIRECTORY.resolve()):
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
        tuner={
            **_tuner_arguments(meta),
            **{name: origin[name] for name in _OF_ORIGIN if name in origin},
        },
        search=_search_arguments(meta),
        digest=origin["digest"],
        constraints=tuple(origin.get("constraints", ())),
        as_json=as_json,
        quiet=quiet,
    )


def _origin(meta: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """The origin (file, function, digest, data) in a study's meta; None if it is not complete."""
    found = meta.get("origin")
    if not isinstance(found, Mapping):
        return None
    texts = [found.get(name) for name in ("file", "function", "digest")]
    given = found.get("constraints", [])
    texts += given if isinstance(given, list) else [None]
    ours = all(isinstance(text, str) for text in texts)
    return found if ours and isinstance(found.get("data"), str | None) else None


def _tuner_arguments(meta: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of ``Tuner`` that a study's meta holds."""
    stored_arguments = {
        name: meta[name]
        for name in ("sampler", "seed", "slots", "plan", "widths", "pruner", "precision")
        if meta.get(name) is not None
    }
    if meta.get("sampler_reason"):  # which the study keeps as well
        stored_arguments["sampler"] = "auto"
    if mesh := meta.get("mesh"):  # devices, and those that split batches where that was said
        stored_arguments["mesh"] = tuple(mesh) if mesh[1] is not None else mesh[0]
    objective: Any = {"objective": meta.get("objective"), "direction": meta.get("direction")}
    if names := meta.get("objectives"):
        pairs = zip(meta.get("directions", ()), names, strict=False)
        objective = {"objective": [f"{direction[:3]}:{name}" for direction, name in pairs]}
    return {**objective, **stored_arguments}


def _search_arguments(meta: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of ``Tuner.search`` that a study's meta holds."""
    from paceline.study.storage.schema import StoredSearch

    # A study of another version may hold others, which ``search`` would not take.
    known = set(StoredSearch.__struct_fields__) - {"callbacks"}
    found = meta.get("search", {}).items()
    return {name: value for name, value in found if value is not None and name in known}


def run(command: SearchCommand) -> None:
    """Run a search and print its result.

    Raises:
        PacelineError: The input is wrong, or the study cannot be used.
        Interrupted: The user pressed Ctrl-C; the message says how to go on.
        Failed: All trials failed; the result was printed before.
    """
    os.environ.setdefault("KERAS_BACKEND", "jax")  # read once, when the user's file imports Keras
    with live_view(command.study, quiet=command.quiet) as view:
        again = Restart()
        stuck = partial(_stuck, command, again, view)
        tuner, call = _prepare(command, view, stuck)
        again.ends_in(call["timeout"])
        try:
            tuner.search(**call)
        except KeyboardInterrupt:
            view.close()  # nothing is drawn into the line of JSON
            kept = tuner.summary()
            if command.as_json and kept:
                output.print_json_if_open(kept)
            raise output.Interrupted(ending.how_to_go_on(kept, command)) from None
        except StuckError as error:
            stuck(error.what, True)
    result = tuner.summary()
    objective = "value" if view.latest is None else view.latest.objective
    text = summary.search_summary(result, objective, ending.next_steps(command, call, result))
    if command.as_json:
        output.say_plain(text)
        output.print_json(result)
    else:
        output.print_result(text)
    best = result["best"] or result.get("front")
    if not best and result["n_trials"].get("failed", 0) > 0:
        raise output.Failed("no trial completed; why is said above and by `paceline trials`")


def _stuck(
    command: SearchCommand, again: Restart, view: LiveView, text: str, can_go_on: bool
) -> None:
    """Continue the search in a new process, because this one is stuck; or end this process.

    Args:
        command: The search.
        again: Replaces this process by a new one.
        view: The live view, which is closed.
        text: What happened, for the user.
        can_go_on: Whether a new process would not get stuck in the same way.

    Raises:
        Failed: There can be no new process, and this one belongs to another program.
    """
    view.close()
    if can_go_on and again.possible:
        output.say(f"{text}; going on in a new process")
        again.now()
    resume = studies.command("resume", command.study, command.storage)
    text = f"{text}; what has ended is kept. Go on with:\n  {resume}"
    if restart.own:
        restart.end(text)
    raise output.Failed(text)


def _prepare(
    command: SearchCommand, view: LiveView, when_stuck: Callable[[str, bool], None] | None = None
) -> tuple[Any, dict[str, Any]]:
    """Load the user's file and data.

    Returns:
        The tuner, and the arguments of its ``search``.
    """
    from paceline.executor.process import StopSignal
    from paceline.tuner.known_starts import read_file

    starts = [] if command.enqueue is None else read_file(command.enqueue)
    view.status(f"loading {command.path.name}")
    user = user_file.load(command.path, command.function)
    if command.digest is not None and user.digest != command.digest:
        view.note(
            f"{command.path.name} has changed since study {command.study!r} began; it goes on as "
            "long as build(hp) declares the same hyperparameters"
        )
    if command.tuner.get("executor") == "ray":
        from paceline.executor.ray.session import on_cpu

        on_cpu()  # before JAX takes a device that a worker needs
    _find_devices(view)
    StopSignal.of_process().check()  # a signal may have been dropped while JAX was loaded
    view.status("loading the data")
    data = load_data(command.data, user)
    validation: dict[str, Any] = {"validation_data": data.validation_data}
    if command.search.get("folds"):
        view.note("folds are made of the training data; the validation data is not used")
        validation = {}
    elif data.note is not None:
        view.note(data.note)
    view.status("loading Keras")
    from paceline.tuner.constraints import of_command
    from paceline.tuner.tuner import Tuner

    constraints = of_command(command.constraints) if command.constraints else user.constraints
    tuner = Tuner(
        user.build,
        study=command.study,
        storage=command.storage,
        directory=str(studies.DIRECTORY),
        progress=view.update,
        notes=view.note,
        when_stuck=when_stuck,
        origin={
            "file": str(user.path),
            "function": user.function,
            "digest": user.digest,
            "data": None if command.data is None else datasets.portable_spec(command.data),
            **({"constraints": list(command.constraints)} if command.constraints else {}),
            **{name: command.tuner[name] for name in _OF_ORIGIN if name in command.tuner},
        },
        **({} if constraints is None else {"constraints": constraints}),
        **command.tuner,
    )
    if starts:
        tuner.enqueue(starts)
    planned = {}
    if command.budget is not None:  # after the tuner, which may refuse its arguments
        planned = planned_search(command, user, data, constraints, view)
    goes_on, left = restart.inherited()
    timeout = planned.pop("timeout", command.timeout)
    return tuner, {
        "x": data.x,
        "y": data.y,
        **({} if data.sample_weight is None else {"sample_weight": data.sample_weight}),
        **validation,
        **command.search,
        **planned,
        # Worked out after loading, so that the time for loading counts towards a deadline.
        "timeout": (
            left if goes_on else arguments.seconds_to_run(timeout, command.deadline, _now())
        ),
    }


def _find_devices(view: LiveView) -> None:
    """Have JAX choose its devices; done after the user's file has run, which may choose too."""
    if os.environ.get("KERAS_BACKEND") != "jax":
        return  # the model trains in another framework: JAX must not claim the device
    view.status("finding the devices")
    from paceline.cli import device_fallback

    device_fallback.choose_devices(view.note)


def load_data(spec: str | None, user: user_file.UserFile) -> datasets.Dataset:
    """Load what ``--data`` names, or else call ``data()`` of the user's file.

    Raises:
        UsageError: There is neither.
        DataError: The data cannot be loaded, or ``data()`` failed.
    """
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


def _now() -> datetime:
    return datetime.now().astimezone()
