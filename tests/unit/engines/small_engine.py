# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A server that answers as an engine does and misbehaves on request. Standard library only; ends by itself."""

from __future__ import annotations

import argparse
import http.server
import json
import os
import signal
import socket
import socketserver
import sys
import threading
import time

parser = argparse.ArgumentParser()
parser.add_argument("--bind", default="127.0.0.1")
parser.add_argument("--port", type=int, required=True)
parser.add_argument("--model", default="small")
parser.add_argument("--wait-for", default=None, help="a file that must be there before it listens")
parser.add_argument("--child", action="store_true", help="fork a child that outlives it, as vLLM's EngineCore does")
parser.add_argument("--away", action="store_true", help="the child leaves the process group")
parser.add_argument("--ignore-term", action="store_true")
parser.add_argument("--broken", default=None, help="healthy, but every completion is HTTP 500 with these words")
parser.add_argument("--wants-key", default=os.environ.get("VLLM_API_KEY"), help="asked for below /v1, as vLLM does")
parser.add_argument("--guards-health", action="store_true", help="the key is asked for by the health path as well")
parser.add_argument("--answers", default=None, help="a folder; its PORT.json has {path: [status, body]} of some paths")
parser.add_argument("--held", action="store_true", help="answer a completion when /metrics was asked twice meanwhile")
parser.add_argument("--refuses", action="store_true", help="--held: SIGUSR1 lets it refuse; then it answers the held")
parser.add_argument("--max-life", type=float, default=900)
options, rest = parser.parse_known_args()

threading.Timer(options.max_life, os._exit, (0,)).start()
if options.ignore_term:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
else:
    signal.signal(signal.SIGTERM, lambda *unused: os._exit(0))
if options.child and os.fork() == 0:
    if options.away:
        os.setsid()
    time.sleep(options.max_life)
    os._exit(0)
print("small engine %d starts" % os.getpid(), flush=True)
print("token %s" % os.environ.get("HF_TOKEN", "none"), flush=True)
while options.wait_for and not os.path.exists(options.wait_for):
    time.sleep(0.02)


asked, running = threading.Semaphore(0), []
refusing = threading.Event()
if options.refuses:
    signal.signal(signal.SIGUSR1, lambda *unused: refusing.set())
    signal.signal(signal.SIGUSR2, lambda *unused: None)  # it keeps its port


def scripted():
    try:
        with open("%s/%d.json" % (options.answers, options.port), encoding="utf-8") as stream:
            return json.load(stream)
    except OSError:
        return {}


class Handler(http.server.BaseHTTPRequestHandler):
    def answer(self, status, value, text=None):
        body = (json.dumps(value) if text is None else text).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def refused(self):
        """Send what --answers or a missing key require; whether that was anything."""
        given = scripted().get(self.path) if options.answers else None
        guarded = self.path.startswith("/v1") or options.guards_health
        sent = self.headers.get("Authorization", "")
        admitted = not options.wants_key or not guarded or sent == "Bearer " + options.wants_key
        if given and (admitted or given[0] != 200):
            self.answer(given[0], None, given[1])
        elif not admitted:
            self.answer(401, {"error": "Unauthorized", "sent": sent})
        return bool(given) or not admitted

    def do_GET(self):
        if self.refused():
            return
        if self.path == "/health":
            self.answer(200, {})
        elif self.path == "/v1/models":
            self.answer(200, {"object": "list", "data": [{"id": options.model, "object": "model"}]})
        elif self.path == "/metrics" and options.held:
            if running and not options.refuses:
                asked.release()
            self.answer(200, None, 'vllm:num_requests_running{engine="0"} %d.0\n' % len(running))
        else:
            self.answer(404, {"error": "no such path"})

    def do_POST(self):
        request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if self.refused():
            return
        if options.broken:
            self.answer(500, {"error": options.broken})
        elif refusing.is_set():
            self.answer(503, {"error": "about to stop"})
            asked.release(2)
        elif self.path != "/v1/chat/completions" or request["model"] != options.model:
            self.answer(404, {"error": "no such model"})
        else:
            if options.held and "hold" in request:
                running.append(request)
                for _turn in range(2):
                    asked.acquire()
                running.pop()
            choice = {"index": 0, "message": {"role": "assistant", "content": "391"}, "finish_reason": "stop"}
            self.answer(200, {"object": "chat.completion", "choices": [choice]})

    def log_message(self, *unused):
        pass


class Server(socketserver.ThreadingMixIn, http.server.HTTPServer):
    allow_reuse_address = True
    daemon_threads = True
    address_family = socket.AF_INET6 if ":" in options.bind else socket.AF_INET


sys.stdout.write("listening on %s:%d\n" % (options.bind, options.port))
sys.stdout.flush()
Server((options.bind, options.port), Handler).serve_forever()
