# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The parts of a plan that are specific to gpt-oss: dimensions of its checkpoints, requests and answers.

The dimensions are data, because a plan may be made before any config.json has been downloaded. The program on the node
has the family in module_utils/fleet_node/model/gpt_oss.py.
"""

from __future__ import annotations

import dataclasses
import re
import types

from ...module_utils.fleet_node.model import gpt_oss
from .base import BF16, Family, Sizes

# MXFP4: 32 values of 4 bits share one scale of 8 bits (OCP Microscaling Formats v1.0), so 17 bytes for 32 values.
MXFP4_GROUP = 32
MXFP4_GROUP_BYTES = 17
PADDED = 1024


@dataclasses.dataclass(frozen=True)
class Model(Sizes):
    """A gpt_oss checkpoint, with the names of its config.json. ``layer_types`` alternate: sliding, full, sliding, …"""

    layers: int
    experts: int
    hidden: int = 2880
    intermediate: int = 2880
    heads: int = 64
    kv_heads: int = 8
    head_dim: int = 64
    top_k: int = 4
    vocab: int = 201088
    window: int = 128
    max_len: int = 131072

    @property
    def full_layers(self):
        """Number of layers that attend to the complete sequence."""
        return self.layers // 2

    @property
    def sliding_layers(self):
        """Number of layers that attend to the last ``window`` tokens."""
        return self.layers - self.full_layers

    @property
    def query_bytes(self):
        """Bytes of a layer's q_proj with bias, o_proj without its bias, and sinks.
        Tensor parallelism splits them by heads."""
        width = self.heads * self.head_dim
        return BF16 * (width * self.hidden + width + self.hidden * width + self.heads)

    @property
    def key_value_bytes(self):
        """Bytes of a layer's k_proj and v_proj with biases, for all KV heads."""
        return BF16 * 2 * (self.kv_heads * self.head_dim * self.hidden + self.kv_heads * self.head_dim)

    @property
    def replicated_bytes(self):
        """Bytes of a layer that are equal on every device: router with bias, bias of o_proj, two norms."""
        return BF16 * (self.experts * self.hidden + self.experts + self.hidden + 2 * self.hidden)

    def expert_bytes(self, weights_format):
        """Bytes of an expert of a layer: gate_up_proj and down_proj, with weights as mxfp4 or bf16,
        biases always as bf16."""
        values = 3 * self.intermediate * self.hidden
        biases = BF16 * (2 * self.intermediate + self.hidden)
        if weights_format == gpt_oss.QUANTIZED:
            return values // MXFP4_GROUP * MXFP4_GROUP_BYTES + biases
        return values * BF16 + biases

    def padded(self):
        """Return the model with the widths of engines that pad them:
        2880 becomes 3072 (padded_hidden_size of NxD Inference).

        Only the widths of the published models are known to be rounded up; smaller widths are not changed.
        """
        widths = {key: getattr(self, key) for key in ("hidden", "intermediate") if getattr(self, key) > PADDED}
        return dataclasses.replace(self, **{key: -(-width // PADDED) * PADDED for key, width in widths.items()})


GPT_OSS_120B = Model(layers=36, experts=128)
GPT_OSS_20B = Model(layers=24, experts=32)

# Dimensions by repository; source: the config.json of each. The recipe, not the model, defines the format of the
# weights.
MODELS = {
    "openai/gpt-oss-120b": GPT_OSS_120B,
    "openai/gpt-oss-20b": GPT_OSS_20B,
    "unsloth/gpt-oss-120b-BF16": GPT_OSS_120B,
    "unsloth/gpt-oss-20b-BF16": GPT_OSS_20B,
    "inference-fleet/gpt-oss-tiny-standin": Model(
        layers=2, experts=4, hidden=128, intermediate=32, heads=4, kv_heads=2
    ),
}


class GptOss(Family):
    """The gpt_oss family. Its dimensions are data."""

    def has(self, repo):
        return repo in self.models or "gptoss" in re.sub(r"[-_.]", "", repo.lower())


MODEL_FAMILY = GptOss(
    name=gpt_oss.MODEL_TYPE,
    label=gpt_oss.NAME,
    parsers=types.MappingProxyType({"tool": gpt_oss.TOOL_CALL_PARSERS, "reasoning": gpt_oss.REASONING_PARSERS}),
    formats=gpt_oss.FORMATS,
    effort_parameters=gpt_oss.EFFORT_PARAMETERS,
    reasoning_fields=gpt_oss.REASONING_FIELDS,
    models=types.MappingProxyType(MODELS),
    model_types=(gpt_oss.MODEL_TYPE,),
)
