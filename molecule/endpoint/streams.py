# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Sends streams from four clients until a file appears; prints {"answered": N, "failed": [...]}.

python3 streams.py URL KEY END_FILE
"""

import json
import os
import sys
import threading
import urllib.request

URL, KEY, END = sys.argv[1:]
BODY = {"model": "gpt-oss-small", "messages": [{"role": "user", "content": "17*23?"}], "stream": True}
HEADERS = {"Content-Type": "application/json", "Authorization": "Bearer " + KEY}
answered, failed = [], []


def ask():
    """Send streams, one after another."""
    while not os.path.exists(END):
        try:
            request = urllib.request.Request(URL + "/v1/chat/completions", json.dumps(BODY).encode(), HEADERS)
            with urllib.request.urlopen(request, timeout=60) as answer:
                end = answer.read().rstrip()[-6:]
            (answered if end == b"[DONE]" else failed).append(repr(end))
        except OSError as error:
            failed.append(repr(error))


clients = [threading.Thread(target=ask) for _number in range(4)]
for client in clients:
    client.start()
for client in clients:
    client.join()
print(json.dumps({"answered": len(answered), "failed": failed[:20]}))
