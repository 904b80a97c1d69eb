"""Makes a trial's job again from plain values, on another machine."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

from paceline.executor.base import Job, JobSpec, SearchData
from paceline.executor.model_builder import ModelBuilder
from paceline.search_space import HyperParameters
from paceline.tuner.arguments import SearchArguments
from paceline.tuner.members import BuiltTrial, job_of, other_models


@dataclass(frozen=True)
class TrialRecipe:
    """Makes jobs of specs. It is sent to each machine once.

    Attributes:
        builder: Builds models.
        arguments: The arguments of the search.
        widths: As the argument of ``Tuner``.
        family_rules: The rules by which trials share programs.
        precision: "float32", "bfloat16" or None, as the argument of ``Tuner``.
    """

    builder: ModelBuilder
    arguments: SearchArguments
    widths: str
    family_rules: int
    precision: str | None

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

    def job(self, spec: JobSpec) -> Job:
        """The job, its model just built; raises whatever ``build`` raises."""
        hparams, arguments = dict(spec.hparams), self.arguments

        def build(values: dict[str, Any], seed: int) -> Any:
            return self.builder(HyperParameters(values=dict(values)), seed)

        hp = HyperParameters(values=dict(hparams))
        model = self.builder(hp, spec.seed)
        # Functions of hp declare hyperparameters, in the order in which the search asks them.
        arguments.epochs_for(hp)
        inputs = arguments.inputs_for(hp, model)
        if arguments.callbacks is not None:
            arguments.callbacks.ask(hp)
        built = BuiltTrial(model, spec.epochs, inputs, tuple(hp.parameters.values()))
        widths = other_models(
            partial(build, seed=spec.seed), hparams, built, self.widths, self.family_rules
        )
        return job_of(spec, built, arguments, partial(build, hparams), widths=widths)
