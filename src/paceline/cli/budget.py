"""``paceline search --budget``: trials and epochs that end within a time."""

from __future__ import annotations

import time
from datetime import datetime
from typing import TYPE_CHECKING, Any

from paceline.cli import studies
from paceline.cli.search_command import SearchCommand
from paceline.errors import UsageError

if TYPE_CHECKING:
    from paceline.cli import datasets, user_file
    from paceline.report.live import LiveView

#: Arguments of ``Tuner`` that the pace of a search depends on.
_PACE = ("executor", "parallel_trials", "plan", "share_widths", "mesh")


def check_budget(
    budget: str,
    trials: int | str | None,
    timeout: float | None,
    deadline: datetime | None,
    *,
    executor: str,
    several: bool,
) -> None:
    """Refuse options that contradict a budget; None was not given.

    ``budget`` is as the user wrote it. ``several``: whether a trial has several members.
    """
    for option, value in (("--trials", trials), ("--timeout", timeout), ("--deadline", deadline)):
        if value is not None:
            raise UsageError(f"--budget {budget}: it chooses the trials; leave out {option}")
    if several:
        raise UsageError(
            f"--budget {budget}: what repeats and folds cost is not measured; give --trials and "
            "--timeout instead"
        )
    if executor == "ray":
        raise UsageError(
            f"--budget {budget}: it is measured on this machine alone, and --executor ray trains "
            "on others; give --trials and --timeout instead"
        )


def planned_search(
    command: SearchCommand,
    user: user_file.UserFile,
    data: datasets.Dataset,
    constraints: Any,
    view: LiveView,
) -> dict[str, Any]:
    """Return trials, epochs and timeout of a search with a budget, by measuring its beginning.

    ``constraints`` are as ``Tuner`` takes them, None without.

    Raises UsageError if the study is there already, if the search would be refused, or if measuring
    has taken all of the budget.
    """
    from paceline.benchmark.budget import plan_for_budget
    from paceline.study.view import StudyView

    assert command.budget is not None
    there = StudyView.open(command.study, storage=command.storage, directory=studies.DIRECTORY)
    if there is not None and not command.tuner.get("overwrite"):
        raise UsageError(
            f"--budget: study {command.study!r} is there already; `paceline resume` goes on with "
            "it, another --study begins a new one"
        )
    if data.batched:
        raise UsageError(
            "--budget: it is measured on arrays, and data() returns data sets in batches; give "
            "--trials and --timeout instead"
        )
    _check_search(command)
    view.status("measuring the beginning of the search, for the budget")
    began = time.perf_counter()
    plan = plan_for_budget(
        user.build,
        data.x,
        data.y,
        validation_data=data.validation_data,
        sample_weight=data.sample_weight,
        batch_size=command.search["batch_size"],
        epochs=command.search["epochs"],
        objective=command.tuner.get("objective"),
        constraints=constraints,
        pruner=command.tuner.get("pruner"),
        precision=command.tuner.get("precision"),
        seconds=command.budget,
        max_total_epochs=command.search.get("max_total_epochs"),
        seed=command.tuner.get("seed", 0),
        **{name: command.tuner[name] for name in _PACE if name in command.tuner},
    )
    view.note(plan.text)
    left = command.budget - (time.perf_counter() - began)
    return {"n_trials": plan.n_trials, "epochs": plan.epochs, "timeout": left}


def _check_search(command: SearchCommand) -> None:
    """Refuse what the search would refuse, before a part of the budget is spent."""
    from paceline.benchmark.budget import LEAST_EPOCHS
    from paceline.report.summary import STOPPING_RULES
    from paceline.study.pruners.pbt import PBT
    from paceline.study.pruners.pruners import check_pruner
    from paceline.study.samplers.earlier_studies import read_earlier_studies
    from paceline.study.storage.folder import at_home
    from paceline.tuner.arguments import several
    from paceline.tuner.arguments.arguments import check_each
    from paceline.tuner.search.stopping import StoppingRules

    given, epochs = command.tuner, command.search["epochs"]
    values = check_each({**command.search, "epochs": epochs or LEAST_EPOCHS})
    rules = StoppingRules(**{name: values[name] for name in STOPPING_RULES})
    rules.check(values["epochs"])
    if isinstance(given.get("objective"), list):
        several.check_rules(values)
    if isinstance(check_pruner(given.get("pruner")), PBT):
        rules.check_population()
    if names := given.get("warm_start_from"):
        own = command.study, at_home(command.storage)
        read_earlier_studies(names, studies.DIRECTORY.absolute(), own)
