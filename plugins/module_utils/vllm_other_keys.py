# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Lets a vLLM server accept more API keys than the one of VLLM_API_KEY: `--middleware inference_fleet_other_keys.OtherKeys`.

vLLM takes several keys from its command line or configuration file only; the first is public on a node, and vLLM 0.11
writes both into its log. This stands before vLLM's own check, which goes on deciding: a request with one of the other
keys is handed on with the first. Without this module a server accepts the first key alone.

A copy lies on the node, where the engine's Python imports it: standard library only, nothing of this collection.
"""

from __future__ import annotations

import hashlib
import hmac
import os

OTHER_API_KEYS = "INFERENCE_FLEET_OTHER_API_KEYS"  # separated by spaces, which no key has
MODULE = "inference_fleet_other_keys"
HEADER = b"authorization"


def _digest(key):
    return hashlib.sha256(key).digest()


class OtherKeys:
    """ASGI middleware; see the module."""

    def __init__(self, app):
        self.app = app
        self.first = os.environ["VLLM_API_KEY"].encode("ascii")
        self.others = [_digest(key.encode("ascii")) for key in os.environ[OTHER_API_KEYS].split()]

    async def __call__(self, scope, receive, send):
        if scope["type"] in ("http", "websocket"):
            scope = dict(scope, headers=[(name, self._replaced(name, value)) for name, value in scope["headers"]])
        await self.app(scope, receive, send)

    def _replaced(self, name, value):
        scheme, _space, key = value.partition(b" ")
        if name.lower() != HEADER or scheme.lower() != b"bearer":
            return value
        digest = _digest(key)
        known = [hmac.compare_digest(digest, other) for other in self.others]  # all of them: in constant time
        return scheme + b" " + self.first if any(known) else value
