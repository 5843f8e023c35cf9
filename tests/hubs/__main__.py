# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The simulated hub by hand: python -m tests.hubs --port 8099, from the root of the clone."""

from __future__ import annotations

import argparse
import json
import os
import ssl

from .faults import ACTIONS, PARAMETERS
from .hub import Hub
from .repositories import from_folder, gpt_oss


def main():
    actions = "\n".join("  %-9s %s" % item for item in ACTIONS.items())
    parser = argparse.ArgumentParser(
        prog="python -m tests.hubs",
        description=__doc__ + " Prints one line of JSON when it listens.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog="Faults, for --fault:\n%s\nEach takes path (a pattern), count (how many requests), skip, on (info, "
        "list, head, redirect, get) and hub as well.\nGET /_hub/counts, /_hub/repositories." % actions,
    )
    parser.add_argument("--address", default="127.0.0.1", help="where to listen (never a public address)")
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--cdn-port", type=int, default=0)
    parser.add_argument("--cdn-host", help="host name of the redirects to the CDN")
    parser.add_argument("--repo", default="openai/gpt-oss-120b", help="name of the generated repository")
    parser.add_argument("--shard-bytes", type=int, default=65_536)
    parser.add_argument("--format", choices=["mxfp4", "bf16"], default="mxfp4")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument(
        "--folder", action="append", default=[], metavar="NAME=DIRECTORY", help="a repository from disk"
    )
    parser.add_argument("--access", choices=["public", "gated", "private"], default="public")
    parser.add_argument("--token-env", metavar="NAME", help="the variable that holds the token which is let in")
    parser.add_argument(
        "--xet", action="store_true", help="announce files as stored in Xet too, as huggingface.co does"
    )
    parser.add_argument("--page", type=int, default=1000, help="entries of a page of Hugging Face's listing")
    parser.add_argument("--fault", action="append", default=[], type=json.loads, metavar="JSON",
                        help='e.g. {"action": "cut", "path": "*00003*", "at": 1000, "count": 1}')  # fmt: skip
    parser.add_argument("--certificate", help="PEM file with certificate and key, for https")
    parser.add_argument("--parent", type=int, default=os.getppid(), help="stop when this process is gone; 0: never")
    parser.add_argument("--seconds", type=float, default=3600, help="stop after this time")
    options = parser.parse_args()
    tokens = [os.environ[options.token_env]] if options.token_env else []
    access = {"access": options.access, "tokens": tokens, "xet": options.xet}
    repositories = [
        gpt_oss(options.repo, options.shard_bytes, model_format=options.format, seed=options.seed, **access)
    ]
    for item in options.folder:
        name, folder = item.split("=", 1)
        repositories.append(from_folder(name, folder, **access))
    context = None
    if options.certificate:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(options.certificate)
    hub = Hub(repositories, options.address, options.port, options.cdn_port, options.cdn_host, options.page, context)
    for description in options.fault:
        try:
            hub.fault(**description)
        except (TypeError, ValueError) as error:
            parser.error("--fault: %s" % error)
    with hub:
        started = {"endpoint": hub.endpoint, "cdn_port": hub.cdn_port, "pid": os.getpid()}
        print(json.dumps({**started, "heads": {one.name: one.head for one in repositories}}), flush=True)
        hub.watch(options.parent or None, options.seconds)


if __name__ == "__main__":
    assert set(ACTIONS) == set(PARAMETERS)
    main()
