# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Certificates that sign themselves, and services that present them."""

from __future__ import annotations

import contextlib
import datetime
import ipaddress
import socketserver
import ssl
import threading

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID


def made(days=1, since=-2):
    """Return (certificate, key) in PEM format for this machine, valid from `since` to `days`, in days from now."""
    key, now = ec.generate_private_key(ec.SECP256R1()), datetime.datetime.now(datetime.timezone.utc)
    addresses = x509.SubjectAlternativeName(
        [x509.IPAddress(ipaddress.ip_address("127.0.0.1")), x509.DNSName("localhost")]
    )
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "proxy")])
    built = x509.CertificateBuilder().subject_name(name).issuer_name(name).public_key(key.public_key()).serial_number(1)
    built = built.not_valid_before(now + datetime.timedelta(since)).not_valid_after(now + datetime.timedelta(days))
    built = built.add_extension(addresses, critical=False)
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    return built.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM).decode(), private.decode()


def write(folder):
    """Write ca.crt, tls.crt and tls.key to a folder. Returns the folder."""
    certificate, key = made()
    for name, text in (("ca.crt", certificate), ("tls.crt", certificate), ("tls.key", key)):
        (folder / name).write_text(text)
    return folder


@contextlib.contextmanager
def serving(port=0, answer=b"", folder=None):
    """A service at a port of loopback that sends this to each client, over HTTP after its request; yields the port.

    folder: with its certificates, see write(); clients must have one, too.
    """

    class Handler(socketserver.StreamRequestHandler):
        def handle(self):
            request = iter(self.rfile.readline, b"\r\n") if answer.startswith(b"HTTP") else ()
            assert b"" not in request  # it is complete
            self.wfile.write(answer)

    class Server(socketserver.ThreadingTCPServer):
        allow_reuse_address = True

    with Server(("127.0.0.1", port), Handler) as server:
        if folder:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(folder / "tls.crt", folder / "tls.key")
            context.load_verify_locations(folder / "ca.crt")
            context.verify_mode = ssl.CERT_REQUIRED
            server.socket = context.wrap_socket(server.socket, server_side=True)
        thread = threading.Thread(target=server.serve_forever, args=(0.05,))
        thread.start()
        try:
            yield server.server_address[1]
        finally:
            server.shutdown()
            thread.join()
