# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The engine of test nodes: the scripted engine of the unit tests as a program, with a child as vLLM's EngineCore.

It takes any argument, so that a test can plan what it likes; it knows --port, --host and --model, --slow SECONDS before
it listens, and --die to end at once. It asks for the key in VLLM_API_KEY, as vLLM does. ENGINE_SECONDS are of each
answer. USR1 lets it refuse requests with 503, as vLLM's middleware does; with ENGINE_STREAM_SECONDS it does not, and
streams wait so long after their headers. /metrics has the number of requests that are left. The child ignores TERM once
it has got USR1.
"""

from __future__ import annotations

import argparse
import os
import signal
import time

import scripted_engine

METRICS = """vllm:num_requests_running {0}
vllm:num_requests_waiting 0
vllm:kv_cache_usage_perc 0.5
vllm:generation_tokens_total {2}
vllm:time_to_first_token_seconds_bucket{{le="1"}} {2}
vllm:time_to_first_token_seconds_bucket{{le="+Inf"}} {2}
vllm:request_time_per_output_token_seconds_bucket{{le="1"}} {2}
vllm:request_time_per_output_token_seconds_bucket{{le="+Inf"}} {2}
process_start_time_seconds {1}
"""
parser = argparse.ArgumentParser(allow_abbrev=False)
parser.add_argument("--port", type=int, required=True)
parser.add_argument("--model", required=True)
parser.add_argument("--host", default="127.0.0.1")
parser.add_argument("--slow", type=float, default=0)
parser.add_argument("--die", action="store_true")
options, _rest = parser.parse_known_args()

print("engine %d starts" % os.getpid(), flush=True)
if options.die:
    raise SystemExit("no device to run on")
if os.fork() == 0:
    os.setsid()  # out of the process group: only the cgroup still holds it
    signal.signal(signal.SIGUSR1, lambda *unused: signal.signal(signal.SIGTERM, signal.SIG_IGN))
    while True:
        time.sleep(60)
time.sleep(options.slow)
scripted_engine.PORTS, scripted_engine.ADDRESS = [options.port], options.host
began = time.time()
seconds, key = float(os.environ.get("ENGINE_SECONDS", "0")), os.environ.get("VLLM_API_KEY")
stream = os.environ.get("ENGINE_STREAM_SECONDS")
waits = (scripted_engine.Fault("buffer", value=float(stream)),) if stream else ()
with scripted_engine.ScriptedEngine(waits, model=options.model, api_key=key, seconds=seconds) as server:
    refuses = (scripted_engine.Fault("status", value=(503,)),)
    if not stream:
        signal.signal(signal.SIGUSR1, lambda *unused: setattr(server, "faults", refuses))
    server.pages["/metrics"] = lambda: METRICS.format(server.busy, began, len(server.requests))
    print("listening", flush=True)
    while True:
        time.sleep(60)
