# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Certificates of a service's members and clients, signed by an authority of their own; openssl makes them.

A folder holds ca.crt, ca.key (of members alone), tls.crt and tls.key. Keys of members never leave their node; the
authority's key is on every member, so that whichever is left can sign for a new one.
"""

from __future__ import annotations

import ipaddress
import os
import pwd
import secrets
import socket
import ssl
import tempfile

from ..errors import FleetError
from ..node import commands
from ..node.files import read_bytes, write_atomic

AUTHORITY, AUTHORITY_KEY, CERTIFICATE, KEY = "ca.crt", "ca.key", "tls.crt", "tls.key"
AUTHORITY_DAYS = 3650
DAY_S = 86400
ANSWER_S = 3  # for a service to greet a client
CURVE = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1")
# A configuration of its own: the distribution's may add extensions that are given here as well.
CONFIG = """[req]
prompt = no
distinguished_name = name
[name]
CN = %s
[authority]
basicConstraints = critical, CA:TRUE
keyUsage = critical, keyCertSign, cRLSign
subjectKeyIdentifier = hash
[member]
basicConstraints = critical, CA:FALSE
keyUsage = critical, digitalSignature, keyEncipherment
extendedKeyUsage = serverAuth, clientAuth
subjectAltName = %s
"""


def openssl(*arguments):
    """(exit status, output) of the program. FleetError where it is not installed."""
    try:
        done = commands.run(["openssl", *arguments], merged=True)
    except FileNotFoundError:
        raise FleetError(
            "tls.no-openssl",
            "openssl, which makes and checks certificates, is not installed on this node. Install the package openssl.",
        ) from None
    return done.returncode, done.stdout


def _made(*arguments):
    status, output = openssl(*arguments)
    if status:
        raise FleetError(
            "tls.openssl-failed",
            "openssl %s failed: %s. Correct that and run again.",
            (arguments[0], " ".join(output.split())[-300:]),
        )


def alternative_names(names):
    """The extension subjectAltName of these names and addresses."""
    return ", ".join("%s:%s" % ("IP" if is_address(name) else "DNS", name) for name in names)


def is_address(name):
    """Whether it is an IP address."""
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def make_authority(folder, name):
    """A new authority in `folder`, which must exist."""
    with tempfile.TemporaryDirectory() as beside:
        config = os.path.join(beside, "openssl.cnf")
        write_atomic(config, CONFIG % (name, "DNS:localhost"))
        _made(
            "req", "-x509", "-config", config, "-extensions", "authority", *CURVE, "-nodes", "-sha256", "-days",
            str(AUTHORITY_DAYS), "-keyout", os.path.join(beside, "key"), "-out", os.path.join(beside, "crt"),
        )  # fmt: skip
        _place(folder, AUTHORITY_KEY, read_bytes(os.path.join(beside, "key")))
        _place(folder, AUTHORITY, read_bytes(os.path.join(beside, "crt")))


def put_authority(folder, certificate, key):
    """The authority of the other members (PEM) in `folder`; whether that changed something."""
    found = False
    for name, text in ((AUTHORITY_KEY, key), (AUTHORITY, certificate)):
        data = (text.strip() + "\n").encode()
        if read_bytes(os.path.join(folder, name)) != data:
            _place(folder, name, data)
            found = True
    return found


def make_certificate(folder, names, days, owner=None):
    """A key and a certificate for server and client use, of the authority in `folder`; names[0] is the common name."""
    with tempfile.TemporaryDirectory() as beside:
        config, key, request, made = (os.path.join(beside, name) for name in ("cnf", "key", "csr", "crt"))
        write_atomic(config, CONFIG % (names[0], alternative_names(names)))
        _made("req", "-new", "-config", config, *CURVE, "-nodes", "-sha256", "-keyout", key, "-out", request)
        _made(
            "x509", "-req", "-in", request, "-CA", os.path.join(folder, AUTHORITY), "-CAkey",
            os.path.join(folder, AUTHORITY_KEY), "-set_serial", "0x1%s" % secrets.token_hex(15), "-days", str(days),
            "-sha256", "-extfile", config, "-extensions", "member", "-out", made,
        )  # fmt: skip
        _place(folder, KEY, read_bytes(key), owner)
        _place(folder, CERTIFICATE, read_bytes(made), owner)


def _place(folder, name, data, owner=None):
    private = name in (AUTHORITY_KEY, KEY)
    write_atomic(os.path.join(folder, name), data, 0o600 if private else 0o644, owner if name == KEY else None)


def paths(folder):
    """{ca, certificate, key} of what a folder holds."""
    return {
        name: os.path.join(folder, part)
        for name, part in (("ca", AUTHORITY), ("certificate", CERTIFICATE), ("key", KEY))
    }


def faults(files, names, spare_days):
    """What is wrong with {ca, certificate, key} for a member of these names, as texts; [] where nothing is.

    spare_days: a certificate that ends sooner counts as expired.
    """
    absent = [path for path in files.values() if not os.path.isfile(path)]
    if absent:
        return ["%s is missing" % path for path in absent]
    certificate, found = files["certificate"], []
    for path in (files["ca"], certificate):
        if openssl("x509", "-in", path, "-noout")[0]:
            return ["%s is no certificate in PEM" % path]
        if openssl("x509", "-in", path, "-noout", "-checkend", "0")[0]:
            found.append("%s has expired" % path)
        elif openssl("x509", "-in", path, "-noout", "-checkend", str(spare_days * DAY_S))[0]:
            found.append("%s ends in less than %d days" % (path, spare_days))
    if not found and openssl("verify", "-CAfile", files["ca"], certificate)[0]:
        found.append("%s is not signed by %s" % (certificate, files["ca"]))
    for name in names:
        option = "-checkip" if is_address(name) else "-checkhost"
        if "does match" not in openssl("x509", "-in", certificate, "-noout", option, name)[1]:
            found.append("%s is not for %s" % (certificate, name))
    of_key = openssl("pkey", "-in", files["key"], "-pubout")
    if of_key[0] or of_key[1] != openssl("x509", "-in", certificate, "-noout", "-pubkey")[1]:
        found.append("%s is not the key of %s" % (files["key"], certificate))
    return found


def faults_of(member, files, names, renew_days, given):
    """faults() of a member's certificates. FleetError where they are `given` by the operator: nobody can renew them."""
    found = faults(files, names, 0 if given else renew_days)
    if given and found:
        raise FleetError(
            "tls.given-unusable",
            "Certificates of '%s': %s. Nothing was changed; bring ones that are valid for %s, or leave their variable "
            "empty and they are made.",
            (member, "; ".join(found), ", ".join(names)),
        )
    return found


def ensure(check_mode, path, names, authority, authority_certificate, authority_key, days, renew_days, owner):
    """Why a folder's certificate was made anew, or would be; [] where it fits. owner: the account of the key."""
    if not check_mode and not os.path.isdir(path):
        raise FleetError(
            "tls.no-folder", "%s, the folder for certificates, is not there. Make it before this task.", (path,)
        )
    found = []
    if authority_certificate and authority_key:
        given = (authority_certificate.strip() + "\n").encode()
        if read_bytes(os.path.join(path, AUTHORITY)) != given or not os.path.isfile(os.path.join(path, AUTHORITY_KEY)):
            found.append("the authority is another")
            if not check_mode:
                put_authority(path, authority_certificate, authority_key)
    elif not os.path.isfile(os.path.join(path, AUTHORITY_KEY)):
        found.append("there is no authority yet")
        if not check_mode:
            make_authority(path, authority)
    found += faults(paths(path), names, renew_days)
    if found and not check_mode:
        account = pwd.getpwnam(owner) if owner else None
        make_certificate(path, names, days, (account.pw_uid, account.pw_gid) if account else None)
    return found


def faults_of_client(path, names, renew_days, endpoints):
    """faults() of a client's folder, or that the service has another authority, as far as an endpoint answers."""
    files = paths(path)
    found = faults(files, names, renew_days)
    return found or _authority_faults(files, endpoints)


def _authority_faults(files, endpoints):
    context = ssl.create_default_context(cafile=files["ca"])
    context.load_cert_chain(files["certificate"], files["key"])
    for endpoint in endpoints:
        host, _colon, port = endpoint.rpartition(":")
        host = host.strip("[]")
        try:
            plain = socket.create_connection((host, int(port)), ANSWER_S)
            with plain, context.wrap_socket(plain, server_hostname=host):
                return []
        except ssl.SSLCertVerificationError as error:
            return ["%s does not accept what %s shows: %s" % (files["ca"], endpoint, error.verify_message)]
        except OSError:
            continue  # it is away, or greets otherwise; who serves says so
    return []
