# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A server waits for the services that it needs, and its start limit does not count what failed for want of them."""

from __future__ import annotations

import contextlib
import http.server
import socket
import ssl
import subprocess
import threading

import pytest
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.supervise import order
from ansible_collections.inference.fleet.tests.unit.engines import small_node


@contextlib.contextmanager
def serving(port=0, status=200, context=None):
    """A service at a port of loopback that answers each GET with a status; yields the port."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(status)
            self.end_headers()

        def log_message(self, *unused):
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", port), Handler)
    if context:
        server.socket = context.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    try:
        yield server.server_address[1]
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


@contextlib.contextmanager
def greeting(text):
    """A service that says a text to whoever connects; yields the port."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve():
            connection, _address = listener.accept()
            with connection:
                connection.sendall(text)

        thread = threading.Thread(target=serve)
        thread.start()
        yield listener.getsockname()[1]
        thread.join()


def closed():
    """A port at which nobody listens, until a test does."""
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


def etcd(*ports, scheme="http", **more):
    return {"name": "etcd", "urls": ["%s://127.0.0.1:%d/health" % (scheme, port) for port in ports], **more}


def test_starts_that_end_while_a_service_is_away_do_not_count(place):
    """More often than the start limit allows; the server returns by itself when the service does."""
    port = closed()
    base = place.node.entry("server-0")
    entry = small_node.rehash(base, command=["true"], start={**base["start"], "needs": [etcd(port)]})
    for _outage in range(3):
        process = place.start(entry, "--burst", "2", "--restart-delay", "0.05")
        small_node.wait_until(lambda: place.state(entry).get("phase") == "waiting for etcd")
        state = place.state(entry)
        assert state["starts"] == [] and "127.0.0.1:%d/health: connection refused" % port in state["reason"]
        assert process.poll() is None
        with serving(port):
            assert process.wait(60) == 0
        assert place.state(entry)["phase"] == "running"
    # who waits is forgiven one start, not those before it
    with serving(port):
        assert place.run(entry, "--burst", "2", "--restart-delay", "0.05").returncode == 0
        assert place.run(entry, "--burst", "2", "--restart-delay", "0.05").returncode == 194
    for _guard in range(2):
        process = place.start(entry, "--burst", "2", "--restart-delay", "0.05")
        small_node.wait_until(lambda: place.state(entry).get("phase") == "waiting for etcd")
        process.kill()
        process.wait()
    assert len(place.state(entry)["starts"]) == 2


def test_any_address_is_enough_and_a_service_that_is_ill_is_away():
    with serving() as well, serving(status=503) as ill:
        assert order.away(etcd(closed(), ill, well), {}) is None
        assert order.away(etcd(ill), {}) == "http://127.0.0.1:%d/health: HTTP 503" % ill
    with serving(status=401) as guarded:
        assert order.away(etcd(guarded), {}) is None


@pytest.mark.parametrize(("text", "available"), [(b"INFO {}\r\n", True), (b"HTTP/1.1 400\r\n", False), (b"", False)])
def test_a_service_that_greets(text, available):
    with greeting(text) as port:
        words = order.away({"name": "nats", "urls": ["tcp://127.0.0.1:%d" % port], "greeting": "INFO "}, {})
    assert (words is None) is available


def test_certificates_of_clients(tmp_path):
    key, certificate = tmp_path / "key", tmp_path / "certificate"
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=localhost",
         "-addext", "subjectAltName=IP:127.0.0.1", "-keyout", key, "-out", certificate],
        check=True, capture_output=True,
    )  # fmt: skip
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    context.load_verify_locations(certificate)
    context.verify_mode = ssl.CERT_REQUIRED
    names = {"ca": "CA", "certificate": "CERTIFICATE", "key": "KEY"}
    given = {"CA": certificate.read_text(), "CERTIFICATE": certificate.read_text(), "KEY": key.read_text()}
    with serving(context=context) as port:
        need = etcd(port, scheme="https", tls=names)
        assert order.away(need, given) is None
        assert order.away(need, {"CA": given["CA"]}) is not None
        assert "certificate verify failed" in order.away(need, {})
