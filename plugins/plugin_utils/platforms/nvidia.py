# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""NVIDIA GPUs."""

from __future__ import annotations

from ansible_collections.inference.fleet.plugins.plugin_utils.platforms.base import GIB, Accelerator, Platform

LARGE_GIB = 70  # from here on vLLM takes more sequences and tokens at a time by default


class Nvidia(Platform):
    """GPUs by their index. Memory: nvidia-smi's memory.total."""

    name, label = "nvidia", "NVIDIA"
    accelerators = {
        "h200": Accelerator(memory_gib=140.4),
        "b200": Accelerator(memory_gib=179.1),
        "gb200": Accelerator(memory_gib=185.0),
    }
    # What PyTorch sees: 79.19 of 79.65 GiB on an H100, 178.35 of 179.06 on a B200 (logs in vllm#23278, unsloth#3411).
    usable = 0.995
    runtime_bytes = 1.0 * GIB  # CUDA context, cuBLAS and NCCL workspaces, CUDA graphs
    # The MXFP4 tensors once an engine has swizzled and padded them for its kernels: vLLM reports 64.38 GiB for the
    # 60.77 GiB of gpt-oss-120b (vllm#33155, Triton kernels; 65.97 with Marlin, vllm#23278).
    resident = {"mxfp4": 1.06}

    def memory(self, settings, entry, hardware, model):
        if entry["engine"] != "vllm" or hardware.memory_gib < LARGE_GIB:
            return settings
        larger = {} if settings["max_seqs_given"] else {"max_seqs": 1024}
        if "max-num-batched-tokens" not in entry["arguments"]:
            larger["batched"] = 8192
        return {**settings, **larger}


PLATFORM = Nvidia()
