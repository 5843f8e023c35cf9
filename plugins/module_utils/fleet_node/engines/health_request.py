# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The requests that show whether a server answers: its health path, and a completion of one token."""

from __future__ import annotations

import re

from ..host import http_client
from ..host.server_spec import health_port
from .registry import API_KEYS

METRICS_S = 5.0
PRINTABLE = re.compile(r"[!-~]+")


def headers(secrets):
    """The headers that a server with these secrets ({ENV: value}) requires of its clients; None if it requires none."""
    key = next((secrets[name] for name in API_KEYS if name in (secrets or {})), None)
    usable = isinstance(key, str) and PRINTABLE.fullmatch(key)  # http.client would show any other in its error
    return {"Authorization": "Bearer " + key} if usable else None


def health(entry, timeout, secrets=None):
    """The Response of the health path of a server that has one."""
    url = http_client.base_url(entry["bind"], health_port(entry)) + entry["health"]["path"]
    return http_client.request("GET", url, timeout=timeout, headers=headers(secrets))


def small(entry, tokens, text="Hello."):
    """(path, body) of a request that costs the server of an entry little."""
    if entry.get("family") == "embedding":
        return "/v1/embeddings", {"model": entry["model_id"], "input": text}
    messages = [{"role": "user", "content": text}]
    return "/v1/chat/completions", {
        "model": entry["model_id"], "messages": messages, "max_tokens": tokens, "temperature": 0,
    }  # fmt: skip


def one_token(entry, timeout, secrets=None):
    """(the Response to a completion of one token, whether the engine counted tokens while there was no answer).

    On a busy server a completion may be slow.
    """
    base = http_client.base_url(entry["bind"], entry["port"])
    path, body = small(entry, 1)
    before = _tokens(base)
    answer = http_client.request("POST", base + path, body, timeout, headers(secrets))
    busy = answer.error is not None and before is not None and _tokens(base) not in (None, before)
    return answer, busy


def _tokens(base):
    """The engine's counters of tokens as it reports them, None if it reports none."""
    answer = http_client.request("GET", base + "/metrics", timeout=METRICS_S)
    lines = [line for line in answer.text.splitlines() if "tokens_total" in line and not line.startswith("#")]
    return lines or None if answer.ok else None
