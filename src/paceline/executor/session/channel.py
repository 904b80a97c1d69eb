"""The private connection between a session and its process: messages, and arrays in shared memory.

Both ends are processes of one user, and the connection has no name: nobody else can write to it. So
messages are pickles, of the user's own code among others. Nothing of this is ever in a file.

Arrays of a message, and a long message, travel in memory that both processes see. Arrays are copied
once. What the receiver writes to them stays with the receiver.
"""

from __future__ import annotations

import contextlib
import io
import mmap
import os
import pickle
import queue
import socket
import struct
import threading
import weakref
from dataclasses import dataclass, field
from typing import Any

import cloudpickle

from paceline.executor.wall.black_box import nameless_file

#: What kind it is of, bytes of the message, bytes of the arrays beside it.
_HEADER = struct.Struct("!BQQ")
#: Kinds of messages: whoever receives one knows its kind before it is unpickled.
CALL, SETTINGS, ANSWER, SENT = range(4)
#: Bytes from which on an array travels beside its message.
_LARGE = 1 << 16
#: Where arrays begin in shared memory: at a multiple of this, as the compiler likes them.
_ALIGNED = 64
#: Bytes of a message that a socket takes as a whole: no other process writes in its middle.
_AT_ONCE = 1 << 12


def _aligned(size: int) -> int:
    return -(-size // _ALIGNED) * _ALIGNED


@dataclass(frozen=True)
class Frame:
    """A message that has arrived, and is not yet unpickled."""

    body: bytes
    memory: int | None  # the file descriptor of the arrays; None without
    n_bytes: int  # of the arrays
    kind: int  # ``CALL`` or another kind

    def message(self) -> Any:
        """The message; raises whatever unpickling raises."""
        if not self.body:
            raise OSError("a message has come without its memory: too many files are open")
        sizes, pickled = pickle.loads(self.body)
        if self.memory is None:
            return pickle.loads(pickled)
        try:
            # Private: what is written to the arrays is written to this process' copy of the page.
            view = memoryview(mmap.mmap(self.memory, self.n_bytes, flags=mmap.MAP_PRIVATE))
        finally:
            os.close(self.memory)
        buffers, at = [], 0
        for size in sizes:
            buffers.append(view[at : at + size])
            at += _aligned(size)
        return pickle.loads(pickled, buffers=buffers)


@dataclass(frozen=True, eq=False)
class _Parcel:
    """A message as it is written, and once it is, None or the error."""

    words: bytes  # the header, and a body that is short
    memory: int | None
    written: queue.SimpleQueue[OSError | None] = field(default_factory=queue.SimpleQueue)

    def write_to(self, end: socket.socket) -> OSError | None:
        """Writes it to a socket; returns the error of that."""
        try:
            # At once: processes that the user's code forks write to the same socket.
            n = socket.send_fds(end, [self.words], [] if self.memory is None else [self.memory])
            end.sendall(self.words[n:])  # of systems that take less than that
        except OSError as error:
            return error
        finally:
            if self.memory is not None:
                os.close(self.memory)
        return None


def _write(end: socket.socket, parcels: queue.SimpleQueue[_Parcel | None]) -> None:
    """Writes parcels to a socket until a None comes."""
    while (parcel := parcels.get()) is not None:
        parcel.written.put(parcel.write_to(end))


class Channel:
    """One end of a connection; any thread may send, one thread receives.

    ``pickler`` is the class that pickles what is sent. A thread of its own writes to the socket. So
    no interrupt leaves half a message there, and the handler of a signal may send, also while the
    thread that it has interrupted sends.
    """

    def __init__(self, end: socket.socket, pickler: Any = cloudpickle.Pickler) -> None:
        self._socket, self._pickler, self._owner = end, pickler, os.getpid()
        # Unlike a lock, such a queue may be used by the handler that interrupts its use.
        self._parcels: queue.SimpleQueue[_Parcel | None] = queue.SimpleQueue()
        threading.Thread(target=_write, args=(end, self._parcels), daemon=True).start()
        weakref.finalize(self, self._parcels.put, None).atexit = False

    def send(self, message: Any, kind: int = CALL) -> None:
        """Sends a message; raises OSError if the other end is closed.

        Raises MemoryError if there is no memory for its arrays, and what pickling raises.
        """
        large: list[pickle.PickleBuffer] = []

        def within(buffer: pickle.PickleBuffer) -> bool:
            try:
                if buffer.raw().nbytes < _LARGE:
                    return True
            except BufferError:  # not contiguous
                return True
            large.append(buffer)
            return False

        written = io.BytesIO()
        self._pickler(written, protocol=5, buffer_callback=within).dump(message)
        pickled = written.getvalue()
        views = [buffer.raw() for buffer in large]
        body = pickle.dumps(([view.nbytes for view in views], pickled))
        words = _HEADER.pack(kind, len(body), sum(_aligned(view.nbytes) for view in views))
        if len(body) > _AT_ONCE:
            views.append(memoryview(body))
        else:
            words += body
        try:
            memory = _shared_memory(views) if views else None
        except OSError as error:
            raise MemoryError(f"there is no shared memory for a message: {error}") from error
        parcel = _Parcel(words, memory)
        if self._owner == os.getpid():
            self._parcels.put(parcel)
            error = parcel.written.get()
        else:  # the user's code has forked, and threads stay behind
            error = parcel.write_to(self._socket)
        if error is not None:
            raise error

    def receive(self) -> Frame:
        """The next message; raises EOFError if the other end has closed."""
        try:
            header, descriptors, _, _ = socket.recv_fds(self._socket, _HEADER.size, 1)
            header += self._exactly(_HEADER.size - len(header))
            kind, length, n_bytes = _HEADER.unpack(header)
            memory, body = descriptors[0] if descriptors else None, b""
            if length <= _AT_ONCE:
                body = self._exactly(length)
            elif memory is not None:
                body = _read(memory, n_bytes, length)
        except OSError as error:
            raise EOFError(str(error)) from error
        if memory is not None and not n_bytes:  # it has no arrays
            os.close(memory)
            memory = None
        return Frame(body, memory, n_bytes, kind)

    def _exactly(self, n_bytes: int) -> bytes:
        parts = bytearray()
        while len(parts) < n_bytes:
            part = self._socket.recv(min(n_bytes - len(parts), 1 << 20))
            if not part:
                raise EOFError("the other process has ended")
            parts += part
        return bytes(parts)

    def shut_down(self) -> None:
        """Ends the connection: the other end, and whoever sends or receives here, see the end.

        What has arrived is still received.
        """
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Ends the connection for good."""
        self.shut_down()
        self._socket.close()


def _shared_memory(views: list[memoryview]) -> int:
    """The descriptor of memory that holds some buffers, and has no name in any folder."""
    descriptor = nameless_file()
    try:
        for view in views:
            at = 0
            while at < view.nbytes:
                at += os.write(descriptor, view[at : at + (1 << 30)])
            os.write(descriptor, bytes(_aligned(view.nbytes) - view.nbytes))
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def _read(descriptor: int, at: int, n_bytes: int) -> bytes:
    """Some bytes of a file; as many as are asked for."""
    parts = bytearray()
    while len(parts) < n_bytes:
        parts += os.pread(descriptor, min(n_bytes - len(parts), 1 << 30), at + len(parts))
    return bytes(parts)
