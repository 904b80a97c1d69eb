"""Runs a ``SearchCommand``: loads file and data, searches, prints the result and next steps."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import datetime
from functools import partial
from typing import Any

from paceline.cli import arguments, datasets, output, restart, studies, user_file, wall
from paceline.cli.search_command import OF_ORIGIN, SearchCommand
from paceline.errors import DataError, PacelineError, TrialHangError, UsageError
from paceline.executor.wall.black_box import BlackBox
from paceline.report import formats, summary
from paceline.report.live import LiveView, live_view

#: Examples per step by default, if the data do not come in batches.
_BATCH_SIZE = 32
#: Options about the data that a study remembers as part of its origin.
_OF_DATA = ("target", "validation_split")


def run(command: SearchCommand) -> None:
    """Run a search and print its result.

    Raises CommandInterrupted after Ctrl-C, with how to resume, and CommandFailed after printing if
    all trials failed.
    """
    with live_view(command.study, quiet=command.quiet) as view:
        stuck = partial(_stuck, command, view)
        # The wall must not watch a search that the user's file starts when it is loaded.
        box, BlackBox.current = BlackBox.current, None
        begun = None if box is None else box.begun
        tuner, call = prepare(_continuation(command, begun), view, stuck)
        BlackBox.current = box
        if box is not None:
            box.ends_at(None if call["timeout"] is None else time.time() + call["timeout"])
        try:
            tuner.search(**call)
        except KeyboardInterrupt:
            view.close()  # nothing is drawn into the line of JSON
            kept = tuner.summary()
            if command.as_json and kept:
                output.print_json_if_open(kept)
            raise output.CommandInterrupted(how_to_resume(kept, command)) from None
        except TrialHangError as error:
            stuck(error.what, True)
    result = tuner.summary()
    objective = "value" if view.latest is None else view.latest.objective
    text = summary.search_summary(result, objective, next_steps(command, call, result))
    if command.as_json:
        output.say_plain(text)
        output.print_json(result)
    else:
        output.print_result(text)
    best = result["best"] or result.get("pareto_front")
    if not best and result["n_trials"].get("failed", 0) > 0:
        trials = studies.command("trials", command.study, command.storage)
        raise output.CommandFailed(f"no trial completed. See the errors above, or run:\n  {trials}")


def _continuation(command: SearchCommand, begun: Mapping[str, Any] | None) -> SearchCommand:
    """The rest of a command that a process before this one has ``begun``, if there was one."""
    if begun is None:
        return command
    # The study exists, with the enqueued trials.
    tuner = {name: value for name, value in command.tuner.items() if name != "overwrite"}
    search = {**command.search, "n_trials": begun["n_trials"]}
    return replace(command, tuner=tuner, search=search, enqueue=None)


def _stuck(command: SearchCommand, view: LiveView, text: str, can_continue: bool) -> None:
    """Continue the search in a new process, because this one is stuck; or end this process.

    ``can_continue``: whether a new process would not get stuck in the same way. If this process
    belongs to another program, raise CommandFailed instead.
    """
    view.close()
    if can_continue:
        wall.start_again(text)
    resume = studies.command("resume", command.study, command.storage)
    text = f"{text}; finished trials are kept. Resume with:\n  {resume}"
    if restart.own:
        restart.end(text)
    raise output.CommandFailed(text)


def prepare(
    command: SearchCommand, view: LiveView, on_hang: Callable[[str, bool], None] | None = None
) -> tuple[Any, dict[str, Any]]:
    """Load the user's file and data; return the tuner, and the arguments of its ``search``."""
    from paceline.executor.process import StopSignal
    from paceline.tuner.arguments.initial_configurations import read_file

    os.environ.setdefault("KERAS_BACKEND", "jax")  # read once, when the user's file imports Keras
    starts = [] if command.enqueue is None else read_file(command.enqueue)
    view.status(f"loading {command.path.name}")
    user = user_file.load(command.path, command.function)
    if command.digest is not None and user.digest != command.digest:
        view.note(
            f"{command.path.name} has changed since study {command.study!r} began; the search "
            "continues as long as build(hp) declares the same hyperparameters"
        )
    if command.tuner.get("executor") == "ray":
        from paceline.executor.ray.session import on_cpu

        on_cpu()  # before JAX takes a device that a worker needs
    _find_devices(view)
    StopSignal.of_process().check()  # a signal may have been dropped while JAX was loaded
    view.status("loading the data")
    data = load_data(
        command.data, user, target=command.target, validation_split=command.validation_split
    )
    search = dict(command.search)
    if search.get("batch_size") is None:  # data sets have their own
        search.pop("batch_size", None)
        search |= {} if data.batched else {"batch_size": _BATCH_SIZE}
    command = replace(command, search=search)
    validation: dict[str, Any] = {"validation_data": data.validation_data}
    if command.search.get("folds"):
        view.note("folds are made of the training data; the validation data is not used")
        validation = {}
    elif data.note is not None:
        view.note(data.note)
    view.status("loading Keras")
    from paceline.tuner.arguments.constraints import of_command
    from paceline.tuner.tuner import Tuner

    constraints = of_command(command.constraints) if command.constraints else user.constraints
    tuner = Tuner(
        user.build,
        study=command.study,
        storage=command.storage,
        directory=str(studies.DIRECTORY),
        on_progress=view.update,
        on_note=view.note,
        on_hang=on_hang,
        _origin={
            "file": str(user.path),
            "function": user.function,
            "digest": user.digest,
            "data": None if command.data is None else datasets.portable_spec(command.data),
            **{name: value for name in _OF_DATA if (value := getattr(command, name)) is not None},
            **({} if data.encoding is None else {"encoding": data.encoding}),
            **({"constraints": list(command.constraints)} if command.constraints else {}),
            **{name: command.tuner[name] for name in OF_ORIGIN if name in command.tuner},
        },
        **({} if constraints is None else {"constraints": constraints}),
        **command.tuner,
    )
    if starts:
        tuner.enqueue(starts)
    continues, left = restart.inherited()
    now = datetime.now().astimezone()
    return tuner, {
        "x": data.x,
        "y": data.y,
        **({} if data.sample_weight is None else {"sample_weight": data.sample_weight}),
        **validation,
        **command.search,
        # Computed after loading, so that the time for loading counts towards a deadline.
        "timeout": (
            left if continues else arguments.seconds_to_run(command.timeout, command.deadline, now)
        ),
    }


def _find_devices(view: LiveView) -> None:
    """Let JAX choose its devices, after the user's file has run, which may choose some itself."""
    if os.environ.get("KERAS_BACKEND") != "jax":
        return  # the model trains in another framework: JAX must not claim the device
    view.status("finding the devices")
    from paceline.cli.devices import choose_devices

    choose_devices(view.note)


def load_data(
    spec: str | None,
    user: user_file.UserFile,
    *,
    target: str | None = None,
    validation_split: float | None = None,
) -> datasets.Dataset:
    """Load what ``--data`` names, or call ``data()`` of the user's file."""
    if spec is not None:
        return datasets.load(spec, target=target, validation_split=validation_split)
    if target is not None:
        raise UsageError(f"--target {target!r} needs a table. Use it with --data FILE.csv.")
    if user.data is None:
        raise UsageError(
            f"{user.path.name} has no data(), and --data is missing. Write `def data()` that "
            f"returns (x, y), (x_val, y_val), or use --data {datasets.FORMS}."
        )
    try:
        return datasets.from_function(user.data, user.path.name, validation_split=validation_split)
    except PacelineError:
        raise
    except Exception as error:
        raise DataError(
            f"{user.path.name}: data() raised {user_file.describe(error, user.path)}"
        ) from error


def how_to_resume(found: Mapping[str, Any], command: SearchCommand) -> str:
    """Return what to run after an interrupt; ``found`` is empty before the search began."""
    counts = found.get("n_trials")
    if counts is None:
        return "interrupted before the search began; nothing was written"
    kept = _finished(counts)
    resume = studies.command("resume", command.study, command.storage)
    # The search has printed how many trials are unfinished. The command is on its own line, so that
    # it can be copied from a narrow terminal.
    return f"{kept:,} finished trials are kept. Resume with:\n  {resume}"


def next_steps(
    command: SearchCommand, call: Mapping[str, Any], result: Mapping[str, Any]
) -> summary.Steps:
    """Return commands that are useful after a search, and what each does.

    ``call`` has the arguments of ``Tuner.search``; ``result`` is the summary.
    """

    def line(name: str, *more: str) -> str:
        return studies.command(name, command.study, command.storage, *more)

    steps = []
    if result["best"]:
        steps = [
            (line("best"), "this configuration again"),
            (line("export", "-o", "best.keras"), "its trained model"),
        ]
    if front := result.get("pareto_front"):
        number = str(front[0]["number"])
        steps = [
            (line("best"), "the Pareto front again"),
            (line("export", "--trial", number, "-o", "model.keras"), "the model of one of them"),
        ]
    steps += [(line("trials"), "every trial"), (line("report"), "a page of figures")]
    if rule := summary.rule_of(result):
        steps.append((line("resume", f"--{rule.replace('_', '-')}", "none"), "continue without it"))
        return steps
    counts = result["n_trials"]
    total = call.get("n_trials")
    unfinished = counts.get("running", 0)
    sampler = (result.get("sampler") or {}).get("name", command.tuner.get("sampler"))
    short = isinstance(total, int) and _finished(counts) < total
    # A search that had time and still ended before its last trial has tried every configuration. A
    # grid ends, too. In both cases "32 more trials" would find nothing to try.
    cut_off = unfinished > 0 or call.get("timeout") is not None
    if short and cut_off:
        steps.append((line("resume"), f"continue to {total:,} trials"))
        return steps
    if total is None and cut_off:  # only time has ended it
        steps.append((line("resume", "--timeout", f"{call['timeout']:.0f}s"), "as long again"))
        return steps
    if unfinished:  # the study knows the total that "+8" gave
        steps.append((line("resume"), f"continue {formats.count(unfinished, 'unfinished trial')}"))
    if cut_off or not (short or sampler == "grid"):
        steps.append((line("resume", "--trials", "+32"), "32 more trials"))
    return steps


def _finished(counts: Mapping[str, int]) -> int:
    return sum(count for state, count in counts.items() if state != "running")
