# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""AWS Neuron: Trainium. Servers are assigned logical cores. Compiled artifacts have a key and are kept on the node."""

from __future__ import annotations

from ....module_utils.fleet_node.platforms.neuron.kinds import uses_nxdi
from ...engines.base import Unreadable, read_mapping, read_number
from ..base import GIB, Accelerator, Platform
from . import artifacts, checks

# Maximum share of its budget for the KV cache of the vLLM Neuron plugin (AWS Neuron, "determine_available_memory
# design"), and the variable that overrides it.
KV_CAP, CAP_VARIABLE = 0.30, "VLLM_NEURON_KV_GMU_BUDGET_CAP_FRACTION"
BUCKET = 128  # NxD Inference allocates sliding layers in multiples of it, as its attention kernels require


class Neuron(Platform):
    """Trainium. Cores, LNC and memory: the architecture pages of AWS Neuron."""

    name, label, unit = "neuron", "AWS Neuron", "logical core"
    accelerators = {
        "trainium2": Accelerator(cores=8, lnc=checks.LNC, lnc_allowed=(1, 2), memory_gib=96),
        "trainium3": Accelerator(cores=8, lnc=checks.LNC, lnc_allowed=(1, 2), memory_gib=144),
    }
    runtime_bytes = 1.0 * GIB
    unserved = ("chat", "embedding")
    adapters = False

    def fits_chips(self, hardware, size):
        return size % hardware.chip == 0 or hardware.chip % size == 0

    def operations(self, host):
        if host.step == "weights":
            return [host.role("neuron").call("compiled_artifact", file="artifacts")]
        return [host.role("neuron").call("neuron_packages")]

    def artifact_key(self, server):
        return artifacts.key_of(server) if server.devices else None

    def check_server(self, where, server):
        if server.devices:
            checks.check_shape(where, server)
            checks.check_server(where, server)

    def hooks(self, server, leaders):
        if not server.key:
            return {}
        return {"compile_cache": {"key": server.key, "leaders": leaders, "variable": checks.ARTIFACTS}}

    def finish(self, entries, leader_first):
        artifacts.order(entries, leader_first)

    # -- memory --------------------------------------------------------------------------------------------------------

    def rank_memory(self, hardware, on_host):
        """Return a logical core's share of the chip's memory: 24 GiB at LNC 2 on Trainium2, 36 on Trainium3 (a chip has
        four HBM stacks for eight cores)."""
        return hardware.memory_gib * GIB * hardware.lnc / hardware.cores

    def weights_format(self, declared, hardware):
        # Trainium2 does not compute MXFP4; the engines unpack it (vLLM Neuron, gpt-oss recipe)
        return "bf16" if hardware.accelerator == "trainium2" else declared

    def layout(self, model):
        return model.padded()

    def memory(self, settings, entry, hardware, model):
        values, environment = entry["arguments"], entry["environment"]
        settings = {**settings, "windowed": values.get("disable-hybrid-kv-cache-manager") is False}
        if not uses_nxdi(environment):
            return {**settings, "budget": "capped", "cap": read_number(environment, CAP_VARIABLE, KV_CAP, float)}
        if not settings["max_seqs_given"] or settings["max_len"] is None:
            raise Unreadable("max-num-seqs and max-model-len are not both set")
        knobs = (*settings["knobs"][:2], None, settings["knobs"][3])
        return {**settings, "budget": "contiguous", "knobs": knobs, "bucket": bucket(model.window, _drafted(values))}


def bucket(window, speculation=None):
    """Return the positions that NxD Inference allocates for a sliding layer, for each sequence of its batch.

    They are the window without the current token and, with fused speculation, all drafted tokens except one, rounded up
    to a larger multiple of 128: 128 without speculation, 256 for a draft of length 5 and gpt-oss. Source: NxD Inference
    (SDK 2.27), modules/kvcache/gpt_oss_kv_cache_manager.py and get_kernel_cache_size_bucket.
    """
    held = window - 1 if speculation is None else window + speculation - 2
    return (held // BUCKET + 1) * BUCKET


def _drafted(values):
    """Return the number of tokens that NxD Inference drafts in one graph with the model,
    None without fused speculation."""
    override = read_mapping(values, "additional-config").get("override_neuron_config")
    override = override if isinstance(override, dict) else {}
    drafted = read_number(read_mapping(values, "speculative-config"), "num_speculative_tokens")
    if drafted is None and not override.get("enable_fused_speculation"):
        return None
    return read_number(override, "speculation_length", drafted or 0)


PLATFORM = Neuron()
