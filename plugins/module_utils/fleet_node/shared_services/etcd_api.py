# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""etcd's JSON gateway (etcd.io/docs, "gRPC gateway"), asked with the standard library alone.

Nothing here raises for a member that does not answer: it is a value like any other answer.
"""

from __future__ import annotations

import base64
import json
import secrets
import ssl
import urllib.error
import urllib.request

HEALTH_S = 10  # a member without quorum says so after the election timeout, at least 5 s
CALL_S = 15
READY_KEY = "/inference-fleet/ready/"


class Members:
    """The members of a cluster, each asked at its client URL. tls: {ca, certificate, key} or None."""

    def __init__(self, tls=None):
        handlers = [urllib.request.ProxyHandler({})]
        if tls:
            context = ssl.create_default_context(cafile=tls["ca"])
            context.load_cert_chain(tls["certificate"], tls["key"])
            handlers.append(urllib.request.HTTPSHandler(context=context))
        self.opener = urllib.request.build_opener(*handlers)

    def _ask(self, url, body=None, timeout=CALL_S):
        """(JSON or None, what went wrong)."""
        data = None if body is None else json.dumps(body).encode()
        try:
            with self.opener.open(urllib.request.Request(url, data), timeout=timeout) as answer:
                return json.loads(answer.read().decode()), ""
        except urllib.error.HTTPError as error:
            return None, "HTTP %d: %s" % (error.code, error.read(300).decode("utf-8", "replace").strip())
        except (OSError, ValueError) as error:
            return None, str(getattr(error, "reason", error))

    def healthy(self, url):
        """Whether the member answers and has a quorum."""
        answer, _words = self._ask(url + "/health", timeout=HEALTH_S)
        return answer is not None and str(answer.get("health")).lower() == "true"

    def list(self, url):
        """[{ID, name, peerURLs, clientURLs}] as the member says; None where it does not."""
        answer, _words = self._ask(url + "/v3/cluster/member/list", {})
        if answer is None:
            return None
        return [{"name": "", "peerURLs": [], "clientURLs": [], **one} for one in answer.get("members", ())]

    def remove(self, url, member):
        """Remove the member of this ID; what went wrong, or ""."""
        return self._ask(url + "/v3/cluster/member/remove", {"ID": member})[1]

    def add(self, url, peer_url):
        """Tell the cluster of a new member; what went wrong, or ""."""
        return self._ask(url + "/v3/cluster/member/add", {"peerURLs": [peer_url]})[1]

    def write_and_read(self, url, name):
        """Write a key, read it back and delete it; what went wrong, or "". Each of it needs a quorum."""
        key, value = _coded(READY_KEY + name), _coded(secrets.token_hex(8))
        _answer, words = self._ask(url + "/v3/kv/put", {"key": key, "value": value})
        if words:
            return words
        answer, words = self._ask(url + "/v3/kv/range", {"key": key})
        if answer is None:
            return words
        found = [one.get("value") for one in answer.get("kvs", ())]
        if found != [value]:
            return "a key was read back with another value"
        return self._ask(url + "/v3/kv/deleterange", {"key": key})[1]


def _coded(text):
    return base64.b64encode(text.encode()).decode()
