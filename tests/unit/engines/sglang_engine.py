# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A stand-in for `sglang serve` around the scripted engine, as strict as the recorded parser of SGLang.

It has SGLang's /v1/models, /health_generate and metrics.
"""

from __future__ import annotations

import argparse
import json
import pathlib
import sys
import time

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))

import scripted_engine  # noqa: E402 - found by the path above

FLAGS = HERE.parents[2] / "plugins" / "plugin_utils" / "engines" / "sglang_flags.json"
KINDS = {"int": int, "float": float}
METRICS = 'sglang:num_running_reqs{model_name="m"} %d.0\nsglang:num_queue_reqs{model_name="m"} 0.0\n'


def parser():
    made = argparse.ArgumentParser(prog="launch_server.py", allow_abbrev=False)
    for name, versions in json.loads(FLAGS.read_text(encoding="utf-8"))["models"]["--"].items():
        kind = list(versions.values())[-1]
        if kind is None:
            continue
        if isinstance(kind, list):
            more = {"choices": None if "..." in kind else kind, "type": type(kind[0])}
        elif kind.startswith("switch"):
            more = {"action": "store_true"}
        else:
            more = {"type": KINDS.get(kind.rstrip("."), str), "nargs": "+" if kind.endswith("...") else None}
        made.add_argument("--" + name, default=None if more.get("action") is None else False, **more)
    return made


def main():
    given = parser().parse_args(sys.argv[sys.argv.index("serve") + 1 :])
    scripted_engine.PORTS, scripted_engine.ADDRESS = [given.port], given.host
    model = given.served_model_name
    with scripted_engine.ScriptedEngine(model=model, reasoning_field="reasoning_content") as server:
        server.pages["/health_generate"] = ""
        if given.enable_metrics:
            server.pages["/metrics"] = lambda: METRICS % server.busy
        while True:
            time.sleep(60)


main()
