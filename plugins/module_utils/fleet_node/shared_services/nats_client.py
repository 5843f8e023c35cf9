# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""NATS asked as a client does (docs.nats.io, "Client protocol") and at its monitoring port."""

from __future__ import annotations

import json
import secrets
import socket
import ssl
import urllib.error
import urllib.request

CALL_S = 10
LINE = 1 << 15  # bytes; what a server says of itself is a few hundred


def monitored(port, path):
    """(JSON or None, what went wrong) of the monitoring port, which listens on loopback."""
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open("http://127.0.0.1:%d%s" % (port, path), timeout=CALL_S) as answer:
            return json.loads(answer.read().decode()), ""
    except urllib.error.HTTPError as error:
        return None, "HTTP %d: %s" % (error.code, error.read(300).decode("utf-8", "replace").strip())
    except (OSError, ValueError) as error:
        return None, str(getattr(error, "reason", error))


def publish_and_receive(address, port, tls=None, login=None):
    """Subscribe, publish, and read back what was published; what went wrong, or "".

    tls: {ca, certificate, key} or None. login: (user, password) or None.
    """
    try:
        with socket.create_connection((address, port), timeout=CALL_S) as plain:
            return _exchange(plain, address, tls, login)
    except (OSError, ValueError) as error:
        return str(error)


def _exchange(connection, address, tls, login):
    info = json.loads(_line(connection).partition(" ")[2])
    if tls:
        if not info.get("tls_required"):
            return "it does not ask for TLS"
        context = ssl.create_default_context(cafile=tls["ca"])
        context.load_cert_chain(tls["certificate"], tls["key"])
        connection = context.wrap_socket(connection, server_hostname=address)
    subject, word = "inference-fleet.ready." + secrets.token_hex(8), secrets.token_hex(8)
    options = {"verbose": False, "pedantic": False, "tls_required": bool(tls), "lang": "python", "version": "1"}
    if login:
        options.update(user=login[0], pass_=login[1])
        options["pass"] = options.pop("pass_")
    lines = ["CONNECT " + json.dumps(options), "SUB %s 1" % subject, "PUB %s %d" % (subject, len(word)), word, "PING"]
    connection.sendall("".join(line + "\r\n" for line in lines).encode())
    received = []
    while True:
        line = _line(connection)
        if line.startswith("-ERR"):
            return line
        if line == "PING":
            connection.sendall(b"PONG\r\n")
        elif line.startswith("MSG "):
            received.append(_line(connection))
        elif line == "PONG":
            return "" if received == [word] else "what was published did not come back"


def _line(connection):
    """The next line, a byte at a time: what follows it may be the beginning of TLS."""
    found = bytearray()
    while not found.endswith(b"\r\n"):
        byte = connection.recv(1)
        if not byte:
            raise OSError("the server closed the connection")
        found += byte
        if len(found) > LINE:
            raise ValueError("the answer is not NATS's")
    return found[:-2].decode("utf-8", "replace")
