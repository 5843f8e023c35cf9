# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What clients see when a part of a running deployment is away, and how long until it answers again by itself.

    make demo RECIPE=cpu-dynamo
    python tools/dynamo_outages.py [--root ~/.inference-fleet] [--url http://127.0.0.1:8000] [SERVER …]
    python tools/dynamo_outages.py --end 'systemctl kill -s KILL etcd' --begin 'systemctl start etcd' --away 5 20 60

kill -9 of each server in turn, or a service ended by a command and begun again after so many seconds; a chat each
second, no play. docs/using/dynamo.md sums up its tables. Only servers of that root are killed. Standard library only.
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
STEADY = 3  # answers in a row after which it counts as back
CALM_S = 45  # seconds of nothing else, after a service was away: servers may end a while after it is back
LIMIT_S = 1800
REFUSED = "refused"


def state(root, name):
    """What the guard wrote of a server: pid, hash, started."""
    return json.loads((Path(root) / "run/inference-fleet/servers" / (name + ".json")).read_text())


def model_of(url):
    with urllib.request.urlopen(url + "/v1/models", timeout=30) as got:
        return json.load(got)["data"][0]["id"]


def ask(url, model, timeout=60):
    """What a client gets for one chat: "200" for an answer with content, else the status or the error's name."""
    content = "How are you? %.3f" % time.time()  # of each prompt another one, so that prefill has work
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
    """Wait until `look` says 200 STEADY times in a row. RuntimeError after `limit` seconds."""
    ends, row = time.monotonic() + limit, 0
    while row < STEADY:
        row = row + 1 if look() == "200" else 0
        if time.monotonic() > ends:
            raise RuntimeError("no answer in %d s" % limit)
        time.sleep(0.2)


def watch(look, over, calm=0, limit=LIMIT_S):
    """([(second, what a chat gave from then on)], seconds until it answers again).

    look(): what a chat gives. over(): whether what was away is there again; it answers again where STEADY chats in a
    row do, and all chats for `calm` seconds, from the first of these on. RuntimeError after `limit` seconds.
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
    """watch() after kill -9 of a server; it is there again as a new process."""
    before = state(root, name)["pid"]
    os.kill(before, signal.SIGKILL)
    return watch(look, lambda: state(root, name)["pid"] != before, limit=limit)


def away(seconds, end, begin, look, calm=CALM_S, limit=LIMIT_S):
    """watch() of a service that end() takes away and begin() brings back after so many seconds."""
    begun = threading.Event()
    timer = threading.Timer(seconds, lambda: (begin(), begun.set()))
    end()
    timer.start()  # chats may hang, so it is not this thread that begins
    try:
        return watch(look, begun.is_set, calm, limit)
    finally:
        timer.join()


def row(name, seen, back):
    """The row of the table: what chats gave, and when."""
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
