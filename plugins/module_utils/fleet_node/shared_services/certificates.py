# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Checks of the certificates of a service's members and clients, with openssl. The role service_certificate makes them.

A folder contains ca.crt, tls.crt, tls.key and, on members, ca.key: any member can sign a certificate for a new member.
"""

from __future__ import annotations

import os
import re
import socket
import ssl

from ..errors import FleetError
from ..host import commands
from ..host.os_errors import os_error

AUTHORITY_KEY = "ca.key"
DAY_S = 86400
ADDRESS = re.compile("[0-9.]+$|.*:")  # of names; the role shared_service signs certificates for the same
ANSWER_S = 3  # for a service to answer a client


def openssl(*arguments):
    """(exit status, output) of openssl. Raises FleetError if it is not installed."""
    try:
        done = commands.run(["openssl", *arguments], merged=True)
    except OSError as error:
        raise os_error("openssl cannot be executed", error, "Install the package openssl.") from error
    return done.returncode, done.stdout


def paths(folder):
    """{ca, certificate, key} of a folder."""
    return {"ca": folder + "/ca.crt", "certificate": folder + "/tls.crt", "key": folder + "/tls.key"}


def expiry(certificate):
    """The end of a certificate's validity as openssl prints it; None without a certificate."""
    if not os.path.isfile(certificate):
        return None
    status, output = openssl("x509", "-in", certificate, "-noout", "-enddate")
    return None if status else output.strip().partition("=")[2]


def faults(files, names, spare_days):
    """Why {ca, certificate, key} cannot be used for these names, [] if they can.

    spare_days: a certificate that ends sooner counts as expired.
    """
    absent = [path for path in files.values() if not os.path.isfile(path)]
    if absent:
        return ["%s is missing" % path for path in absent]
    certificate, found = files["certificate"], []
    for path in (files["ca"], certificate):
        if openssl("x509", "-in", path, "-noout")[0]:
            return ["%s is not a certificate in PEM format" % path]
        if openssl("x509", "-in", path, "-noout", "-checkend", str(spare_days * DAY_S))[0]:
            found.append("%s ends in less than %d days, or has expired" % (path, spare_days))
    if not found and openssl("verify", "-CAfile", files["ca"], certificate)[0]:
        found.append("%s is not signed by %s" % (certificate, files["ca"]))
    for name in names:
        option = "-checkip" if ADDRESS.match(name) else "-checkhost"
        if "does match" not in openssl("x509", "-in", certificate, "-noout", option, name)[1]:
            found.append("%s is not valid for %s" % (certificate, name))
    key = openssl("pkey", "-in", files["key"], "-pubout")
    if key[0] or key[1] != openssl("x509", "-in", certificate, "-noout", "-pubkey")[1]:
        found.append("%s is not the key of %s" % (files["key"], certificate))
    return found


def faults_of(member, files, names, renew_days, given):
    """faults() of a member's certificates. Raises FleetError if the operator provides them: no run renews those."""
    found = faults(files, names, 0 if given else renew_days)
    if given and found:
        raise FleetError("tls.given-unusable", member, "; ".join(found), ", ".join(names))
    return found


def faults_of_client(folder, names, renew_days, endpoints):
    """faults() of a client's folder, or that the first endpoint that answers has another authority."""
    files = paths(folder)
    found = faults(files, names, renew_days)
    if found:
        return found
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
            return ["%s does not accept the certificate of %s: %s" % (files["ca"], endpoint, error.verify_message)]
        except OSError:
            continue  # not reachable, or another protocol: no evidence about the certificate
    return []
