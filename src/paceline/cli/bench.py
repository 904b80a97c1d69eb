"""``paceline bench``: load the file and its data, measure, print the result."""

# Annotations are objects here: Typer would compile strings for all options at each start.

import inspect
import os
import sys
from typing import Annotated, Any

import typer

from paceline.cli import arguments, restart
from paceline.cli import output as terminal
from paceline.cli.arguments import timeout_seconds
from paceline.cli.options import (
    Data,
    Json,
    Models,
    Precision,
    TargetColumn,
    ValidationSplit,
    count_option,
)
from paceline.errors import UsageError

#: Options that ``--merge`` takes.
_WITH_MERGE = ("files", "merge", "output", "as_json", "quiet")


def bench(
    context: typer.Context,
    files: Models,
    data: Data = None,
    target: TargetColumn = None,
    validation_split: ValidationSplit = None,
    batch_sizes: Annotated[
        Any,
        typer.Option(
            metavar="N,N,...",
            parser=arguments.batch_sizes,
            help="Examples per step.",
            show_default="32,64,128,256,512,1024",
        ),
    ] = None,
    devices: Annotated[
        str | None,
        typer.Option(
            metavar="NAME,NAME,...",
            help="cpu, gpu, tpu: each in its own process.",
            show_default="the one a search would use",
        ),
    ] = None,
    keras_backends: Annotated[
        str | None,
        typer.Option(
            metavar="NAME,NAME,...",
            help="jax, tensorflow, torch: each in its own process; all but jax in Keras' fit.",
            show_default="jax",
        ),
    ] = None,
    mesh: Annotated[
        Any,
        typer.Option(
            metavar="N|auto",
            parser=arguments.device_count,
            help="Number of devices to compare with one device, by spreading trials and by "
            "splitting each batch over them; auto: all accelerators.",
        ),
    ] = "auto",
    parallel_trials: Annotated[
        Any,
        typer.Option(
            metavar="N,N,...",
            parser=arguments.slot_counts,
            help="Trials to train at once. One trial, and as many as a search would train, are "
            "always measured.",
            show_default="1,4,16",
        ),
    ] = None,
    measure_for: Annotated[
        Any,
        typer.Option(
            metavar="TIME",
            parser=lambda text: None if text == "none" else timeout_seconds(text, "--measure-for"),
            help="Stop measuring after this long: 90s, 5m, or none.",
        ),
    ] = "5m",
    hparams: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=VALUE",
            help="A hyperparameter's value; you may repeat the option.",
            show_default="the defaults",
        ),
    ] = None,
    precision: Precision = None,
    epochs: Annotated[
        int | None,
        count_option(help="Train N epochs at each batch size, and compare accuracy."),
    ] = None,
    objective: Annotated[
        str | None,
        typer.Option(metavar="[max:|min:]NAME", help="With --epochs: the metric to compare."),
    ] = None,
    scale_lr: Annotated[
        str | None,
        typer.Option(
            metavar="RULE",
            help="With --epochs: scale the learning rate with the batch size, linear or sqrt.",
        ),
    ] = None,
    target_value: Annotated[
        float | None,
        typer.Option(
            metavar="VALUE", help="With --epochs: show which batch size reaches this value first."
        ),
    ] = None,
    predict_trials: Annotated[
        int | None, count_option(help="Predict how long a search of N trials takes.")
    ] = None,
    predict_epochs: Annotated[int, count_option(help="Epochs of each trial of that search.")] = 10,
    predict_batch_size: Annotated[
        int | None,
        count_option(help="Batch size of that search.", show_default="the one measured first"),
    ] = None,
    predict_pruner: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            parser=lambda text: None if text == "none" else text,
            help="Pruner of that search, as for `search`.",
        ),
    ] = "none",
    workers: Annotated[
        int | None,
        count_option(help="Also predict the time on N Ray workers, and whether Ray is worth it."),
    ] = None,
    quota: Annotated[
        str | None,
        typer.Option(
            metavar="NAME=TIME,...",
            help="Predict how many sessions that search takes: gpu=30h,session=9h.",
        ),
    ] = None,
    merge: Annotated[
        bool,
        typer.Option(
            "--merge", help="Show several results as one: the FILEs are .json files of --output."
        ),
    ] = False,
    executor: Annotated[
        str, typer.Option(metavar="NAME", help="auto, or fit: measure only Keras' own fit.")
    ] = "auto",
    fit: Annotated[
        bool,
        typer.Option("--fit", help="Measure Keras' own fit at every batch size, not only at one."),
    ] = False,
    seed: Annotated[int, typer.Option(metavar="N", help="Seed of weights and data order.")] = 0,
    output: Annotated[
        str | None,
        typer.Option(
            "--output", "-o", metavar="FILE", help="Write a page (.html) or the records (.json)."
        ),
    ] = None,
    as_json: Json = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="Print no progress.")] = False,
) -> None:
    """Measure which batch size, how many trials at once and which plan train a model fastest."""
    options = dict(locals())  # before anything else has a name
    del options["context"]
    restart.take_large_pages()
    if output is not None:
        arguments.output_file(output, (".html", ".json"))
    if merge:
        from paceline.benchmark.presentation.result import merge as merged

        _check_nothing_measured(context)
        show(merged(files, terminal.say), output=output, as_json=as_json)
        return
    if len(files) > 1:
        raise UsageError(
            f"bench measures one FILE.py at a time, got {files[1]!r} too. To show several results "
            "as one, use --merge."
        )
    from paceline.cli import user_file

    path, function = user_file.split_target(files[0])
    path = user_file.find(path)
    options["hparams"] = arguments.hparam_values("--hparams", hparams or [])
    if devices is not None or keras_backends is not None:
        found = _elsewhere(devices, keras_backends, measure_for)
        show(found, output=output, as_json=as_json)
        return
    os.environ.setdefault("KERAS_BACKEND", "jax")  # read once, when the user's file imports Keras
    user = user_file.load(path, function)
    if os.environ["KERAS_BACKEND"] == "jax":
        from paceline.cli.devices import choose_devices

        choose_devices(terminal.say)
    from paceline.cli.running import load_data

    loaded = load_data(data, user, target=target, validation_split=validation_split)
    if loaded.batched:
        raise UsageError("data() must return arrays for bench, got data sets in batches")
    from paceline.benchmark.api import bench as measure
    from paceline.benchmark.own_process import HERE

    HERE.set(True)
    known = inspect.signature(measure).parameters.keys() - {"validation_split"}  # it is done
    result = measure(
        user.build,
        loaded.x,
        loaded.y,
        sample_weight=loaded.sample_weight,
        validation_data=loaded.validation_data,
        name=path.name,
        on_note=(lambda text: None) if quiet else terminal.say,
        **{name: value for name, value in options.items() if name in known},
    )
    show(result, output=output, as_json=as_json)


def _check_nothing_measured(context: typer.Context) -> None:
    """Refuse options of a measurement together with ``--merge``."""
    for name in context.params:
        source = context.get_parameter_source(name)
        if name not in _WITH_MERGE and source is not None and source.name != "DEFAULT":
            raise UsageError(
                f"--{name.replace('_', '-')} has no effect with --merge, which shows results as "
                "they were measured. Leave it out."
            )


#: Options that this process handles itself; the processes that measure do not get them.
_OURS = ("--devices", "--keras-backends", "--measure-for", "--output", "-o")


def _elsewhere(devices: str | None, backends: str | None, budget: float | None) -> Any:
    from paceline.benchmark.measure.subprocesses import measure, places

    def names(text: str | None) -> list[str] | None:
        return None if text is None else [part.strip() for part in text.split(",")]

    where = places(names(devices), names(backends))
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


def show(result: Any, *, output: str | None, as_json: bool) -> None:
    """Print a result, and write it to the file ``output`` unless that is None."""
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
        raise terminal.CommandInterrupted("interrupted; see the finished measurements above")
    if not any(run.measured for run in result.runs):
        raise terminal.CommandFailed("nothing could be measured; see the errors above")
