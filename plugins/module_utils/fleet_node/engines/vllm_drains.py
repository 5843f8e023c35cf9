# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Lets a vLLM server finish its requests and refuse further requests, as its --middleware.

After SIGTERM vLLM accepts requests until it has shut down its engine, and aborts them, also with --shutdown-timeout.
So a run that stops a server sends SIGUSR1 first, repeatedly: new requests get 503, so that their clients ask another
server, and /metrics contains the number of requests that are left. When the signals end, for example because the run
was interrupted, the server soon accepts requests again. SIGUSR2, when no request is left, closes the port: while vLLM
shuts down its engine no process accepts connections, and connections that wait would be reset.

The engine's Python imports a copy on the node, so this module uses only the standard library.
"""

from __future__ import annotations

import contextlib
import gc
import signal
import time

MODULE = "inference_fleet_drains"
SIGNAL = signal.SIGUSR1
CLOSE = signal.SIGUSR2
SERVERS = ("asyncio.base_events", "uvloop.loop")  # where the class Server of an event loop is
REFUSES_S = 30  # after the last signal
MONITORING = ("/health", "/ping", "/metrics", "/version")
METRIC = "vllm:num_requests_running"
REFUSED = b'{"error": {"message": "The server is about to stop.", "type": "Service Unavailable", "code": 503}}'


class Drains:
    """ASGI middleware; see the module."""

    def __init__(self, app):
        self.app = app
        self.count, self.until, self.servers = 0, None, None

    async def __call__(self, scope, receive, send):
        if self.until is None:
            import asyncio  # in an engine only: the program of a node imports this module for its name

            self.until = 0.0
            with contextlib.suppress(RuntimeError, ValueError):  # not the main thread, which alone has signals
                asyncio.get_running_loop().add_signal_handler(SIGNAL, self.refuse)
                asyncio.get_running_loop().add_signal_handler(CLOSE, self.close)
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        path = scope["path"].removeprefix(scope.get("root_path", "")).rstrip("/")
        refuses = self.until > time.monotonic()
        if path in MONITORING:
            if refuses and path == "/metrics":
                await _answer(send, 200, b"text/plain; version=0.0.4", b"%s %d\n" % (METRIC.encode(), self.count))
            else:
                await self.app(scope, receive, send)
        elif refuses:
            await _answer(send, 503, b"application/json", REFUSED)
        else:
            self.count += 1
            try:
                await self.app(scope, receive, send)
            finally:
                self.count -= 1

    def refuse(self):
        self.until = time.monotonic() + REFUSES_S
        if self.servers is None:  # now, because the search needs a moment in which nothing is accepted
            kinds = [(one, type(one)) for one in gc.get_objects()]
            self.servers = [one for one, kind in kinds if kind.__name__ == "Server" and kind.__module__ in SERVERS]

    def close(self):
        for one in self.servers or ():
            one.close()


async def _answer(send, status, kind, body):
    headers = [(b"content-type", kind), (b"content-length", b"%d" % len(body)), (b"connection", b"close")]
    headers += [(b"retry-after", b"1")] if status == 503 else []
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
