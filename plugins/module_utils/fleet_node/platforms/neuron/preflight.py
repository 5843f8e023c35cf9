# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What stops servers on Trainium before they compile: held cores, an environment without vLLM, a start script that sets
what the plan sets, an artifact of another configuration, a draft model that the engine does not run."""

from __future__ import annotations

import glob
import json
import os

from ...errors import FleetError
from ...host.cpu_list import format_cpu_list
from ...host.files import read_json
from ...host.server_spec import artifact_directory, artifact_key
from ...weights import checkpoints, draft_heads
from .. import device_checks
from . import artifacts, start_script
from .kinds import uses_nxdi

ENGINE_CONFIG = "neuron_config.json"  # what NxD Inference writes beside what it compiled
# Keys of the compiled configuration, and the argument that says the same.
COMPILED_FLAGS = (
    ("tp_degree", "tensor-parallel-size"), ("max_batch_size", "max-num-seqs"), ("seq_len", "max-model-len")
)  # fmt: skip
COMPARED = frozenset(
    ("tp_degree", "logical_nc_config", "batch_size", "max_batch_size", "seq_len", "max_context_length",
     "speculation_length", "is_eagle3", "enable_eagle_speculation", "enable_fused_speculation", "is_mxfp4_compute",
     "padded_hidden_size", "padded_intermediate_size", "fused_qkv")
)  # fmt: skip


def checks(context, given):
    """[(check, messages)] for a node with Trainium; what an import or a start replaces is a warning.

    given: Detector.given of the platform.
    """
    chosen = context.chosen
    context.warnings += replaced_artifacts(chosen.values())
    cores = []
    if context.found:
        if context.fits:  # else the plan is to change anyway
            cores += missing_cores(chosen.values(), context.found)
        cores += device_checks.held(context, "Neuron device", given)
    return [
        ("cores", cores),
        ("environment", [message for venv in context.venvs for message in _environment(chosen, venv)]),
        ("script", list(start_script.faults(chosen))),
        ("artifact", list(_artifacts(chosen))),
        ("draft", [message for model in context.models for message in _draft(context.entries, model)]),
    ]


# ---- cores


def missing_cores(entries, found):
    """Messages about cores that plan entries are assigned and the node does not have: a chip may be missing between
    others. None if a device does not report its cores."""
    if not all(device.core_ids for device in found.devices):
        return
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


# ---- artifacts


def _looks(entries):
    """(path, entry, state, record, why the next start clears it or None) of each artifact that can be looked at."""
    found = {}
    for entry in entries:
        path = artifact_directory(entry)
        if path is not None:
            found.setdefault(path, entry)
    for path, entry in found.items():
        try:
            state, record = artifacts.state_of(path)
        except OSError:
            continue
        fault = artifacts.misfit_of(entry, record) if state == "complete" else None
        if state in artifacts.FAULTS:
            fault = artifacts.FAULTS[state] % record.get("server")
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


def replaced_artifacts(entries):
    """Sentences on artifacts that an import or the next start replaces, which may mean a long compilation."""
    for path, _entry, _state, _record, cleared in _looks(entries):
        if cleared:
            yield (
                "What is in %s will be cleared: %s. It is imported from fleet_artifact_source where that has it, or "
                "compiled again by the next start." % (path, cleared)
            )


def _differences(entry, path):
    """Where the configuration that NxD Inference wrote beside its artifact is not the entry's."""
    compiled = read_json(os.path.join(path, ENGINE_CONFIG), follow=True)
    compiled = compiled.get("neuron_config") if isinstance(compiled, dict) else None
    if not isinstance(compiled, dict):
        return
    for key, planned in sorted(_planned(entry["arguments"]).items()):
        if key in compiled and compiled[key] != planned:
            yield "%s %s, now %s" % (key, json.dumps(compiled[key]), json.dumps(planned))


def _planned(arguments):
    """{key of the compiled configuration: value} as far as the plan entry's arguments say it."""
    flags = {key: str(arguments.get(flag)) for key, flag in COMPILED_FLAGS}
    override = arguments.get("additional-config")
    override = override.get("override_neuron_config") if isinstance(override, dict) else None
    override = override if isinstance(override, dict) else {}
    return {
        **{key: int(value) for key, value in flags.items() if value.isdigit()},
        **{key: value for key, value in override.items() if key in COMPARED},
    }


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
        config = read_json(os.path.join(folder, checkpoints.CONFIG), follow=True) if folder else None
        if isinstance(config, dict):
            target.update({key: config[key] for key in target if isinstance(config.get(key), int)})
    try:
        draft_heads.check(draft["path"], target)
    except FleetError as error:
        yield error.message
