"""The dashboard as a WSGI application: our page, its events, the report, and optuna-dashboard.

Its server is Python's own, with a thread for each request.

There is no login, so the server listens only on the loopback address, and answers only requests to
localhost. A stranger's page in the same browser can neither read the dashboard under another name
(DNS rebinding) nor send it anything.
"""

from __future__ import annotations

import json
import socketserver
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer

import msgspec

from paceline.errors import PacelineError, UsageError
from paceline.report.html.page import report_page
from paceline.report.html.subject import ReportSubject
from paceline.report.progress import read_live, watch

Environ = dict[str, Any]
Start = Callable[..., Any]
App = Callable[[Environ, Start], Iterable[bytes]]

_HERE = Path(__file__).parent
#: Our page loads nothing from elsewhere; its own script and events are allowed.
_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
#: Files of our page.
_FILES = {
    "/": ("dashboard.html", "text/html; charset=utf-8"),
    "/paceline/dashboard.css": ("dashboard.css", "text/css; charset=utf-8"),
    "/paceline/dashboard.js": ("dashboard.js", "text/javascript; charset=utf-8"),
}
#: Pages that show packs at the same time, at most: each keeps a thread.
_MOST_PAGES = 16


#: The address that the server listens on.
HOST = "127.0.0.1"


class DashboardApp:
    """Answers the requests of a browser; ``inner`` is optuna-dashboard's application.

    ``study_id``: the study's number in it; None: our page links the list of studies. ``every``:
    seconds between two events.
    """

    def __init__(
        self,
        name: str,
        folder: Path,
        inner: App,
        read: Callable[[], ReportSubject],
        every: float = 1.0,
        study_id: int | None = None,
    ) -> None:
        self._name, self._folder, self._inner = name, folder, inner
        self._read, self._every = read, every
        # A path of our own making, which needs no escape.
        self._trials = b"/dashboard/" if study_id is None else b"/dashboard/studies/%d" % study_id
        self._one_at_a_time = threading.Lock()  # the storage's threads must take turns
        self._pages = threading.Semaphore(_MOST_PAGES)
        self.hosts: frozenset[str] = frozenset()

    def listen_on(self, port: int) -> None:
        """Note the port, once it is known: requests must name it."""
        names = ("127.0.0.1", "localhost", "[::1]")
        self.hosts = frozenset(f"{name}:{port}" for name in names)

    def __call__(self, environ: Environ, start_response: Start) -> Iterable[bytes]:
        """Answer a request."""
        if environ.get("HTTP_HOST", "").lower() not in self.hosts:
            return _text(
                start_response, "403 Forbidden", "This server answers only requests to localhost."
            )
        if not self._is_own(environ):
            return _text(
                start_response, "403 Forbidden", "This request came from a page of another server."
            )
        path = environ.get("PATH_INFO", "/") or "/"
        if path in _FILES:
            file, kind = _FILES[path]
            headers = [("Content-Type", kind), ("Content-Security-Policy", _POLICY)]
            body = _HERE.joinpath(file).read_bytes().replace(b"{{TRIALS}}", self._trials)
            return _answer(start_response, "200 OK", headers, body)
        if path == "/paceline/events":
            return self._events(start_response)
        if path == "/paceline/report":
            return self._report(start_response)
        with self._one_at_a_time:
            return list(self._inner(environ, start_response))

    def _is_own(self, environ: Environ) -> bool:
        """Whether a request that changes something comes from a page of ours."""
        if environ.get("REQUEST_METHOD", "GET") in ("GET", "HEAD"):
            return True
        origin = environ.get("HTTP_ORIGIN")
        return origin is None or urlsplit(origin).netloc.lower() in self.hosts

    def _report(self, start_response: Start) -> Iterable[bytes]:
        try:
            with self._one_at_a_time:
                subject = self._read()
        except PacelineError as error:
            return _text(start_response, "500 Internal Server Error", str(error))
        headers = [("Content-Type", "text/html; charset=utf-8")]
        return _answer(start_response, "200 OK", headers, report_page(subject).encode())

    def _events(self, start_response: Start) -> Iterable[bytes]:
        if not self._pages.acquire(blocking=False):
            return _text(start_response, "503 Service Unavailable", "Too many pages are open.")
        start_response(
            "200 OK", [("Content-Type", "text/event-stream"), ("Cache-Control", "no-store")]
        )
        return _Events(self._states(), self._pages.release)

    def _states(self) -> Iterator[bytes]:
        while True:
            watch(self._folder)
            yield b"data: " + state_json(self._name, self._folder) + b"\n\n"
            time.sleep(self._every)


class _Events:
    """An endless answer, which gives its place back when the browser goes away."""

    def __init__(self, states: Iterator[bytes], release: Callable[[], None]) -> None:
        self._states, self._release = states, release

    def __iter__(self) -> Iterator[bytes]:
        return self._states

    def close(self) -> None:
        self._release()


def state_json(name: str, folder: Path) -> bytes:
    """Return what our page shows of a study, as one line of JSON."""
    state = read_live(folder)
    fresh = state is not None and state.fresh
    found = {"study": name, "running": fresh, "state": msgspec.to_builtins(state)}
    return json.dumps(found, allow_nan=False).encode()


def _text(start_response: Start, status: str, text: str) -> Iterable[bytes]:
    headers = [("Content-Type", "text/plain; charset=utf-8")]
    return _answer(start_response, status, headers, text.encode())


def _answer(
    start_response: Start, status: str, headers: list[tuple[str, str]], body: bytes
) -> Iterable[bytes]:
    start_response(
        status,
        [
            *headers,
            ("Content-Length", str(len(body))),
            ("X-Content-Type-Options", "nosniff"),
            ("Cache-Control", "no-store"),
        ],
    )
    return [body]


class _Server(socketserver.ThreadingMixIn, WSGIServer):
    daemon_threads = True
    # A browser that has gone away while it was answered is not an error worth a traceback.
    block_on_close = False

    def handle_error(self, request: Any, client_address: Any) -> None:
        pass


class _Handler(WSGIRequestHandler):
    def log_message(self, format: str, *args: Any) -> None:
        pass


def make_server(app: DashboardApp, port: int) -> WSGIServer:
    """Return a server that listens, and answers once ``serve_forever`` is called.

    Port 0 stands for a free one; the application is told the port.
    """
    try:
        server = _Server((HOST, port), _Handler)
    except OSError as error:
        raise UsageError(
            f"--port {port}: {error.strerror or error}. Use another port, or 0 for a free one"
        ) from error
    app.listen_on(server.server_address[1])
    server.set_app(app)
    return server
