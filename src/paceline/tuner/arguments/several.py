"""What a search with several objectives cannot do, said before anything is built."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from paceline.errors import StudyError, UsageError
from paceline.study.objectives import named_objective
from paceline.study.pruners.pbt import PBT
from paceline.study.samplers.samplers import check_several

if TYPE_CHECKING:
    from paceline.study.objectives import Objectives
    from paceline.tuner.arguments.arguments import SearchArguments
    from paceline.tuner.arguments.config import TunerConfig

_ONE = "use one objective"


def check_tuner(objective: Sequence[Any], config: TunerConfig) -> Any:
    """Refuses arguments that mean nothing with several objectives; returns these, or the one."""
    if not objective:
        raise UsageError(
            'objective must not be empty. Pass for instance ["val_accuracy", "params"].'
        )
    if len(objective) == 1:
        return objective[0]
    check_several(config.sampler)
    if config.warm_start_from:
        raise UsageError(
            "warm_start_from supports only one objective. Leave it out, and enqueue the Pareto "
            "front of the earlier study: tuner.enqueue([trial.hparams for trial in "
            "earlier.pareto()])."
        )
    if isinstance(config.pruner, PBT):
        raise UsageError(
            f"pruner: PBT supports only one objective; {_ONE}. Or use asha or median, which use "
            "the first objective."
        )
    if config.cluster is not None:
        raise UsageError(
            f"executor: a cluster ({config.executor}) supports only one objective; {_ONE}, or "
            "leave executor out."
        )
    if config.keep_best != 1:
        raise UsageError(
            f"keep_best={config.keep_best} needs one objective. With several, the models of the "
            "Pareto front are kept. Leave keep_best out."
        )
    return list(objective)


def check_search(arguments: SearchArguments, objective: Sequence[Any]) -> None:
    """Refuses arguments of ``search`` that mean nothing with several objectives."""
    check_rules(vars(arguments))
    # The values of a trial are those of one epoch, the best of the first objective.
    if (freq := arguments.validation_freq) == 1:
        return
    first, *others = [named_objective(each)[0] or "" for each in objective]
    validated = [name for name in others if name.startswith("val_")]
    if validated and not first.startswith("val_"):
        raise UsageError(
            f'validation_freq: {freq} skips epochs, so the best epoch of "{first}", the first '
            f'objective, may have no "{validated[0]}". Put "{validated[0]}" first, or leave '
            "validation_freq out."
        )


def check_rules(arguments: Mapping[str, Any]) -> None:
    """Refuses arguments of ``search`` that go by the best trial."""
    for name in ("target_value", "patience_trials", "continue_best"):
        if arguments[name] is not None:
            raise UsageError(
                f"{name}={arguments[name]} needs a best trial, but several objectives have none. "
                f"Leave it out, or {_ONE}. n_trials, timeout and max_total_epochs also end a "
                "search."
            )


def check_alone(objectives: Objectives, study: str, *, alone: bool) -> None:
    """Refuses to measure latencies while another process trains trials of the same study."""
    if "latency" in objectives.costs and not alone:
        raise StudyError(
            f"study: another process is searching {study!r}, but Paceline measures latency only "
            "while nothing else trains. Wait for it, or use another study without latency."
        )
