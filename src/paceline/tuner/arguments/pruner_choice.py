"""``pruner="auto"``: the pruner that a study has, or the one that the rules choose for it.

It is also what a search without a pruner gets whose end is a time: the time is better spent on good
trials. The choice is made once. It is stored in the study, and later searches take it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from paceline.errors import UsageError
from paceline.study.objectives import Objective
from paceline.study.pruners.asha import ASHA
from paceline.study.pruners.pruners import check_pruner, pruner_text
from paceline.study.samplers.samplers import strategy_of
from paceline.study.storage.storage import StudyStorage
from paceline.tuner.arguments.arguments import SearchArguments
from paceline.tuner.arguments.config import TunerConfig

if TYPE_CHECKING:
    from paceline.study.objectives import Objectives
    from paceline.tuner.search.first_build import FirstBuild

#: Epochs of a trial from which stopping early saves something.
LEAST_EPOCHS = 4
#: Pruners that compare trials after their first epoch, besides ASHA.
_EARLY = ("median", "percentile", "hyperband")
#: Share of the initial values in moving averages from which validation says little of a trial.
_FAR_OFF = 0.1
#: A momentum that is often set in the place of Keras' own, 0.99.
_USUAL = 0.9


def rule_of(given: Any) -> str:
    """What decides the pruner, by the argument of ``Tuner``; see ``TunerConfig.pruner_rule``."""
    if given is None:
        return "by time"
    return "auto" if isinstance(given, str) and given == "auto" else "given"


def with_chosen_pruner(
    config: TunerConfig,
    arguments: SearchArguments,
    objective: Objective | Objectives,
    note: Callable[[str], None],
) -> TunerConfig:
    """The arguments of a tuner whose pruner was not given, with the one that is meant."""
    stored = StudyStorage.of(config.storage, config.study, config.directory).load(config.study)
    if stored is not None and len(stored.trials):
        before, reason = stored.meta.get("pruner"), stored.meta.get("pruner_reason")
        if reason is not None and (pruner := _again(before)) is not None:
            note(f'pruner: "auto" keeps {before}: {reason}')
            return replace(config, pruner=pruner, pruner_reason=reason)
        if config.pruner_rule == "by time":
            return config  # its trials have none, and may continue from a checkpoint
    if config.pruner_rule == "by time" and arguments.timeout is None:
        return config
    why_not, n_epochs = _why_not(config, arguments, objective)
    if why_not is not None:
        if config.pruner_rule == "auto":
            note(f'pruner: "auto" chose none: {why_not}')
        return config
    reason = f"trials have {n_epochs} epochs"
    if arguments.timeout is not None:
        reason = f"time ends the search, and {reason}"
    pruner = ASHA()
    note(
        f'pruner: "auto" chose {pruner_text(pruner)}: {reason} (to train all trials to their end, '
        'use pruner="none")'
    )
    return replace(config, pruner=pruner, pruner_reason=reason)


def note_on_averages(
    config: TunerConfig,
    arguments: SearchArguments,
    found: FirstBuild,
    objective: Objective | Objectives,
) -> str | None:
    """A note where trials are compared while their moving averages are far from right; else None.

    ``found`` is the first model. Validation uses these averages, so it ranks trials by noise.
    """
    pruner, freq = config.pruner, arguments.validation_freq
    first = 0 if callable(arguments.initial_epoch) else int(arguments.initial_epoch)
    epochs = None if callable(arguments.epochs) else int(arguments.epochs) - first
    if isinstance(pruner, ASHA):
        rung = pruner.min_epochs
    elif isinstance(pruner, str) and pruner.startswith(_EARLY):
        # They compare at the first value.
        rung = _validated(freq, first, 1) or 0
    else:
        return None  # others compare later, or nobody can tell when
    of_validation = isinstance(objective, Objective) and objective.name.startswith("val_")
    steps, momentum = rung * found.steps, found.momentum
    if not of_validation or not steps or not 0 < momentum < 1 or momentum**steps < _FAR_OFF:
        return None
    hints = []
    if _USUAL**steps < _FAR_OFF:
        hints.append(f"set momentum={_USUAL} in build")
    enough = math.ceil(math.log(_FAR_OFF) / math.log(momentum) / found.steps)
    enough = _validated(freq, first, enough) or enough
    with suppress(UsageError):  # trials have no such rung
        later = ASHA(enough)
        if epochs is not None:
            later.check(epochs)
        later.check_validated(epochs, freq, first)
        hints.append(f'pass pruner="asha:{enough}"')
    hint = ", or ".join(hints or ['pass pruner="none"'])
    return (
        f"pruner: it compares trials after {steps} steps, when BatchNormalization (momentum "
        f"{momentum:g}) still has {momentum**steps:.0%} of its initial averages. "
        f"{hint[0].upper()}{hint[1:]}"
    )


def _validated(freq: int | list[int], first: int, least: int) -> int | None:
    """The number of trained epochs, ``least`` or more, after which validation comes first.

    None: none comes. ``freq`` also counts the ``first`` epochs, which are not trained.
    """
    if isinstance(freq, int):
        return -(-(first + least) // freq) * freq - first
    return next((epoch - first for epoch in freq if epoch - first >= least), None)


def _again(text: Any) -> Any:
    """The pruner that a study has stored; None if the text names none."""
    try:
        return check_pruner(text)
    except UsageError:
        return None


def _why_not(
    config: TunerConfig, arguments: SearchArguments, objective: Objective | Objectives
) -> tuple[str | None, int]:
    """Why trials are better trained to their end, and their epochs; None if they are not."""
    if not isinstance(objective, Objective):
        return "there are several objectives", 0
    if not strategy_of(config.sampler).resumable:
        return "a Searcher decides", 0
    if arguments.n_members > 1:
        return "trials have repeats or folds", 0
    if callable(arguments.epochs) or callable(arguments.initial_epoch):
        return "epochs depend on hp", 0
    n_epochs = int(arguments.epochs) - int(arguments.initial_epoch)
    if n_epochs < LEAST_EPOCHS:
        return f"trials have {n_epochs} epochs", n_epochs
    if config.executor == "fit" or arguments.why_fit is not None:
        return "trials train in Keras' fit, where they cannot be paused", n_epochs
    if objective.name.startswith("val_") and arguments.validation_freq != 1:
        return "some epochs are not validated", n_epochs
    return None, n_epochs
