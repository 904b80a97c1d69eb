"""JAX's persistent compilation cache: on for as long as searches run, in a folder that is tidied.

JAX can keep a limit itself, but then it lists the folder under a lock whenever it adds an entry: a
tenth of a second and more once there are thousands, and every write fails for good once a process
was killed in the middle of one. Without a limit JAX writes an entry straight to its place, and
neither reader nor writer has a lock. So ``tidy`` removes, when a search begins, what is too much
and what a killed process or a full disk has left unfinished (docs/decisions/0030).
"""

from __future__ import annotations

import contextlib
import os
import zlib
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import filelock
import jax
import platformdirs

from paceline.program.disk_cache import cache_folder, cache_is_on
from paceline.program.keras_private import RefCountedPatch

#: Bytes of entries that a search finds when it begins; more are removed.
MAX_BYTES = 2 * 2**30
#: JAX's names: of an entry, of the time of its last use (with a limit only), and of JAX's own lock.
_ENTRY, _USED, _LOCK = "-cache", "-atime", ".lockfile"
#: Entries that changed before this file did are complete.
_CHECKED = ".checked"
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

_before: dict[str, Any] = {}
_ours: dict[str, Any] = {}
#: The folder that this process has tidied, and when its list of files had changed last.
_tidied: tuple[Path, int] | None = None


def persistent_cache() -> AbstractContextManager[None]:
    """JAX keeps what it compiles inside, on disk, for every program however small.

    Changes nothing where the user has chosen a folder or switched the cache off, and where no
    folder can be made. JAX's settings are as before when the last of several searches has ended,
    and JAX then opens its cache anew: what the user compiles does not go into our folder. Programs
    that are in memory stay there.
    """
    return _patch.applied()


def _install() -> None:
    global _tidied
    _ours.clear()
    if cache_folder() is not None or not cache_is_on():
        return
    folder = programs_folder()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if _tidied != (folder, folder.stat().st_mtime_ns):  # it has entries that are new
            tidy(folder)
            _tidied = folder, folder.stat().st_mtime_ns
    except OSError:
        return  # a read-only home: compile every time
    _ours.update({"jax_compilation_cache_dir": str(folder)}, **_SETTINGS)
    _before.update({name: getattr(jax.config, name) for name in _ours})
    for name, value in _ours.items():
        jax.config.update(name, value)
    _open_anew()


def _restore() -> None:
    if not _ours:
        return
    for name, value in _ours.items():
        if getattr(jax.config, name) == value:  # else changed by another since
            jax.config.update(name, _before[name])
    _open_anew()


def _open_anew() -> None:
    """JAX decides at its first compile whether there is a cache, and where."""
    from jax.experimental.compilation_cache import compilation_cache

    compilation_cache.reset_cache()


_patch = RefCountedPatch(_install, _restore)


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
    """Removes unfinished entries, then those not used for longest until the rest is small enough.

    Lists the folder once, under the lock that JAX itself takes where it has a limit. Does nothing
    while another process has the lock. Each entry is checked once, by whichever search comes first.

    An entry was used last when it was written, or when the file system says it was read: to the
    day on most systems, never where access times are switched off.

    Args:
        folder: Of JAX's entries; it is there.
        max_bytes: The sum of the sizes of the entries that stay is at most this.
        settled: Seconds for which an entry has not changed when it is checked.
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
    for path, status in list(entries.items()):
        with contextlib.suppress(OSError):  # it is gone, or not ours to read
            if before < status.st_mtime_ns <= until and not is_complete(path):
                _remove(path)
                del entries[path]
    # ``before`` still holds for entries that are written while this runs.
    checked = max(before, min(until, newest))
    os.utime(mark, ns=(checked, checked))


def is_complete(path: str) -> bool:
    """Whether an entry can be unpacked to its end; what cannot be judged here counts as complete.

    Raises:
        OSError: It cannot be read.
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
