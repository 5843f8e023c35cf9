# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Huawei Ascend NPUs."""

from __future__ import annotations

import re

from ..base.checks import invalid, number
from ..engines.base import Unreadable
from ..engines.vllm import graph_settings
from .base import Accelerator, Platform, is_privileged, wrong_devices

DRIVER = "/usr/local/Ascend/driver/"
MOUNTS = ("/usr/local/dcmi", "/usr/local/bin/npu-smi", DRIVER + "lib64", DRIVER + "version.info",
          DRIVER + "tools/hccn_tool", "/etc/ascend_install.info")  # fmt: skip
VISIBLE = "ASCEND_RT_VISIBLE_DEVICES"
A3 = "ascend-a3"
# Of the project's own images: quay.io/ascend/vllm-ascend:v0.20.2rc1-a3-openeuler, without a suffix for A2.
IMAGE = re.compile(r"(?:^|/)vllm-ascend:[^@]*?(?:-(a3|a5|310p|950dt))?(?:-openeuler)?(?:@.*)?$")
RUNTIME, RUNTIME_VISIBLE = "--runtime=ascend", "ASCEND_VISIBLE_DEVICES"
RUNTIME_PROGRAM = "/usr/local/Ascend/Ascend-Docker-Runtime/ascend-docker-runtime"
GRAPH_MODES = ("NONE", "PIECEWISE", "FULL_DECODE_ONLY")
MOST_UTILISATION = 0.92
# Variables that guides set but no program reads, with the reason.
DEAD = {
    "NPU_MEMORY_FRACTION": "no release reads it; against fragmentation set PYTORCH_NPU_ALLOC_CONF: "
    "expandable_segments:True",
    "VLLM_USE_V1": "there is no other engine any more",
    "VLLM_USE_MODELSCOPE": "the model is a folder of the node, which the role model_weights fetches",
}


class Ascend(Platform):
    """Chips by the number of their /dev/davinci, with 64 GiB HBM each: 8 on an Atlas 800 A2, 16 on an Atlas 800 A3."""

    name, label, unit = "ascend", "Huawei Ascend", "NPU"
    accelerators = {"ascend-a2": Accelerator(memory_gib=64), A3: Accelerator(memory_gib=64)}
    usable = 60.94 / 64  # "60.94 GiB total capacity" in vllm-ascend's out-of-memory messages
    container = {
        "devices": ["/dev/davinci${device}", "/dev/davinci_manager", "/dev/devmm_svm", "/dev/hisi_hdc"],
        "mounts": [{"source": path, "read_only": True} for path in MOUNTS],
        "shm_size": "1g",
    }
    visible = {VISIBLE: None}
    single = re.compile(r"/dev/davinci\d")

    def lacks(self, hardware):
        return ("fp8", "nvfp4", "awq", "gptq")  # vllm-ascend 0.20 to 0.23: only its own quantization

    def operations(self, host):
        """Return no operations: the role installs nothing."""
        host.role("ascend")
        return []

    def fits_chips(self, hardware, size):
        """Return whether a server gets complete NPUs: an NPU of an A3 consists of two chips."""
        return hardware.accelerator != A3 or size % 2 == 0

    def container_defaults(self, declared):
        """Return the defaults of containers. The vendor's runtime adds devices and driver itself."""
        return {"shm_size": "1g"} if RUNTIME in declared.get("flags", []) else self.container

    def daemon_settings(self, recipe):
        layers = [recipe, *recipe.get("servers", ()), *(recipe.get("instances") or {}).values()]
        if not any(RUNTIME in (layer.get("container") or {}).get("flags", ()) for layer in layers):
            return {}
        return {"runtimes": {"ascend": {"path": RUNTIME_PROGRAM, "runtimeArgs": []}}}

    def check_server(self, where, server):
        """Require a format of weights that NPUs load, an image for their generation, and the server's own complete
        NPUs."""
        if server.recipe["model"]["format"] == "mxfp4":
            raise invalid(where + ": model.format", "mxfp4", "bf16 on Ascend NPUs, such as unsloth/gpt-oss-120b-BF16")
        image = (server.container or {}).get("image") or ""
        found, wanted = IMAGE.search(image), "a3" if server.hardware.accelerator == A3 else None
        if found and found.group(1) != wanted:
            allowed = "a tag that ends in -a3 or -a3-openeuler" if wanted else "a tag without -%s" % found.group(1)
            raise invalid(where + ": container.image", image, "%s on %s" % (allowed, server.hardware.accelerator))
        if not server.hardware.fits_chips(len(server.devices)):
            place = "%s: servers.%s.devices" % (where, server.context["group"])
            raise invalid(place, len(server.devices), "complete NPUs of two chips, such as 2")
        every = is_privileged(server.container)
        inside = list(range(len(server.devices))) if server.container and not every else server.devices
        own, required = {VISIBLE: inside}, every and len(server.devices) < server.hardware.units
        if RUNTIME in (server.container or {}).get("flags", ()):
            own[RUNTIME_VISIBLE] = server.devices
        for name, numbers in own.items() if server.devices else ():
            given = server.environment.get(name, "" if required or name == RUNTIME_VISIBLE else None)
            if given is not None and given.replace(" ", "").split(",") != list(map(str, numbers)):
                placeholder = "devices" if every or name == RUNTIME_VISIBLE else "container_devices"
                raise wrong_devices(where, name, given, server.devices, numbers, placeholder)

    def finish(self, entries, leader_first):
        """Require docker for the vendor's runtime."""
        super().finish(entries, leader_first)
        for entry in entries:
            container = entry["container"]
            if container and RUNTIME in container["flags"] and container["engine"] != "docker":
                allowed = "no overlay docker-runtime, which only docker supports; containers get devices without it"
                raise invalid("server '%s': container.flags" % entry["name"], RUNTIME, allowed)

    def notes(self, entry):
        """Return warnings from the vendor's guide, and about variables without effect."""
        arguments = entry["arguments"]
        for name in sorted(set(DEAD) & set(entry["environment"])):
            yield "environment.%s has no effect: %s. Remove it." % (name, DEAD[name])
        share = number(arguments.get("gpu-memory-utilization"), whole=False)
        if share is not None and share > MOST_UTILISATION:
            yield (
                "arguments.gpu-memory-utilization is %g; with expert parallelism chips need unequal amounts, and more "
                "than %g may run out of memory while serving." % (share, MOST_UTILISATION)
            )
        yield from _graph_notes(arguments)

    def memory(self, settings, entry, hardware, model):
        # whether the plugin distinguishes sliding layers depends on its version
        return {**settings, "windowed": False}


def _graph_notes(arguments):
    """Return warnings about compilation-config:
    a mode that is not in the guide, and sizes that do not match max-num-seqs."""
    try:
        mode, sizes = graph_settings(arguments)
    except Unreadable:
        return  # the engine rejects it
    if mode is not None and str(mode).upper() not in GRAPH_MODES:
        yield "compilation-config.cudagraph_mode is %s; vllm-ascend's guide for gpt-oss names %s." % (
            mode, " and ".join(GRAPH_MODES[1:]),
        )  # fmt: skip
    most, sequences = max(map(number, sizes), default=None) if sizes else None, number(arguments.get("max-num-seqs"))
    if most and sequences and most != sequences:
        yield (
            "compilation-config.cudagraph_capture_sizes ends at %g and max-num-seqs is %g: %s. Leave the sizes out, "
            "and the engine chooses suitable sizes."
            % (most, sequences,
               "larger batches run without a graph" if most < sequences else "the larger graphs are never used")
        )  # fmt: skip


PLATFORM = Ascend()
