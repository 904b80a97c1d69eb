"""``paceline export`` and ``ensemble``: write trained models."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from paceline.cli import arguments, studies
from paceline.cli import output as terminal
from paceline.cli.options import Quiet, Storage, StudyName
from paceline.cli.trials import best_trial
from paceline.errors import StudyError, UsageError
from paceline.report import formats

if TYPE_CHECKING:
    from paceline.study.trials.trial import Trial
    from paceline.study.view import StudyView


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
            metavar="N",
            min=0,
            help="Write the model of this trial, if the search kept it.",
            show_default="the best",
        ),
    ] = None,
    storage: Storage = None,
) -> None:
    """Write a study's best model, trained, as a Keras file or as a bundle."""
    if output is None and bundle is None:
        output = "best.keras"
    model = output and arguments.output_file(output, (".keras",))
    zipped = bundle and arguments.output_file(bundle, (".zip",), "--bundle")
    view = studies.open_study(study, storage)
    best = _chosen(view, storage, trial)
    saved = _model_file(view, best)
    what = f"trial {best.number}, {_values(view, best)}"
    if best.state != "complete":
        what += f", {formats.reached(best.state, best.epochs, best.best_epoch)}"
    lines = []
    if model:
        with _written(model, "-o") as part:
            shutil.copyfile(saved, part)
        lines += model_lines(model, f"the model of {what}", view.meta)
        lines += _write_encoding(model, view.meta)
    if zipped:
        lines += [f"{zipped}: {what}", *_write_bundle(zipped, view, best, saved)]
    terminal.print_result("\n".join(lines))


def ensemble(
    study: StudyName,
    models: Annotated[
        int,
        typer.Option(
            "--models",
            metavar="K",
            min=1,
            help="Average at most K models; a model may count several times.",
        ),
    ] = 5,
    output: Annotated[
        str,
        typer.Option("--output", "-o", metavar="FILE.keras", help="Where to write the model."),
    ] = "ensemble.keras",
    storage: Storage = None,
    quiet: Quiet = False,
) -> None:
    """Build an ensemble that averages the models saved by `paceline search --keep-best N`."""
    from paceline.cli.running import prepare
    from paceline.cli.search_command import command_of
    from paceline.report.live import live_view

    target = arguments.output_file(output, (".keras",))
    command = command_of(study, storage, quiet=quiet)
    if command.search.get("folds"):
        raise UsageError(
            f"study {study!r} has folds, and an ensemble needs validation data that no fold was "
            "trained on. Pass some to tuner.ensemble(validation_data=...) in Python."
        )
    with live_view(study, quiet=quiet) as view:
        tuner, call = prepare(command, view)
        if not isinstance(call["validation_data"], tuple):
            raise UsageError(
                "data() must return arrays for an ensemble, got a data set in batches. Pass arrays "
                "to tuner.ensemble(validation_data=...) in Python."
            )
        view.status("combining models")
        model = tuner.ensemble(models, validation_data=call["validation_data"])
        with _written(target, "-o") as part:
            model.save(part)
    lines = model_lines(target, "the ensemble", studies.study_meta(study, storage))
    terminal.print_result("\n".join(lines))


def _write_encoding(model: Path, meta: Mapping[str, Any]) -> list[str]:
    """Write how a table was encoded, to a file next to the model; return a line about it."""
    from paceline.tuner.after.bundle import encoding_of

    encoding = encoding_of(meta)
    if encoding is None:
        return []
    target = model.with_suffix(".encoding.json")
    with _written(target, "-o") as part:
        part.write_text(json.dumps(encoding, indent=2) + "\n", encoding="utf-8")
    return [f"{target}: the columns and categories of the table, in the order of the inputs"]


def _write_bundle(target: Path, study: StudyView, best: Trial, saved: Path) -> list[str]:
    """Write a bundle; return lines with its content and how to use it."""
    from shlex import quote

    from paceline.tuner.after.bundle import write_bundle

    with _written(target, "--bundle") as part:
        manifest = write_bundle(part, study, best, saved, studies.DIRECTORY / study.name)
    folder = quote(str(target.with_suffix("")))
    missing = [module for module in manifest["modules"] if f"{module}.py" not in manifest["files"]]
    lines = [f"  {', '.join([*manifest['files'], 'manifest.json'])}"]
    if missing:
        lines.append(f"  the model needs {', '.join(missing)}, too: put it next to predict.py")
    return [
        *lines,
        "Use it here or on another machine, in a new environment:",
        f"  python -m zipfile -e {quote(str(target))} {folder}",
        f"  python -m venv {folder}/env",
        f"  {folder}/env/bin/pip install -r {folder}/requirements.txt",
        f"  {folder}/env/bin/python {folder}/predict.py DATA.npy",
    ]


def _chosen(study: StudyView, storage: str | None, number: int | None) -> Trial:
    """Return the trial of a number; without one the best trial."""
    if number is not None:
        return study.trials.by_number(number)
    best = best_trial(study, storage)
    if study.several:
        front = study.trials.front
        raise StudyError(
            f"study {study.name!r} has no single best trial, because it has the objectives "
            f"{', '.join(study.objectives)}. Choose one on the Pareto front: --trial "
            f"{' or '.join(str(each.number) for each in front[:20])}"
        )
    return best


def _values(study: StudyView, trial: Trial) -> str:
    if not trial.values:
        return f"{studies.objective(study.meta)} {formats.metric(trial.value)}"
    pairs = zip(study.objectives, trial.values, strict=True)
    return ", ".join(f"{name} {formats.objective(name, value)}" for name, value in pairs)


def _model_file(study: StudyView, best: Trial) -> Path:
    from paceline.tuner.checkpoint.best_models import find_saved

    folder = studies.DIRECTORY / study.name
    path = find_saved(folder, study.meta.get("id", ""), best.number, best.value)
    if path is None or path.suffix != ".keras":
        raise StudyError(
            f"the model of trial {best.number} is missing in {folder / 'best'}, or was changed. A "
            "search writes models at its end, and sometimes earlier. Run the command in the folder "
            "where the search ran. Or train the model again: "
            "build(paceline.HyperParameters(values=...)) with the values of `paceline best`."
        )
    return path


@contextmanager
def _written(target: Path, option: str) -> Iterator[Path]:
    """A block that writes to another path, which then replaces the file that ``option`` names."""
    from paceline.program.files import written_atomically

    try:
        with written_atomically(target) as part:
            yield part
    except OSError as error:
        raise UsageError(
            f"{option} {target} cannot be written: {error.strerror or error}"
        ) from error


def model_lines(model: Path, what: str, meta: Mapping[str, Any]) -> list[str]:
    """Return lines with the content of a model's file, and how to load it."""
    from paceline.tuner.after.bundle import load_lines

    head = f"{model}: {what}. Load it in Python:"
    return [head, *(f"  {line}" for line in load_lines(str(model), meta))]
