"""Optuna, with studies that train the fits of their objectives in packs.

    from paceline.compat import optuna

replaces ``import optuna``. Every name is Optuna's own object, except ``create_study`` and
``load_study``. Their studies are Optuna's, with an ``optimize`` of Paceline. Modules such as
``paceline.compat.optuna.samplers`` are Optuna's.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import spec_from_loader
from types import ModuleType
from typing import TYPE_CHECKING, Any

import optuna as _optuna

if TYPE_CHECKING:
    from optuna import *  # noqa: F403  # pyright: ignore[reportWildcardImportFromLibrary]

#: Modules of Paceline; all others under this name are Optuna's.
_OURS = frozenset({f"{__name__}.study"})


class OptunaModules(MetaPathFinder, Loader):
    """Finds Optuna's own modules under the name of this package."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Returns a spec for a module under this package that is not Paceline's."""
        if not fullname.startswith(f"{__name__}.") or fullname in _OURS:
            return None
        return spec_from_loader(fullname, self, is_package=True)

    def exec_module(self, module: ModuleType) -> None:
        """Puts Optuna's module in the place of the new one."""
        name = f"optuna{module.__name__.removeprefix(__name__)}"
        sys.modules[module.__name__] = importlib.import_module(name)


sys.meta_path.insert(0, OptunaModules())

from paceline.compat.optuna import study as study  # noqa: E402 - after the finder
from paceline.compat.optuna.study import create_study as create_study  # noqa: E402
from paceline.compat.optuna.study import load_study as load_study  # noqa: E402

__all__ = _optuna.__all__  # pyright: ignore[reportUnsupportedDunderAll]


def __getattr__(name: str) -> Any:
    return getattr(_optuna, name)


def __dir__() -> list[str]:
    return dir(_optuna)
