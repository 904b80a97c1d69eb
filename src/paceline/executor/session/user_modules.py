"""The user's own modules, whose code is sent as it is in the session, with the values it has."""

from __future__ import annotations

import io
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import cloudpickle

from paceline.pack.callbacks.reachable import is_users_module


@contextmanager
def sent_by_value() -> Iterator[None]:
    """A block in which functions and classes of the user's modules are pickled by value.

    Otherwise the other process would import a module from its file. Its globals would then have
    their first values, and whatever the module does at its import would be done again.
    """
    modules = []
    for name, module in list(sys.modules.items()):
        if name == getattr(module, "__name__", None) != "__main__" and is_users_module(module):
            cloudpickle.register_pickle_by_value(module)
            modules.append(module)
    try:
        yield
    finally:
        for module in modules:
            cloudpickle.unregister_pickle_by_value(module)


#: cloudpickle (3.0 to 3.1, and back to 1.2) numbers classes that it pickles by value. Unpickling a
#: number that is known changes the class that is known by it. These are the two tables. There is no
#: public way to say which class is meant. None: this release of cloudpickle has no such tables.
_NUMBERS: Any = getattr(cloudpickle.cloudpickle, "_DYNAMIC_CLASS_TRACKER_BY_CLASS", None)
_CLASSES: Any = getattr(cloudpickle.cloudpickle, "_DYNAMIC_CLASS_TRACKER_BY_ID", None)


def why_no_classes() -> str | None:
    """Why the user's classes cannot be sent; None: they can."""
    if _NUMBERS is None or _CLASSES is None:
        return "this release of cloudpickle is not supported; install cloudpickle 3.1"
    return None


def send_classes_anew() -> None:
    """Makes the next message hold the user's classes as they are now.

    Under its old number, the process would keep a class with the globals of the last message.
    """
    _NUMBERS.clear()  # classes that come back are known by number


class ReturningPickler(cloudpickle.Pickler):
    """Pickles what goes back to the session: classes that came from there are named by number."""

    def reducer_override(self, obj: Any) -> Any:
        """See ``pickle.Pickler``."""
        if isinstance(obj, type) and (number := _NUMBERS.get(obj)) is not None:
            return _class_of_number, (number,)
        return super().reducer_override(obj)


def returned(value: Any) -> bytes:
    """A value pickled for a process that has the user's classes in it, and keeps its own."""
    written = io.BytesIO()
    ReturningPickler(written, protocol=5).dump(value)
    return written.getvalue()


def _class_of_number(number: str) -> Any:
    return _CLASSES[number]
