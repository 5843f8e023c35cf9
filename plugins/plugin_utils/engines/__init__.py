# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What the plan must know of each engine: which of its flags the plan itself holds, and how it takes lists."""

from __future__ import annotations

import dataclasses
import json
import re

from ansible_collections.inference.fleet.plugins.module_utils.supervise.guard import API_KEY

FLAG = re.compile(r"--?[A-Za-z]")


@dataclasses.dataclass(frozen=True)
class Engine:
    """An engine's command line.

    parallel: flags whose product is the number of devices of one server. port, bind: flags that must agree with the
    entry. repeat_lists: a list becomes the flag given again (click) instead of one flag with several values (argparse).
    label: for people. api_key: the variable of its environment that holds the API key it asks for, empty where it knows
    none: TensorRT-LLM (TensorRT-LLM#9950) and Dynamo's frontend (dynamo#8605) answer whoever reaches them.
    aliases: {short name of a flag: its long one}, with hyphens. config_wins: whether a key of the configuration file
    overrules the same flag of the command line.
    """

    label: str

    parallel: tuple = ()
    port: str = ""
    bind: str = ""
    repeat_lists: bool = False
    api_key: str = ""
    aliases: dict = dataclasses.field(default_factory=dict)
    config_wins: bool = False


PARALLEL = {"tp": "tensor-parallel-size", "pp": "pipeline-parallel-size", "dp": "data-parallel-size",
            "tp-size": "tensor-parallel-size", "pp-size": "pipeline-parallel-size"}  # fmt: skip
ENGINES = {
    "vllm": Engine(
        "vLLM",
        ("tensor-parallel-size", "pipeline-parallel-size", "data-parallel-size"),
        "port",
        "host",
        api_key=API_KEY,
        aliases=PARALLEL,
    ),
    "trtllm": Engine(
        "TensorRT-LLM",
        ("tensor-parallel-size", "pipeline-parallel-size"),
        "port",
        "host",
        repeat_lists=True,
        aliases=PARALLEL,
        config_wins=True,
    ),
    "dynamo": Engine("Dynamo", ("tensor-parallel-size",), "http-port", "http-host", aliases=PARALLEL),
}


def canonical_flag(engine, flag):
    """The one name for all spellings of a flag: max_num_seqs is max-num-seqs, tp is tensor-parallel-size."""
    name = flag.replace("_", "-")
    return ENGINES[engine].aliases.get(name, name)


def effective(engine, command, arguments, config):
    """{canonical flag: value} that a server runs with, whatever way it is given.

    command: the words before its arguments. arguments: {flag: value} with values as the recipe has them. config: its
    configuration file or None. A flag that is switched off by its opposite (no-enable-prefix-caching) is false.
    """
    given = {**command_flags(command), **{flag: value for flag, value in arguments.items() if value is not False}}
    content = (config or {}).get("content") or {}
    layers = [content, given][:: -1 if ENGINES[engine].config_wins else 1]
    found = {}
    for layer in layers:
        for flag, value in layer.items():
            name = canonical_flag(engine, str(flag))
            negated = value is True and name.startswith("no-")
            found[name[3:] if negated else name] = False if negated else value
    return {name: value for name, value in sorted(found.items()) if value is not None}


def command_flags(words):
    """{flag: its text, or True for a bare one} of the flags in a recipe's command."""
    values, index = {}, 0
    while index < len(words):
        word = words[index]
        index += 1
        if not FLAG.match(word):
            continue
        name, equals, value = word.lstrip("-").partition("=")
        if not equals:
            value = True
            if index < len(words) and not FLAG.match(words[index]):
                value = words[index]
                index += 1
        values[name] = value
    return values


def flag_argv(engine, flag, value):
    """The argv words of one flag. ``value``: see the recipe schema's arguments."""
    word = ("-" if len(flag) == 1 else "--") + flag
    if value is None or value is False:
        return []
    if value is True:
        return [word]
    if isinstance(value, list):
        items = [text(item) for item in value]
        if ENGINES[engine].repeat_lists:
            return [part for item in items for part in (word, item)]
        return [word, *items]
    return [word, text(value)]


def text(value):
    """A value as an engine reads it from argv or environment: texts as they are, everything else as JSON."""
    if isinstance(value, str):
        return value
    return json.dumps(value, ensure_ascii=False)
