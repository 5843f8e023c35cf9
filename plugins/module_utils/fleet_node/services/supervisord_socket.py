# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""XML-RPC over the UNIX socket on which supervisord is asked."""

from __future__ import annotations

import http.client
import socket
import xmlrpc.client


class Connection(http.client.HTTPConnection):
    def __init__(self, path, timeout):
        super().__init__("localhost", timeout=timeout)
        self.path = path

    def connect(self):
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self.path)


class Transport(xmlrpc.client.Transport):
    """timeout: seconds for each step of a request."""

    def __init__(self, path, timeout):
        super().__init__()
        self.path, self.timeout = path, timeout

    def make_connection(self, host):
        return Connection(self.path, self.timeout)
