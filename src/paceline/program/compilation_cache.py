"""JAX's persistent compilation cache: on for as long as searches run, in a folder that is tidied.

JAX can keep a limit itself, but then it lists the folder under a lock for each new entry. That
takes a tenth of a second once there are thousands. After a process was killed during a write, every
later write fails. Without a limit JAX writes an entry straight to its place, and neither reader nor
writer has a lock. So ``tidy`` removes old entries beyond the limit and unfinished ones when a
search begins (docs/decisions/0030).

``DiskCache`` is a folder of small files beside JAX's own: what one search has worked out and the
next one can use.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
import os
import zlib
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import filelock
import jax
import keras
import platformdirs

from paceline.program.files import write_atomically
from paceline.program.keras_private import SharedChange

#: Bytes of entries that a search finds when it begins; more are removed.
MAX_BYTES = 2 * 2**30
#: JAX's names: of an entry, of the time of its last use (with a limit only), and of JAX's own lock.
_ENTRY, _USED, _LOCK = "-cache", "-atime", ".lockfile"
#: Entries that changed before this file did are complete.
_CHECKED = ".checked"
#: Bytes of packed entries that one search checks at most.
_CHECKED_BYTES = 2**25
#: Seconds. An entry that has changed so recently may still be on its way to the disk.
_SETTLED = 10.0
_CHUNK = 2**20
#: How an entry begins that was compressed with Zstandard; without that package JAX uses zlib.
_ZSTANDARD = b"\x28\xb5\x2f\xfd"
#: Settings of JAX: every program is kept, however small.
_SETTINGS = {
    "jax_compilation_cache_max_size": -1,
    "jax_persistent_cache_min_compile_time_secs": 0.0,
    "jax_persistent_cache_min_entry_size_bytes": -1,
}

#: The folder that this process has tidied, and when its list of files had changed last.
_tidied: tuple[Path, int] | None = None


def persistent_cache() -> AbstractContextManager[None]:
    """JAX keeps what it compiles inside, on disk, for every program however small.

    Changes nothing if the user has chosen a folder or no cache, no folder can be made, or Keras
    does not run on JAX. When the last of several searches has ended, JAX's settings are restored
    and JAX reopens its cache. So programs that the user compiles do not go into our folder.
    Programs that are in memory stay there.
    """
    return _our_folder.applied() if keras.backend.backend() == "jax" else nullcontext()


@SharedChange
def _our_folder() -> Iterator[None]:
    folder = _prepared_folder() if cache_folder() is None and cache_is_on() else None
    if folder is None:
        yield
        return
    ours = {"jax_compilation_cache_dir": str(folder), **_SETTINGS}
    before = {name: getattr(jax.config, name) for name in ours}
    for name, value in ours.items():
        jax.config.update(name, value)
    _open_anew()
    yield
    for name, value in ours.items():
        if getattr(jax.config, name) == value:  # else changed by another since
            jax.config.update(name, before[name])
    _open_anew()


def _prepared_folder() -> Path | None:
    """Our folder, tidied; None if it cannot be made."""
    global _tidied
    folder = programs_folder()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if _tidied != (folder, folder.stat().st_mtime_ns):  # it has entries that are new
            tidy(folder)
            _tidied = folder, folder.stat().st_mtime_ns
    except OSError:
        return None  # a read-only home: compile every time
    return folder


def _open_anew() -> None:
    """JAX decides at its first compile whether there is a cache, and where."""
    from jax.experimental.compilation_cache import compilation_cache

    compilation_cache.reset_cache()


def programs_folder() -> Path:
    r"""The folder of compiled programs; it need not be there yet.

    ``PACELINE_CACHE_DIR`` names its parent. Without it that is where the system keeps caches:
    ``$XDG_CACHE_HOME/paceline`` or ``~/.cache/paceline`` on Linux, ``~/Library/Caches/paceline`` on
    macOS, ``%LOCALAPPDATA%\paceline\Cache`` on Windows.
    """
    named = os.environ.get("PACELINE_CACHE_DIR")
    parent = named or platformdirs.user_cache_dir("paceline", appauthor=False)
    return Path(parent) / "programs"


def tidy(folder: Path, max_bytes: int = MAX_BYTES, settled: float = _SETTLED) -> None:
    """Removes unfinished entries, then those not used for longest, down to ``max_bytes`` in sum.

    Lists the folder of JAX's entries, which exists, once, under the lock that JAX itself takes if
    it has a limit. Does nothing while another process has the lock. Each entry is checked once, by
    whichever search comes first, when it has not changed for ``settled`` seconds.

    An entry was last used when it was written or read. The file system knows reads to the day on
    most systems, and not at all without access times.
    """
    with contextlib.suppress(OSError, filelock.Timeout), filelock.FileLock(folder / _LOCK, 0):
        _remove_unfinished(folder, entries := _entries(folder), settled)
        size = sum(status.st_size for status in entries.values())
        if size <= max_bytes:
            return
        oldest = sorted(entries, key=lambda path: _last_use(entries[path]), reverse=True)
        while size > max_bytes:
            path = oldest.pop()
            _remove(path)
            size -= entries[path].st_size


def _entries(folder: Path) -> dict[str, os.stat_result]:
    found: dict[str, os.stat_result] = {}
    with os.scandir(folder) as listing:
        for entry in listing:
            if entry.name.endswith(_ENTRY):
                with contextlib.suppress(FileNotFoundError):  # another process removes entries too
                    found[entry.path] = entry.stat()
    return found


def _last_use(status: os.stat_result) -> int:
    return max(status.st_atime_ns, status.st_mtime_ns)


def _remove_unfinished(folder: Path, entries: dict[str, os.stat_result], settled: float) -> None:
    """Removes them from the folder and from ``entries``."""
    mark = folder / _CHECKED
    before = mark.stat().st_mtime_ns if mark.exists() else 0
    newest = max((status.st_mtime_ns for status in entries.values()), default=0)
    if newest <= before:
        return
    mark.touch()
    # The clock of the file system, which need not be this machine's.
    until = mark.stat().st_mtime_ns - int(settled * 1e9)
    n_bytes = 0
    for path in sorted(entries, key=lambda path: -entries[path].st_mtime_ns):
        status = entries[path]
        if not before < status.st_mtime_ns <= until:
            continue
        # The newest come first. The folder of an earlier version may hold 2 GiB of entries, and a
        # search must not wait until all of them are unpacked.
        n_bytes += status.st_size
        if n_bytes > _CHECKED_BYTES:
            break
        with contextlib.suppress(OSError):  # it is gone, or not ours to read
            if not is_complete(path):
                _remove(path)
                del entries[path]
    # ``before`` still holds for entries that are written while this runs.
    checked = max(before, min(until, newest))
    os.utime(mark, ns=(checked, checked))


def is_complete(path: str) -> bool:
    """Whether an entry can be unpacked to its end; what cannot be judged here counts as complete.

    Raises OSError where the entry cannot be read.
    """
    unpack = zlib.decompressobj()
    with open(path, "rb") as file:
        chunk = file.read(_CHUNK)
        if chunk.startswith(_ZSTANDARD):
            return _is_complete_zstandard(chunk + file.read())
        while chunk:
            try:
                unpack.decompress(chunk)
            except zlib.error:
                return False
            chunk = file.read(_CHUNK)
    return unpack.eof


def _is_complete_zstandard(data: bytes) -> bool:
    try:
        import zstandard  # pyright: ignore[reportMissingImports] - JAX uses it where it is there
    except ImportError:
        return True
    try:
        zstandard.ZstdDecompressor().decompress(data)
    except zstandard.ZstdError:
        return False
    return True


def _remove(path: str) -> None:
    for file in (path, path.removesuffix(_ENTRY) + _USED):
        with contextlib.suppress(OSError):  # it is gone, or another process reads it on Windows
            os.unlink(file)


#: Whose code makes programs. Found by name: ``program`` itself must not import ``plan``.
_PACKAGES = ("paceline.pack.plan", "paceline.program")


@dataclass(frozen=True)
class DiskCache:
    """A folder of files that are found by their key; damaged ones count as absent."""

    name: str  # of the folder, within that of the compilation cache
    kept: int  # most files that stay; those not used for longest go first

    def read(self, key: str) -> bytes | None:
        """What was kept under the key; None if there is nothing, or it is damaged."""
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
        """Keeps ``body`` under the key, if there is a folder that can be written."""
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
    """The folder of JAX's persistent compilation cache; None if none is set."""
    return jax.config.jax_compilation_cache_dir  # pyright: ignore[reportAttributeAccessIssue]


def cache_is_on() -> bool:
    """Whether JAX may use a compilation cache at all."""
    return jax.config.jax_enable_compilation_cache  # pyright: ignore[reportAttributeAccessIssue]


@cache
def source_digest() -> str:
    """Digest of the code that makes programs: after a change of it, old files are not used."""
    return digest_of_packages(_PACKAGES)


def digest_of_packages(packages: Sequence[str]) -> str:
    """SHA-256 of all Python files of packages (full names) and their subpackages, in hexadecimal.

    Only the parents of a package are imported for it. Raises RuntimeError if a package is missing
    or has no Python files: an empty digest would never change, so old programs would be used.
    """
    digest = hashlib.sha256()
    for name in packages:
        folders = _folders_of(name)
        files = [file for folder in folders for file in sorted(folder.rglob("*.py"))]
        if not files:
            where = ", ".join(map(str, folders)) or "no folder of this name"
            raise RuntimeError(
                f"package {name!r} has no Python files ({where}), so changes of its code would go "
                "unnoticed. If it has moved, correct _PACKAGES in "
                "paceline/program/compilation_cache.py."
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
