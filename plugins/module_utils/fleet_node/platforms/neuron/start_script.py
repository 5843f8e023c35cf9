# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Checks that a machine image's start script does not set what the plan sets."""

from __future__ import annotations

import re

from ...host.files import read_text
from ...host.processes import is_narrow

COMMAND_SHOWN = 120
# Set by the plan for each server; a script that sets one itself makes servers share cores or files.
GIVEN = ("NEURON_RT_VISIBLE_CORES", "NEURON_VISIBLE_DEVICES", "NEURON_COMPILED_ARTIFACTS", "BASE_COMPILE_WORK_DIR")
# (flag, its spellings, its placeholder, its name if the script must get it in some way, its value of an entry or None)
LEFT_TO_PLAN = (
    ("--port", "--port", "port", "port", lambda entry: str(entry["port"]) if entry["port"] else None),
    ("--host", "--host", "bind", "address", lambda entry: entry["bind"] if is_narrow(entry["bind"]) else None),
    ("--tensor-parallel-size", "--tensor[-_]parallel[-_]size|-tp", "device_count", None,
     lambda entry: str(len(entry["devices"]))),
)  # fmt: skip
HANDED_ON = re.compile(r"\$[@*]|\$\{[@*]")  # all arguments of a script
PUT_IN = re.compile(r"(?<=\s)[\"']?\$")
VLLM = re.compile(r"\bvllm\b")


def script_of(entry):
    """(path of the shell script that the command runs, arguments for it), or None where it runs none."""
    for number, word in enumerate(entry["command"][:2]):
        if word.endswith(".sh"):
            return word, entry["command"][number + 1 :]
    return None


def faults(entries):
    """What a start script of these plan entries ({name: entry}) does on its own, as messages."""
    scripts = {}
    for entry in entries.values():
        found = script_of(entry)
        if found and entry["container"] is None:  # an image's script is not on the node
            scripts.setdefault(found[0], []).append((entry, found[1]))
    for path, users in sorted(scripts.items()):
        try:
            text = read_text(path)
        except OSError as error:
            yield "The start script %s cannot be read: %s. Correct its permissions." % (path, error.strerror)
            continue
        if text is None:
            yield "The start script %s is missing. Use the machine image that has it, or correct command." % path
            continue
        yield from _script_faults(path, _code(text), users)


def _code(text):
    """[(line number, line)] without comments."""
    lines = ((number, re.sub(r"(^|\s)#.*$", "", line)) for number, line in enumerate(text.splitlines(), 1))
    return [(number, line) for number, line in lines if line.strip()]


def _script_faults(path, code, users):
    text = "\n".join(line for _number, line in code)
    entry, arguments = users[0]
    environments = [one["environment"] for one, _arguments in users]
    differing = {name for name in environments[0] if len({one.get(name) for one in environments}) > 1}
    for name in sorted({*GIVEN, *differing} & set(environments[0])):
        for number, line in code:
            match = re.search(r"(?:^|[\s;&])(?:export\s+)?%s=(\S*)" % re.escape(name), line)
            if match and not re.search(r"\$\{?%s\b" % re.escape(name), match.group(1)):
                yield (
                    "%s line %d sets %s by itself (%s), so all servers would have the same value. Copy the script, "
                    "write %s=${%s:-…} there, and set the copy in command."
                    % (path, number, name, line.strip()[:COMMAND_SHOWN], name, name)
                )
    ignored = _ignored(text, arguments)
    if ignored:
        yield (
            '%s ignores its arguments %s. Copy the script and let it pass them to vLLM ("$@"), or set variables that '
            "it reads: fleet_override: {arguments: {host: null, port: null}, environment: {HOST: ${bind}, PORT: "
            "${port}}}." % (path, " ".join(ignored)[:COMMAND_SHOWN])
        )
        return
    for flag, spelled, placeholder, word, value_of in LEFT_TO_PLAN:
        values = [value_of(one) for one, _arguments in users]
        literals = list(_literals(code, spelled, flag in arguments))
        for number, line, literal in literals:
            if any(value is not None and literal != value for value in values):
                yield (
                    "%s line %d gives vLLM %s %s by itself (%s), whatever the plan has (%s). Copy the script, remove "
                    "it there, and set fleet_override: {command: [/bin/bash, COPY], arguments: {%s: ${%s}}}."
                    % (path, number, flag, literal, line[:COMMAND_SHOWN], _few(values), flag[2:], placeholder)
                )
        names = [name for name, value in entry["environment"].items() if value == values[0]]
        read = any(re.search(r"\$\{?%s\b" % re.escape(name), text) for name in names)
        if word and values[0] is not None and not literals and values[0] not in arguments and not read:
            yield (
                "%s does not get the %s, neither by an argument nor by a variable that it reads. Set fleet_override: "
                "{arguments: {%s: ${%s}}}, or environment: {NAME: ${%s}} with a variable of the script."
                % (path, word, flag[2:], placeholder, placeholder)
            )


def _ignored(text, arguments):
    """The arguments that a script does nothing with: it neither hands all of them on nor looks for a flag by name."""
    if HANDED_ON.search(text):
        return []
    if not re.search(r"\$\{?[1-9]", text):
        return arguments
    flags = [word.partition("=")[0] for word in arguments if word.startswith("--")]
    return [flag for flag in flags if not re.search(r"(?<![\w-])%s[\"']?\s*[])|=*]" % re.escape(flag), text)]


def _literals(code, spelled, given):
    """(number, line, value) where a script gives a flag a value of its own, and vLLM takes that one.

    spelled: the flag as an expression. given: it is among the script's arguments too; vLLM takes the last one, so only
    what stands behind the arguments counts, or in a command of vLLM without them.
    """
    pattern = re.compile(r"(?<![\w-])(?:%s)(?:=|\s+)[\"']?([^\s\"'$;|&)]+)(?=[\s\"';|&)]|$)" % spelled)
    for lines in _commands(code):
        command = " ".join(line for _number, line in lines)
        handed = [found.end() for found in HANDED_ON.finditer(command)]
        for found in pattern.finditer(command):
            if given and handed:
                counts = found.start() > handed[-1]
            else:  # a variable behind it may hold the arguments
                counts = VLLM.search(command) and not (given and PUT_IN.search(command, found.end()))
            if counts:
                end = 0
                for number, line in lines:
                    end += len(line) + 1
                    if found.start() < end:
                        yield number, line.strip(), found.group(1)
                        break


def _commands(code):
    """The lines [(number, line)] of each command: one that ends with a backslash goes on in the next."""
    command = []
    for number, line in code:
        goes_on = line.rstrip().endswith("\\")
        command.append((number, line.rstrip()[:-1] if goes_on else line))
        if not goes_on:
            yield command
            command = []
    if command:
        yield command


def _few(values):
    """The first and the last of the servers' values."""
    return values[0] if values[0] == values[-1] else "%s to %s" % (values[0], values[-1])
