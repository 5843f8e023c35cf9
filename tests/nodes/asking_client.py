# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Asks servers of a test node in turn, twice a second, until a file appears; then prints what came of it as JSON.

    python3 asking_client.py END_FILE PORT [PORT ...]

A request that is refused, cut or answered with an error has failed.
"""

import itertools
import json
import os
import sys
import time
import urllib.request

EVERY_S = 0.5
LONGEST_S = 900


def ask(port):
    """None, or what went wrong."""
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
        return "%s: %r" % (port, error)


def main(end, *ports):
    answered, failed, began = 0, [], time.monotonic()
    for port in itertools.cycle(ports):
        if os.path.exists(end) or time.monotonic() - began > LONGEST_S:
            break
        problem = ask(port)
        if problem:
            failed.append(problem)
        else:
            answered += 1
        time.sleep(EVERY_S)
    print(json.dumps({"answered": answered, "failed": failed}))


if __name__ == "__main__":
    main(*sys.argv[1:])
