# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""HTTP for downloads, by the standard library: proxies, certificates, redirects and time limits.

Headers with secrets are sent only to the host of the first address, never to the target of a redirect. A time limit
covers connecting and the headers of the response; the body has a limit on silence and a minimum rate.
"""

from __future__ import annotations

import base64
import contextlib
import http.client
import ipaddress
import re
import socket
import time
from urllib.parse import unquote, urljoin, urlsplit, urlunsplit

from ..host.http_client import Deadline, whole_number

BLOCK = 1 << 20
REDIRECTS = (301, 302, 303, 307, 308)
MOST_REDIRECTS = 10
TOTAL = re.compile(r"bytes (\d{1,18})-(\d{1,18})/(\d{1,18})$")
NO_PROXY = "the proxy is not an http:// address"


class HttpFailure(Exception):
    """A request that failed. status: int of the response, or None if none was received. url: the address of the last
    request, after redirects."""

    def __init__(self, text, url, status=None, headers=None):
        super().__init__(text)
        self.text = text
        self.url = url
        self.status = status
        self.headers = headers or {}


class Http:
    """Requests with one set of settings. variables: environment variables with proxies. ca_bundle: file with the
    certificates to trust; None for the system's. timeout_s: limit for the headers and for a silence.

    min_rate: bytes per second below which a body is given up, measured over twice timeout_s; 0 for no limit.
    """

    def __init__(self, variables, ca_bundle=None, timeout_s=30, min_rate=0):
        self._variables = variables
        self._ca_bundle = ca_bundle or variables.get("SSL_CERT_FILE")
        self._timeout_s = timeout_s
        self._min_rate = min_rate
        self._context = None

    @contextlib.contextmanager
    def get(self, url, headers=None, secret_headers=None):
        """Yield the response to a GET with status 200 or 206, redirects followed. Raises HttpFailure."""
        first = origin(url)
        for _redirect in range(MOST_REDIRECTS):
            sent = {**(headers or {}), **((secret_headers or {}) if origin(url) == first else {})}
            connection, response = self._request(url, sent)
            try:
                location = response.getheader("Location")
                if response.status in REDIRECTS and location:
                    url = following(url, location)
                    continue
                if response.status not in (200, 206):
                    raise HttpFailure("HTTP %d" % response.status, url, response.status, response.headers)
                yield Response(response, url, self._min_rate, 2 * self._timeout_s)
                return
            finally:
                response.close()
                connection.close()
        raise HttpFailure("more than %d redirects" % MOST_REDIRECTS, url)

    def _request(self, url, headers):
        connection, target, more = self._connection(url)
        failure = None
        with Deadline(connection, self._timeout_s) as deadline:
            try:
                connection.request("GET", target, headers={"Accept-Encoding": "identity", **headers, **more})
                response = connection.getresponse()
            except (OSError, http.client.HTTPException, ValueError) as error:
                failure = error
        if failure or deadline.passed:  # headers that were cut off look complete
            connection.close()
            # the socket's own limit is as long, and may be noticed first
            late = deadline.passed or (isinstance(failure, socket.timeout) and failure.errno is None)
            text = "no response within %g s" % self._timeout_s if late else described(failure)
            raise HttpFailure(text, url) from failure
        return connection, response

    def _connection(self, url):
        """(connection, request target, further headers) for an address."""
        parts, port = split(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise HttpFailure("not an http or https address", url)
        proxy = proxy_for(parts, self._variables)
        more = _login("Authorization", parts)
        path = urlunsplit(("", "", parts.path or "/", parts.query, ""))
        if proxy is None:
            return self._to(parts.scheme, parts.hostname, port), path, more
        via, via_port = split(proxy if "://" in proxy else "http://" + proxy, NO_PROXY)
        if via.scheme != "http" or not via.hostname:
            raise HttpFailure(NO_PROXY, url)
        login = _login("Proxy-Authorization", via)
        if parts.scheme == "http":
            netloc = parts.netloc.rpartition("@")[2]
            target = urlunsplit(("http", netloc, parts.path or "/", parts.query, ""))
            return self._to("http", via.hostname, via_port), target, {**more, **login}
        connection = self._to("https", via.hostname, via_port)
        connection.set_tunnel(parts.hostname, port, headers=login)
        return connection, path, more

    def _to(self, scheme, host, port):
        if scheme == "http":
            return http.client.HTTPConnection(host, port, timeout=self._timeout_s)
        if self._context is None:
            import ssl  # its import needs as much time as all other imports of a quick check

            try:
                self._context = ssl.create_default_context(cafile=self._ca_bundle)
            except OSError as error:
                raise HttpFailure("certificates of %s: %s" % (self._ca_bundle, described(error)), None) from error
        return http.client.HTTPSConnection(host, port, timeout=self._timeout_s, context=self._context)


class Response:
    """The response to a request. url: its address, after redirects."""

    def __init__(self, response, url, min_rate, window_s):
        self._response, self._min_rate, self._window_s = response, min_rate, window_s
        self.url = url
        self.headers = response.headers
        self.length = None if response.chunked else whole_number(response.getheader("Content-Length"))
        place = TOTAL.match(response.getheader("Content-Range") or "") if response.status == 206 else None
        self.start = int(place[1]) if place else 0
        # of the complete resource, None if the server does not state it
        self.size = int(place[3]) if place else self.length

    def blocks(self):
        """The body as it is received. Raises HttpFailure if it ends early or is too slow."""
        received, since, window = 0, 0, time.monotonic()
        while self.length is None or received < self.length:
            left = BLOCK if self.length is None else min(BLOCK, self.length - received)
            try:
                block = self._response.read1(left)
            except (OSError, http.client.HTTPException, ValueError) as error:
                raise HttpFailure(described(error), self.url) from error
            if not block:
                if self.length is None:
                    return
                raise HttpFailure("cut off after %d of %d bytes" % (received, self.length), self.url)
            received += len(block)
            since += len(block)
            yield block
            passed = time.monotonic() - window
            if self._min_rate and passed >= self._window_s:
                if since / passed < self._min_rate:
                    text = "%d bytes/s, the minimum is %d" % (since / passed, self._min_rate)
                    raise HttpFailure(text, self.url)
                since, window = 0, time.monotonic()

    def read(self, most):
        """The body, at most `most` bytes of it. Raises HttpFailure."""
        found = bytearray()
        for block in self.blocks():
            found += block
            if len(found) >= most:
                break
        return bytes(found[:most])


def split(url, fault="not a valid address"):
    """(urlsplit() of an address, its port). Raises HttpFailure, without the address, which may have a password."""
    try:
        parts = urlsplit(url)
        return parts, parts.port or {"http": 80, "https": 443}.get(parts.scheme)
    except ValueError:
        raise HttpFailure(fault, url) from None


def origin(url):
    """(scheme, host, port) of an address. Raises HttpFailure."""
    parts, port = split(url)
    return parts.scheme, parts.hostname, port


def following(url, link):
    """The address of a link in the response of `url`. Raises HttpFailure if it leaves https."""
    try:
        found = urljoin(url, link)
    except ValueError:
        raise HttpFailure("a link that is not a valid address", url) from None
    if url.startswith("https:") and not found.startswith("https:"):
        raise HttpFailure("a link from https to another protocol", url)
    return found


def proxy_for(parts, variables):
    """The proxy for an address (as urlsplit() returns it) by the usual environment variables, None for none.

    Lower-case names take precedence over upper-case names. no_proxy contains hosts, domains, addresses and networks
    (CIDR), each with an optional port, or *.
    """
    given = {name.lower(): value for name, value in sorted(variables.items()) if name.lower().endswith("_proxy")}
    proxy = given.get(parts.scheme + "_proxy") or given.get("all_proxy")
    port = parts.port or {"http": 80, "https": 443}.get(parts.scheme)
    if not proxy or any(_bypasses(one, parts.hostname, port) for one in (given.get("no_proxy") or "").split(",")):
        return None
    return proxy


def _bypasses(pattern, host, port):
    pattern = pattern.strip().lower()
    if pattern in ("", "*"):
        return pattern == "*"
    with contextlib.suppress(ValueError):
        network = ipaddress.ip_network(pattern.strip("[]"), strict=False)
        with contextlib.suppress(ValueError):
            return ipaddress.ip_address(host) in network
        return False
    name, _colon, only = pattern.partition(":") if pattern.count(":") == 1 else (pattern, "", "")
    if only and only != str(port):
        return False
    name = name.lstrip("*").lstrip(".")
    return host == name or host.endswith("." + name)


def _login(header, parts):
    """{header: value} for the user and password of an address; {} for none."""
    if parts.username is None:
        return {}
    login = "%s:%s" % (unquote(parts.username), unquote(parts.password or ""))
    return {header: "Basic " + base64.b64encode(login.encode("utf-8")).decode("ascii")}


def described(error):
    """An exception in one line, with its class if it does not describe itself."""
    text = " ".join(str(getattr(error, "reason", None) or getattr(error, "strerror", None) or error).split())
    return text if isinstance(error, OSError) and text else ("%s: %s" % (type(error).__name__, text)).rstrip(": ")
