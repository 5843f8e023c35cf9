# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Preflight checks of servers on Trainium: cores in use, an environment without vLLM, a start script that overrides
the plan, and artifacts that are compiled again."""

from __future__ import annotations

import glob
import os
import re

from ...host.files import read_text
from ...host.server_spec import artifact_directory
from ...host.values import format_cpu_list
from .. import base
from . import artifacts


def checks(context, given):
    """[(check, messages)] for a node with Trainium. given: Detector.given of the platform."""
    chosen = context.chosen
    context.warnings += replaced_artifacts(chosen.values())
    cores = []
    if context.found:
        if context.fits:  # else the plan has to change anyway
            cores += missing_cores(chosen.values(), context.found)
        cores += base.held(context, "Neuron device", given)
    return [
        ("cores", cores),
        ("environment", [message for venv in context.venvs for message in _environment(chosen, venv)]),
        ("script", list(script_faults(chosen))),
    ]


# ---- cores


def missing_cores(entries, found):
    """Messages about cores that plan entries are assigned and the node lacks: a chip may be missing between others."""
    present = {core for device in found.devices for core in device.core_ids}
    for entry in entries:
        missing = set(entry["devices"]) - present
        if missing:
            yield (
                "%s: assigned cores %s, which this node does not have: its devices %s have cores %s. Repair the node, "
                "or list the missing device in fleet_hardware.exclude."
                % (
                    entry["name"],
                    format_cpu_list(missing),
                    format_cpu_list(device.id for device in found.devices),
                    format_cpu_list(present),
                )
            )


# ---- environment


def _environment(entries, venv):
    """Messages about a machine image's environment that is missing or has no vLLM."""
    path = venv.get("path")
    if not path or venv.get("create", True) or not entries:
        return
    if not os.path.isdir(path):
        yield (
            "There is no Python environment %s on this node (venv.path). Use the machine image that has it, or set "
            "fleet_override: {venv: {path: …}} to where this image has it%s." % (path, _others(path))
        )
        return
    packages = glob.glob(os.path.join(glob.escape(path), "lib", "python3*", "site-packages"))
    if not any(os.path.isdir(os.path.join(folder, "vllm")) for folder in packages):
        yield (
            "The environment %s has no vLLM: lib/python3*/site-packages/vllm is missing. Set fleet_override: {venv: "
            "{path: …}} to an environment that has it%s." % (path, _others(path))
        )
        return
    for program in sorted({entry["command"][0] for entry in entries.values()}):
        if program.startswith(path + "/") and not os.access(program, os.X_OK):
            yield "%s is missing or cannot be executed. Repair the environment, or set another venv.path." % program


def _others(path):
    """The environments of machine images, as a hint."""
    places = ("/opt/aws_neuronx_venv_*", "/home/*/neuronx_*_venv", "/home/*/*vllm*venv*")
    found = sorted({found for place in places for found in glob.glob(place) if os.path.isdir(found)} - {path})
    return "; this node has %s" % ", ".join(found[:4]) if found else ""


# ---- artifacts


def replaced_artifacts(entries):
    """Sentences on artifacts that an import or the next start replaces, which may mean a long compilation."""
    by_path = {}
    for entry in entries:
        by_path.setdefault(artifact_directory(entry), entry)
    by_path.pop(None, None)
    for path, entry in by_path.items():
        try:
            state, record = artifacts.state_of(path)
        except OSError:
            continue
        problem = artifacts.misfit_of(entry, record) if state == "complete" else None
        if state in artifacts.FAULTS:
            problem = artifacts.FAULTS[state] % record.get("server")
        if problem:
            yield (
                "The artifact in %s will be cleared: %s. It is imported from fleet_artifact_source, or compiled again "
                "by the next start." % (path, problem)
            )


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


def script_faults(entries):
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
