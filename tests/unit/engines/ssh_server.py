# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""An SSH server on loopback with given host keys, which lets nobody in."""

from __future__ import annotations

import asyncio
import contextlib
import threading

import asyncssh


class SshServer(contextlib.AbstractContextManager):
    """Listens while it is entered, at `port`. keys: asyncssh's private keys; connections: their number so far."""

    def __init__(self, *keys):
        self.connections = 0
        self._keys = list(keys)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)

    def __enter__(self):
        self._thread.start()
        self.port = asyncio.run_coroutine_threadsafe(self._listen(), self._loop).result()
        return self

    def __exit__(self, *_error):
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()

    async def _listen(self):
        options = {"server_host_keys": self._keys, "server_factory": self._connected}
        return (await asyncssh.listen("127.0.0.1", 0, **options)).get_port()

    def _connected(self):
        self.connections += 1
        return asyncssh.SSHServer()
