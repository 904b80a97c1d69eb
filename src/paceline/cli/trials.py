"""``paceline trials`` and ``best``: need neither JAX nor Keras."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from paceline.cli import arguments, studies
from paceline.cli import output as terminal
from paceline.cli.options import Json, Storage, StudyName
from paceline.errors import StudyError, UsageError
from paceline.report import formats

if TYPE_CHECKING:
    from paceline.study.trials.trial import Trial
    from paceline.study.view import StudyView

ROWS = 50  # of a table, by default


def trials(
    study: StudyName,
    storage: Storage = None,
    as_csv: Annotated[bool, typer.Option("--csv", help="Print CSV.")] = False,
    as_json: Json = False,
    where: Annotated[
        str | None,
        typer.Option(
            "--where",
            metavar="CONDITION",
            help='Print only matching trials: "lr<1e-3 and state=complete".',
        ),
    ] = None,
    sort: Annotated[
        str | None,
        typer.Option(
            "--sort",
            metavar="COLUMN",
            help="Sort by this column; value: the best first.",
            show_default="number",
        ),
    ] = None,
    reverse: Annotated[bool, typer.Option("--reverse", help="Reverse the order.")] = False,
    top: Annotated[
        int | None,
        typer.Option(
            "--top",
            metavar="N",
            min=1,
            help="Print the first N; without --sort, the best N.",
        ),
    ] = None,
    limit: Annotated[
        int | None,
        typer.Option(
            "--limit",
            metavar="N",
            min=1,
            help="Print at most N trials.",
            show_default="50; all with --csv or --json",
        ),
    ] = None,
    every: Annotated[bool, typer.Option("--all", help="Print all trials.")] = False,
) -> None:
    """Print the trials of a study."""
    from paceline.report import selection, tables

    limit = arguments.row_limit(top=top, limit=limit, every=every)
    if as_csv and as_json:
        raise UsageError("--csv and --json exclude each other. Use one of them.")
    view = studies.open_study(study, storage)
    if limit is None:
        limit = 0 if as_csv or as_json else ROWS
    chosen = selection.select(
        view.trials,
        where=where,
        sort="value" if top is not None and sort is None else sort,
        reverse=reverse,
        maximize=view.trials.direction != "minimize",
        objective=view.meta.get("objective"),
        objectives=view.objectives,
        directions=view.trials.directions,
    )
    shown = chosen[: limit or None]
    if as_json:
        terminal.print_json([tables.trial_record(trial, view.objectives) for trial in shown])
    elif as_csv:
        terminal.print_data(tables.to_csv(shown, view.objectives).removesuffix("\n"))
    else:
        terminal.print_result(_trials_text(view, chosen, shown, terminal.width()))


def _trials_text(
    study: StudyView, chosen: Sequence[Trial], shown: Sequence[Trial], width: int | None
) -> str:
    from paceline.report import tables

    best = study.trials.best
    marked = {best.number} if best is not None else set[int]()
    if study.several:
        marked = {trial.number for trial in study.trials.front}
    lines = [f"none of the {len(study.trials):,} trials matches"]
    if shown or not study.trials:
        text = tables.trials_table(shown, best=marked, width=width, objectives=study.objectives)
        lines = [text.removesuffix("\n"), *_failures(shown)]
    if any(trial.state == "pruned" for trial in shown):
        lines.append("pruned: stopped early")
    lines += _unfinished(study, shown)
    if study.several and marked:
        n_shown = sum(trial.number in marked for trial in shown)
        more = f"; {len(marked) - n_shown:,} more" if n_shown < len(marked) else ""
        lines.append(f"* on the Pareto front{more}: `paceline best {study.name}` lists it")
    elif best is not None and best in shown:
        lines.append(f"* best {studies.objective(study.meta)}")
    elif best is not None:
        value = formats.metric(best.value)
        lines.append(f"best {studies.objective(study.meta)}: {value}, trial {best.number}")
    if (left := len(chosen) - len(shown)) > 0:
        lines.append(f"{left:,} more trials: --limit N shows N, --all shows all")
    return "\n".join(lines)


def _unfinished(study: StudyView, trials: Sequence[Trial]) -> list[str]:
    """Explain unfinished trials that no search trains now."""
    from paceline.study.trials.trial import UNDER_WAY  # not loaded by --help

    if not any(trial.state in UNDER_WAY for trial in trials):
        return []
    if study.paused:
        return [f"the study is paused: `paceline unpause {study.name}` continues it"]
    if study.searched is False:
        return [
            "running: unfinished when the search stopped; "
            f"`paceline resume {study.name}` continues such trials"
        ]
    return []


def _failures(trials: Sequence[Trial]) -> list[str]:
    whys = ((trial, trial.error if trial.state == "failed" else trial.rejected) for trial in trials)
    return [f"trial {trial.number} {trial.state}: {why}" for trial, why in whys if why]


def best(study: StudyName, storage: Storage = None, as_json: Json = False) -> None:
    """Print a study's best configuration, or the Pareto front of several objectives."""
    from paceline.report import summary
    from paceline.study.trials.table import best_record, front_record

    view = studies.open_study(study, storage)
    found = best_trial(view, storage)
    if view.several:
        front = [front_record(trial, view.objectives) for trial in view.trials.front]
        if as_json:
            terminal.print_json(front)
        else:
            terminal.print_result(summary.front_text(front, view.objectives))
        return
    record = best_record(found, view.trials.ties)
    if as_json:
        terminal.print_json(record)
        return
    terminal.print_result(summary.best_text(record, studies.objective(view.meta)))


def best_trial(study: StudyView, storage: str | None) -> Trial:
    """Return the best trial, or one on the Pareto front; the error's advice names the storage."""
    best = study.best
    if best is None:
        resume = studies.command("resume", study.name, storage)
        some = any(trial.value is not None and trial.violates for trial in study.trials)
        lacks = "a value that violates no constraint" if some else "been validated for an epoch yet"
        n = formats.count(len(study.trials), "trial")
        raise StudyError(f"study {study.name!r}: none of {n} has {lacks}. Resume with: {resume}")
    return best
