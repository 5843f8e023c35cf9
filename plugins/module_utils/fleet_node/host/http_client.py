# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Plain HTTP to a server of this node: complete answers, event streams, and failures as values instead of exceptions.

Proxies of the environment are never used: these requests go to loopback and bind addresses.
"""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import http.client
import json
import re
import socket
import threading
import time
import urllib.parse

from ..errors import cut
from .values import url_host

MAX_BODY = 16 << 20  # bytes; a chat answer is kilobytes, a log poured into the port must not fill the node's memory
BLOCK = 1 << 16
FAILURES = {
    "refused": "connection refused",
    "unreachable": "the address cannot be reached",
    "reset": "the connection was closed before an answer",
    "timeout": "no complete answer in time",
    "cut": "the answer was cut off",
    "protocol": "the answer is no HTTP",
    "too-large": "the answer is larger than %d MiB" % (MAX_BODY >> 20),
}
AFTER_DONE_S = 0.5  # seconds that a stream may stay open after its closing mark
UNREACHABLE = frozenset((errno.EHOSTUNREACH, errno.ENETUNREACH, errno.ENETDOWN, errno.EADDRNOTAVAIL))


@dataclasses.dataclass
class Response:
    """An answer, or the failure and the part that was received.

    method, url: of the request; status: int, None without a status line; headers: {lower-case name: value}; text: the
    body (UTF-8, undecodable bytes replaced); ms: from the request to the last byte; error: None or a key of FAILURES;
    detail: the system's message for the error. utf8: whether the body was UTF-8. closes: whether the server ends the
    connection after it.
    """

    method: str
    url: str
    status: int | None = None
    headers: dict = dataclasses.field(default_factory=dict)
    text: str = ""
    ms: int = 0
    error: str | None = None
    detail: str = ""
    utf8: bool = True
    closes: bool = True

    @property
    def ok(self):
        """A complete answer with status 200."""
        return self.error is None and self.status == 200

    @property
    def healthy(self):
        """A complete answer of a health path with a good status; some have no body (204)."""
        return self.error is None and self.status in (200, 204)

    def json(self):
        """The body's JSON value, or None."""
        return parsed(self.text)

    def describe(self, limit=600):
        """One line for a person: status and body cut to `limit` characters, or the failure."""
        body = cut(self.text, limit)
        if self.error is None:
            return "HTTP %d %s" % (self.status, body or "(empty body)")
        words = FAILURES[self.error] + (" (%s)" % self.detail if self.detail else "")
        if self.status is None:
            return "no answer: " + words
        return "HTTP %d, then %s after %d characters: %s" % (self.status, words, len(self.text), body)


@dataclasses.dataclass
class Event:
    """A server-sent event: data (lines joined by newlines) and ms since the request was sent."""

    data: str
    ms: int

    def json(self):
        """The event's JSON value, or None."""
        return parsed(self.data)


def parsed(text):
    """The JSON value of a string, or None."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def whole_number(text):
    """The number in a header, or None if it is not at most 18 of the digits 0 to 9."""
    return int(text) if text and text.isascii() and text.isdigit() and len(text) <= 18 else None


def connect_host(bind):
    """The host to connect to for a server bound to `bind`: loopback for a wildcard address."""
    bind = (bind or "").strip("[]")
    if bind in ("", "*", "0.0.0.0"):
        return "127.0.0.1"
    return "::1" if bind == "::" else bind


def base_url(bind, port):
    """http://host:port of a server bound to `bind`, with brackets for an IPv6 address."""
    return "http://%s:%d" % (url_host(connect_host(bind)), port)


def request(method, url, body=None, timeout=30, headers=None, connection=None, context=None):
    """Send a request and return its Response. Failures of network and server raise no exception.

    body: None or a JSON-ready value; timeout: seconds for the complete exchange. connection: a Connection to use and
    keep open. context: an SSLContext for https.
    """
    return _exchange(method, url, body, timeout, headers, _Collector(), connection, context)


def stream(method, url, body=None, timeout=30, headers=None, connection=None):
    """As request(), for an answer of server-sent events. Returns a Stream."""
    reader = Stream()
    headers = {"Accept": "text/event-stream", **(headers or {})}
    reader.response = _exchange(method, url, body, timeout, headers, reader, connection)
    return reader


class Connection:
    """A connection for several successive calls of request() and stream(). open: http.client's, None if closed."""

    open = None

    def close(self):
        if self.open:
            self.open.close()
        self.open = None


class _Collector:
    """Collects the body."""

    done = False

    def __init__(self):
        self.blocks = []

    def feed(self, block, ms):
        self.blocks.append(block)

    def end(self, ms):
        """The body is complete."""


class Stream(_Collector):
    """An event stream, read to its end (WHATWG HTML, section 9.2: data lines, a blank line ends an event).

    response: the Response (its text is the raw stream); events: [Event] without the closing mark; done: whether
    `data: [DONE]` was received; after: the data of the first event after it, or None.
    """

    def __init__(self):
        super().__init__()
        self.response, self.events, self.after = None, [], None
        self._rest, self._data = b"", []

    def feed(self, block, ms):
        super().feed(block, ms)
        text = self._rest + block
        held = text[-1:] if text.endswith(b"\r") else b""  # its line feed may follow
        lines = re.split(rb"\r\n|\n|\r", text[: len(text) - len(held)])
        self._rest = lines.pop() + held
        for raw in lines:
            self._line(raw.decode("utf-8", "replace"), ms)

    def end(self, ms):
        if self._rest:
            self._line(self._rest.decode("utf-8", "replace").rstrip("\r"), ms)

    def _line(self, line, ms):
        if line.startswith("data:"):
            data = line[5:].lstrip(" ")
            if data.strip() == "[DONE]" and not self._data and not self.done:
                self.done = True  # some engines end the answer here, without the blank line
                return
            self._data.append(data)
        elif not line and self._data:
            data, self._data = "\n".join(self._data), []
            if not self.done:
                self.events.append(Event(data, ms))
            elif self.after is None and data.strip():
                self.after = data


class Deadline:
    """Shuts a connection down after some seconds, because a socket's timeout restarts with every byte. passed: whether
    it did. The connection may connect within it."""

    def __init__(self, connection, seconds):
        self.passed = False
        self._connection, self._sock = connection, connection.sock  # a response without keep-alive owns it
        self._timer = threading.Timer(max(seconds, 0.001), self._end)
        self._timer.daemon = True

    def __enter__(self):
        self._timer.start()
        return self

    def __exit__(self, *unused):
        self._timer.cancel()

    def _end(self):
        self.passed = True
        with contextlib.suppress(OSError, AttributeError, TypeError):  # not connected, or the peer was faster
            # not SSLSocket.shutdown(), which is not safe from another thread
            socket.socket.shutdown(self._sock or self._connection.sock, socket.SHUT_RDWR)


def _exchange(method, url, body, timeout, headers, collector, kept=None, context=None):
    parts = urllib.parse.urlsplit(url)
    if parts.scheme != ("https" if context else "http") or not parts.hostname:
        raise ValueError("http_client requests http:// URLs, or https:// with a context, got %r" % url)
    target = (parts.path or "/") + ("?" + parts.query if parts.query else "")
    send_headers = {"Accept": "application/json", "Connection": "keep-alive" if kept else "close"}
    payload = None
    if body is not None:
        payload = json.dumps(body, ensure_ascii=False).encode("utf-8")
        send_headers["Content-Type"] = "application/json"
    send_headers.update(headers or {})
    result = Response(method, url)
    started = time.monotonic()
    connection = kept.open if kept else None
    if connection is None and context:
        connection = http.client.HTTPSConnection(parts.hostname, parts.port or 443, timeout=timeout, context=context)
    connection = connection or http.client.HTTPConnection(parts.hostname, parts.port or 80, timeout=timeout)
    try:
        if connection.sock is None:
            connection.connect()
        sock = connection.sock
        sock.settimeout(timeout)
        with Deadline(connection, timeout - (time.monotonic() - started)) as deadline:
            try:
                connection.request(method, target, body=payload, headers=send_headers)
                _read(connection.getresponse(), sock, result, collector, started)
            except (OSError, http.client.HTTPException) as error:
                result.error, result.detail = _failure(error, result)
            if deadline.passed and not collector.done:
                result.error = "timeout"
    except OSError as error:
        result.error, result.detail = _failure(error, result)
    finally:
        if kept and result.error is None and not result.closes:
            kept.open = connection
        else:
            connection.close()
            if kept:
                kept.close()
    if result.error == "timeout":
        result.detail = "%g s" % timeout
    data = b"".join(collector.blocks)
    result.text = data.decode("utf-8", "replace")
    result.utf8 = result.error is not None or data.decode("utf-8", "ignore").encode("utf-8") == data
    result.ms = _elapsed(started)
    return result


def _read(answer, sock, result, collector, started):
    result.status = answer.status
    result.closes = answer.will_close
    result.headers = {name.lower(): value for name, value in answer.getheaders()}
    expected = None if answer.chunked else whole_number(answer.headers.get("Content-Length"))
    encoding = result.headers.get("content-encoding", "identity")
    if encoding != "identity":
        raise http.client.HTTPException("Content-Encoding %s, which was not asked for" % encoding)
    received, waits = 0, False
    while expected is None or received < expected:
        try:
            block = answer.read1(BLOCK)
        except (OSError, http.client.HTTPException):
            if waits:  # the stream has sent its closing mark
                result.closes = True
                return
            raise
        if not block:
            break
        received += len(block)
        collector.feed(block, _elapsed(started))
        if received > MAX_BODY:
            result.error = "too-large"
            return
        if collector.done and not waits:
            waits = True
            sock.settimeout(AFTER_DONE_S)
    collector.end(_elapsed(started))
    if expected is not None and received < expected and not collector.done:
        result.error, result.detail = "cut", "%d of %d bytes" % (received, expected)
    elif not answer.will_close:
        answer.read()  # nothing is left; without it the connection is not free for the next request


def _failure(error, result):
    """(key of FAILURES, the system's message) for an exception of the socket or of http.client."""
    if isinstance(error, (socket.timeout, TimeoutError)):  # two classes before Python 3.10
        return "timeout", ""
    if isinstance(error, ConnectionRefusedError):
        return "refused", ""
    if isinstance(error, socket.gaierror) or (isinstance(error, OSError) and error.errno in UNREACHABLE):
        return "unreachable", error.strerror or str(error)
    if isinstance(error, (http.client.IncompleteRead, http.client.RemoteDisconnected, ConnectionError)):
        return ("reset" if result.status is None else "cut"), ""
    return "protocol", "%s: %s" % (type(error).__name__, cut(str(error), 100))


def _elapsed(started):
    return round((time.monotonic() - started) * 1000)
