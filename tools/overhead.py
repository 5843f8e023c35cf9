# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Measures what the endpoint adds to a request: completions of one token, in turns to a server and to the endpoint.

    FLEET_KEY=KEY python3 tools/overhead.py MODEL http://SERVER:8000 https://ENDPOINT:8080 [--requests N]

The environment variable is the key of both (a server without a key accepts any). Each
request has a new connection.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import time
import urllib.request


def seconds(url, model):
    """Return the seconds of a completion. Raises OSError."""
    headers = {"Content-Type": "application/json", "Authorization": "Bearer " + os.environ.get("FLEET_KEY", "")}
    body = json.dumps({"model": model, "prompt": "1", "max_tokens": 1}).encode()
    began = time.perf_counter()
    with urllib.request.urlopen(urllib.request.Request(url + "/v1/completions", body, headers), timeout=60) as answer:
        answer.read()
    return time.perf_counter() - began


def measured(urls, model, requests):
    """Return {url: seconds of each request}."""
    found = {url: [] for url in urls}
    for _number in range(requests):
        for url in urls:
            found[url].append(seconds(url, model))
    return found


def main(words=None):
    """Print the median and the 99th percentile of each address, and the difference."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("model")
    parser.add_argument("server")
    parser.add_argument("endpoint")
    parser.add_argument("--requests", type=int, default=500)
    options = parser.parse_args(words)
    found = measured([options.server, options.endpoint], options.model, options.requests)
    rows = [(statistics.median(one) * 1000, statistics.quantiles(one, n=100)[98] * 1000) for one in found.values()]
    for url, (middle, high) in zip(found, rows, strict=True):
        print("%-32s median %7.2f ms   p99 %7.2f ms" % (url, middle, high))
    print("%-32s median %7.2f ms   p99 %7.2f ms" % ("difference", rows[1][0] - rows[0][0], rows[1][1] - rows[0][1]))


if __name__ == "__main__":
    main()
