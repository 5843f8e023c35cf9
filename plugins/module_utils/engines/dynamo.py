# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Dynamo: the causes behind the answers of its frontend."""

from __future__ import annotations

from ansible_collections.inference.fleet.plugins.module_utils.engines import (
    base,
    dynamo_workers,
    nixl_waits,
    stays_registered,
    text_only,
    trtllm,
)
from ansible_collections.inference.fleet.plugins.module_utils.verify import gpt_oss

TOOL_CALL_PARSER = "--dyn-tool-call-parser " + gpt_oss.TOOL_CALL_PARSERS["dynamo"]
REASONING_PARSER = "--dyn-reasoning-parser " + gpt_oss.REASONING_PARSERS["dynamo"]
# Its parsers only warn then, and since 1.6 the frontend takes away what they leave of the format.
NO_VOCABULARY = "the frontend has no %s where %s points" % (gpt_oss.VOCABULARY_FILE, gpt_oss.VOCABULARY_VARIABLE)


class Dynamo(base.Engine):
    name = "dynamo"
    modules = tuple((module.MODULE, module) for module in (text_only, nixl_waits, stays_registered))
    streamed_call_ends = ("tool_calls",)
    workers = dynamo_workers
    residue = "%s tokens reach the client: the workers were started without `%s %s`, or without %s in %s" % (
        gpt_oss.FORMAT,
        REASONING_PARSER,
        TOOL_CALL_PARSER,
        gpt_oss.VOCABULARY_FILE,
        gpt_oss.VOCABULARY_VARIABLE,
    )
    no_models = (
        "no model is listed (`data: []`): no decode worker has registered, a prefill worker is missing, or the "
        "frontend cannot load the model's files (its log says so)"
    )
    dropped_tool_call = "the workers were started without `%s`; or, where no reasoning comes either, %s" % (
        TOOL_CALL_PARSER,
        NO_VOCABULARY,
    )
    no_reasoning = "the workers were started without `%s`; or, where no tool call comes either, %s" % (
        REASONING_PARSER,
        NO_VOCABULARY,
    )
    config_verdict = trtllm.ENGINE.config_verdict
    http = (
        (
            None,
            r"(?i)no instances found|no responders|no endpoints available|is not ready to serve requests",
            "the frontend lists the model but no worker answers for it: a worker is gone or not ready",
        ),
    )

    def config_check(self, entry):
        """A worker's file is that of the engine in it; of those only TensorRT-LLM has one."""
        return trtllm.ENGINE.config_check(entry) if "dynamo.trtllm" in entry["command"] else None


ENGINE = Dynamo()
