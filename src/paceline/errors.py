"""The errors that users see. Each message names the argument, the value found and the next step."""

from __future__ import annotations

#: Characters of a message, at most, and of its end, which says what to do.
_LONGEST, _END = 600, 220


class PacelineError(Exception):
    """Base class of all errors that Paceline raises on purpose; the command then exits with 2.

    No message is longer than 600 characters, whatever the data hold: its middle is left out.
    """

    def __init__(self, *args: object) -> None:
        super().__init__(*(shortened(arg) if isinstance(arg, str) else arg for arg in args))


class UsageError(PacelineError):
    """Raised for an argument, or a combination of arguments, that cannot work."""


class SpaceError(PacelineError, ValueError):
    """Raised for a hyperparameter with impossible or conflicting bounds, or a value outside.

    A ValueError too, as in KerasTuner.
    """


class DataError(PacelineError):
    """Raised for data that cannot be trained on: lengths, shapes, labels, NaN."""


class ObjectiveError(PacelineError):
    """Raised for an objective that is no metric of the model, or whose direction is unknown."""


class SamplerError(PacelineError):
    """Raised for a sampler that is unknown, or that cannot propose trials for this search."""


class StudyError(PacelineError):
    """Raised for a study that is missing, has an impossible name, or conflicts with the storage."""


class StorageError(PacelineError):
    """Raised for a storage that cannot be opened, read or written."""


class BuildError(PacelineError):
    """Raised if ``build(hp)`` raises, or returns something other than a compiled Keras model."""


class ConstraintError(PacelineError):
    """Raised for constraints that cannot be read, and where a space has next to nothing allowed."""


class TrialRejected(PacelineError):
    """Raised by ``hp.reject``, and by a constraint that is violated: the trial is not trained.

    Args:
        why: The reason, for the user.
        amounts: Name of a constraint -> by how much it is violated, above 0 where it is.

    Attributes:
        amounts: The same.
    """

    def __init__(self, why: str, amounts: dict[str, float] | None = None) -> None:
        super().__init__(why)
        self.amounts = dict(amounts or {"hp.reject": 1.0})


class TrialTimeoutError(PacelineError):
    """Raised if a trial takes longer than ``trial_timeout`` allows."""


class TrialHangError(PacelineError):
    """Raised if a compiled step does not return within ``trial_timeout``; the process cannot go on.

    Args:
        what: What has happened, as a sentence without its full stop.
        then: What the user should do; the message ends with it.

    Attributes:
        what: What has happened.
    """

    def __init__(self, what: str, then: str = "") -> None:
        super().__init__(f"{what}. {then}" if then else what)
        self.what = what


class ClusterError(PacelineError):
    """Raised if a cluster has no machine for the search, or none is left."""


class MissingExtraError(PacelineError):
    """Raised if an optional package is missing; the message holds the ``pip install`` line."""


def shortened(text: str) -> str:
    """A message without its middle where it is too long."""
    if len(text) <= _LONGEST:
        return text
    mark = " [...] "
    return f"{text[: _LONGEST - _END - len(mark)]}{mark}{text[-_END:]}"


#: Keras backend -> the extra that installs it. JAX is always installed.
EXTRAS = {"tensorflow": "tensorflow", "torch": "torch"}


def missing(error: ImportError) -> MissingExtraError | None:
    """Returns the error to raise if Keras cannot be imported without its backend, else None."""
    extra = EXTRAS.get((error.name or "").partition(".")[0])
    if extra is None:
        return None
    return MissingExtraError(
        f"KERAS_BACKEND: Keras is to run on {extra}, which is not installed; "
        f'pip install "paceline[{extra}]", or set KERAS_BACKEND=jax.'
    )
