# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Sends requests to servers of a test node in turn, twice a second, until a file appears; prints counts as JSON.

    python3 asking_client.py [--any] END_FILE PORT [PORT ...]

A request that is refused, cut or answered with an error has failed. With --any, a refused connection or 503 with
Retry-After is no failure if another server answers, as behind a load balancer. Each request is followed by a line
{"answered": N, "failed": [...]}.
"""

import itertools
import json
import os
import sys
import time
import urllib.request

EVERY_S = 0.5
LONGEST_S = 3600


class Refused(Exception):
    """The server accepts no connection, or will stop."""


def ask(port):
    """Send one request. Returns None, or the failure as a string. Raises Refused."""
    base = "http://127.0.0.1:%s/v1/" % port
    try:
        with urllib.request.urlopen(base + "models", timeout=60) as answer:
            model = json.load(answer)["data"][0]["id"]
        body = {"model": model, "messages": [{"role": "user", "content": "Hello."}], "max_tokens": 8}
        headers = {"Content-Type": "application/json"}
        request = urllib.request.Request(base + "chat/completions", json.dumps(body).encode(), headers)
        with urllib.request.urlopen(request, timeout=60) as answer:
            reason = json.load(answer)["choices"][0]["finish_reason"]
        return None if reason in ("stop", "length") else "%s: finish_reason %s" % (port, reason)
    except (OSError, ValueError, LookupError) as error:
        leaves = getattr(error, "code", None) == 503 and "Retry-After" in error.headers
        if leaves or isinstance(getattr(error, "reason", None), ConnectionRefusedError):
            raise Refused("%s: %r" % (port, error)) from error
        return "%s: %r" % (port, error)


def first_answer(ports):
    """Send one request to the first of the servers that accepts the connection. Returns None or the failure."""
    problem = None
    for port in ports:
        try:
            return ask(port)
        except Refused as error:
            problem = str(error)
    return problem


def main(*arguments):
    others = arguments[0] == "--any"
    end, *ports = arguments[others:]
    answered, failed, began = 0, [], time.monotonic()
    for number in itertools.cycle(range(len(ports))):
        if os.path.exists(end) or time.monotonic() - began > LONGEST_S:
            break
        problem = first_answer(ports[number:] + ports[:number] if others else ports[number : number + 1])
        if problem:
            failed.append(problem)
        else:
            answered += 1
        print(json.dumps({"answered": answered, "failed": failed}), flush=True)
        time.sleep(EVERY_S)


if __name__ == "__main__":
    main(*sys.argv[1:])
