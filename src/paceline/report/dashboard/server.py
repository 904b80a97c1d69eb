"""The dashboard's server, on the loopback address: Python's own, with a thread for each request."""

from __future__ import annotations

import socketserver
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer

from paceline.errors import UsageError
from paceline.report.dashboard.app import DashboardApp

HOST = "127.0.0.1"


class _Server(socketserver.ThreadingMixIn, WSGIServer):
    daemon_threads = True
    # A browser that has gone away while it was answered is no error worth a traceback.
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
            f"--port {port}: {error.strerror or error}; choose another one, or 0 for a free one"
        ) from error
    app.listen_on(server.server_address[1])
    server.set_app(app)
    return server
