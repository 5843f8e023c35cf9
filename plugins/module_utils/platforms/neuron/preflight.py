# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What stops servers on Trainium before they compile: held cores, an environment without vLLM, a start script that sets
what the plan sets, an artifact of another configuration, a draft model that the engine does not run."""

from __future__ import annotations

import glob
import json
import os
import re

from ansible_collections.inference.fleet.plugins.module_utils.errors import FleetError
from ansible_collections.inference.fleet.plugins.module_utils.node import processes
from ansible_collections.inference.fleet.plugins.module_utils.node.cpu_list import format_cpu_list
from ansible_collections.inference.fleet.plugins.module_utils.node.files import read_json, read_text
from ansible_collections.inference.fleet.plugins.module_utils.node.processes import is_narrow
from ansible_collections.inference.fleet.plugins.module_utils.platforms import device_holders
from ansible_collections.inference.fleet.plugins.module_utils.platforms.neuron import eagle3
from ansible_collections.inference.fleet.plugins.module_utils.platforms.neuron.framework import uses_nxdi
from ansible_collections.inference.fleet.plugins.module_utils.server_spec import artifact_key
from ansible_collections.inference.fleet.plugins.module_utils.supervise import guard
from ansible_collections.inference.fleet.plugins.module_utils.weights import checkpoints

COMMAND_SHOWN = 120
ENGINE_CONFIG = "neuron_config.json"  # what NxD Inference writes beside what it compiled
# What the plan gives each server; a script that sets one by itself makes them meet on the same cores or files.
GIVEN = ("NEURON_RT_VISIBLE_CORES", "NEURON_VISIBLE_DEVICES", "NEURON_COMPILED_ARTIFACTS", "BASE_COMPILE_WORK_DIR")
# What a start script must leave to the plan: flag, its spellings, the placeholder for it, a word for what must be told
# in some way (None: need not), the value for a plan entry (None: any).
TOLD = (
    ("--port", "--port", "port", "port", lambda entry: str(entry["port"]) if entry["port"] else None),
    ("--host", "--host", "bind", "address", lambda entry: entry["bind"] if is_narrow(entry["bind"]) else None),
    ("--tensor-parallel-size", "--tensor[-_]parallel[-_]size|-tp", "device_count", None,
     lambda entry: str(len(entry["devices"]))),
)  # fmt: skip
HANDED_ON = re.compile(r"\$[@*]|\$\{[@*]")  # all arguments of a script
PUT_IN = re.compile(r"(?<=\s)[\"']?\$")
VLLM = re.compile(r"\bvllm\b")
# Keys of the compiled configuration, and the flag that says the same.
COMPILED_FLAGS = (
    ("tp_degree", "--tensor-parallel-size"), ("max_batch_size", "--max-num-seqs"), ("seq_len", "--max-model-len")
)  # fmt: skip
COMPARED = frozenset(
    ("tp_degree", "logical_nc_config", "batch_size", "max_batch_size", "seq_len", "max_context_length",
     "speculation_length", "is_eagle3", "enable_eagle_speculation", "enable_fused_speculation", "is_mxfp4_compute",
     "padded_hidden_size", "padded_intermediate_size", "fused_qkv")
)  # fmt: skip


def neuron_checks(root, entries, only, found, model, venv, lnc=None, unchanged=()):
    """[(check, messages)] for the plan entries ({name: entry}) of a node with Trainium.

    root: fleet_root. only: names that the run is limited to. found: Accelerators or None. model, venv: the recipe's,
    resolved, or {}. lnc: the planned one, for a node that does not tell its own. unchanged: names of the servers that
    run as planned.
    """
    chosen = {name: entry for name, entry in entries.items() if not only or name in only}
    return [
        ("cores", list(_held(root, {name: chosen[name] for name in chosen if name not in unchanged}, found, lnc))),
        ("environment", list(_environment(chosen, venv))),
        ("script", list(_scripts(chosen))),
        ("artifact", list(_artifacts(chosen))),
        ("draft", list(_draft(entries, model))),
    ]


# ---- cores


def missing_cores(entries, found, only=()):
    """Cores that plan entries are given and the node does not have, as messages: a chip may be missing between others.

    Nothing where a device does not tell its cores.
    """
    if not all(device.core_ids for device in found.devices):
        return
    there = {core for device in found.devices for core in device.core_ids}
    for entry in entries:
        missing = set(entry["devices"]) - there
        if missing and (not only or entry["name"] in only):
            yield (
                "%s is given core%s %s, which this node does not have: its devices %s have cores %s. Repair the node, "
                "or set fleet_hardware.count so that the plan ends before the device that is missing."
                % (
                    entry["name"],
                    "" if len(missing) == 1 else "s",
                    format_cpu_list(missing),
                    format_cpu_list(device.id for device in found.devices),
                    format_cpu_list(there),
                )
            )


def _held(root, entries, found, lnc):
    """Cores that the servers are given and that a process which is not a server of this root holds."""
    if found is None:
        return
    own = {pid for pids in guard.marked_processes(root).values() for pid in pids}
    held = {}
    for device in found.devices:
        ids = device.core_ids
        if not ids and lnc:  # the node does not tell its LNC; the plan's counts then
            each = device.cores // lnc
            ids = range(device.id * each, (device.id + 1) * each)
        for holder in device.holders:
            cores = device_holders.cores_of(holder["pid"], ids)
            users = [name for name, entry in entries.items() if set(entry["devices"]) & set(cores or ids)]
            if users and holder["pid"] not in own:
                record = held.setdefault(holder["pid"], (holder, [], set(), [], []))
                record[1].append(device.id)
                record[2].update(cores or ids)
                record[3].extend(name for name in users if name not in record[3])
                if cores is None:
                    record[4].append(device.id)
    for pid, (holder, devices, cores, users, whole) in sorted(held.items()):
        markers = guard.markers_of(pid)
        command = processes.command(pid) or holder["command"] or "its command is gone"
        yield (
            "pid %d (%s%s) holds Neuron device%s %s (cores %s), which %s %s given.%s Stop it; a server of another root "
            "ends with its own playbooks/stop.yml."
            % (
                pid,
                command[:COMMAND_SHOWN],
                ", server %s below the root %s" % (markers[1], markers[0]) if markers else "",
                "" if len(devices) == 1 else "s",
                format_cpu_list(devices),
                format_cpu_list(cores),
                ", ".join(users),
                "is" if len(users) == 1 else "are",
                " Its environment does not tell which cores it has, so all of %s count."
                % ("this chip's" if len(whole) == 1 else "these chips'")
                if whole
                else "",
            )
        )


# ---- environment


def _environment(entries, venv):
    """A machine image's environment that is not there, or has no vLLM; one that is made comes later."""
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
            "The environment %s holds no vLLM: lib/python3*/site-packages/vllm is missing. Set fleet_override: {venv: "
            "{path: …}} to the one that has it%s." % (path, _others(path))
        )
        return
    for program in sorted({entry["command"][0] for entry in entries.values()}):
        if program.startswith(path + "/") and not os.access(program, os.X_OK):
            yield "%s is missing or cannot be executed. Repair the environment, or set another venv.path." % program


def _others(path):
    """The environments of the usual places, as a hint."""
    places = ("/opt/aws_neuronx_venv_*", "/home/*/neuronx_*_venv", "/home/*/*vllm*venv*")
    there = sorted({one for place in places for one in glob.glob(place) if os.path.isdir(one)} - {path})
    return "; this node has %s" % ", ".join(there[:4]) if there else ""


# ---- start scripts


def script_of(entry):
    """(path of the shell script that the command runs, arguments for it), or None where it runs none."""
    for number, word in enumerate(entry["command"][:2]):
        if word.endswith(".sh"):
            return word, entry["command"][number + 1 :]
    return None


def _scripts(entries):
    scripts = {}
    for entry in entries.values():
        found = script_of(entry)
        if found and entry["container"] is None:  # an image's script is not on the node
            scripts.setdefault(found[0], []).append((entry, found[1]))
    for path, users in sorted(scripts.items()):
        try:
            text = read_text(path)
        except OSError as error:
            yield "The start script %s cannot be read: %s." % (path, error.strerror)
            continue
        if text is None:
            yield (
                "There is no start script %s on this node. Use the machine image that has it, or set command in "
                "fleet_override." % path
            )
            continue
        yield from _script_faults(path, _code(text), users)


def _code(text):
    """[(line number, line)] without comments."""
    lines = ((number, re.sub(r"(^|\s)#.*$", "", line)) for number, line in enumerate(text.splitlines(), 1))
    return [(number, line) for number, line in lines if line.strip()]


def _script_faults(path, code, users):
    environments = [entry["environment"] for entry, _arguments in users]
    differing = [
        name for name in environments[0] if len({environment.get(name) for environment in environments}) > 1
    ]  # fmt: skip
    for name in sorted({*GIVEN, *differing} & set(environments[0])):
        for number, line in code:
            match = re.search(r"(?:^|[\s;&])(?:export\s+)?%s=(\S*)" % re.escape(name), line)
            if match and not re.search(r"\$\{?%s\b" % re.escape(name), match.group(1)):
                yield (
                    "%s line %d sets %s by itself (%s), so all servers would have the same. Copy the script, write "
                    "%s=${%s:-…} there, and name the copy in command."
                    % (path, number, name, line.strip()[:COMMAND_SHOWN], name, name)
                )
    text = "\n".join(line for _number, line in code)
    entry, arguments = users[0]
    ignored, given = _ignored(text, arguments), [word for word in arguments if word.startswith("--")]
    if ignored and len(ignored) < len(given):
        yield (
            '%s takes no notice of %s. Copy the script and let it hand its arguments on to vLLM ("$@"), or read this '
            "one as it reads the others." % (path, ", ".join(ignored))
        )
        return
    if ignored:
        yield (
            '%s takes no arguments, but is given %s. Copy the script and let it hand them on to vLLM ("$@"), or give '
            "them as variables that it reads: fleet_override: {arguments: {host: null, port: null}, environment: "
            "{HOST: ${bind}, PORT: ${port}}}." % (path, " ".join(arguments)[:COMMAND_SHOWN])
        )
        return
    for flag, spelled, placeholder, word, value_of in TOLD:
        values = [value_of(one) for one, _arguments in users]
        literals = list(_literals(code, spelled, flag in arguments))
        for number, line, literal in literals:
            if any(value is not None and literal != value for value in values):
                yield (
                    "%s line %d gives vLLM %s %s by itself (%s), whatever the plan says (%s). Copy the script, take it "
                    "out there, and set fleet_override: {command: [/bin/bash, COPY], arguments: {%s: ${%s}}}."
                    % (path, number, flag, literal, line[:COMMAND_SHOWN], _few(values), flag[2:], placeholder)
                )
        if not literals and word and values[0] is not None and values[0] not in arguments:
            names = [name for name, value in entry["environment"].items() if value == values[0]]
            if not any(re.search(r"\$\{?%s\b" % re.escape(name), text) for name in names):
                yield (
                    "Nothing tells %s the %s: it is neither among its arguments nor in a variable that it reads. Set "
                    "fleet_override: {arguments: {%s: ${%s}}}, or environment: {NAME: ${%s}} with the name that the "
                    "script reads." % (path, word, flag[2:], placeholder, placeholder)
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
        whole = " ".join(line for _number, line in lines)
        handed = [found.end() for found in HANDED_ON.finditer(whole)]
        for found in pattern.finditer(whole):
            if given and handed:
                counts = found.start() > handed[-1]
            else:  # a variable behind it may hold the arguments
                counts = VLLM.search(whole) and not (given and PUT_IN.search(whole, found.end()))
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


# ---- artifacts


def _looks(entries):
    """(path, entry, state, record, why the next start clears it or None) of each artifact that can be looked at."""
    found = {}
    for entry in entries:
        path = guard.artifact_of(entry)
        if path is not None:
            found.setdefault(path, entry)
    for path, entry in found.items():
        try:
            state, record = guard.artifact_state(path)
        except OSError:
            continue
        fault = guard.artifact_misfit(entry, record) if state == "complete" else None
        if state in guard.ARTIFACT_FAULTS:
            fault = guard.ARTIFACT_FAULTS[state] % record.get("server")
        yield path, entry, state, record, fault


def _artifacts(entries):
    """What a start would load as it is, though it is not what is asked for. The rest is replaced on the way."""
    for path, entry, state, record, cleared in _looks(entries.values()):
        if cleared or state not in ("complete", "foreign"):
            continue
        key, made_for = artifact_key(entry), record.get("key")
        differing = list(_differences(entry, path))
        if made_for not in (None, key):
            words = "is somebody else's and was loaded for another configuration (key %s, this one is %s)"
            fault = words % (made_for, key)
        elif differing:
            fault = "was compiled with other settings (%s)" % "; ".join(differing)
        else:
            continue
        yield (
            "The artifact in %s %s; the engine would load it and ignore what it is given, and no import replaces it. "
            "Remove the directory; then the right one is imported or compiled." % (path, fault)
        )


def replaced_artifacts(entries, only=()):
    """Sentences on artifacts that an import or the next start replaces, which may mean a long compilation."""
    for path, _entry, _state, _record, cleared in _looks(one for one in entries if not only or one["name"] in only):
        if cleared:
            yield (
                "What is in %s will be cleared: %s. It is imported from fleet_artifact_source where that has it, or "
                "compiled again by the next start." % (path, cleared)
            )


def _differences(entry, path):
    """Where the configuration that NxD Inference wrote beside its artifact is not the entry's."""
    compiled = read_json(os.path.join(path, ENGINE_CONFIG))
    compiled = compiled.get("neuron_config") if isinstance(compiled, dict) else None
    if not isinstance(compiled, dict):
        return
    for key, wanted in sorted(_wanted(entry["command"]).items()):
        if key in compiled and compiled[key] != wanted:
            yield "%s %s, now %s" % (key, json.dumps(compiled[key]), json.dumps(wanted))


def _wanted(command):
    """{key of the compiled configuration: value} as far as the command says it."""
    values = dict(zip(command, command[1:]))
    wanted = {}
    for key, flag in COMPILED_FLAGS:
        if values.get(flag, "").isdigit():
            wanted[key] = int(values[flag])
    try:
        override = json.loads(values.get("--additional-config", "{}")).get("override_neuron_config") or {}
    except (ValueError, AttributeError):
        override = {}
    wanted.update({key: value for key, value in override.items() if key in COMPARED})
    return wanted


# ---- draft model


def _draft(entries, model):
    """The head is there already where it is served from the node's own directory; what is fetched is not yet."""
    draft = model.get("draft") or {}
    if draft.get("method") != "eagle3" or not os.path.isfile(os.path.join(draft["path"], checkpoints.CONFIG)):
        return
    if not any(uses_nxdi(entry["environment"]) for entry in entries.values()):
        return
    target = {key: model.get(key) for key in ("hidden_size", "vocab_size")}
    for folder in (model.get("path"), model.get("source_path")):
        config = read_json(os.path.join(folder, checkpoints.CONFIG)) if folder else None
        if isinstance(config, dict):
            target.update({key: config[key] for key in target if isinstance(config.get(key), int)})
    try:
        eagle3.check(draft["path"], target)
    except FleetError as error:
        yield error.message
