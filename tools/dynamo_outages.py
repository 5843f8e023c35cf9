# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Measures what clients see while a part of a running deployment is down, and the time until it answers again.

    make demo RECIPE=cpu-dynamo
    python tools/dynamo_outages.py [--root ~/.inference-fleet] [--url http://127.0.0.1:8000] [SERVER …]
    python tools/dynamo_outages.py --end 'systemctl kill -s KILL etcd' --begin 'systemctl start etcd' --away 5 20 60

It kills each server in turn with kill -9, or stops a service by a command and starts it again after some seconds. It
sends a chat request each second and runs no play. docs/using/dynamo.md summarizes its tables. Only servers of that root
are killed. Standard library only.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import signal
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from pathlib import Path

SERVERS = ("decode-0", "prefill-0", "frontend-0")
STEADY = 3  # consecutive answers after which the deployment counts as recovered
CALM_S = 45  # seconds of answers only, after a service was down: servers may end some time after it recovers
LIMIT_S = 1800
REFUSED = "refused"


def state(root, name):
    """Return the guard's state of a server: pid, hash, started."""
    return json.loads((Path(root) / "run/inference-fleet/servers" / (name + ".json")).read_text())


def model_of(url):
    with urllib.request.urlopen(url + "/v1/models", timeout=30) as got:
        return json.load(got)["data"][0]["id"]


def ask(url, model, timeout=60):
    """Return the result of a chat request: "200" for an answer with content, else the status or the error's name."""
    content = "How are you? %.3f" % time.time()  # a different prompt each time, so that prefill has work
    body = {"model": model, "messages": [{"role": "user", "content": content}], "max_tokens": 64}
    request = urllib.request.Request(
        url + "/v1/chat/completions", json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    try:
        with urllib.request.urlopen(request, timeout=timeout) as got:
            message = json.load(got)["choices"][0]["message"]
            return "200" if message.get("content") or message.get("reasoning_content") else "200 without content"
    except urllib.error.HTTPError as error:
        return str(error.code)
    except urllib.error.URLError as error:
        return REFUSED if isinstance(error.reason, ConnectionRefusedError) else type(error.reason).__name__
    except (OSError, ValueError, KeyError, IndexError) as error:
        return type(error).__name__


def settle(look, limit=LIMIT_S):
    """Wait until `look` returns 200 STEADY times in a row. Raises RuntimeError after `limit` seconds."""
    ends, row = time.monotonic() + limit, 0
    while row < STEADY:
        row = row + 1 if look() == "200" else 0
        if time.monotonic() > ends:
            raise RuntimeError("no answer in %d s" % limit)
        time.sleep(0.2)


def watch(look, over, calm=0, limit=LIMIT_S):
    """Return ([(second, result of chats from then on)], seconds until the deployment answers again).

    look(): sends a chat and returns its result. over(): whether the server or service is up again. The deployment
    answers again when STEADY consecutive chats, and then all chats for `calm` seconds, are answered; the result is the
    time of the first of these chats. Raises RuntimeError after `limit` seconds.
    """
    begin, seen, row, back = time.monotonic(), [], 0, None
    while row < STEADY or time.monotonic() - begin - back < calm:
        asked = time.monotonic() - begin
        found = look()
        there = over()
        if not seen or seen[-1][1] != found:
            seen.append((round(asked, 1), found))
        row = row + 1 if found == "200" and there else 0
        back = time.monotonic() - begin if row == 1 else back
        if asked > limit:
            raise RuntimeError("no steady answers after %d s: %s" % (limit, seen))
        time.sleep(max(0, 1 - (time.monotonic() - begin - asked)))
    return seen, round(back, 1)


def outage(root, name, look, limit=LIMIT_S):
    """watch() after kill -9 of a server, until a new process replaces it."""
    before = state(root, name)["pid"]
    os.kill(before, signal.SIGKILL)
    return watch(look, lambda: state(root, name)["pid"] != before, limit=limit)


def away(seconds, end, begin, look, calm=CALM_S, limit=LIMIT_S):
    """watch() of a service that end() stops and begin() starts again after some seconds."""
    begun = threading.Event()
    timer = threading.Timer(seconds, lambda: (begin(), begun.set()))
    end()
    timer.start()  # a separate thread starts it, because chats may hang
    try:
        return watch(look, begun.is_set, calm, limit)
    finally:
        timer.join()


def row(name, seen, back):
    """Return the row of the table: results of chats, and their times."""
    spans = ["%s from %g s" % (found, second) for second, found in seen if found != "200"]
    return "| %s | %s | %g s |" % (name, ", ".join(spans) or "nothing", back)


def main(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--root", default=os.environ.get("FLEET_ROOT") or str(Path.home() / ".inference-fleet"))
    parser.add_argument("--url", default="http://127.0.0.1:8000")
    parser.add_argument("--away", type=float, nargs="+", metavar="SECONDS", help="how long a service is away")
    parser.add_argument("--end", type=shlex.split, metavar="COMMAND", help="ends the service")
    parser.add_argument("--begin", type=shlex.split, metavar="COMMAND", help="begins it again")
    parser.add_argument("servers", nargs="*", default=SERVERS)
    given = parser.parse_args(arguments)
    if given.away and not (given.end and given.begin):
        parser.error("--away needs --end and --begin")
    model = model_of(given.url)

    def look():
        return ask(given.url, model)

    print(
        "| %s | chats, one a second | answers again |\n| --- | --- | --- |" % ("away" if given.away else "`kill -9` of")
    )
    for seconds in given.away or ():
        settle(look)
        commands = [lambda argv=argv: subprocess.run(argv, check=True) for argv in (given.end, given.begin)]
        print(row("%g s" % seconds, *away(seconds, *commands, look)), flush=True)
    for name in given.servers if not given.away else ():
        settle(look)
        print(row("`%s`" % name, *outage(given.root, name, look)), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
