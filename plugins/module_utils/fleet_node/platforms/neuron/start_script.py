# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Checks that a machine image's start script passes on what the plan sets."""

from __future__ import annotations

import re

from ...host.files import read_text

SHOWN = 120
# Set by the plan for each server; a script that sets them makes servers share cores or files.
PLANNED = ("NEURON_RT_VISIBLE_CORES", "NEURON_VISIBLE_DEVICES", "NEURON_COMPILED_ARTIFACTS", "BASE_COMPILE_WORK_DIR")
ARGUMENTS = re.compile(r"\$\{?[@*1-9]")


def script_of(entry):
    """(path of the shell script that the command runs on the node, its arguments), or None."""
    for number, word in enumerate(entry["command"][:2]):
        if word.endswith(".sh") and entry["container"] is None:
            return word, entry["command"][number + 1 :]
    return None


def faults(entries):
    """Messages about the start scripts of plan entries ({name: entry})."""
    scripts = {found[0]: (entry, found[1]) for entry in entries.values() for found in [script_of(entry)] if found}
    for path, (entry, arguments) in sorted(scripts.items()):
        try:
            text = read_text(path)
        except OSError as error:
            yield "The start script %s cannot be read: %s. Correct its permissions." % (path, error.strerror)
            continue
        if text is None:
            yield "The start script %s is missing. Use the machine image that has it, or correct command." % path
            continue
        yield from _overrides(path, text, entry["environment"])
        if arguments and not ARGUMENTS.search(re.sub(r"(?m)(^|\s)#.*$", "", text)):
            yield (
                '%s ignores its arguments %s. Copy the script and let it pass them to vLLM ("$@"), or set variables '
                "that it reads: fleet_override: {arguments: {host: null, port: null}, environment: {HOST: ${bind}, "
                "PORT: ${port}}}." % (path, " ".join(arguments)[:SHOWN])
            )


def _overrides(path, text, environment):
    for name in sorted(set(PLANNED) & set(environment)):
        for number, line in enumerate(text.splitlines(), 1):
            match = re.search(r"(?:^|[\s;&])%s=(\S*)" % name, line.partition("#")[0])
            if match and "$" + name not in match.group(1) and "${" + name not in match.group(1):
                yield (
                    "%s line %d sets %s itself (%s), so all servers would have the same value. Copy the script, write "
                    "%s=${%s:-…} there, and set the copy in command."
                    % (path, number, name, line.strip()[:SHOWN], name, name)
                )
