# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Requires the API key on all paths of a vLLM server, and accepts several keys, as its --middleware.

vLLM itself requires the key of VLLM_API_KEY below /v1 and a few other prefixes; /invocations generates text without it.
It accepts several keys only from its command line or configuration file: the command line is public on a node, and
vLLM 0.11 writes both into its log. This middleware runs before vLLM's own check, which stays: a request with one of the
other keys is passed on with the first key.

The engine's Python imports a copy on the node, so this module uses only the standard library.
"""

from __future__ import annotations

import hashlib
import hmac
import os

API_KEY = "VLLM_API_KEY"
OTHER_API_KEYS = "INFERENCE_FLEET_OTHER_API_KEYS"  # separated by spaces, which no key has
MODULE = "inference_fleet_api_keys"
OPEN = ("/health", "/ping", "/metrics", "/version")  # for monitoring: they neither return nor generate text
UNAUTHORIZED = b'{"error":"Unauthorized"}'


def _digest(key):
    return hashlib.sha256(key).digest()


class ApiKeys:
    """ASGI middleware; see the module."""

    def __init__(self, app):
        self.app = app
        self.first = os.environ[API_KEY].encode("ascii")
        keys = [self.first, *os.environ.get(OTHER_API_KEYS, "").encode("ascii").split()]
        self.digests = [_digest(key) for key in keys]

    async def __call__(self, scope, receive, send):
        if scope["type"] in ("http", "websocket"):
            headers = [(name, self._replaced(name, value)) for name, value in scope["headers"]]
            if not _is_open(scope) and (b"authorization", b"Bearer " + self.first) not in headers:
                await _refuse(scope, send)
                return
            scope = dict(scope, headers=headers)
        await self.app(scope, receive, send)

    def _replaced(self, name, value):
        scheme, _space, key = value.partition(b" ")
        if name != b"authorization" or scheme.lower() != b"bearer":
            return value
        digest = _digest(key)
        known = [hmac.compare_digest(digest, other) for other in self.digests]  # all of them: in constant time
        return b"Bearer " + self.first if any(known) else value


def _is_open(scope):
    path = scope["path"].removeprefix(scope.get("root_path", "")).rstrip("/")
    return scope.get("method") == "OPTIONS" or path in OPEN


async def _refuse(scope, send):
    if scope["type"] == "websocket":
        await send({"type": "websocket.close", "code": 1008})
        return
    headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(UNAUTHORIZED))]
    await send({"type": "http.response.start", "status": 401, "headers": headers})
    await send({"type": "http.response.body", "body": UNAUTHORIZED})
