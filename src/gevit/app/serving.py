"""Serving the lab: the port is bound first, slow clients are cut off, Ctrl-C ends it."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import ipaddress
import os
import socket
import sys
import threading
import webbrowser

import h11
import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.h11_impl import H11Protocol

SECONDS_FOR_REQUEST = 10  # to send what it wants, before its body
MOST_CONNECTIONS = 200


def bind(host: str, port: int) -> socket.socket:
    """A socket that listens there; raises `OSError` that says what to do if it cannot."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    except socket.gaierror as error:
        raise OSError(f"there is no host {host!r} here ({error.strerror}); leave out --host") from error
    bound = socket.socket(family, kind, protocol)
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind(address)
        bound.listen(MOST_CONNECTIONS)
    except (OSError, OverflowError) as error:
        bound.close()
        if getattr(error, "errno", None) == errno.EADDRINUSE:
            reason = f"port {port} is taken; give another one, --port {port + 1}, or --port 0 for any that is free"
        elif getattr(error, "errno", None) == errno.EACCES:
            reason = f"port {port} is not allowed to you; give one above 1023, e.g. --port 8642"
        else:
            reason = f"cannot listen on {host}, port {port}: {error}"
        raise OSError(reason) from error
    return bound


def serve(app: ASGIApp, listening: socket.socket, open_browser: bool) -> None:
    """Serve until Ctrl-C."""
    host, port = listening.getsockname()[:2]
    shown = "127.0.0.1" if host in ("0.0.0.0", "::") else f"[{host}]" if ":" in host else host
    config = uvicorn.Config(
        app,
        http=Impatient,
        ws="none",
        log_level="error",
        access_log=False,
        server_header=False,
        timeout_keep_alive=30,
        timeout_graceful_shutdown=1,
        limit_concurrency=MOST_CONNECTIONS,
    )
    with contextlib.suppress(KeyboardInterrupt):  # which uvicorn raises again when all is closed
        is_open = not ipaddress.ip_address(host).is_loopback
        _Announced(config, f"http://{shown}:{port}/", is_open, open_browser).run([listening])
    print("stopped")


class _Announced(uvicorn.Server):
    """A server that says where it is once it is there."""

    def __init__(self, config: uvicorn.Config, address: str, is_open: bool, open_browser: bool) -> None:
        super().__init__(config)
        self.address, self.is_open, self.open_browser = address, is_open, open_browser

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        print(f"the lab is at {self.address} (Ctrl-C stops it)", flush=True)
        if self.is_open:
            print("everybody who can reach this machine can use it: there is no password", flush=True)
        if self.open_browser and _has_screen():
            # It may wait until the browser is closed; nobody waits for it.
            threading.Thread(target=webbrowser.open, args=(self.address,), daemon=True).start()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Hang up first: who is in the middle of an upload, or waits for an answer, is not waited for."""
        for connection in list(self.server_state.connections):
            connection.transport.abort()
        await super().shutdown(sockets)


class Impatient(H11Protocol):
    """Closes a connection that does not say in time what it wants; uvicorn would wait for ever."""

    _patience: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Start to wait."""
        super().connection_made(transport)
        self._wait_for_request()

    def data_received(self, data: bytes) -> None:
        """Wait on, but not longer, while a request is incomplete."""
        super().data_received(data)
        self._wait_for_request()

    def connection_lost(self, exc: Exception | None) -> None:
        """Wait no more."""
        super().connection_lost(exc)
        self._stop_waiting()

    def _wait_for_request(self) -> None:
        if self.conn.their_state is not h11.IDLE:
            self._stop_waiting()
        elif self._patience is None:
            self._patience = self.loop.call_later(SECONDS_FOR_REQUEST, self.transport.close)

    def _stop_waiting(self) -> None:
        if self._patience is not None:
            self._patience.cancel()
            self._patience = None


def _has_screen() -> bool:
    """Whether a browser would open a window, and not in the terminal."""
    return sys.platform in ("darwin", "win32") or any(os.environ.get(name) for name in ("DISPLAY", "WAYLAND_DISPLAY"))
