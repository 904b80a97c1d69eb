"""``sampler="auto"``: the sampler that a study has, or the one that the rules choose for it.

The choice is made once. It is stored in the study, and every later search on the study takes it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from paceline.report import formats
from paceline.search_space import HyperParameters
from paceline.search_space.parameter import one_value_apart
from paceline.study.objectives import Objective
from paceline.study.pruners.pbt import PBT
from paceline.study.samplers.auto import SamplerChoice, SearchOutline, choose_sampler, is_name
from paceline.study.storage.storage import StudyStorage
from paceline.tuner.arguments.arguments import SearchArguments
from paceline.tuner.arguments.config import TunerConfig
from paceline.tuner.search.first_build import FirstBuild, built_with_all
from paceline.tuner.search.timeouts import run_with_timeout

if TYPE_CHECKING:
    from paceline.study.objectives import Objectives


def with_chosen_sampler(
    config: TunerConfig,
    arguments: SearchArguments,
    first_build: FirstBuild,
    objective: Objective | Objectives,
    note: Callable[[str], None],
) -> TunerConfig:
    """The arguments of a tuner with a sampler in the place of "auto"; writes nothing."""
    stored = StudyStorage.of(config.storage, config.study, config.directory).load(config.study)
    before = None if stored is None else stored.meta.get("sampler")
    if stored is not None and is_name(before):
        reason = stored.meta.get("sampler_reason")
        reason = formats.visible(reason) if isinstance(reason, str) else "the study began with it"
        note(f'sampler: "auto" keeps {before}: {reason}')
        return replace(config, sampler=before, sampler_reason=reason)
    n_before = 0 if stored is None else len(stored.trials)
    outline = SearchOutline(
        parameters=(),
        n_trials=arguments.settled(n_before).n_trials,
        n_objectives=1 if isinstance(objective, Objective) else len(objective.names),
        constrained=bool(config.constraints),
        learns=bool(config.warm_start_from),
        may_end_early=arguments.timeout is not None or arguments.stopping is not None,
        population=isinstance(config.pruner, PBT),
    )
    choice = _choice(config, arguments, first_build.hp, outline)
    if before is not None:
        note(
            f"sampler: study {config.study!r} was searched with {formats.visible(str(before))}, "
            'which "auto" cannot recreate, so it chooses a sampler by its rules'
        )
    note(f'sampler: "auto" chose {choice.sampler}: {choice.reason}')
    return replace(config, sampler=choice.sampler, sampler_reason=choice.reason)


def _choice(
    config: TunerConfig, arguments: SearchArguments, first: HyperParameters, outline: SearchOutline
) -> SamplerChoice:
    """Chooses by the space that models show which differ from the first one in one value each.

    A hyperparameter that is declared under an ``if`` shows only in a model that takes that branch.
    No model is built where none could change the choice.
    """
    shown, names = dict(first.parameters), set(first.parameters)
    conditional = any(each.conditions for each in first.space)
    looks = deque(one_value_apart(shown.values(), first.hparams))
    while True:
        so_far = replace(outline, parameters=shown.values(), conditional=conditional)
        choice = choose_sampler(so_far)
        if choice.sampler == "tpe" or not looks:  # which no further hyperparameter changes
            return choice
        hp, built = HyperParameters(looks.popleft()), False
        with suppress(Exception):  # a trial that fails will say why
            run_with_timeout(
                arguments.trial_timeout,
                partial(built_with_all, config.builder, arguments, hp, config.seed),
                "trial_timeout: a model was not ready in time",
            )
            built = True
        new = {name: each for name, each in hp.parameters.items() if name not in shown}
        conditional |= any(each.conditions for each in hp.space) or bool(new)
        conditional |= built and set(hp.parameters) != names
        shown |= new
        looks.extend(one_value_apart(new.values(), hp.hparams))
