# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Verdicts on scripted engines: how tests ask for them, and the words of causes."""

from __future__ import annotations

from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.model import gpt_oss
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.servers import causes
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.verify import asking, probes, runner
from ansible_collections.inference.fleet.tests.unit.engines.plan_entries import plan_entry

CHAT = "/v1/chat/completions"
# of a server without workers, key and adapters
SEQUENCE = [one for one in probes.FULL if one not in (*probes.DISAGGREGATED, "api-key", "adapters")]
NO_EFFORT = causes.effort_cause(gpt_oss.EFFORT)


# What the probe "concurrent" sends.
AT_ONCE = 8  # twice the max-num-seqs of an entry
QUESTIONS = {one.question for one in gpt_oss.MANY_SUMS[:AT_ONCE]}
TOGETHER = (AT_ONCE, lambda body: "messages" in body and body["messages"][0]["content"] in QUESTIONS)


def watch(planned):
    """Every port is held by the planned server."""
    return lambda entry: "%s answers" % entry["name"]


def entry_of(port, context=None, **changes):
    """A plan entry of a server that computes four requests at once; context: tokens, where they are planned."""
    arguments = {"max-num-seqs": AT_ONCE // 2, **({"max-model-len": context} if context else {})}
    return plan_entry(port, arguments=arguments, **changes)


def verdict_of(engine, options=None, entries=None, **arguments):
    options = options or asking.Options(timeout=60)
    port = engine if isinstance(engine, int) else engine.port
    result = runner.verify_servers(entries or [entry_of(port)], options, watch, **arguments)
    return result["verdicts"][0]


def by_name(verdict):
    return {probe["name"]: probe for probe in verdict["probes"]}


def failing(verdict):
    """{probe: cause} of the failing ones."""
    return {probe["name"]: probe["cause"] for probe in verdict["probes"] if probe["ok"] is False}


def unmeasured(verdict):
    found = {probe["name"]: probe["cause"] for probe in verdict["probes"] if probe["ok"] is None}
    # scripted streams are short, and their servers list no context
    usual = ("the stream is too short to tell", "not measurable: the server does not list it")
    return {name: cause for name, cause in found.items() if not cause.startswith(usual)}
