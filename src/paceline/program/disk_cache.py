"""Small files beside JAX's compilation cache: what one search worked out and the next can use."""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
import os
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import jax

from paceline.program.files import write_atomically

#: Whose code makes programs. Found by name: ``program`` itself must not import ``plan``.
_PACKAGES = ("paceline.pack.plan", "paceline.program")


@dataclass(frozen=True)
class DiskCache:
    """A folder of files that are found by their key; damaged ones count as absent.

    Attributes:
        name: Of the folder, within that of the compilation cache.
        kept: Files kept; those not used for longest go first.
    """

    name: str
    kept: int

    def read(self, key: str) -> bytes | None:
        """What was kept under the key; None where there is nothing, or it is damaged."""
        folder = self._folder()
        if folder is None:
            return None
        try:
            data = (folder / key).read_bytes()
            os.utime(folder / key)
        except OSError:
            return None
        digest, body = data[:32], data[32:]
        return body if _sha(body) == digest else None

    def write(self, key: str, body: bytes) -> None:
        """Keeps ``body`` under the key, where there is a folder that can be written."""
        folder = self._folder()
        if folder is None:
            return
        with contextlib.suppress(OSError):
            folder.mkdir(parents=True, exist_ok=True)
            write_atomically(folder / key, _sha(body) + body)
            files = sorted(folder.iterdir(), key=lambda file: file.stat().st_mtime)
            for old in files[: -self.kept]:
                old.unlink(missing_ok=True)

    def remove(self, key: str) -> None:
        """Forgets what was kept under the key."""
        folder = self._folder()
        if folder is not None:
            with contextlib.suppress(OSError):
                (folder / key).unlink(missing_ok=True)

    @property
    def usable(self) -> bool:
        """Whether there is a folder: the compilation cache is on, and a local one."""
        return self._folder() is not None

    def _folder(self) -> Path | None:
        folder = cache_folder()
        if not folder or "://" in folder or not cache_is_on():
            return None
        return Path(folder) / self.name


def cache_folder() -> str | None:
    """The folder of JAX's persistent compilation cache; None where none is set."""
    return jax.config.jax_compilation_cache_dir  # pyright: ignore[reportAttributeAccessIssue]


def cache_is_on() -> bool:
    """Whether JAX may use a compilation cache at all."""
    return jax.config.jax_enable_compilation_cache  # pyright: ignore[reportAttributeAccessIssue]


@cache
def source_digest() -> str:
    """Digest of the code that makes programs: after a change of it, old files are not used.

    Raises:
        RuntimeError: A package of this code is not where it is expected.
    """
    return digest_of_packages(_PACKAGES)


def digest_of_packages(packages: Sequence[str]) -> str:
    """SHA-256 of all Python files of packages, those of their subpackages included.

    Only the parents of a package are imported for it.

    Args:
        packages: Full names.

    Returns:
        64 hexadecimal digits.

    Raises:
        RuntimeError: There is no such package, or it has no Python files. An empty digest would
            stay the same whatever changes, and old programs would be used.
    """
    digest = hashlib.sha256()
    for name in packages:
        folders = _folders_of(name)
        files = [file for folder in folders for file in sorted(folder.rglob("*.py"))]
        if not files:
            where = ", ".join(map(str, folders)) or "no folder of this name"
            raise RuntimeError(
                f"package {name!r} has no Python files ({where}), so a change of its code would "
                "go unnoticed and old compiled programs would be used; if it has moved, correct "
                "_PACKAGES in paceline/program/drawer.py."
            )
        for file in files:
            digest.update(file.read_bytes())
    return digest.hexdigest()


def _folders_of(package: str) -> list[Path]:
    try:
        found = importlib.util.find_spec(package)
    except ModuleNotFoundError:  # its parent is not there, or no package
        return []
    if found is None or found.submodule_search_locations is None:
        return []
    return [Path(folder) for folder in found.submodule_search_locations]


def _sha(body: bytes) -> bytes:
    return hashlib.sha256(body).digest()
