# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a node must know of an engine: its API keys, what it imports of ours, the causes behind its answers."""

from __future__ import annotations

import re
import typing

from ..model import gpt_oss


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
    call. same_call_ids: whether it counts the ids of calls anew for each answer. batch, context_length: the arguments
    that say how many requests it computes at once, and the context that it lists.
    counted: the names of gauges on /metrics that together are the requests which a server has and has not
    answered. drain_signal: a process that catches it refuses new requests for some seconds; close_signal:
    it closes its port, where it refuses requests. shutdown_timeout: the flag
    of its command for the seconds in which it finishes its requests when it is asked to end. responses_known: whether
    its streams and tools of /v1/responses were tried.
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
    counted = ()
    drain_signal = close_signal = shutdown_timeout = None
    streamed_call_ends = ("tool_calls", "stop")
    same_call_ids = responses_known = False
    batch = context_length = ""

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

    def shared_folder(self, entry):
        """The folder by which an entry's server and the others of its node find each other, None without one."""
        return None

    def config_check(self, entry):
        """(Python program, [arguments]) that says in the engine's own image whether it takes an entry's configuration.

        The program reads the file from its input. It prints a line, its first argument and JSON: {verdict: taken,
        refused or unknown, words}. None for an engine that cannot be asked.
        """
        return None

    def command_check(self, entry, config):
        """(Python program, question) that says whether the engine's own parser takes an entry's command line.

        The program runs where the engine is going to run, and reads a list of such questions, JSON each, from its
        input; for each it prints a line as config_check()'s does. config: text of the entry's file, or None. None for
        an engine or a command that cannot be asked.
        """
        return None

    def config_verdict(self, verdict, words):
        """(verdict, words for a person) of what such a program printed."""
        return verdict, words

    def requests(self, metrics):
        """How many requests a server has, by the text of its /metrics; None where that does not say it."""
        pattern = r"(?m)^(?:%s)(?:\{[^}]*\})?\s+([0-9.eE+-]+)\s*$" % "|".join(map(re.escape, self.counted))
        found = re.findall(pattern, metrics) if self.counted else ()
        return int(sum(map(float, found))) if found else None

    def finishes_within(self, entry):
        """Seconds that a server takes at most to finish its requests after SIGTERM; 0 where it cuts them."""
        command, flag = entry.get("command") or [], self.shutdown_timeout
        given = [word[len(flag) + 1 :] for word in command if flag and word.startswith(flag + "=")]
        given += [value for word, value in zip(command, command[1:]) if word == flag]
        return float(given[-1]) if given and given[-1].isdigit() else 0.0

    def changes_together(self, before, after):
        """Whether a server that changes from one entry to the other does not work with servers of its deployment that
        have not changed yet. Those of them that change do so together."""
        return False

    def model_cause(self, expected, listed):
        """Why this engine lists its only model by another name than the expected one; None where it does not say."""
        if listed.startswith("/"):
            return "the server lists the path %s instead of %s: it was started without a served model name" % (
                listed, expected,
            )  # fmt: skip
        return None
