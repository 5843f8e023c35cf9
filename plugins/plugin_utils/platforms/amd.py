# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""AMD Instinct GPUs."""

from __future__ import annotations

from ...module_utils.fleet_node.platforms.amd import KINDS
from ..engines.vllm import larger_defaults
from .base import GIB, Accelerator, Platform, wrong_devices

VISIBLE = "HIP_VISIBLE_DEVICES"
SELECTING = (VISIBLE, "CUDA_VISIBLE_DEVICES")  # HIP reads both, and vLLM requires the same value
RENUMBERING = "ROCR_VISIBLE_DEVICES"  # a process with it counts its GPUs from 0
# Multiples to which vLLM pads the experts' hidden and intermediate width for MXFP4 (get_padding_alignment).
ALIGNED = {"gfx942": (128, 128), "gfx950": (256, 256)}


class Amd(Platform):
    """GPUs by their number in HIP. Memory: amd-smi's, all of which PyTorch sees (191.98 GiB of an MI300X).

    Containers get the device files of all GPUs, because those of a GPU have no fixed name, and a variable selects the
    server's GPUs. Flags as in vLLM's documentation of its image for ROCm.
    """

    name, label, unit = "amd", "AMD Instinct", "GPU"
    accelerators = {name: Accelerator(memory_gib=round(mib / 1024, 2)) for name, (_arch, mib, _ids) in KINDS.items()}
    runtime_bytes = 1.0 * GIB  # as on other GPUs; no published log has it
    resident = {"mxfp4": 1.0}  # padded, see memory()
    container = {
        "devices": ["/dev/kfd", "/dev/dri"],
        "flags": ["--group-add=video", "--cap-add=SYS_PTRACE", "--security-opt=seccomp=unconfined"],
        "ipc": "host",
    }
    visible = {VISIBLE: None}

    def lacks(self, hardware):
        return ("nvfp4",)

    def operations(self, host):
        """Return no operations: the role installs nothing."""
        host.role("amd")
        return []

    def check_server(self, where, server):
        """Require that a server uses only its own GPUs, whose numbers in a container are those of the host."""
        if not server.devices:
            return
        own, environment = list(map(str, server.devices)), server.environment
        given = {name: environment[name] for name in (*SELECTING, RENUMBERING) if environment.get(name) is not None}
        if server.container and not given:  # otherwise it would use all GPUs of the node
            given = {VISIBLE: None}
        for name, value in given.items():
            if name == RENUMBERING or value is None or value.replace(" ", "").split(",") != own:
                raise wrong_devices(where, name, value, server.devices, server.devices, "devices")

    def memory(self, settings, entry, hardware, model):
        settings = {**settings, "aligned": ALIGNED[KINDS[hardware.accelerator][0]]}
        return larger_defaults(settings, entry, hardware)


PLATFORM = Amd()
