# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a node must know of an engine: its API keys, what it imports of ours, the causes behind its answers."""

from __future__ import annotations

import typing

from ansible_collections.inference.fleet.plugins.module_utils.verify import gpt_oss


class Engine:
    """An engine; this class itself stands for one that is not known.

    environment: variables that its servers get where the recipe does not set them. api_key: the secret
    of a server that its clients send as a bearer token, empty where the engine asks for none;
    other_api_keys: the secret with further keys, separated by spaces; modules: [(name, module)] that its Python imports
    from the folder engine_lib of the node; key_arguments: of its command, so that it asks for all keys by these.
    workers: the module that reads what its frontend and workers count, None for an engine without frontends. It has
    REQUESTS and MOVED, the names of the counters, and count_instances(body of /health), request_count(text of
    /metrics), bytes_moved(the same).

    The attributes in words are causes of failures in a verdict. http: [(statuses or None for any, pattern in the body,
    cause)], looked at before the general ones. logs: [(pattern in the log, cause)] of servers that fail before they
    are ready, the first that fits; stalls: the same for the last line of one that is over its start budget.
    streamed_call_ends: values of finish_reason that may end a streamed tool
    call.
    """

    name = ""
    # setproctitle, which engines use, would wipe /proc/PID/environ and the markers with it
    environment: typing.ClassVar = {"SPT_NOENV": "1"}
    api_key = ""
    other_api_keys = ""
    modules = ()
    key_arguments = ()
    workers = None
    http = ()
    logs = stalls = ()
    streamed_call_ends = ("tool_calls", "stop")

    context = "the server's context is too short for this request: raise it"
    output_parser = (
        "the engine's %s parser cannot read what the model wrote: update the engine, and check the checkpoint's "
        "checksums" % gpt_oss.FORMAT
    )
    residue = (
        "%s tokens reach the client: the reasoning or tool-call parser is missing, or this release leaks them"
        % gpt_oss.FORMAT
    )
    exclamation = (
        "the model writes only '!': a safetensors file is corrupt (verify the checkpoint's checksums), or speculation "
        "loops"
    )
    no_models = "no model is listed (`data: []`): none is loaded"
    dropped_tool_call = "the server was started without a tool-call parser for %s" % gpt_oss.NAME
    no_reasoning = "the server was started without a reasoning parser for %s" % gpt_oss.NAME

    def config_check(self, entry):
        """(Python program, [arguments]) that says in the engine's own image whether it takes an entry's configuration.

        The program reads the file from its input. It prints a line, its first argument and JSON: {verdict: taken,
        refused or unknown, words}. None for an engine that cannot be asked.
        """
        return None

    def config_verdict(self, verdict, words):
        """(verdict, words for a person) of what that program printed."""
        return verdict, words

    def model_cause(self, expected, listed):
        """Why this engine lists its only model by another name than the expected one; None where it does not say."""
        if listed.startswith("/"):
            return "the server lists the path %s instead of %s: it was started without a served model name" % (
                listed, expected,
            )  # fmt: skip
        return None
