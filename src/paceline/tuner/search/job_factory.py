"""Makes a trial's job again from plain values, on another machine."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from paceline.data.inputs import OF_DATA
from paceline.executor.base import Job, JobSpec, SearchData, SearchOutlook
from paceline.executor.model_builder import ModelBuilder
from paceline.search_space import HyperParameters
from paceline.tuner.arguments.arguments import ARGUMENTS, SearchArguments
from paceline.tuner.search.members import BuiltTrial, job_of, other_models

#: Arguments of ``search`` that may be functions of hp, beside those of the data.
_NUMBERS = (*(name for name, spec in ARGUMENTS.items() if spec.by_hp), "class_weight")


@dataclass(frozen=True)
class TrialJobFactory:
    """Makes jobs of specs. It is sent to each machine once."""

    builder: ModelBuilder
    arguments: SearchArguments
    share_widths: bool | str  # as the argument of ``Tuner``
    outlook: SearchOutlook  # as of ``SearchContext``
    precision: str | None  # "float32", "bfloat16" or None
    # What decides the numbers of models in the process of the search.
    numbers: Mapping[str, Any] | None = None

    @property
    def data(self) -> SearchData:
        """What packs train and validate on."""
        data = self.arguments.pack_data
        assert data is not None
        return data

    @property
    def code_digest(self) -> str | None:
        """Digest of the code of ``build``; None without code."""
        return self.builder.code_digest

    def writing_below(self, here: Callable[[int, Path, str, bool], Path]) -> TrialJobFactory:
        """The same for a machine without the search's disk; ``here`` as ``MachineFolder.here``."""
        callbacks = self.arguments.callbacks
        if callbacks is None:
            return self
        return replace(self, arguments=replace(self.arguments, callbacks=callbacks.below(here)))

    def apart(self) -> tuple[dict[str, Any], TrialJobFactory]:
        """The user's functions by argument, and all else, to be sent one by one."""
        arguments = self.arguments
        of_data, reader = arguments.reader.apart()
        of_hp = {name: value for name in _NUMBERS if callable(value := getattr(arguments, name))}
        code = {"build": self.builder, **of_hp, **of_data}
        if arguments.callbacks is not None:
            code["callbacks"] = arguments.callbacks
        rest = replace(
            arguments,
            reader=reader,
            loaded=reader.read(HyperParameters()) if not of_data else None,
            fit={},
            callbacks=None,
            **dict.fromkeys(of_hp),
        )
        return code, replace(self, builder=None, arguments=rest)

    def together(self, code: dict[str, Any]) -> TrialJobFactory:
        """The inverse of ``apart``."""
        of_hp = {name: code[name] for name in _NUMBERS if name in code}
        of_data = {name: code[name] for name in (*OF_DATA, "class_weight") if name in code}
        of_hp = {name: value for name, value in of_hp.items() if name not in OF_DATA}
        reader = self.arguments.reader.together(of_data)
        loaded = self.arguments.loaded or reader.read(HyperParameters())
        arguments = replace(
            self.arguments,
            reader=reader,
            loaded=loaded,
            callbacks=code.get("callbacks"),
            **of_hp,
        )
        return replace(self, builder=code["build"], arguments=arguments)

    def job(self, spec: JobSpec) -> Job:
        """The job, its model just built; raises whatever ``build`` raises."""
        hparams, arguments = dict(spec.hparams), self.arguments

        def build(values: dict[str, Any], seed: int) -> Any:
            return self.builder(HyperParameters(values=dict(values)), seed)

        hp = HyperParameters(values=dict(hparams))
        model = self.builder(hp, spec.seed)
        _, inputs = arguments.asked(hp, model)
        built = BuiltTrial(model, spec.epochs, inputs, tuple(hp.parameters.values()))
        widths = other_models(
            partial(build, seed=spec.seed),
            hparams,
            built,
            self.share_widths,
            self.outlook,
            spec.trial * arguments.n_members,
        )
        return job_of(spec, built, arguments, partial(build, hparams), widths=widths)
