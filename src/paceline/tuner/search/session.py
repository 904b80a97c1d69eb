"""A search in the process that its session has started: what it tells the session, and asks it."""

from __future__ import annotations

import itertools
import linecache
import re
import time
import traceback
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import keras

from paceline.errors import PacelineError
from paceline.executor.base import Answer, EpochReport, Job, Parts
from paceline.executor.local import LocalExecutor
from paceline.executor.model_builder import ModelBuilder
from paceline.executor.wall.black_box import BlackBox
from paceline.pack.callbacks.reachable import is_users_file
from paceline.program import keras_private
from paceline.program.canonical import Unpackable
from paceline.program.foreign.operations import ForeignOperationError
from paceline.program.numbers import number_settings
from paceline.report.notebook import displays_passed_on
from paceline.search_space import HyperParameters
from paceline.tuner.arguments.arguments import SearchArguments
from paceline.tuner.search.session_data import SessionDataset
from paceline.tuner.search.timeouts import shielded
from paceline.tuner.session.fits import ModelOfSession
from paceline.tuner.trackers.threads import SessionTracker

if TYPE_CHECKING:
    from paceline.executor.session.child import SessionLink
    from paceline.study.trials.trial import Trial


#: Seconds between two times at which the session is told what functions have changed, at least, and
#: the share of the time that may take.
_SHARED, _SHARE = 0.1, 0.02


class ReturnedToSession(BaseException):
    """Something of the search cannot train in this process; the message says what.

    No ``except Exception`` of the search or the user's code catches it. The search ends here, and
    the session continues it.
    """


#: Models that are tried beside the first one, and builds of one trial in the session.
_MOST_OTHERS, _MOST_BUILDS = 6, 100


def _others(hp: HyperParameters) -> Iterator[dict[str, Any]]:
    """Values of hparams that differ from those of hp in one choice of a few."""
    found = (
        {**hp.hparams, parameter.name: value}
        for parameter in hp.parameters.values()
        if parameter.cardinality is not None and parameter.cardinality <= _MOST_OTHERS
        for value in parameter.values(every=True)
        if value != hp.hparams.get(parameter.name)
    )
    return itertools.islice(found, _MOST_OTHERS)


class SearchSession:
    """The session of a search that runs in the session's own process."""

    #: The session of the search that this process runs; None in other processes.
    current: SearchSession | None = None

    def __init__(self, link: SessionLink, *, fits: bool = False) -> None:
        self._link = link
        self.fits = fits  # whether the session trains single trials for this search
        self.began = False  # whether the study is searched: before, nothing is written
        self._share_at = 0.0  # when what functions have changed is next sent

    @classmethod
    @contextmanager
    def of(cls, link: SessionLink, *, fits: bool = False) -> Iterator[SearchSession]:
        """A block in which searches of this process are of a session."""
        cls.current = session = cls(link, fits=fits)
        try:
            yield session
        finally:
            cls.current = None

    def begin(
        self, arguments: SearchArguments, builder: ModelBuilder, hp: HyperParameters, seed: int
    ) -> None:
        """The search is checked, and will write, unless none of some models can be packed.

        ``hp`` are those of the first model. The others have another value of one choice.
        """
        if (data := arguments.pack_data) is None:
            raise ReturnedToSession(arguments.why_fit or "the data are not arrays")
        first: str | None = None
        for values in (hp.hparams, *(_others(hp) if self.fits else ())):
            packs = LocalExecutor(data)
            try:
                tried = HyperParameters(values=values)
                model = builder(tried, seed)
                packs.pretrace(model, arguments.inputs_for(tried, model))
                self.check_widths(model)
                break
            except Exception as error:  # what the user's steps raise, among others
                first = first or what_stands_in_the_way(error)
            finally:
                packs.close()
        else:
            raise ReturnedToSession(first)
        self.began = True
        self._link.tell("begin", arguments.n_trials)

    def check_widths(self, model: Any) -> None:
        """Raises Unpackable for a model whose numbers are narrower here than in the session."""
        wide = any(variable.dtype == "float64" for variable in model.variables) or any(
            layer.variable_dtype == "float64" for layer in keras_private.all_layers(model)
        )
        if wide and not number_settings()["jax_enable_x64"]:
            raise Unpackable(
                "the model has float64 variables, of which JAX makes float32; build it in "
                "float32, or call jax.config.update('jax_enable_x64', True) before"
            )

    def refuse(self, number: int, why: BaseException | str) -> None:
        """Ends the search here, since a trial of it must train in the session."""
        text = why if isinstance(why, str) else what_stands_in_the_way(why)
        raise ReturnedToSession(f"trial {number}: {text}")

    def build(self, hp: HyperParameters, seed: int, error: Exception) -> str:
        """Builds a trial in the session, since its build fails here; returns why it does.

        ``hp`` knows of all hyperparameters afterwards. Raises the error if that build fails, too.
        """
        for _ in range(_MOST_BUILDS):
            with shielded():
                found = self._link.ask("build", dict(hp.values), seed)
            if found is None:
                break
            for declared, value in found:
                hp.merge([declared], overwrite=False)
                if hp.values.get(declared.name) != value:
                    break  # it was chosen just now, and may decide what is declared after it
            else:
                return what_stands_in_the_way(error)
        raise error

    def fit(self, job: Job, report: Callable[[EpochReport], Answer]) -> None:
        """Trains a job in the session; raises what the training fails with."""
        assert job.spec is not None
        fold = job.number - job.spec.number if job.folds else None
        self._link.share()
        found = self._link.ask("fit", replace(job.spec, number=job.number, fold=fold))
        while isinstance(found, EpochReport):
            answer = report(replace(found, weights=partial(self._link.ask, "weights")))
            found = self._link.ask("answer", answer)
        error, changes = found
        try:
            self._link.take_shared(changes)
        except Exception as why:  # of an object's
            self._link.tell(
                "note",
                f"the process that trains lost the changes of callbacks in the session: {why}",
            )
        if error is not None:
            raise error.again()

    def model_of(self, trial: Trial, batch: Any, weights: Parts) -> ModelOfSession:
        """What saves a trial's model in the session."""
        return ModelOfSession(self._link.ask, (trial.hparams, trial.seed, batch), weights)

    def note_on(self, number: int, why: str) -> str:
        """What the user is told of a trial that the session trains."""
        return (
            f"trial {number} and its like train in this session, one after another in Keras' fit, "
            f"since they cannot train in packs on JAX: {why}"
        )

    def share_if_due(self) -> None:
        """Tells the session what the user's functions have changed, unless it was told just now."""
        if (began := time.perf_counter()) < self._share_at:
            return
        self._link.share()
        now = time.perf_counter()
        self._share_at = now + max(_SHARED, (now - began) / _SHARE)

    def check_build(self, number: int, hparams: Mapping[str, Any], seed: int, error: Any) -> None:
        """Ends the search here if the build that failed works in the session."""
        if not is_of_memory(error) and self._link.ask("builds", dict(hparams), seed):
            self.refuse(number, error)


@contextmanager
def watched_by(link: SessionLink) -> Iterator[None]:
    """A block whose search notes which trials run, in the black box that the session reads."""
    BlackBox.current = BlackBox(link.box)
    try:
        yield
    finally:
        BlackBox.current = None


def search_in_process(
    link: SessionLink,
    kind: type,
    tuner: Mapping[str, Any],
    search: Mapping[str, Any],
    enqueued: list[dict[str, Any]],
    *,
    watched: bool,
    isolated: bool,
    displays: bool,
) -> str | None:
    """Searches in this process; returns why the session must continue the search, or None.

    ``tuner`` are the arguments of ``kind``, which is ``Tuner``, with the names of trackers in their
    place, and ``search`` those of its method.
    ``watched``: the session wants to see how the search goes. ``isolated``: it is on JAX as well,
    so that nothing is left to it. ``displays`` is as of ``why_returned``.
    """
    trackers = [SessionTracker(name, link.ask) for name in tuner["trackers"]]
    ours: Any = kind(
        **{**tuner, "trackers": trackers},
        on_note=partial(link.tell, "note"),
        on_progress=partial(link.ask, "progress") if watched else None,
        on_hang=partial(link.tell, "hang"),
    )
    for hparams in enqueued:
        ours.enqueue(hparams)
    try:
        with watched_by(link):
            if isolated:
                ours.search(**read_by(link, search))
                return None
            return why_returned(
                link, lambda: ours.search(**read_by(link, search)), displays=displays, fits=True
            )
    finally:
        link.tell("searched", *ours._last_search())


def reproduce_in_process(
    link: SessionLink, kind: type, tuner: Mapping[str, Any], number: int, search: Mapping[str, Any]
) -> Any:
    """As ``Tuner.reproduce``; the arguments are those of ``search_in_process``."""
    return kind(**tuner).reproduce(number, **read_by(link, search))


def why_returned(
    link: SessionLink, search: Callable[[], None], *, displays: bool, fits: bool = False
) -> str | None:
    """Calls a function that searches; returns why the session must continue it, or None.

    ``displays``: the session is a notebook, and shows what the user's functions display. ``fits``:
    the session trains single trials that cannot train here. Raises what the search raises once it
    has begun.
    """
    # The session's backend has integers of 64 bits, and warns of none.
    warnings.filterwarnings("ignore", "Explicitly requested dtype int64")
    if displays:
        displays_passed_on(partial(link.tell, "display"))
    with SearchSession.of(link, fits=fits) as session:
        try:
            search()
        except ReturnedToSession as why:
            return str(why)
        except Exception as error:
            if session.began:
                raise
            # Nothing is written. The session raises the same error, unless the backend is why.
            return what_stands_in_the_way(error)
    return None


def read_by(link: SessionLink, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Arguments with data sets in the places of those that stand for them."""
    return {
        name: value.read_by(link) if isinstance(value, SessionDataset) else value
        for name, value in arguments.items()
    }


def is_of_memory(error: BaseException) -> bool:
    """Whether an error says that a model is too large: for the session, it would be so, too."""
    inner: BaseException | None = error
    while inner is not None and not isinstance(inner, MemoryError):
        inner = inner.__cause__ or inner.__context__
    return inner is not None


#: A call of another backend's library, as people write it. ``tf.keras`` is Keras, which runs on
#: JAX, but for its old backend functions.
_CALLED = re.compile(r"\b(?:tf|tensorflow|torch|K)\.(?!keras\.(?!backend\.))(?:\w+\.)*(\w+)(?=\()")
#: Characters of an error's text that a note holds at most.
_MOST = 200


def what_stands_in_the_way(error: BaseException) -> str:
    """Why code does not run on JAX, on which line, and what to write instead."""
    causes = _causes(error)
    first = causes[-1]
    name = "" if isinstance(first, PacelineError | Unpackable) else f"{type(first).__name__}: "
    said = re.sub(r"\x1b\[[0-9;]*m", "", str(first)).partition("\n\nArguments received by")[0]
    text = name + " ".join(said.split())
    text = f"{text[:_MOST]} ..." if len(text) > _MOST else text
    where, line = _users_line(causes)
    if not where:
        return text
    return foreign_calls(error) or f"{text} ({where}{f': {line}' if line else ''})"


def foreign_calls(error: BaseException) -> str | None:
    """The user's line that calls another backend's functions, and what to write; None if none."""
    causes = _causes(error)
    where, line = _users_line(causes)
    calls = {match[0]: match[1] for match in _CALLED.finditer(line)}
    inner = reversed(causes)  # without what Keras adds
    refused = next((e for e in inner if isinstance(e, ForeignOperationError)), None)
    if refused is not None:  # other calls of the line may run on JAX
        calls = {c: of for c, of in calls.items() if of == refused.function} or calls
    if not calls:
        return None
    instead = [name for of in calls.values() if (name := _of_keras(of)) is not None]
    why = f" ({refused})" if refused is not None else ""
    hint = f". Write {', '.join(dict.fromkeys(instead))} instead" if instead else ""
    return f"{where} calls {', '.join(calls)}, which a program of JAX cannot hold{why}{hint}"


def _causes(error: BaseException) -> list[BaseException]:
    """The error and those before it."""
    # An error in Keras' handling of an error has the user's lines in its context alone.
    causes = [error]
    while (before := causes[-1].__cause__ or causes[-1].__context__) is not None:
        causes.append(before)
    return causes


def _users_line(causes: list[BaseException]) -> tuple[str, str]:
    """Where in the user's code the innermost error came from, and that line; "" if nowhere."""
    frame = next(filter(None, map(_users_frame, reversed(causes))), None)
    if frame is None:
        return "", ""
    line = (frame.line or linecache.getline(frame.filename, frame.lineno or 0)).strip()
    return f"line {frame.lineno} of {frame.filename}", line


#: Names of other libraries -> those of ``keras.ops``, where these differ.
_NAMES = {
    "cat": "concatenate",
    "clamp": "clip",
    "clip_by_value": "clip",
    "concat": "concatenate",
    "gather": "take",
    "l2_normalize": "normalize",
    "pow": "power",
    "permute": "transpose",
    "range": "arange",
}


def _of_keras(name: str) -> str | None:
    """What Keras has in the place of a function of another library; None where nothing is alike."""
    if name == "GradientTape":
        return "your model's compute_loss()"
    name = _NAMES.get(name, name.removeprefix("reduce_"))
    return f"keras.ops.{name}" if hasattr(keras.ops, name) else None


def _users_frame(error: BaseException) -> traceback.FrameSummary | None:
    """The innermost frame of an error that is in the user's code."""
    frames = traceback.extract_tb(error.__traceback__)
    return next((each for each in reversed(frames) if is_users_file(each.filename)), None)
