# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The simulated hub by hand: python -m tests.hubs --port 8099, from the root of the clone."""

from __future__ import annotations

import argparse
import json
import os

from .faults import ACTIONS
from .hub import Hub
from .repositories import gpt_oss


def main():
    actions = "\n".join("  %-9s %s" % action for action in ACTIONS.items())
    parser = argparse.ArgumentParser(
        prog="python -m tests.hubs",
        description=__doc__ + " Prints one line of JSON when it listens.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog="Faults, for --fault:\n%s\nEach takes path (a pattern), count (how many requests), skip and on (info, "
        "list, head, redirect, get) as well.\nGET /_hub/counts." % actions,
    )
    parser.add_argument("--address", default="127.0.0.1", help="where to listen (never a public address)")
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--cdn-port", type=int, default=0)
    parser.add_argument("--repo", default="openai/gpt-oss-120b", help="name of the generated repository")
    parser.add_argument("--shard-bytes", type=int, default=65_536)
    parser.add_argument("--fault", action="append", default=[], type=json.loads, metavar="JSON",
                        help='e.g. {"action": "cut", "path": "*00003*", "at": 1000, "count": 1}')  # fmt: skip
    parser.add_argument("--seconds", type=float, default=3600, help="stop after this time")
    options = parser.parse_args()
    repository = gpt_oss(options.repo, options.shard_bytes)
    hub = Hub([repository], options.address, options.port, options.cdn_port)
    for description in options.fault:
        try:
            hub.fault(**description)
        except (TypeError, ValueError) as error:
            parser.error("--fault: %s" % error)
    with hub:
        started = {"endpoint": hub.endpoint, "cdn_port": hub.cdn_port, "pid": os.getpid(), "head": repository.head}
        print(json.dumps(started), flush=True)
        hub.stopping.wait(options.seconds)


if __name__ == "__main__":
    main()
