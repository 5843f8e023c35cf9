# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Plain HTTP to a server of this node: whole answers, event streams, and failures as values instead of exceptions.

Proxies of the environment are never used: these calls go to loopback and bind addresses.
"""

from __future__ import annotations

import errno
import http.client
import json
import socket
import threading
import time
import urllib.parse

MAX_BODY = 16 << 20  # bytes; a chat answer is kilobytes, a log poured into the port must not fill the node's memory
BLOCK = 1 << 16
FAILURES = {
    "refused": "connection refused",
    "unreachable": "the address cannot be reached",
    "reset": "the connection was closed before an answer",
    "timeout": "no whole answer in time",
    "cut": "the answer was cut off",
    "protocol": "the answer is no HTTP",
    "too-large": "the answer is larger than %d MiB" % (MAX_BODY >> 20),
}
UNREACHABLE = frozenset((errno.EHOSTUNREACH, errno.ENETUNREACH, errno.ENETDOWN, errno.EADDRNOTAVAIL))


class Response:
    """What came back: all of it, or what went wrong and the part that came before.

    method, url: of the request; status: int, None where no status line came; headers: {lower-case name: value};
    text: the body (UTF-8, undecodable bytes replaced); ms: from the request to the last byte;
    error: None or a key of FAILURES; detail: the system's own words for the error.
    """

    def __init__(self, method, url, status=None, headers=None, text="", ms=0, error=None, detail=""):
        self.method = method
        self.url = url
        self.status = status
        self.headers = headers or {}
        self.text = text
        self.ms = ms
        self.error = error
        self.detail = detail

    @property
    def ok(self):
        """A whole answer with status 200."""
        return self.error is None and self.status == 200

    def json(self):
        """The body's JSON value; None where the body is no JSON."""
        try:
            return json.loads(self.text)
        except ValueError:
            return None

    def describe(self, limit=600):
        """One line for a person: status and body cut to `limit` characters, or the failure."""
        body = cut(self.text, limit)
        if self.error is None:
            return "HTTP %d %s" % (self.status, body or "(empty body)")
        words = FAILURES[self.error] + (" (%s)" % self.detail if self.detail else "")
        if self.status is None:
            return "no answer: " + words
        return "HTTP %d, then %s after %d characters: %s" % (self.status, words, len(self.text), body)


class Event:
    """One server-sent event: data (str, lines joined by newlines) and ms since the request was sent."""

    def __init__(self, data, ms):
        self.data = data
        self.ms = ms

    def json(self):
        """The event's JSON value; None where it is no JSON."""
        try:
            return json.loads(self.data)
        except ValueError:
            return None


class Stream:
    """An event stream, read to its end.

    response: the Response (its text is the raw stream); events: [Event] without the closing mark;
    done: whether `data: [DONE]` came.
    """

    def __init__(self, response, events, done):
        self.response = response
        self.events = events
        self.done = done


def cut(text, limit):
    """`text` on one line and no longer than `limit` characters, with a mark where something is missing."""
    line = " ".join(text.split())
    return line if len(line) <= limit else line[: limit - 1] + "…"


def connect_host(bind):
    """The host to connect to for a server bound to `bind`: loopback for a wildcard address."""
    bind = (bind or "").strip("[]")
    if bind in ("", "*", "0.0.0.0"):
        return "127.0.0.1"
    return "::1" if bind == "::" else bind


def base_url(bind, port):
    """http://host:port of a server bound to `bind`; an IPv6 address gets its brackets."""
    host = connect_host(bind)
    return "http://%s:%d" % ("[%s]" % host if ":" in host else host, port)


def request(method, url, body=None, timeout=30, headers=None):
    """Send one request and return its Response; never raises for what the network or the server does.

    body: None or a JSON-ready value; timeout: seconds for the whole exchange, however slowly it drips.
    """
    return _exchange(method, url, body, timeout, headers, _Collector())


def stream(method, url, body=None, timeout=30, headers=None):
    """As request(), for an answer of server-sent events. Returns a Stream; reading stops at `data: [DONE]`."""
    reader = _EventReader()
    headers = dict({"Accept": "text/event-stream"}, **(headers or {}))
    response = _exchange(method, url, body, timeout, headers, reader)
    return Stream(response, reader.events, reader.done)


class _Collector:
    """Keeps the body as it comes."""

    done = False

    def __init__(self):
        self.blocks = []

    def feed(self, block, ms):
        self.blocks.append(block)


class _EventReader(_Collector):
    """Parses server-sent events while they come (WHATWG HTML, section 9.2: data lines, a blank line ends an event)."""

    def __init__(self):
        super().__init__()
        self.events = []
        self.done = False
        self._rest = b""
        self._data = []

    def feed(self, block, ms):
        super().feed(block, ms)
        lines = (self._rest + block).split(b"\n")
        self._rest = lines.pop()
        for raw in lines:
            line = raw.rstrip(b"\r").decode("utf-8", "replace")
            if line.startswith("data:"):
                self._data.append(line[5:].lstrip(" "))
            elif not line and self._data:
                data, self._data = "\n".join(self._data), []
                if data.strip() == "[DONE]":
                    self.done = True
                    return
                self.events.append(Event(data, ms))


class _Watchdog:
    """Shuts a socket down when the time of the exchange is over: a socket's own timeout starts anew with every byte."""

    def __init__(self, sock, seconds):
        self.fired = False
        self._sock = sock
        self._timer = threading.Timer(max(seconds, 0.001), self._fire)
        self._timer.daemon = True

    def __enter__(self):
        self._timer.start()
        return self

    def __exit__(self, *unused):
        self._timer.cancel()

    def _fire(self):
        self.fired = True
        try:
            self._sock.shutdown(socket.SHUT_RDWR)
        except OSError:
            return  # the peer was faster


def _exchange(method, url, body, timeout, headers, collector):
    parts = urllib.parse.urlsplit(url)
    if parts.scheme != "http" or not parts.hostname:
        raise ValueError("http_client speaks http:// to one host, got %r" % url)
    target = (parts.path or "/") + ("?" + parts.query if parts.query else "")
    send_headers = {"Accept": "application/json", "Connection": "close"}
    payload = None
    if body is not None:
        payload = json.dumps(body, ensure_ascii=False).encode("utf-8")
        send_headers["Content-Type"] = "application/json"
    send_headers.update(headers or {})
    result = Response(method, url)
    started = time.monotonic()
    connection = http.client.HTTPConnection(parts.hostname, parts.port or 80, timeout=timeout)
    try:
        connection.connect()
        with _Watchdog(connection.sock, timeout - (time.monotonic() - started)) as watchdog:
            try:
                connection.request(method, target, body=payload, headers=send_headers)
                _read(connection.getresponse(), result, collector, started)
            except (OSError, http.client.HTTPException) as error:
                result.error, result.detail = _failure(error, result)
            if watchdog.fired and not collector.done:
                result.error = "timeout"
    except OSError as error:
        result.error, result.detail = _failure(error, result)
    finally:
        connection.close()
    if result.error == "timeout":
        result.detail = "%g s" % timeout
    result.text = b"".join(collector.blocks).decode("utf-8", "replace")
    result.ms = _elapsed(started)
    return result


def _read(answer, result, collector, started):
    result.status = answer.status
    result.headers = {name.lower(): value for name, value in answer.getheaders()}
    length = answer.headers.get("Content-Length")
    expected = int(length) if length and length.isdigit() and not answer.chunked else None
    received = 0
    while expected is None or received < expected:
        block = answer.read1(BLOCK)
        if not block:
            break
        received += len(block)
        collector.feed(block, _elapsed(started))
        if collector.done:
            return
        if received > MAX_BODY:
            result.error = "too-large"
            return
    if expected is not None and received < expected:
        result.error, result.detail = "cut", "%d of %d bytes" % (received, expected)


def _failure(error, result):
    """(key of FAILURES, the system's words) for an exception of the socket or of http.client."""
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
