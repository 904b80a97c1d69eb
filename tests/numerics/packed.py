"""Trains a zoo case in packs, the way a search does, without a study."""

from __future__ import annotations

import warnings
from dataclasses import dataclass, field
from typing import Any
from unittest import mock

import numpy as np

import zoo
from paceline.data.arrays import ArrayData, prepare, split
from paceline.executor.base import Answer, EpochReport, Job, PackOptions, SearchData
from paceline.executor.local import LocalExecutor
from paceline.executor.model_builder import ModelBuilder
from paceline.executor.process import random_state_kept
from paceline.program import compile as compiling
from paceline.search_space import HyperParameters


@dataclass
class Packed:
    """What came of the trials of a case, by trial number."""

    history: dict[int, dict[str, list[float]]] = field(default_factory=dict)
    weights: dict[int, list[list[np.ndarray]]] = field(default_factory=dict)
    counts: dict[str, int] = field(default_factory=dict)
    plans: set[str] = field(default_factory=set)
    programs: set[str | None] = field(default_factory=set)


def data_of(case: zoo.Case) -> tuple[ArrayData, ArrayData | None]:
    """A case's data as ``Tuner.search`` prepares it."""
    fit = dict(case.fit)
    train = prepare(*case.data(), class_weight=fit.pop("class_weight", None), allow_nan=True)
    fraction = fit.pop("validation_split", None)
    assert not fit, f"the packs' tests know nothing of {sorted(fit)}"
    if fraction:
        return split(train, fraction)
    return train, None if case.val_data is None else prepare(*case.val_data(), allow_nan=True)


#: Taken before a test has the lowest level: that compiles fastest, and decides about speed only.
LEVEL_OF_USERS = compiling._QUICK


def train_packed(
    case: zoo.Case, seeds: list[int], *, as_users: bool = False, **executor: Any
) -> Packed:
    """Trains one trial per entry of ``case.hparams``, seeded from ``seeds``, all in packs.

    Args:
        case: the case.
        seeds: of the trials.
        as_users: compile as for users, not as fast as possible.
        **executor: attributes of ``PackOptions``.
    """
    if as_users:
        with mock.patch.object(compiling, "_QUICK", LEVEL_OF_USERS):
            return train_packed(case, seeds, **executor)
    train, validation = data_of(case)
    build = ModelBuilder(case.build)
    local = LocalExecutor(SearchData(train, validation, shuffle=False), PackOptions(**executor))
    packed = Packed()

    def failed(number: int, error: BaseException) -> None:
        raise error

    def report(epoch: EpochReport) -> Answer:
        history = packed.history.setdefault(epoch.number, {})
        for name, value in epoch.logs.items():
            history.setdefault(name, []).append(value)
        trainable, non_trainable = epoch.weights()
        packed.weights.setdefault(epoch.number, []).append([*trainable, *non_trainable])
        packed.programs.add(epoch.program)
        return "continue"

    try:
        with random_state_kept(), warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="Explicitly requested dtype int64")
            for number, (hparams, seed) in enumerate(zip(case.hparams, seeds, strict=True)):
                model = build(HyperParameters(values=hparams), seed)
                local.demand.expected = len(seeds) - number
                local.submit(
                    Job(number, seed, case.epochs, case.batch_size, model, rebuild=lambda: None)
                )
            while local.busy:
                local.advance(report, lambda: False, failed)
        packed.counts = local.program_counts()
        packed.plans = local.plans
    finally:
        local.close()
    return packed
