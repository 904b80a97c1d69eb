"""The user's own modules, whose code is sent as it is in the session, with the values it has."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

import cloudpickle

from paceline.pack.callbacks.reachable import is_users_module


@contextmanager
def sent_by_value() -> Iterator[None]:
    """A block in which functions and classes of the user's modules are pickled by value.

    The other process would import a module from its file: with the values that its globals had
    then, and with whatever it does when it is imported.
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
