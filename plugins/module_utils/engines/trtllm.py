# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""TensorRT-LLM: the causes behind the answers of trtllm-serve."""

from __future__ import annotations

from ansible_collections.inference.fleet.plugins.module_utils.engines import base
from ansible_collections.inference.fleet.plugins.module_utils.verify import gpt_oss

ADAPTER_OFF = gpt_oss.ADAPTER_OFF["trtllm"]


class Trtllm(base.Engine):
    name = "trtllm"
    context = "the server's context is too short for this request: raise max_seq_len"
    output_parser = (
        "the engine's %s parser cannot read what the model wrote (seen with missing stop tokens, "
        "TensorRT-LLM#10651): update the engine, and check the checkpoint's checksums" % gpt_oss.FORMAT
    )
    residue = (
        "%s tokens reach the client: the release has the %s leak bug (TensorRT-LLM#9256, #10651), or %s is set"
        % (gpt_oss.FORMAT, gpt_oss.FORMAT, ADAPTER_OFF)
    )
    exclamation = (
        "the model writes only '!': a safetensors file is corrupt (verify the checkpoint's checksums), or Eagle3 "
        "speculation loops (TensorRT-LLM#8713)"
    )
    dropped_tool_call = (
        "trtllm-serve lost the tool call: %s is set, or the release drops calls under Eagle3 speculation "
        "(TensorRT-LLM#16377)" % ADAPTER_OFF
    )
    no_reasoning = "trtllm-serve runs without its %s adapter: %s is set" % (gpt_oss.FORMAT, ADAPTER_OFF)
    http = (
        (None, r"(?i)max_seq_len|max_num_tokens", context),
        (
            None,
            r"(?i)LLM is unavailable",
            "the engine behind the API process is dead: restart the server; its log says why the engine died",
        ),
    )

    def model_cause(self, expected, listed):
        if listed == expected.rstrip("/").rsplit("/", 1)[-1]:
            return (
                "the server lists the basename %s instead of %s: trtllm-serve names a local checkpoint by its folder; "
                "make that the recipe's model id, or pass a served model name" % (listed, expected)
            )
        return super().model_cause(expected, listed)


ENGINE = Trtllm()
