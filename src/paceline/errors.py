"""Errors that users meet. Each message names the argument, the value found and the next step."""

from __future__ import annotations


class PacelineError(Exception):
    """Base of all errors that Paceline raises on purpose; the command line exits with 2 on them."""


class UsageError(PacelineError):
    """An argument, or a combination of arguments, that cannot work."""


class SpaceError(PacelineError):
    """A hyperparameter with impossible or conflicting bounds, or a value outside them."""


class DataError(PacelineError):
    """Data that cannot be trained on: lengths, shapes, labels, NaN."""


class ObjectiveError(PacelineError):
    """An objective that is no metric of the model, or whose direction is unknown."""


class SamplerError(PacelineError):
    """An unknown sampler, or one that cannot be used here."""


class StudyError(PacelineError):
    """A study that does not exist, has an impossible name, or conflicts with what is stored."""


class StorageError(PacelineError):
    """A storage that cannot be opened, read or written."""


class BuildError(PacelineError):
    """A ``build(hp)`` that raises, or returns something other than a compiled Keras model."""


class TrialTimeoutError(PacelineError):
    """A trial took longer than ``trial_timeout`` allows."""


class StuckError(PacelineError):
    """A compiled step has not come back within ``trial_timeout``; this process cannot go on.

    Attributes:
        what: What has happened; the message also says what to do.
    """

    def __init__(self, what: str, then: str = "") -> None:
        super().__init__(f"{what}. {then}" if then else what)
        self.what = what


class MissingExtraError(PacelineError):
    """An optional package is needed; the message holds the ``pip install`` line."""


#: Backend -> the extra that installs it. JAX is there always.
EXTRAS = {"tensorflow": "tensorflow", "torch": "torch"}


def missing(error: ImportError) -> MissingExtraError | None:
    """What to tell when Keras could not be imported because of its backend; None if it was not."""
    extra = EXTRAS.get((error.name or "").partition(".")[0])
    if extra is None:
        return None
    return MissingExtraError(
        f"KERAS_BACKEND: Keras is to run on {extra}, which is not installed; "
        f'pip install "paceline[{extra}]", or set KERAS_BACKEND=jax.'
    )
