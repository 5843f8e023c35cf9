# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Waits before a start: for servers that start first, and for services that the server needs.

An entry's start.needs is [{name, urls, tls, greeting}]. One of the urls must be available: http:// and https:// by any
answer below 500, tcp:// by a connection on which the service sends `greeting` first. tls: {ca, certificate, key}, the
names of the variables or secrets that contain the PEM strings.
"""

from __future__ import annotations

import os
import socket
import ssl
import time
import urllib.parse

from ..engines import health_request as asking
from ..host import http_client
from ..host.server_spec import health_port, read_entry
from .state import read_record, read_secrets, recorded_pid, say

REQUEST_S = 5.0
PROBE_S = 3.0
POLL_S = 2.0


def wait_for_leader(leader, options, state, needless):
    """Wait until the server `leader` answers its health path with 200. False if its start budget ends before.

    needless: a function that returns whether waiting is no longer necessary.
    """
    began = time.monotonic()
    reported = False
    while True:
        if needless():
            return True
        entry = read_entry(os.path.join(os.path.dirname(options.entry), leader + ".json"))
        health = (entry or {}).get("health", {})
        beside = [os.path.join(os.path.dirname(path), leader + ".json") for path in (options.state, options.secrets)]
        if entry is not None and is_healthy(entry, *beside):
            return True
        if not reported:
            reported = True
            say("waiting for %s" % leader)
            state.write("waiting for " + leader, None if entry else "%s is not deployed on this node" % leader)
        budget = health.get("budget_s", 300)
        if time.monotonic() - began > budget:
            say("%s was not healthy within its %d s" % (leader, budget))
            return False
        time.sleep(health.get("poll_s", 2))


def is_healthy(entry, state_path, secrets_path=None):
    """Whether the server answers 200 on its health path; a server without a port is healthy if its engine runs.

    secrets_path: of the server's secrets, for a health path that requires its API key.
    """
    if health_port(entry) is None:
        state = read_record(state_path)
        return state.get("phase") == "running" and recorded_pid(state) is not None
    return asking.health(entry, REQUEST_S, read_secrets(secrets_path) if secrets_path else {}).healthy


def wait_for_services(needs, given, state):
    """Wait until all services are available. given: {variable: value} of the entry, including secrets.

    The previous start does not count if its engine ended while a service was not available.
    """
    began, reported = time.monotonic(), None
    while True:
        lack = next(((need["name"], words) for need in needs for words in [away(need, given)] if words), None)
        if lack is None:
            break
        if reported is None:
            state.forgive()
        if lack != reported:
            reported = lack
            say("waiting for %s: %s" % lack)
            state.write("waiting for " + lack[0], lack[1])
        time.sleep(POLL_S)
    if reported:
        say("%s is available after %d s" % (reported[0], time.monotonic() - began))


def away(need, given):
    """Why a service is not available, or None."""
    found = []
    for url in need["urls"]:
        try:
            words = _problem(url, need, given)
        except (OSError, ValueError) as error:
            words = getattr(error, "strerror", None) or str(error) or type(error).__name__
        if words is None:
            return None
        found.append("%s: %s" % (url, words))
    return "; ".join(found)


def _problem(url, need, given):
    parts = urllib.parse.urlsplit(url)
    if parts.scheme == "tcp":
        greeting = need["greeting"].encode()
        with socket.create_connection((parts.hostname, parts.port), PROBE_S) as connection:
            got = connection.recv(len(greeting), socket.MSG_WAITALL)
        return None if got == greeting else "it does not answer as %s does" % need["name"]
    context = _context(need.get("tls") or {}, given) if parts.scheme == "https" else None
    answer = http_client.request("GET", url, timeout=PROBE_S, context=context)
    if answer.error:
        return answer.detail or http_client.FAILURES[answer.error]
    return None if answer.status < 500 else "HTTP %d" % answer.status


def _context(tls, given):
    """The SSL context with the server's certificate, which is written to no disk."""
    texts = {kind: given.get(name) for kind, name in tls.items()}
    context = ssl.create_default_context(cadata=texts.get("ca"))
    if texts.get("certificate") and texts.get("key"):
        memory = os.memfd_create("certificate")
        try:
            os.write(memory, ("%s\n%s\n" % (texts["certificate"], texts["key"])).encode())
            context.load_cert_chain("/proc/self/fd/%d" % memory, password="")  # never ask for one
        finally:
            os.close(memory)
    return context
