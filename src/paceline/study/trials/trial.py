"""A trial as users see it: a plain record, the same before and after a restart.

A field says beside its type how it is stored: ``trial_codec`` and ``storage.schema`` go by that.
"""

# ruff: noqa: RUF009 - ``_stored`` makes a field of a dataclass

from __future__ import annotations

import math
import statistics
from dataclasses import dataclass, field, fields
from typing import Annotated, Any, Literal

from msgspec import Meta

from paceline.records import BatchShape, Count, Real, Scalar, Text
from paceline.search_space import html

TrialState = Literal["complete", "pruned", "rejected", "failed", "running", "paused"]

#: The states of trials that have not ended.
UNDER_WAY = ("running", "paused")

#: The error of a trial that was running when its process ended.
INTERRUPTED = "interrupted"


@dataclass(frozen=True)
class StoredField:
    """How a field of a trial is stored, under its own name."""

    kind: Any  # its type there; msgspec checks what is read
    default: Any
    # Where it is: in attributes of the trial as it has "begun" or "ended", or in checkpoints of a
    # search that has the trial "open".
    forms: str


def _stored(kind: Any, default: Any, forms: str) -> Any:
    metadata = {"stored": StoredField(kind, default, forms)}
    if isinstance(default, dict | list):
        return field(default_factory=type(default), metadata=metadata)
    return field(default=default, metadata=metadata)


@dataclass
class Trial:
    """One configuration and its results.

    Attributes:
        number: Position in the study, from 0; the same as the Optuna trial's number.
        state: complete, pruned, rejected, failed, running or paused.
        value: The objective (the first of several) at the trial's best epoch; None until an epoch
            was reported.
        hparams: Plain name -> real value, only those that were active.
        epochs: Epochs trained.
        seed: The trial's own seed: weights, dropout and data order follow from it.
        train_seconds: Its share of its pack's time for training and validation, in seconds.
        program_id: Short fingerprint of the compiled program it ran in; None when it ran in
            ``fit``.
        plan: vectorized, looped, sequential or fit.
        fallback_reason: Why it trained in ``fit``; None in a pack.
        worker: The machine of a cluster that trained its last epoch; None without a cluster.
        history: Metric name -> one float per epoch, names as Keras has them.
        error: Why it failed; None otherwise.
        best_epoch: The epoch of ``value``, from 1; None until an epoch was reported.
        continued_from: The number of the trial that this one continues, to train longer: both
            histories are the same up to that trial's last epoch. None: it continues no other trial.
        continued_at: In population-based training: the epoch after which a copy continues its
            source, with its own hparams. None for any other trial.
        runs: With repeats or folds, the objective of each of the trial's runs, one list per
            epoch; ``value`` and ``history`` are means over them. Empty otherwise.
        rejected: Why it was not trained: a constraint that it violates, or the reason given to
            ``hp.reject``. None otherwise.
        enqueued: Whether some of its values come from ``enqueue``, ``enqueue_defaults`` or Optuna's
            ``enqueue_trial``.
        values: With several objectives, their values at the trial's best epoch, once it is
            complete; ``value`` is the first of them. Empty otherwise.
        costs: With costs among the objectives: ``params``, ``bytes``, ``flops``, ``latency``
            (milliseconds), with ``latency_batch`` (of a batch) and ``latency_device``. Empty
            otherwise.
        batch: Shapes and dtypes of a batch as JSON values, if the model depends on the data. None
            if the shapes are those of the study's first build.
        violates: Whether it violates a constraint, by the ``constraints_func`` of a sampler or by
            another program. It may be complete, but is never the best.
        by_others: Whether another program created it.
        reported: Epoch -> the objective, of a trial that another program trained or ended. Empty if
            ``history`` has the epochs.
    """

    number: int
    state: TrialState = "running"
    value: float | None = _stored(Real | None, None, "open")
    hparams: dict[str, Any] = _stored(dict[str, Scalar], {}, "begun open")
    epochs: int = _stored(Count, 0, "open ended")
    seed: int = _stored(Annotated[int, Meta(ge=0, le=2**63 - 1)], 0, "begun open")
    train_seconds: float = _stored(Real, 0.0, "open ended")
    program_id: str | None = _stored(Text, None, "open ended")
    plan: str | None = _stored(Text, None, "open ended")
    fallback_reason: str | None = _stored(Text, None, "open ended")
    worker: str | None = _stored(Text, None, "open ended")
    history: dict[str, list[float]] = _stored(dict[str, list[Real]], {}, "open ended")
    error: str | None = _stored(Text, None, "ended")
    best_epoch: int | None = _stored(Count | None, None, "open ended")
    runs: list[list[float]] = _stored(list[list[Real]], [], "open ended")
    continued_from: int | None = _stored(Count | None, None, "begun open ended")
    continued_at: int | None = _stored(Count | None, None, "begun open ended")
    rejected: str | None = _stored(Text, None, "begun ended")
    enqueued: bool = _stored(bool, False, "begun")
    values: list[float] = field(default_factory=list)
    costs: dict[str, Any] = _stored(dict[str, float | str], {}, "ended")
    batch: Any = _stored(BatchShape | None, None, "open ended")
    violates: bool = False
    by_others: bool = False
    reported: dict[int, float] = field(default_factory=dict)

    def by_epoch(self, objective: str) -> dict[int, float]:
        """Return epoch -> the objective of that name, also of a trial of another program."""
        return dict(enumerate(self.history.get(objective, ()), start=1)) or self.reported

    @property
    def value_std(self) -> float | None:
        """Standard deviation of the objective over the runs, at the trial's best epoch.

        Divided by the number of runs, as in NumPy's ``std`` and scikit-learn's cross-validation.
        None without repeats or folds, or if a run has no number.
        """
        if self.best_epoch is None or len(self.runs) < self.best_epoch:
            return None
        values = self.runs[self.best_epoch - 1]
        # A run may have no number in that epoch.
        return statistics.pstdev(values) if values and all(map(math.isfinite, values)) else None

    def _repr_html_(self) -> str:
        facts = {
            "state": self.state,
            "value": "-" if self.value is None else self.value,
            "best epoch": "-" if self.best_epoch is None else f"{self.best_epoch} of {self.epochs}",
            **({"error": self.error} if self.error else {}),
            **({"rejected": self.rejected} if self.rejected else {}),
        }
        there, best = {name: v for name, v in self.history.items() if v}, self.best_epoch
        places = {"last": -1}
        if best is not None and all(len(values) >= best for values in there.values()):
            places = {f"epoch {best}": best - 1, **places}
        columns = [html.numbers([v[at] for v in there.values()]) for at in places.values()]
        curves = [
            [name, html.curve(v), *numbers]
            for (name, v), *numbers in zip(there.items(), *columns, strict=True)
        ]
        parts = [html.table(("", ""), list(facts.items()))]
        if self.hparams:
            parts.append(html.table(("hyperparameter", "value"), list(self.hparams.items())))
        if curves:
            parts.append(html.table(("metric", "curve", *places), curves))
        return html.block(f"trial {self.number}", *parts)


#: The fields that are stored under their names. The value is stored so only while no end of the
#: trial tells it.
STORED: dict[str, StoredField] = {
    each.name: each.metadata["stored"] for each in fields(Trial) if each.metadata
}
