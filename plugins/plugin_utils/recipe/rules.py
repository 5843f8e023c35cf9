# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Rules of a recipe that a JSON schema cannot say: between keys, and of what servers are given as flags."""

from __future__ import annotations

import difflib
import re

from ansible_collections.inference.fleet.plugins.module_utils.errors import FleetError
from ansible_collections.inference.fleet.plugins.module_utils.node.cpu_list import parse_cpu_list
from ansible_collections.inference.fleet.plugins.module_utils.verify import probes
from ansible_collections.inference.fleet.plugins.plugin_utils.engines import ENGINES, canonical_flag
from ansible_collections.inference.fleet.plugins.plugin_utils.planning.hardware import ACCELERATORS
from ansible_collections.inference.fleet.plugins.plugin_utils.recipe.checks import MAX_LINE, Mistakes, invisible, number
from ansible_collections.inference.fleet.plugins.plugin_utils.recipe.overrides import group_name
from ansible_collections.inference.fleet.plugins.plugin_utils.recipe.schema import (
    FALSE,
    TRUE,
    odd_characters,
    path_text,
    problems,
    show,
)

# Where a string may have several lines, be empty, or hold Jinja that is not for Ansible.
FREE = ("description", "guide", "probes", "config", "arguments", "environment", "command", "benchmark", "evaluate")
EMPTY = ("entrypoint",)
JINJA = re.compile(r"\{\{.*\}\}|\{%.*%\}", re.DOTALL)
ANSWERS = ("server", "frontend")

# Flags whose value is a whole number, one of bytes or tokens with a suffix (64M), or a share.
WHOLE = (
    "max-num-seqs", "max-batch-size", "tensor-parallel-size", "pipeline-parallel-size", "data-parallel-size",
    "block-size", "num-gpu-blocks-override", "api-server-count", "max-loras", "max-lora-rank", "max-beam-width",
)  # fmt: skip
SIZES = ("max-num-batched-tokens", "max-num-tokens", "max-model-len", "max-seq-len", "max-input-len",
         "kv-cache-memory-bytes")  # fmt: skip
SHARES = ("gpu-memory-utilization", "kv-cache-free-gpu-memory-fraction", "free-gpu-memory-fraction")
LENGTHS = ("max-model-len", "max-seq-len")
SIZE = re.compile(r"([0-9]+(?:\.[0-9]+)?)([kmgtKMGT]?)")
SUFFIXES = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}
SPACE, CAP = "VLLM_CPU_KVCACHE_SPACE", "VLLM_NEURON_KV_GMU_BUDGET_CAP_FRACTION"
MAX_SIZE = 10**15
# What tells vLLM that the model's own length does not hold.
LONGER_FLAGS = ("hf-overrides", "rope-scaling")
LONGER_VARIABLE = "VLLM_ALLOW_LONG_MAX_MODEL_LEN"


def all_problems(recipe, text_of=path_text, in_file=False):
    """All mistakes of a recipe: [(path, text)] in a stable order: of the schema, of strings, and between keys.

    text_of: how a path is written in messages. in_file: whether it is a file, which holds no Jinja.
    """
    found = problems(recipe, text_of)
    found += [item for item in _strings(recipe, [], text_of, in_file) if not _covered(item[0], found)]
    if not found:
        for rule in (_needs, _groups, _start, _variables, _probes):
            found += [(path, "'%s' %s" % (text_of(path), text)) for path, text in rule(recipe)]
    return found


def _covered(path, found):
    return any(list(path) == list(other) for other, _text in found)


def _strings(value, path, text_of, in_file):
    """(path, text) for strings of keys that mean one word or one line, which are empty or hold what cannot be seen."""
    if isinstance(value, (dict, list)):
        for key, item in value.items() if isinstance(value, dict) else enumerate(value):
            yield from _strings(item, [*path, key], text_of, in_file)
    elif isinstance(value, str):
        text = _string(value, {one for one in path if isinstance(one, str)}, str(path[-1]), in_file)
        if text:
            yield path, "'%s' is %s%s" % (text_of(path), show(value), text)


def _string(value, keys, last, in_file):
    if in_file and JINJA.search(value) and "template" not in last and not {"probes", "config", "description"} & keys:
        return (
            ", but a recipe file holds no Jinja; allowed: placeholders such as ${models}. Write it in fleet_override "
            "where Jinja must be"
        )
    if {"arguments", "environment"} & keys and value != value.rstrip("\r\n"):
        return "; allowed: a string without a line break at its end. Remove it, in YAML with |- instead of |"
    if keys & set(FREE) or (not value and last in EMPTY):
        return ""
    if not value or value != value.strip() or invisible(value) or len(value) > MAX_LINE:
        return (
            "%s; allowed: one line that is not empty, of %d characters at most, without spaces around it or characters "
            "that cannot be seen. Remove these, or the key" % (odd_characters(value), MAX_LINE)
        )
    return ""


def _needs(recipe):
    for index, name in enumerate(recipe["needs"]["accelerators"]):
        known = [one for one, kind in ACCELERATORS.items() if kind.platform == recipe["platform"]]
        if name not in known:
            yield (
                ["needs", "accelerators", index],
                ("is %s; allowed for platform %s: %s" % (show(name), recipe["platform"], ", ".join(known))),
            )
    words = recipe["command"]
    if not words[0] or (words[0] != "".join(words[0].split()) and not words[0].startswith(("/", "${"))):
        yield (
            ["command", 0],
            "is %s; allowed: the program alone. Write each word as an item" % show(words[0]),
        )


def _groups(recipe):
    groups = {}
    for index, group in enumerate(recipe["servers"]):
        path, name = ["servers", index], group_name(group)
        if name in groups:
            yield [*path, "name"], "is '%s', as of another group. Set another name" % name
        groups[name] = group
        if group["role"] in ANSWERS and group.get("port") is None:
            yield (
                [*path, "port"],
                (
                    "is null, but a server of role %s answers on a port; allowed: 1 to 65535. Set one, or another role"
                    % group["role"]
                ),
            )
        if group["role"] != "frontend" and not group["devices"]:
            yield [*path, "devices"], "is 0; allowed: at least 1 for role %s, 0 for a frontend" % group["role"]
        if group.get("cpus"):
            yield from _cpus([*path, "cpus"], group["cpus"])
    for name, own in (recipe.get("instances") or {}).items():
        if own and own.get("cpus"):
            yield from _cpus(["instances", name, "cpus"], own["cpus"])
    for index, group in enumerate(recipe["servers"]):
        for other in group.get("after", ()):
            if other not in groups:
                yield (
                    ["servers", index, "after"],
                    ("names the group %s; allowed: %s" % (show(other), ", ".join(groups))),
                )
            elif _reaches(groups, other, group_name(group), set()):
                yield (
                    ["servers", index, "after"],
                    (
                        "names '%s', which starts after '%s' itself, so each would wait for the other. Remove one"
                        % (other, group_name(group))
                    ),
                )


def _cpus(path, text):
    try:
        parse_cpu_list(text)
    except ValueError as error:
        yield path, "is %s: %s. Use numbers and ranges such as 0-47,96-143" % (show(text), error)


def _reaches(groups, name, goal, seen):
    if name == goal:
        return True
    if name in seen or name not in groups:
        return False
    seen.add(name)
    return any(_reaches(groups, other, goal, seen) for other in groups[name].get("after", ()))


def _start(recipe):
    start = recipe.get("start") or {}
    if start.get("poll_s", 0) > start.get("budget_s", float("inf")):
        yield ["start", "poll_s"], "is %g, but 'start.budget_s' is %g; allowed: up to that. Lower it" % (
            start["poll_s"], start["budget_s"]
        )  # fmt: skip


def _variables(recipe):
    """A variable is either in environment or in secrets."""
    secrets = {name for name, variable in (recipe.get("secrets") or {}).items() if variable is not None}
    places = [(["environment"], recipe.get("environment"))]
    places += [(["servers", index, "environment"], group.get("environment"))
               for index, group in enumerate(recipe["servers"])]  # fmt: skip
    places += [(["instances", name, "environment"], (own or {}).get("environment"))
               for name, own in (recipe.get("instances") or {}).items()]  # fmt: skip
    for path, environment in places:
        for name, value in (environment or {}).items():
            if name in secrets and value is not None:
                yield [*path, name], "is set, and so is 'secrets.%s'; one of them would be lost. Remove one" % name


def _probes(recipe):
    names = set(probes.FULL + probes.QUICK)
    for index, probe in enumerate(recipe.get("probes", ())):
        path = ["probes", index]
        if probe["name"] in names:
            taken = "the name of a built-in probe" if probe["name"] in probes.FULL + probes.QUICK else "given twice"
            yield [*path, "name"], "is '%s', %s. Use another name" % (probe["name"], taken)
        names.add(probe["name"])
        if probe.get("body") is None and probe.get("path", probes.CHAT) == probes.CHAT:
            yield [*path, "body"], "is not set, but %s must get one. Set it, with messages" % probes.CHAT


def check_flags(where, engine, values):
    """FleetError where two flags of a server say the same thing, or the opposite. values: {flag: value}, resolved.

    Returns {canonical flag: as written}.
    """
    written, mistakes = {}, Mistakes()
    for flag in values:
        other = written.setdefault(canonical_flag(engine, flag), flag)
        if other != flag:
            mistakes.add(
                "recipe.flag-twice",
                "%s: arguments.%s and arguments.%s are one flag to the engine, which would take the last one. Keep one "
                "of them; null takes away the recipe's.",
                (where, other, flag),
            )
    for name, flag in written.items():
        value, opposite = values[flag], written.get("no-" + name)
        if engine == "vllm" and flag in ENGINES[engine].aliases:
            mistakes.add(
                "recipe.flag-unknown",
                "%s: arguments.%s is no flag of vLLM; allowed: %s. Use that name.",
                (where, flag, name),
            )
        if opposite is not None and value is not False and values[opposite] is not False:
            mistakes.add(
                "recipe.flag-and-its-opposite",
                "%s: arguments.%s and arguments.%s say the opposite of each other, and the engine would take the last "
                "one. Remove one of them; null takes away the recipe's.",
                (where, flag, opposite),
            )
        if engine == "vllm" and isinstance(value, str) and value.strip().lower() in (TRUE | FALSE) - {"on", "off"}:
            mistakes.add(
                "recipe.flag-quoted-boolean",
                "%s: arguments.%s is the string %s, which the engine would get as a word; allowed: true or false "
                "without quotes. Remove the quotes, or give it as JSON with -e.",
                (where, flag, show(value)),
            )
    mistakes.raise_any()
    return written


def check_sizes(where, engine, values, content, environment, model):
    """FleetError where a size is no number that the engine can have, or a sequence is longer than the model can read.

    values: {flag: value} of the server, resolved; content: of its configuration file, {} without; model: models.Model
    or None.
    """
    given = [("arguments.%s" % flag, canonical_flag(engine, flag), value) for flag, value in values.items()]
    given += [("config.content.%s" % key, canonical_flag(engine, str(key)), value) for key, value in content.items()]
    longer = any(name in LONGER_FLAGS for _key, name, _value in given) or environment.get(LONGER_VARIABLE) == "1"
    mistakes = Mistakes()
    for key, name, value in given:
        if value is not None and value is not False:
            with mistakes.noted():
                _check_size("%s: %s" % (where, key), name, value, None if longer or model is None else model.max_len)
    if SPACE in environment:
        with mistakes.noted():
            _number("%s: environment.%s" % (where, SPACE), environment[SPACE])
    if CAP in environment:
        with mistakes.noted():
            _share("%s: environment.%s" % (where, CAP), environment[CAP])
    mistakes.raise_any()


def _check_size(key, name, value, longest):
    if name in WHOLE:
        _number(key, value)
    elif name in SHARES:
        _share(key, value)
    elif name in SIZES and not (name == "max-model-len" and str(value) in ("auto", "-1")):
        size = _size(key, value)
        if name in LENGTHS and longest is not None and size > longest:
            raise FleetError(
                "recipe.context-too-long",
                "%s is %s, but the model reads %d tokens at most; allowed: up to that. Lower it.",
                (key, show(value), longest),
            )


def _number(key, value):
    found = number(value)
    if found is None or not 0 < found <= MAX_SIZE:
        raise FleetError("recipe.count-invalid", "%s is %s; allowed: a whole number above 0.", (key, show(value)))


def _share(key, value):
    found = number(value, whole=False)
    if found is None or not 0 < found <= 1:
        raise FleetError(
            "recipe.fraction-invalid", "%s is %s; allowed: a number above 0, at most 1.", (key, show(value))
        )


def _size(key, value):
    match = SIZE.fullmatch(str(value).strip()) if not isinstance(value, (bool, float, list, dict)) else None
    size = float(match.group(1)) * SUFFIXES[match.group(2)] if match else 0
    if not 0 < size <= MAX_SIZE or size != int(size):
        raise FleetError(
            "recipe.size-invalid",
            "%s is %s; allowed: a whole number above 0, also with k, K, m, M, g or G behind it.",
            (key, show(value)),
        )
    return int(size)


def close_to(name, known):
    """The one of ``known`` that ``name`` was probably meant to be, or ""."""
    close = difflib.get_close_matches(name, sorted(known), 1, cutoff=0.8)
    return close[0] if close else ""


__all__ = ["all_problems", "check_flags", "check_sizes", "close_to"]
