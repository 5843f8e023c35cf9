# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""vLLM: its API keys, and the causes behind its answers."""

from __future__ import annotations

from ansible_collections.inference.fleet.plugins.module_utils.engines import base, vllm_api_keys
from ansible_collections.inference.fleet.plugins.module_utils.verify import gpt_oss


class Vllm(base.Engine):
    name = "vllm"
    api_key = vllm_api_keys.API_KEY
    other_api_keys = vllm_api_keys.OTHER_API_KEYS
    modules = ((vllm_api_keys.MODULE, vllm_api_keys),)
    key_arguments = ("--middleware", "%s.%s" % (vllm_api_keys.MODULE, vllm_api_keys.ApiKeys.__name__))
    streamed_call_ends = ("tool_calls",)
    context = "the server's context is too short for this request: raise --max-model-len"
    output_parser = (
        "the engine's %s parser cannot read what the model wrote (seen in streamed chat, vllm#46464): update the "
        "engine, and check the checkpoint's checksums" % gpt_oss.FORMAT
    )
    dropped_tool_call = (
        "the server was started without `--tool-call-parser %s --enable-auto-tool-choice`"
        % gpt_oss.TOOL_CALL_PARSERS["vllm"]
    )
    no_reasoning = "vLLM separates %s's reasoning by itself: a `--reasoning-parser` other than %s is set" % (
        gpt_oss.NAME,
        gpt_oss.REASONING_PARSERS["vllm"],
    )
    http = (
        (None, r"(?i)tool choice requires|tool-call-parser|enable-auto-tool-choice", dropped_tool_call),
        (None, r"(?i)max_model_len", context),
        (
            None,
            r"EngineDeadError|EngineCore encountered",
            "the engine behind the API process is dead: restart the server; its log says why the engine died",
        ),
    )

    def model_cause(self, expected, listed):
        cause = super().model_cause(expected, listed)
        return cause and "%s (`--served-model-name %s`)" % (cause, expected)


ENGINE = Vllm()
