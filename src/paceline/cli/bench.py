"""``paceline bench``: load the file and its data, measure, print the result."""

from __future__ import annotations

import os
import sys
from typing import Any

from paceline.cli import arguments, datasets, user_file
from paceline.cli import output as terminal
from paceline.cli.search import load_data
from paceline.errors import UsageError


def bench(
    files: list[str],
    *,
    merge: bool,
    data: str | None,
    batch_sizes: str | None,
    devices: str | None,
    keras_backends: str | None,
    mesh: str,
    slots: str | None,
    budget: str,
    hparams: list[str],
    precision: str | None,
    epochs: int | None,
    objective: str | None,
    scale_lr: str | None,
    target: float | None,
    plan_trials: int | None,
    plan_epochs: int,
    plan_batch_size: int | None,
    plan_pruner: str,
    workers: int | None,
    quota: str | None,
    executor: str,
    fit: bool,
    seed: int,
    output: str | None,
    as_json: bool,
    quiet: bool,
) -> None:
    """Check the arguments of ``paceline bench``, measure, and print the result.

    Raises:
        PacelineError: The input is wrong.
        Interrupted: The user pressed Ctrl-C; what had been measured was printed before.
        Failed: Every cell failed; the reasons were printed before.
    """
    if output is not None:
        arguments.output_file(output, (".html", ".json"), "give a name that ends in .html or .json")
    if merge:
        _check_nothing_measured(
            {
                "--data": data,
                "--batch-sizes": batch_sizes,
                "--devices": devices,
                "--keras-backends": keras_backends,
                "--mesh": None if mesh == "auto" else mesh,
                "--slots": slots,
                "--hparams": hparams or None,
                "--precision": precision,
                "--epochs": epochs,
                "--objective": objective,
                "--scale-lr": scale_lr,
                "--target": target,
                "--plan-trials": plan_trials,
                "--plan-batch-size": plan_batch_size,
                "--plan-pruner": None if plan_pruner == "none" else plan_pruner,
                "--workers": workers,
                "--quota": quota,
                "--fit": fit or None,
            }
        )
        show(merged(files), output=output, as_json=as_json)
        return
    if len(files) > 1:
        raise UsageError(
            f"{files[1]!r}: one FILE.py is measured at a time; --merge shows several results as one"
        )
    path, function = user_file.split_target(files[0])
    path = user_file.find(path)
    asked: dict[str, Any] = {
        "batch_sizes": None if batch_sizes is None else whole_numbers("--batch-sizes", batch_sizes),
        "mesh": device_count(mesh),
        "slots": None if slots is None else slot_counts(slots),
        "budget": None if budget == "none" else arguments.timeout_seconds(budget, "--budget"),
        "hparams": hparam_values(hparams),
        "precision": precision,
        "epochs": arguments.positive("--epochs", epochs),
        "objective": objective,
        "scale_lr": scale_lr,
        "target": target,
        "plan_trials": arguments.positive("--plan-trials", plan_trials),
        "plan_epochs": arguments.positive("--plan-epochs", plan_epochs),
        "plan_batch_size": arguments.positive("--plan-batch-size", plan_batch_size),
        "plan_pruner": None if plan_pruner == "none" else plan_pruner,
        "workers": arguments.positive("--workers", workers),
        "quota": quota,
        "executor": executor,
        "fit": fit,
        "seed": seed,
    }
    if devices is not None or keras_backends is not None:
        where = _places(devices, keras_backends)
        show(_elsewhere(where, asked["budget"]), output=output, as_json=as_json)
        return
    os.environ.setdefault("KERAS_BACKEND", "jax")  # read once, when the user's file imports Keras
    user = user_file.load(path, function)
    if os.environ["KERAS_BACKEND"] == "jax":
        from paceline.cli import device_fallback

        device_fallback.choose_devices(terminal.say)
    loaded: datasets.Dataset = load_data(data, user)
    from paceline.benchmark.api import bench as measure

    result = measure(
        user.build,
        loaded.x,
        loaded.y,
        sample_weight=loaded.sample_weight,
        validation_data=loaded.validation_data,
        name=path.name,
        notes=(lambda text: None) if quiet else terminal.say,
        **asked,
    )
    show(result, output=output, as_json=as_json)


def _check_nothing_measured(given: dict[str, Any]) -> None:
    """Refuse options of a measurement beside ``--merge``; those that were not given are None."""
    for option, value in given.items():
        if value is not None:
            raise UsageError(
                f"{option}: --merge shows results as they were measured; leave it out, or give it "
                "where they are measured"
            )


def _places(devices: str | None, backends: str | None) -> list[Any]:
    from paceline.benchmark.subprocesses import places

    def names(text: str | None) -> list[str] | None:
        return None if text is None else [part.strip() for part in text.split(",")]

    return places(names(devices), names(backends))


#: Options that this process handles itself; the processes that measure do not get them.
_OURS = ("--devices", "--keras-backends", "--budget", "--output", "-o")


def _elsewhere(where: list[Any], budget: float | None) -> Any:
    from paceline.benchmark.subprocesses import measure

    words = without_ours(sys.argv[1:])
    if len({place.backend for place in where}) > 1 and "--fit" not in words:
        words.append("--fit")  # backends are compared by Keras' fit, which all of them have
    return measure(where, words, budget, terminal.say)


def without_ours(words: list[str]) -> list[str]:
    """Return the words of the command line for a process that measures in one place."""
    found, left = [], iter(words)
    for word in left:
        if word in _OURS:
            next(left, None)
        elif word.partition("=")[0] not in _OURS and word not in ("bench", "--json"):
            found.append(word)
    return found


def device_count(text: str) -> int | None:
    """Read ``--mesh``: a number of devices, or ``auto``.

    Raises:
        UsageError: It is neither, or several numbers.
    """
    if text == "auto":
        return None
    count, *others = whole_numbers("--mesh", text)
    if others:
        raise UsageError(f"--mesh {text!r}: give one number of devices, such as 4, or auto")
    return count


def show(result: Any, *, output: str | None, as_json: bool) -> None:
    """Print a result, and write it to ``output`` if that is given.

    Raises:
        Interrupted: The user pressed Ctrl-C while something was measured.
        Failed: Nothing could be measured.
    """
    if output is not None:
        result.save(output)
        terminal.say(f"written: {output}")
    text = result.text(terminal.text_width())
    if as_json:
        terminal.say_plain(text)
        terminal.print_json(result.to_json())
    else:
        terminal.print_result(text)
    if any(run.interrupted for run in result.runs):
        raise terminal.Interrupted("interrupted; what had been measured until then is above")
    if not any(run.measured for run in result.runs):
        raise terminal.Failed("no cell could be measured; why is said above")


def merged(files: list[str]) -> Any:
    """Return several result files as one result."""
    from paceline.benchmark.result import merge

    return merge(files, terminal.say)


def whole_numbers(option: str, text: str) -> list[int]:
    """Read a list of numbers such as ``32,64,128``.

    Raises:
        UsageError: A part is no whole number of at least 1.
    """
    found = []
    for part in text.split(","):
        digits = part.strip()
        if not (digits.isascii() and digits.isdigit()) or int(digits) == 0:
            raise UsageError(
                f"{option} {text!r}: {part!r} is no whole number of at least 1; give 32,128,512"
            )
        found.append(int(digits))
    return found


def slot_counts(text: str) -> list[int | str]:
    """Read a list such as ``1,4,auto``.

    Raises:
        UsageError: A part is neither "auto" nor a whole number of at least 1.
    """
    return [
        part.strip() if part.strip() == "auto" else whole_numbers("--slots", part)[0]
        for part in text.split(",")
    ]


def hparam_values(pairs: list[str]) -> dict[str, Any]:
    """Read pairs such as ``lr=0.01``; a value is a number, true, false, or else text.

    Raises:
        UsageError: A pair has no ``=`` or no name.
    """
    found: dict[str, Any] = {}
    for pair in pairs:
        name, equals, text = pair.partition("=")
        if not equals or not name.strip():
            raise UsageError(f"--hparams {pair!r}: give NAME=VALUE, such as lr=0.01")
        found[name.strip()] = _value(text.strip())
    return found


def _value(text: str) -> Any:
    if text in ("true", "True", "false", "False"):
        return text.lower() == "true"
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text
