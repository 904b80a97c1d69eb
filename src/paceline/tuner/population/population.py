"""Population based training: copies of the best trials take the places of the worst.

``study/pruners/pbt.py`` says who is copied where. Here is how: the copy is a new trial with other
values of its hyperparameters. It begins with the variables of its source.
``tuner/population/effects.py`` finds out which hyperparameters may change.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import keras

from paceline.errors import StorageError, TrialRejected, UsageError
from paceline.executor.local import LocalExecutor
from paceline.executor.sharing.grouping import LocalGroup
from paceline.search_space import HyperParameters, Parameter
from paceline.study.proposer import BuildFailed, Proposal
from paceline.study.pruners.exploration import copy_seed, exploration_rng, explored
from paceline.study.pruners.pbt import Perturbation, PopulationPruner
from paceline.study.sharing.peers import ClaimLost
from paceline.study.trials.trial import UNDER_WAY, Trial
from paceline.tuner.population.effects import Effect, Effects
from paceline.tuner.search.checkpointer import SearchCheckpointer
from paceline.tuner.search.context import SearchContext
from paceline.tuner.search.events import TrialEvents
from paceline.tuner.search.launcher import TrialLauncher
from paceline.tuner.search.members import BuiltTrial

#: Attempts at other values for one copy, which the build may reject.
_ATTEMPTS = 10
#: Attempts, a second apart, to have a storage that other processes have joined number a copy.
_REFUSALS = 60
#: Callbacks of Keras' that set the learning rate of a trial, whatever it was.
_RATE_CALLBACKS = (keras.callbacks.ReduceLROnPlateau, keras.callbacks.LearningRateScheduler)


class Population:
    """Exchanges the trials of one search, whose pruner is a ``PopulationPruner``."""

    def __init__(
        self,
        context: SearchContext,
        events: TrialEvents,
        launcher: TrialLauncher,
        checkpointer: SearchCheckpointer,
    ) -> None:
        assert isinstance(context.pruner, PopulationPruner)
        arguments = context.arguments
        if context.study.peers.shared:
            raise UsageError(
                "pruner: pbt needs a study in a single process, but other processes are searching "
                f"study {context.study.name!r}. Use another study name."
            )
        if context.packs is None:
            raise UsageError(
                "pruner: pbt copies trials in packs, but trials of this search run in Keras' own "
                f"fit: {arguments.why_fit or 'their data are not arrays'}. Use another pruner."
            )
        if not isinstance(context.packs, LocalExecutor):
            raise UsageError(
                "pruner: pbt works on one machine, but executor='ray' trains on several. Leave "
                "executor out, or use another pruner, such as 'asha'."
            )
        if arguments.validation_freq != 1:
            raise UsageError(
                "pruner: pbt needs validation in each epoch, got "
                f"validation_freq={arguments.validation_freq!r}. Leave it out."
            )
        self._context, self._events = context, events
        self._pruner, self._packs = context.pruner, context.packs
        self._launcher, self._checkpointer = launcher, checkpointer
        self._study, self._trials = context.study, context.trials
        self._seed = context.study.seed
        self.effects = Effects(context.builder, arguments, context.packs.copies, self._seed)
        self._groups: dict[int, LocalGroup | None] = {}  # of trials, by number
        self._seen: set[str] = set()  # programs whose hyperparameters were looked at

    def check(self, hp: HyperParameters) -> None:
        """Checks before the first trial that there is something to explore, under these rules."""
        self._check_rules()
        effects = self._effects_of_branches(hp)
        for name in self._pruner.settings.hparams or ():
            if name not in effects:
                raise UsageError(
                    f"PBT: hparams has {name!r}, but build does not declare it, with its defaults "
                    f"or with one value changed. It declares {', '.join(effects) or 'none'}. Use "
                    f"one of these, or defaults with which build declares {name!r}."
                )
            if (why := effects[name].fixed) is not None:
                raise UsageError(
                    f"PBT: hparams has {name!r}, which cannot change while a trial trains: {why}."
                )
        free = [name for name, effect in effects.items() if self._may_change(name, effect)]
        fixed = [(n, e.fixed) for n, e in effects.items() if e.fixed is not None]
        kept = "; ".join(f"{name} keeps its first value: {why}" for name, why in fixed)
        if not free:
            raise UsageError(
                "pruner: pbt changes hyperparameters during training, but none can change: "
                f"{kept or 'build declares none'}. Use asha, which stops the worst trials."
            )
        # Declared in a scope that does not hold, or by builds with other values alone.
        scoped = {each.name for each in hp.space if each.conditions}
        unseen = scoped.union(*(each.declares for each in effects.values())) - effects.keys()
        if unseen and self._pruner.settings.hparams is None:
            free.append("and hyperparameters of other branches of build, if they can change")
        self._context.notes(f"pbt changes {', '.join(free)}" + (f"; {kept}" if kept else ""))

    def _effects_of_branches(self, hp: HyperParameters) -> dict[str, Effect]:
        """What each hyperparameter changes, by plain name; what is free in one branch is free.

        Models of other branches than that of the first build, ``hp``, are looked at only where it
        does not show enough. A callback that sets the learning rate too is refused.
        """
        callbacks = self._context.arguments.callbacks
        hparams = self.effects.usual(hp)
        found, rate = self._effects(hparams), self._rate_callbacks(hparams)
        self._check_rate(found, rate)
        watched = rate or (callbacks is not None and callbacks.names == "by hp")
        seen = {(self.effects.program(hparams), tuple(rate))}
        if not watched and not self._lacks(found):
            return found
        for branch in self.effects.branches(hp):
            rate = self._rate_callbacks(branch)
            if not rate and not self._lacks(found):
                continue
            program = self.effects.program(branch)
            if program is None or (program, tuple(rate)) in seen:
                continue
            seen.add((program, tuple(rate)))
            effects = self._effects(branch)
            self._check_rate(effects, rate)
            for name, effect in effects.items():
                if name not in found or effect.fixed is None:
                    found[name] = effect
            if not watched and not self._lacks(found):
                break
        return found

    def _check_rules(self) -> None:
        """Refuses rules that would end the search before all members have trained."""
        stopping, study = self._context.stopping, self._study
        n_trials = self._context.arguments.n_trials
        if stopping is None or n_trials is None:
            return
        n_new = max(study.watch.n_waiting, n_trials - self._trials.n_counted, 0)
        under_way = UNDER_WAY if study.resumed else ()
        open_trials = [trial for trial in study.trials if trial.state in under_way]
        stopping.check_population(n_new, [t for t in open_trials if t.continued_from is not None])

    def _lacks(self, found: Mapping[str, Effect]) -> bool:
        """Whether there may be more to change than these effects show."""
        free = {name for name, effect in found.items() if self._may_change(name, effect)}
        return not free or not free.issuperset(self._pruner.settings.hparams or ())

    def _rate_callbacks(self, hparams: Mapping[str, Any]) -> list[type]:
        """The classes of a trial's callbacks that set the learning rate."""
        callbacks = self._context.arguments.callbacks
        if callbacks is None:
            return []
        classes = callbacks.classes(HyperParameters(values=hparams))
        return [each for each in classes if issubclass(each, _RATE_CALLBACKS)]

    def _check_rate(self, effects: Mapping[str, Effect], rate: Sequence[type]) -> None:
        """Refuses callbacks, of these classes, that would overwrite the learning rate of a copy."""
        names = [n for n, each in effects.items() if each.sets_rate and self._may_change(n, each)]
        if names and rate:
            raise UsageError(
                f"pruner: pbt changes {names[0]!r}, but the callback {rate[0].__name__} would "
                "overwrite it. Leave the callback out, or list in PBT(hparams=[...]) the "
                "hyperparameters that may change."
            )

    def look(self) -> None:
        """Traces models like the trials that have begun, with other values.

        So what perturbations will change is an input of the programs, and nothing compiles again.
        """
        for number in list(self._trials.running):
            trial = self._study.trials.by_number(number)
            if trial.program_id is not None and trial.program_id not in self._seen:
                self._seen.add(trial.program_id)
                self._effects(trial.hparams)

    def exchange_if_due(self) -> None:
        """Replaces the worst members by copies, once all members are waiting."""
        launcher = self._launcher
        if not self._pruner.waits or self._trials.running:
            return
        if launcher.to_come != 0 and not launcher.over:
            return
        policy = self._context.policy
        if policy is not None and not policy.any:
            # A search that continues from a checkpoint makes the same copies again. From the
            # storage alone it could not.
            self._checkpointer.save()
        for perturbation in self._pruner.perturb(self._seed):
            self._copy(perturbation)

    def _effects(self, hparams: Mapping[str, Any]) -> dict[str, Effect]:
        """What each hyperparameter of a trial changes, by plain name."""
        names = {**self.effects.parameters(hparams), **hparams}  # what is declared comes first
        return {name: self.effects.of_others(hparams, name) for name in names}

    def _may_change(self, name: str, effect: Effect) -> bool:
        only = self._pruner.settings.hparams
        return effect.fixed is None and (only is None or name in only)

    def _copy(self, perturbation: Perturbation) -> None:
        """Begins a trial that takes the place of another."""
        source = self._study.trials.by_number(perturbation.source)
        seed = copy_seed(self._seed, perturbation.replaced, perturbation.epoch)
        build = self._copy_builder(source)
        proposer = self._study.proposer
        attempt, refused = 0, 0
        while True:
            hparams = dict(source.hparams)
            if attempt < _ATTEMPTS:
                hparams = self._explore(source, perturbation, attempt)
            try:
                proposal, hp, built = proposer.propose_continuation(
                    source.number, hparams, seed, build, perturbation.epoch
                )
                number = self._study.accept(proposal, hp)
                break
            except BuildFailed as failed:  # a constraint, values that the user rejects, a program
                if attempt == _ATTEMPTS:
                    self._launcher.begin_failed(failed, extra=True)
                    return
                proposer.reject(failed.proposal)
                attempt += 1
            except ClaimLost:
                # The others have to wait for this copy: who continues without it is another
                # population. Nothing is lost: the last checkpoint is from before the perturbation.
                refused += 1
                if refused == _REFUSALS:
                    raise StorageError(
                        "storage: it does not respond, but the population waits for the number of "
                        f"the copy of trial {source.number}. Check the storage, then resume the "
                        "search."
                    ) from None
                time.sleep(1.0)
        if self._launcher.start(number, built, extra=True) is not None:
            self._take_over(number, source, perturbation.epoch, built.model)

    def _copy_builder(self, source: Trial) -> Callable[[HyperParameters, Proposal], BuiltTrial]:
        """A function that builds a copy, and rejects one that has not the program of its source.

        Floats count as alike until then, and a program may depend on whether one is above a number.
        """
        # Now, since building draws from the random numbers that a copy's model begins with.
        group = self._group_of(source)

        def build(hp: HyperParameters, proposal: Proposal) -> BuiltTrial:
            built = self._launcher.build(hp, proposal)
            if group is not None and hp.hparams != source.hparams:
                widths = self._launcher.other_models(
                    proposal.number, proposal.seed, hp.hparams, built
                )
                if self._packs.copies.group_of(built.model, built.inputs, widths) is not group:
                    raise TrialRejected(f"its program differs from that of trial {source.number}")
            return built

        return build

    def _group_of(self, source: Trial) -> LocalGroup | None:
        """The group in which a trial would train; None if its model cannot be built again."""
        if source.number not in self._groups:
            shown = self._launcher.example(source.number)
            found = None if shown is None else self._packs.copies.group_of(*shown)
            self._groups[source.number] = found
        return self._groups[source.number]

    def _explore(self, source: Trial, perturbation: Perturbation, attempt: int) -> dict[str, Any]:
        """The values of a copy: those of the trial that it continues, some of them changed."""
        hparams = dict(source.hparams)
        settings = self._pruner.settings
        parameters = self.effects.parameters(hparams)
        stream = perturbation.replaced, perturbation.epoch, attempt
        learnt = self._learnt(parameters, source, perturbation, attempt)
        for name, parameter in parameters.items():
            value = learnt.get(name)
            if value is None:
                value = explored(parameter, hparams[name], settings, self._seed, *stream)
            if value == hparams[name]:
                continue
            effect = self.effects.of(source.hparams, name, value)
            if self._may_change(name, effect):
                hparams[name] = value
        return hparams

    def _learnt(
        self,
        parameters: Mapping[str, Parameter],
        source: Trial,
        perturbation: Perturbation,
        attempt: int,
    ) -> dict[str, Any]:
        """The values that a Gaussian process chooses, where that is asked for."""
        settings, epoch = self._pruner.settings, perturbation.epoch
        if settings.explore != "gp":
            return {}
        from paceline.study.pruners import bandit  # loads scikit-learn

        effects = self._effects(source.hparams)
        free = {
            name: parameter
            for name, parameter in parameters.items()
            if bandit.is_learnt(parameter) and self._may_change(name, effects[name])
        }
        if not free:
            return {}
        metric, trials = self._context.objective.name, self._study.trials
        intervals = bandit.gains_of(trials, metric, trials.sign, settings.perturbations(epoch + 1))
        reached = trials.sign * source.history[metric][epoch - 1]
        coming = bandit.PerturbationGain(
            epoch + settings.perturbation_interval, reached, 0.0, source.hparams
        )
        copies = [each.hparams for each in trials if each.continued_at == epoch]
        rng = exploration_rng(self._seed, perturbation.replaced, epoch, attempt)
        return bandit.chosen(free, intervals, coming, copies, rng) or {}

    def _take_over(self, number: int, source: Trial, epoch: int, model: Any) -> None:
        """Starts a submitted copy where its source is."""
        running, paused = self._trials.running[number], self._trials.paused[source.number]
        now = self._study.trials.by_number(number).hparams
        compose = self.effects.compose(source.hparams, now, model.non_trainable_variables)
        callbacks = None
        if running.fallback_reason is None:
            callbacks = self._packs.copies.begin(number, source.number, compose)
        if callbacks is None:
            why = f"trial {number} cannot take over the variables of trial {source.number}"
            self._events.training_failed(number, RuntimeError(why))
            return
        for callback in callbacks:
            if callback["lost"]:
                self._context.notes(
                    f"pbt: trial {number} cannot take over {', '.join(callback['lost'])} of the "
                    f"{callback['class']} of trial {source.number}, so they restart"
                )
        held = self._context.models.best.held(source.number)
        self._launcher.has_trained(number, epoch, source.history, paused.seconds, held)
