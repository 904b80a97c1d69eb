"""Makes the callbacks of each trial from the user's ``callbacks=``: own copies, own files.

The user gives one list for a whole search. Trials that shared the objects would share their state
(the best loss that EarlyStopping remembers) and overwrite each other's files.
"""

from __future__ import annotations

import copy
import weakref
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from string import Formatter
from typing import Any, Protocol

import keras
import numpy as np

from paceline.errors import UsageError, with_keras_3
from paceline.pack.callbacks.model_variables import copied
from paceline.pack.callbacks.packable import acts_by_batch, check_packages, why_not_packed
from paceline.pack.callbacks.process_wide import in_turns, why_not_in_turns
from paceline.pack.callbacks.state import PATHS_OF_TRIAL
from paceline.program.files import as_shown
from paceline.program.trace import each_number

#: More arrays than the inputs of any model; a longer list holds numbers.
_INPUTS = 100
#: Stands for the trial's number in the paths that callbacks hold.
TRIAL = "{trial}"
#: Keras' own callbacks that write: class, attribute that holds the path, whether it is a file.
_PATHS: tuple[tuple[type, str, bool], ...] = (
    (keras.callbacks.ModelCheckpoint, "filepath", True),
    (keras.callbacks.CSVLogger, "filename", True),
    (keras.callbacks.TensorBoard, "log_dir", False),
)


#: Logs that Keras' callbacks add: schedules of the learning rate, under both of its names.
_ADDED = ("learning_rate", "lr")


class TrialPaths(Protocol):
    """Where the callbacks of each trial write."""

    def label(self, trial: str) -> str:
        """Returns what stands for ``{trial}`` in paths.

        ``trial``: a trial's number, or the name of a fold or repetition of it.
        """
        ...

    def of(self, path: Path, trial: str, is_file: bool) -> Path:
        """Returns the path of a trial for a path of the user's; ``trial`` as for ``label``."""
        ...


class StudyPaths:
    """Paths below the folder of a study, where files go whose path is relative."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def __getstate__(self) -> dict[str, Any]:
        return {"_folder": self._folder.absolute()}  # another process is in another folder

    def label(self, trial: str) -> str:
        """Returns what stands for ``{trial}`` in paths."""
        return trial

    def of(self, path: Path, trial: str, is_file: bool) -> Path:
        """Returns the path of a trial for a path of the user's."""
        if path.is_absolute():
            return path.parent / f"{self._folder.parent.name}-{trial}" / path.name
        return self._folder / trial / path


class CallbackFactory:
    """Makes each trial's own callbacks.

    Args:
        given: A callback, a list of them, or a function of hp that returns either.
        paths: Where the callbacks of each trial write.
        note: Told what users should know, a sentence each.
        data: The search's data: arrays, and lists, tuples and dicts of arrays. They are not copied
            where callbacks hold them.
    """

    def __init__(
        self,
        given: Any,
        paths: TrialPaths,
        note: Callable[[str], None],
        data: Sequence[Any] = (),
    ) -> None:
        self._function: Callable[[Any], Any] | None = None
        self._uncopied: str | None = None  # a class whose copies are the object itself
        self._given: list[Any] = []
        self._paths, self._note = paths, note
        self._here: Callable[[int, Path, str, bool], Path] | None = None
        self._said: set[str] = set()
        self._made: weakref.WeakSet[Any] = weakref.WeakSet()  # by a function of hp
        self._shared = {id(array): array for nest in data for array in _arrays(nest)}
        if callable(given) and not isinstance(given, keras.callbacks.Callback):
            self._function = given
            return
        self._given = _flat(given)
        check_packages(self._given)
        try:
            copies = copy.deepcopy(self._given)
            pairs = zip(self._given, copies, strict=True)
            self._uncopied = next((type(a).__name__ for a, b in pairs if a is b), None)
        except Exception as error:
            raise UsageError(
                "callbacks: every trial needs its own copies, but these cannot be copied: "
                f"{type(error).__name__}: {error}. Create their contents in on_train_begin, or "
                "pass callbacks=lambda hp: [...]."
            ) from error

    def below(self, here: Callable[[int, Path, str, bool], Path]) -> CallbackFactory:
        """The same for a machine without the user's disk; ``here``: as ``MachineFolder.here``."""
        other = copy.copy(self)
        other._here = here
        return other

    def __getstate__(self) -> dict[str, Any]:
        # Another process has other addresses of objects, and tells its notes to nobody.
        shared = list(self._shared.values())
        return {**vars(self), "_note": None, "_shared": shared, "_made": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self._note, self._made = (lambda text: None), weakref.WeakSet()
        self._shared = {id(array): array for array in state["_shared"]}

    @property
    def function(self) -> Any:
        """What the user gave: a function of hp, or the callbacks."""
        return self._given if self._function is None else self._function

    @property
    def names(self) -> list[str] | str:
        """Class names of the callbacks, or "by hp": what a study stores of them."""
        if self._function is not None:
            return "by hp"
        return [type(each).__name__ for each in self._given]

    @property
    def may_act_by_batch(self) -> bool:
        """Whether callbacks may have hooks around training batches."""
        return self._function is not None or any(map(acts_by_batch, self._given))

    def why_not_packed(self, *, by_batch: bool) -> str | None:
        """Why no trial of the search can be packed; None: some can, or a function of hp decides.

        ``by_batch`` is as of the function of that name.
        """
        if self._uncopied is not None:
            return f"copy.deepcopy does not copy {self._uncopied}, so trials would share it"
        given = _without_backups(self._given)
        return why_not_packed(given, by_batch=by_batch) or why_not_in_turns(given, self._function)

    def note_turns(self) -> None:
        """Says what the callbacks of packed trials write to in turns, where that shows."""
        text = in_turns(self._given, self._function)
        if text is not None:
            self._note(text)

    def ask(self, hp: Any) -> None:
        """Calls a function of hp once, so that it declares its hyperparameters."""
        if self._function is not None:
            made = _flat(self._function(hp))
            check_packages(made)
            again = {*map(id, _flat(self._function(hp)))}
            self._check_new(each for each in made if id(each) in again)

    @staticmethod
    def _check_new(shared: Iterable[Any]) -> None:
        for each in shared:
            raise UsageError(
                f"callbacks: the function of hp returns the same {type(each).__name__} again, "
                "which trials that train together would share. Create new callbacks, or pass a "
                "list, which is copied for every trial."
            )

    def classes(self, hp: Any) -> list[type]:
        """The classes of a trial's callbacks; where they depend on hp, hp is asked."""
        given = self._given if self._function is None else _flat(self._function(hp))
        return [type(each) for each in given]

    def check_logs(self, hp: Any, names: Sequence[str]) -> None:
        """Checks that callbacks watch logs (``names``) that there are, as far as that can be told.

        Callbacks of the user's own may add logs; then nothing can be told. ``hp`` is for a function
        of hp.
        """
        callbacks = self._given if self._function is None else _flat(self._function(hp))
        own = [cls for cls in map(type, callbacks) if not cls.__module__.startswith("keras.")]
        if own or any(isinstance(each, keras.callbacks.LambdaCallback) for each in callbacks):
            return
        known = {*names, *_ADDED}
        for callback in callbacks:
            for watched in _watched(callback):
                if watched not in known:
                    raise UsageError(
                        with_keras_3(
                            f"callbacks: {type(callback).__name__} monitors {watched!r}, but this "
                            f"model logs only {', '.join(names)}."
                        )
                    )

    def of(self, trial: str, hp: Any, model: Any) -> list[Any]:
        """New callbacks for a trial, which write to files of its own.

        ``trial``: its number, or the name of a fold or repetition of it. The callbacks keep what
        they have in common with ``model``, the trial's.
        """
        if self._function is not None:
            made = _flat(self._function(hp))
            self._check_new(each for each in made if each in self._made)
            self._made.update(made)
        else:
            made = copied(self._given, model, self._shared)
        own = _without_backups(made)
        if len(own) < len(made):
            self._say(
                "callbacks: skipped BackupAndRestore, because Paceline writes checkpoints of all "
                "trials. Call the search again to resume"
            )
        for at, callback in enumerate(own):
            here = None if self._here is None else partial(self._here, at)
            moved = give_own_path(callback, trial, self._paths, here)
            if moved is not None:
                before, path = moved
                self._say(
                    f"callbacks: {type(callback).__name__} writes to one path per trial: trial "
                    f"{self._paths.label(trial)} uses {as_shown(path)} for {before}. To choose "
                    f"the path, write {TRIAL} in it",
                    key=f"{type(callback).__name__} {before}",
                )
        return own

    def _say(self, text: str, key: str | None = None) -> None:
        if (key or text) not in self._said:
            self._said.add(key or text)
            self._note(text)


def _watched(callback: Any) -> list[str]:
    """The logs that a callback of Keras' cannot do without."""
    watched = []
    best_only = getattr(callback, "save_best_only", True)
    if isinstance(getattr(callback, "monitor", None), str) and best_only:
        watched.append(callback.monitor)
    if isinstance(callback, keras.callbacks.ModelCheckpoint):  # "{epoch}-{val_loss:.2f}.keras"
        given = {field for _, field, _, _ in Formatter().parse(str(callback.filepath)) if field}
        watched += sorted(given - {"epoch", "batch", TRIAL.strip("{}")})
    return watched


def place_of(callback: Any) -> tuple[str, bool] | None:
    """The attribute in which a callback of Keras' holds where it writes, and whether to a file."""
    found = ((key, is_file) for cls, key, is_file in _PATHS if isinstance(callback, cls))
    return next(found, None)


def give_own_path(
    callback: Any,
    trial: str,
    paths: TrialPaths,
    here: Callable[[Path, str, bool], Path] | None = None,
) -> tuple[Path, Path] | None:
    """Makes a callback of a trial write to a path of the trial's own: the path before and after.

    None if the path holds ``{trial}``, or the callback has none.

    Args:
        callback: A callback that only this trial has.
        trial: The trial's number, or the name of a fold or repetition of it.
        paths: Where the callbacks of each trial write.
        here: Makes of that a path of this machine; None: it is one.
    """
    label = paths.label(trial)
    named = {
        key: type(value)(str(value).replace(TRIAL, label))
        for key, value in vars(callback).items()
        if isinstance(value, (str, Path)) and TRIAL in str(value)
    }
    place, is_file = place_of(callback) or (None, False)
    if place is not None and here is not None and place in named:
        named[place] = str(here(Path(named[place]), trial, is_file))
    for key, value in named.items():
        setattr(callback, key, value)
        Path(value).parent.mkdir(parents=True, exist_ok=True)
    if named:
        setattr(callback, PATHS_OF_TRIAL, tuple(named))
    if named or place is None:
        return None
    before = Path(getattr(callback, place))
    path = paths.of(before, trial, is_file)
    path = path if here is None else here(path, trial, is_file)
    setattr(callback, place, str(path))
    (path.parent if is_file else path).mkdir(parents=True, exist_ok=True)
    return before, path


def _without_backups(callbacks: Sequence[Any]) -> list[Any]:
    return [each for each in callbacks if not isinstance(each, keras.callbacks.BackupAndRestore)]


def _flat(given: Any) -> list[Any]:
    """The callbacks in a nest of lists."""
    if isinstance(given, keras.callbacks.CallbackList):
        return list(given.callbacks)
    if isinstance(given, (list, tuple)):
        return [each for one in given for each in _flat(one)]
    if given is None:
        return []
    if not isinstance(given, keras.callbacks.Callback):
        raise UsageError(
            "callbacks must be keras.callbacks.Callback objects, a list of them, or a function of "
            f"hp that returns them, got {given!r}."
        )
    return [given]


def _arrays(nest: Any) -> list[Any]:
    """The arrays in a nest of lists, tuples and dicts."""
    if isinstance(nest, Mapping):
        nest = list(nest.values())
    if isinstance(nest, (list, tuple)):
        few = nest if len(nest) <= _INPUTS else ()
        return [leaf for each in few for leaf in _arrays(each)]
    return [nest] if hasattr(nest, "shape") else []


def numbers(logs: Mapping[str, Any], metrics: Collection[str] = ()) -> dict[str, float]:
    """The logs that are numbers; callbacks may add logs of any type.

    ``metrics``: names of logs that may be arrays of numbers, which are reported one by one.
    """
    found = {}
    for name, value in logs.items():
        if name in metrics:
            array = np.asarray(keras.ops.convert_to_numpy(value))
            found |= {n: float(v) for n, v in each_number({name: array}, logs).items()}
            continue
        try:
            found[str(name)] = float(value)
        except (TypeError, ValueError):
            continue
    return found
