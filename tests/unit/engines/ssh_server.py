# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""An SSH server on loopback that shows the host keys it is given, and lets nobody in."""

from __future__ import annotations

import contextlib
import socket
import threading

import paramiko


class SshServer(contextlib.AbstractContextManager):
    """Listens while it is entered, at `port`. keys: paramiko's; they may be changed between two connections."""

    def __init__(self, *keys):
        self.keys = list(keys)
        self.connections = 0
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.port = self._socket.getsockname()[1]

    def __enter__(self):
        threading.Thread(target=self._serve, daemon=True).start()
        return self

    def __exit__(self, *_error):
        self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()

    def _serve(self):
        while True:
            try:
                connection, _address = self._socket.accept()
            except OSError:
                return
            self.connections += 1
            transport = paramiko.Transport(connection)
            for key in self.keys:
                transport.add_server_key(key)
            with contextlib.suppress(paramiko.SSHException, EOFError):
                transport.start_server(event=threading.Event(), server=paramiko.ServerInterface())
