"""A journal file that Optuna's own reader opens, written a batch at a time.

The format is Optuna's: one JSON object a line. Its own backend takes the lock, writes and syncs the
file for every single record. This one does so once for a batch. Several processes (a dashboard,
another search) may write to one file. ``journal_storage.py`` says what the lines mean.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import secrets
import shlex
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec

from paceline.errors import StorageError
from paceline.program.files import as_shown
from paceline.study.storage import schema

#: What to do about a damaged journal, of a study's name and a storage.
HOW_TO_REPAIR = "`paceline repair {} --storage {}` keeps the intact lines, and lists the lost ones."
BLOCK = 2**20  # bytes that are read at once
#: Reads a line of a journal; ``record_of`` also knows NaN, and says what is wrong.
_RECORD = msgspec.json.Decoder(schema.JournalRecord)


class DamagedLineError(ValueError):
    """A line of a journal that cannot be read, by its number, from 1; None if nobody knows it."""

    def __init__(self, reason: str, line: int | None = None) -> None:
        super().__init__(reason if line is None else f"line {line} is damaged: {reason}")
        self.reason, self.line = reason, line


def line_of(record: dict[str, Any]) -> bytes:
    """Return a record as a line of a journal."""
    return json.dumps(record, separators=(",", ":")).encode() + b"\n"


def lines_of(text: bytes) -> list[bytes]:
    """Return whole lines apart, each with its end."""
    return text.splitlines(keepends=True)


def records_of(text: bytes) -> list[Any]:
    """Return whole lines as records; as ``lines_of`` does where one of them needs a closer look."""
    if text.isascii():
        with contextlib.suppress(*schema.UNREADABLE):
            found = _RECORD.decode_lines(text)
            if len(found) == text.count(b"\n"):  # else there are empty lines
                return found
    return lines_of(text)


class JournalFile:
    """The lines of a file, oldest first; the first write makes the file.

    A process that was killed while writing leaves half a line at the end. Half a line is not read.
    Before the next write it is moved to a file next to the journal, because it would make the next
    line unreadable. Methods raise OSError where the file cannot be read or written.
    """

    def __init__(self, path: Path) -> None:
        """Name the file; its folder must exist when something is written."""
        self.path = path
        # The file beside it that says in short what it comes to; a long one has it.
        self.compacted = Path(f"{path}.compact")
        # A lock for the thread that reads or writes. Hold it around calls of a ``JournalStorage``,
        # so that no thread adds records to the batch of another.
        self.turn = threading.RLock()
        self._lock = FileLock(path)
        # How many lines and bytes of the file have been read or written here.
        self._count = 0
        self._size = 0
        # Lines of the open batch; None without a batch.
        self._batch: list[bytes] | None = None
        self._holder: int | None = None  # the thread that opened it
        # Whether the file was read since the batch was opened: until it ends nobody can change it.
        self._fresh = False

    def read(self, start: int, cut: Callable[[bytes], list[Any]] = records_of) -> Iterator[Any]:
        """Yield the lines from number ``start`` on, from 0, as ``cut`` has those of the file."""
        if start < self._count:
            self._count = self._size = 0
            self._fresh = False
        if not self._fresh:
            skipped = start - self._count
            found = self._read_on(cut)
            yield from itertools.islice(found, skipped, None) if skipped else found
            self._fresh = self._batch is not None
        if self._batch:
            yield from self._batch[max(0, start - self._count) :]

    @property
    def position(self) -> tuple[int, int]:
        """How many lines, and bytes, of the file have been read or written here."""
        return self._count, self._size

    def skip(self, n_lines: int, n_bytes: int) -> None:
        """Take lines at the beginning of the file as read, before any is."""
        self._count, self._size, self._fresh = n_lines, n_bytes, False

    def append(self, record: dict[str, Any]) -> None:
        """Append a record: to the open batch, or else to the file at once."""
        if self._batch is None:
            with self.batch():
                self.append(record)
            return
        self._batch.append(line_of(record))

    @contextlib.contextmanager
    def batch(self, written: Callable[[], None] | None = None) -> Iterator[None]:
        """Hold the lock and write what is appended inside at once, when the block ends.

        Where the block or the write fails (also since someone else has cut or removed the file),
        nothing is written. A ``JournalStorage`` over this file may have read records of the failed
        batch, so it has to be made again. ``written`` is called when every process can read the
        lines. The disk may have them later: it takes milliseconds, and a network drive far longer.
        """
        if self._holder == threading.get_ident():
            yield  # this thread holds the lock already
            return
        with self.turn, self._lock.held():
            self._cut_half_line()
            self._batch, self._fresh = [], False
            self._holder = threading.get_ident()
            try:
                yield
                if lines := self._batch:
                    self._write(lines, written)
                    if self._fresh:
                        self._count += len(lines)
                        self._size += sum(len(line) for line in lines)
            finally:
                self._batch, self._fresh, self._holder = None, False, None

    def _read_on(self, cut: Callable[[bytes], list[Any]]) -> Iterator[Any]:
        """Yield the complete lines after those that were read before, as ``cut`` has them."""
        with contextlib.suppress(FileNotFoundError), self.path.open("rb") as file:
            file.seek(self._size)
            rest = b""
            while block := file.read(BLOCK):
                whole = block.rfind(b"\n") + 1
                if not whole:
                    rest += block
                    continue
                text = rest + block[:whole]
                lines = cut(text)
                rest = block[whole:]
                self._size += len(text)
                self._count += len(lines)
                yield from lines

    def _cut_half_line(self) -> None:
        """Cut off half a line at the end; under the lock nobody is about to complete it."""
        size = self.path.stat().st_size if self.path.exists() else 0
        if size < self._size:
            raise OSError("another program truncated or removed the journal")
        if size == 0:
            return
        with self.path.open("r+b") as file:
            file.seek(size - 1)
            if file.read(1) == b"\n":
                return
            # Half a line is rare, so reading the whole file for it is fast enough.
            file.seek(0)
            data = file.read()
            whole = data.rfind(b"\n") + 1
            kept = self.path.with_name(f"{self.path.name}.cut-{whole}")
            with kept.open("ab") as copied:
                copied.write(data[whole:] + b"\n")
            file.truncate(whole)

    def _write(self, lines: list[bytes], written: Callable[[], None] | None) -> None:
        left = memoryview(b"".join(lines))
        # Unbuffered: a buffer would be written once more when the file is closed.
        with self.path.open("ab", buffering=0) as file:
            start = file.tell()
            try:
                while left:
                    left = left[file.write(left) :]
                if written is not None:
                    written()
                os.fsync(file.fileno())
            except OSError:  # the disk is full: remove the part that was written
                with contextlib.suppress(OSError):
                    file.truncate(start)
                raise


def record_of(line: bytes) -> Any:
    """Return a line as one of ``schema.JournalRecord``; DamagedLineError where it is none."""
    try:
        # msgspec does not look into what it skips: bad bytes there would end Optuna's own reader.
        return _RECORD.decode(line if line.isascii() else line.decode())
    except schema.UNREADABLE as error:
        # msgspec knows no NaN and no infinities, which Optuna writes; Python's parser does.
        value: Any = None
        try:
            value = json.loads(line)
            json.dumps(value, ensure_ascii=False).encode()  # half a character cannot be shown
            if isinstance(error, msgspec.ValidationError):
                raise error
            return msgspec.convert(value, schema.JournalRecord, str_keys=True)
        except schema.UNREADABLE as second:
            invalid = isinstance(second, msgspec.ValidationError)
            why = schema.why(second if invalid else error, value)
            begins = schema.shown(line[:40].decode(errors="replace").rstrip())
            raise DamagedLineError(f"{why} (it begins {begins})") from None


def damaged(file: JournalFile, error: DamagedLineError) -> StorageError:
    """Return the error for a line of a journal that cannot be read."""
    where = f"journal:{as_shown(file.path)}"
    how = HOW_TO_REPAIR.format("STUDY", shlex.quote(where))
    return StorageError(f"storage {where}: {error}. {how}")


class FileLock:
    """A lock between processes: the process that makes the file holds the lock.

    The file is the one that Optuna's own journal backend uses, so the two exclude each other. Here
    it is a plain file; Optuna makes a symbolic link, which not every mounted drive can hold.
    """

    # Seconds. A batch holds the lock for a far shorter time: a killed process left an older lock.
    STALE = 30.0

    def __init__(self, path: Path) -> None:
        """Name the lock by the file that it protects."""
        self._path = Path(f"{path.absolute()}.lock")

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """Wait for the lock and hold it; OSError where the lock file cannot be made."""
        wait, seen, since = 0.001, 0, 0.0
        while True:
            try:
                descriptor = os.open(self._path, os.O_CREAT | os.O_EXCL | os.O_WRONLY)
                break
            except FileExistsError:
                made = self._made()
                if made != seen:
                    seen, since = made, time.monotonic()
                if made and (time.monotonic() - since > self.STALE or self._holder_died()):
                    self._break(made)
                time.sleep(wait)
                wait = min(2 * wait, 0.1)
        with contextlib.suppress(OSError):  # the disk is full, but the lock still holds
            os.write(descriptor, f"{os.getpid()} {_process_space()}".encode())
        os.close(descriptor)
        began = time.monotonic()
        try:
            yield
        finally:
            # After that time another process may have broken the lock and made its own.
            if time.monotonic() - began < self.STALE:
                self._path.unlink(missing_ok=True)

    def _made(self) -> int:
        """Return when the present lock file was made, in nanoseconds; 0 without a lock file.

        It tells one lock from the next. Its age does not count, because clocks of machines differ.
        """
        try:
            return self._path.lstat().st_mtime_ns
        except FileNotFoundError:
            return 0

    def _holder_died(self) -> bool:
        """Whether the process that holds the lock ran on this machine and is no more."""
        try:
            number, _, space = self._path.read_text().partition(" ")
            if not space or space != _process_space() or os.name != "posix":
                return False  # of another machine, or Optuna's lock: it is watched
            os.kill(int(number), 0)
        except ProcessLookupError:
            return True
        except (OSError, ValueError, OverflowError):
            pass
        return False

    def _break(self, made: int) -> None:
        """Remove the lock file that was made at a time, and no other.

        Where two processes find a lock stale, the second must not remove the new lock of the first.
        """
        aside = self._path.with_name(f"{self._path.name}.{secrets.token_hex(8)}")
        with contextlib.suppress(FileNotFoundError):
            self._path.rename(aside)
            if aside.lstat().st_mtime_ns != made:
                with contextlib.suppress(OSError, RuntimeError):  # a drive without links
                    os.link(aside, self._path, follow_symlinks=False)
            aside.unlink()


def _process_space() -> str:
    """Text that two processes share if they know each other by number; empty where none tells."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot} {os.readlink('/proc/self/ns/pid')}"
    except OSError:
        return ""
