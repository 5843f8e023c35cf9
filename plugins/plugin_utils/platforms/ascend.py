# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Huawei Ascend NPUs."""

from __future__ import annotations

from ansible_collections.inference.fleet.plugins.module_utils.errors import FleetError
from ansible_collections.inference.fleet.plugins.plugin_utils.platforms.base import Accelerator, Platform

DRIVER = "/usr/local/Ascend/driver/"
MOUNTS = ("/usr/local/dcmi", "/usr/local/bin/npu-smi", DRIVER + "lib64", DRIVER + "version.info",
          DRIVER + "tools/hccn_tool", "/etc/ascend_install.info")  # fmt: skip


class Ascend(Platform):
    """NPUs by their number, 64 GiB HBM each."""

    name, label = "ascend", "Huawei Ascend"
    accelerators = {"ascend-a2": Accelerator(memory_gib=64), "ascend-a3": Accelerator(memory_gib=64)}
    usable = 60.94 / 64  # "60.94 GiB total capacity" in vllm-ascend's out-of-memory messages
    container = {
        "devices": ["/dev/davinci${device}", "/dev/davinci_manager", "/dev/devmm_svm", "/dev/hisi_hdc"],
        "mounts": [{"source": path, "read_only": True} for path in MOUNTS],
    }

    def check_recipe(self, recipe, hardware):
        if recipe["model"]["format"] == "mxfp4":
            raise FleetError(
                "plan.format-not-for-platform",
                "model.format is 'mxfp4', which no Ascend NPU can load; allowed: 'bf16', with a checkpoint of that "
                "format.",
            )

    def memory(self, settings, entry, hardware, model):
        # whether the plugin tells sliding layers apart depends on its version
        return {**settings, "windowed": False}


PLATFORM = Ascend()
