"""A long journal in short: a file beside it that says what its lines come to.

A search writes it at its end. The next reader of the journal reads it instead of the lines that it
covers, and then the lines after those. It holds ordinary lines of a journal, one for each trial,
which are checked as all lines are. The first line is a header with two digests. A file is ignored
if its digest differs, or if the journal does not begin with the bytes that it covers (a repaired
journal). The next search writes a new file. Readers never write it.
"""

from __future__ import annotations

import contextlib
import hashlib
import math
import secrets
from collections.abc import Iterable, Iterator
from typing import Any, BinaryIO

import msgspec

from paceline.study.storage.journal import BLOCK, JournalFile, line_of, records_of
from paceline.study.storage.schema import UNREADABLE, Count

#: Bytes of a journal that are worth a new file: reading them takes a tenth of a second.
WORTHWHILE = 8 * 2**20
_FORMAT = 1  # files of another one are passed over
_LONGEST_HEADER = 1000  # bytes


class Header(msgspec.Struct, frozen=True):
    """The first line."""

    format: int  # 1; what another version writes is passed over
    n_lines: Count  # of the journal, which the file covers
    n_bytes: Count  # that these lines take
    journal: str  # SHA-256 of those bytes
    body: str  # SHA-256 of what follows the header


@contextlib.contextmanager
def reading(journal: JournalFile) -> Iterator[tuple[Header, Iterator[Any]]]:
    """Open what lies beside a journal, for a block: the header, and the lines that follow it.

    The digests are compared first. Raises OSError or ValueError where the file is of no use.
    """
    with journal.compacted.open("rb") as file:
        try:
            header = msgspec.json.decode(file.readline(_LONGEST_HEADER), type=Header)
        except UNREADABLE as error:
            raise ValueError(str(error)) from None
        start = file.tell()
        if header.format != _FORMAT or header.body != _digest(file):
            raise ValueError("it is damaged, or from another version")
        with journal.path.open("rb") as lines:
            if header.journal != _digest(lines, header.n_bytes) or lines.tell() != header.n_bytes:
                raise ValueError("the journal does not begin with the records that it summarizes")
        file.seek(start)
        # Another search may put a new file into its place: these lines are those of this header.
        yield header, _records(file)


def write(journal: JournalFile, records: Iterable[dict[str, Any]]) -> None:
    """Write the file, of what the lines of a journal that was read come to."""
    n_lines, n_bytes = journal.position
    with journal.path.open("rb") as file:
        covered = _digest(file, n_bytes)
    body = hashlib.sha256()
    # As ``program/files.py`` does for the rooms that may import it.
    temporary = journal.path.with_name(f".tmp-{secrets.token_hex(8)}-{journal.path.name}")
    try:
        with temporary.open("wb") as file:
            header = Header(_FORMAT, n_lines, n_bytes, covered, body.hexdigest())
            file.write(msgspec.json.encode(header) + b"\n")
            for line in map(line_of, records):
                body.update(line)
                file.write(line)
            file.seek(0)  # the header is as long with the digest of the body
            file.write(msgspec.json.encode(msgspec.structs.replace(header, body=body.hexdigest())))
        temporary.replace(journal.compacted)
    finally:
        temporary.unlink(missing_ok=True)


def _records(file: BinaryIO) -> Iterator[Any]:
    """Yield the lines from here on, a block at a time."""
    while lines := file.readlines(BLOCK):
        yield from records_of(b"".join(lines))


def _digest(file: BinaryIO, n_bytes: float = math.inf) -> str:
    """Return the SHA-256 of the next bytes of a file, or of all that are left."""
    digest = hashlib.sha256()
    while n_bytes > 0 and (block := file.read(int(min(n_bytes, BLOCK)))):
        digest.update(block)
        n_bytes -= len(block)
    return digest.hexdigest()
