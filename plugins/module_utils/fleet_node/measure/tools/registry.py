# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The benchmark tools there are, by the names that recipes use."""

from __future__ import annotations

from . import aiperf, aisbench_perf, llmperf, trtllm_serving, vllm_bench, vllm_offline

TOOLS = {
    tool.NAME: tool
    for tool in (
        aiperf,
        aisbench_perf,
        llmperf,
        trtllm_serving,
        vllm_bench,
        vllm_offline.LATENCY,
        vllm_offline.THROUGHPUT,
    )
}
