"""Trials of a search in the session's own process that only the session can train, by ``fit``.

The search asks for them one by one, and answers each of their epochs, as it answers those of packs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from paceline.executor.base import Answer, EpochReport, JobSpec, Parts, SearchOutlook, Weights
from paceline.executor.fit import FitExecutor
from paceline.executor.model_builder import ModelBuilder
from paceline.executor.process import search_process
from paceline.executor.session.messages import RaisedError
from paceline.executor.session.process import JaxProcess
from paceline.program.initial_weights import changes_kept, values_kept
from paceline.search_space import HyperParameter, HyperParameters
from paceline.tuner.arguments.arguments import SearchArguments
from paceline.tuner.checkpoint.best_models import built_again
from paceline.tuner.checkpoint.trial_variables import apply_weights
from paceline.tuner.search.job_factory import TrialJobFactory
from paceline.tuner.search.timeouts import WhenStuck, run_with_timeout, shielded


@dataclass(eq=False, repr=False)
class SessionFits:
    """What the session does for trials of a search that runs in its process."""

    process: JaxProcess
    builder: ModelBuilder
    read: Callable[[], SearchArguments]  # reads the arguments of the search in this process
    precision: str | None
    note: Callable[[str], None]
    stuck: WhenStuck
    _made: tuple[FitExecutor, TrialJobFactory, float | None] | None = field(
        init=False, default=None
    )
    _weights: Callable[[], Weights] | None = field(init=False, default=None)

    @property
    def functions(self) -> dict[str, Callable[..., Any]]:
        """What the process calls, by name."""
        return {
            "build": self._build,
            "builds": lambda hparams, seed: self._build(hparams, seed) is not None,
            "fit": self._fit,
            "weights": self._fetch,
            "save_model": self._save_model,
        }

    def _build(self, values: dict[str, Any], seed: int) -> list[tuple[HyperParameter, Any]] | None:
        """What the user's build declares here, and the values; None where it fails, too."""
        hp = HyperParameters(values=values)
        try:
            with search_process(self.precision, memory=False):
                self.builder(hp, seed)
        except Exception:  # the user's code may raise anything
            return None
        return [(each, hp.values.get(each.name)) for each in hp.space]

    def _fit(self, spec: JobSpec) -> tuple[RaisedError | None, bytes]:
        """Trains a job; returns what it failed with, and what the user's functions have changed."""
        errors: list[BaseException] = []

        def train() -> None:
            fit, factory, seconds = self._made = self._made or self._make()
            fit.submit(factory.job(spec))
            what = f"trial_timeout: its training had not ended after {seconds or 0:g} s"
            run_with_timeout(
                seconds,
                lambda: fit.advance(self._report, lambda: False, lambda _, why: errors.append(why)),
                what,
                lambda text: self.stuck(f"trial {spec.trial}: {text}", False),
            )

        try:
            with search_process(self.precision, memory=False):
                train()
        except Exception as error:
            errors.append(error)
        finally:
            self._weights = None
        return RaisedError.of(errors[0]) if errors else None, self.process.returned()

    def _make(self) -> tuple[FitExecutor, TrialJobFactory, float | None]:
        arguments = self.read()
        fit = FitExecutor(arguments.fit, batched=arguments.loaded.batched, note=self.note)
        factory = TrialJobFactory(self.builder, arguments, False, SearchOutlook(), self.precision)
        return fit, factory, arguments.trial_timeout

    def _report(self, report: EpochReport) -> Answer:
        self._weights = report.weights
        with shielded():
            return self.process.reply(replace(report, weights=None))

    def _fetch(self) -> Weights:
        assert self._weights is not None
        return self._weights()

    def _save_model(
        self,
        trial: tuple[Mapping[str, Any], int, Any],
        weights: Parts,
        path: Path,
        method: str,
    ) -> RaisedError | None:
        """Saves a trial's model, by a method of Keras'; returns what that failed with."""
        try:
            with search_process(self.precision, memory=False), changes_kept():
                model = built_again(self.builder, *trial)
                with values_kept(model):
                    apply_weights(model, weights)
                    getattr(model, method)(path)
        except Exception as error:  # the user's class may have no configuration
            return RaisedError.of(error)
        return None


@dataclass(frozen=True)
class ModelOfSession:
    """A trial's model that only the session can build; it is saved as Keras saves models."""

    ask: Callable[..., Any]
    trial: tuple[Mapping[str, Any], int, Any]  # hparams, seed, shapes of a batch
    weights: Parts

    def save(self, path: Path) -> None:
        """As the method of ``keras.Model``."""
        self._save(path, "save")

    def save_weights(self, path: Path) -> None:
        """As the method of ``keras.Model``."""
        self._save(path, "save_weights")

    def _save(self, path: Path, method: str) -> None:
        failed = self.ask("save_model", self.trial, self.weights, path, method)
        if failed is not None:
            raise failed.again()
