# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""NVIDIA GPUs."""

from __future__ import annotations

import re

from ...module_utils.fleet_node.platforms.nvidia.smi import KINDS
from ..base.checks import invalid
from ..engines.vllm import larger_defaults
from .base import GIB, Accelerator, Platform, is_privileged, wrong_devices

# Kernels for MXFP4 of this compute capability and later pad the experts' hidden and intermediate width to multiples.
BLACKWELL, ALIGNED = 10.0, (256, 128)
# Compute capability of the first hardware that computes a format (docs.nvidia.com/cuda, "Compute capabilities").
SINCE = {"fp8": 8.9, "nvfp4": BLACKWELL}
# Compute capabilities, from and before, of vLLM's kernels for experts in MXFP4 (fused_moe/oracle/mxfp4.py). Marlin and
# the automatic choice run on all.
KERNELS = {"flashinfer_trtllm": (BLACKWELL, 11.0), "flashinfer_cutlass": (9.0, 13.0), "triton": (9.0, 11.0)}
VISIBLE = "CUDA_VISIBLE_DEVICES"
ORDER = {"CUDA_DEVICE_ORDER": "PCI_BUS_ID"}  # the numbers of nvidia-smi
CDI = "nvidia.com/gpu="
RUNTIME, RUNTIME_VISIBLE = "--runtime=nvidia", "NVIDIA_VISIBLE_DEVICES"


class Nvidia(Platform):
    """GPUs by their index. Memory: nvidia-smi's memory.total."""

    name, label, unit = "nvidia", "NVIDIA", "GPU"
    accelerators = {
        name: Accelerator(memory_gib=round(mib / 1024, 1), compute_capability=capability)
        for name, (capability, mib, _names) in KINDS.items()
    }
    # Memory that PyTorch sees: 79.19 of 79.65 GiB on an H100, 178.35 of 179.06 on a B200 (logs in vllm#23278,
    # unsloth#3411).
    usable = 0.995
    runtime_bytes = 1.0 * GIB  # CUDA context, cuBLAS and NCCL workspaces, CUDA graphs
    # The MXFP4 tensors after an engine has swizzled and padded them for its kernels: vLLM reports 64.38 GiB for the
    # 60.77 GiB of gpt-oss-120b (vllm#33155, Triton kernels; 65.97 with Marlin, vllm#23278).
    resident = {"mxfp4": 1.06}
    container = {"devices": ["nvidia.com/gpu=${device}"]}  # CDI devices persist across a daemon-reload of systemd
    engine_settings = {"features": {"cdi": True}}  # docker 25 to 28.1 require it for CDI names
    visible = {VISIBLE: None, **ORDER}
    single = re.compile(r"nvidia\.com/gpu=(?!all$)|/dev/nvidia\d|--gpus=.*device=")

    def lacks(self, hardware):
        return [one for one, since in SINCE.items() if float(hardware.compute_capability or 0) < since]

    def operations(self, host):
        return [host.role("nvidia").call("nvidia_toolkit")]

    def container_defaults(self, declared):
        named = [str(one) for one in declared.get("devices", [])]
        named += [flag for flag in declared.get("flags", []) if flag.startswith("--gpus")]
        return {} if any("nvidia" in one or one.startswith("--gpus") for one in named) else self.container

    def check_server(self, where, server):
        """Require that a server uses only its own GPUs. A container numbers its GPUs from 0.

        After its own GPUs a server may list other GPUs of the host, which NIXL requires to copy memory between GPUs.
        Kernels for MXFP4 are for certain GPUs.
        """
        kernels, capability = server.arguments.get("moe-backend"), float(server.hardware.compute_capability or 0)
        first, before = KERNELS.get(kernels if isinstance(kernels, str) else None, (0.0, 100.0))
        if server.recipe["model"]["format"] == "mxfp4" and not first <= capability < before:
            allowed = ["auto", "marlin", *(one for one, (least, most) in KERNELS.items() if least <= capability < most)]
            raise invalid("%s: arguments.moe-backend" % where, kernels, ", ".join(allowed) + " for MXFP4 on this GPU")
        for flag in (server.container or {}).get("flags", ()):
            counted = re.fullmatch(r"--gpus=(?:count=)?(\d+)", flag)  # of the first GPUs
            if counted and server.devices and max(server.devices) >= int(counted.group(1)):
                raise invalid(where + ": container.flags", flag, "--gpus=all for GPU %d" % max(server.devices))
        given, every = server.environment.get(VISIBLE), _sees_every(server)
        if not server.devices or (given is None and (not every or len(server.devices) == server.hardware.units)):
            return
        own = list(range(len(server.devices))) if server.container and not every else server.devices
        seen = [] if given is None else given.replace(" ", "").split(",")
        first, others = seen[: len(own)], seen[len(own) :]
        reached = set() if server.container and not every else set(range(server.hardware.units)) - set(own)
        doubled = len(set(others)) != len(others)
        if sorted(first) != sorted(map(str, own)) or doubled or not set(map(str, reached)).issuperset(others):
            raise wrong_devices(where, VISIBLE, given, server.devices, own, "devices" if every else "container_devices")

    def container_environment(self, server):
        return ORDER if VISIBLE in server.environment and _sees_every(server) else {}

    def memory(self, settings, entry, hardware, model):
        if float(hardware.compute_capability or 0) >= BLACKWELL and model.hidden > ALIGNED[0]:
            settings = {**settings, "aligned": ALIGNED}
        return larger_defaults(settings, entry, hardware)


def _sees_every(server):
    """Return whether a server's container has all GPUs, which it numbers like the host.

    A CDI device sets NVIDIA_VISIBLE_DEVICES to void, so the vendor's runtime adds no others.
    """
    container = server.container or {}
    devices, flags = container.get("devices", ()), container.get("flags", ())
    by_flag = any(flag.startswith("--gpus=") and "device=" not in flag for flag in flags)
    by_runtime = RUNTIME in flags and server.environment.get(RUNTIME_VISIBLE) == "all"
    by_cdi = [one for one in devices if one.startswith(CDI)]
    return is_privileged(container) or CDI + "all" in by_cdi or by_flag or (by_runtime and not by_cdi)


PLATFORM = Nvidia()
