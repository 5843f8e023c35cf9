# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a node must know of an engine: its API keys, the modules that it imports, the causes behind its answers."""

from __future__ import annotations

import re
import typing

from ..model import gpt_oss

ENGINE_DEAD = "the engine behind the API process is dead: restart the server; its log contains the reason"


class Engine:
    """An engine. This class itself is the engine for unknown names.

    environment: variables that its servers get where the recipe does not set them. api_key: the secret
    of a server that its clients send as a bearer token, empty for an engine that requires none;
    other_api_keys: the secret with further keys, separated by spaces; modules: [(name, module)] that its Python imports
    from the folder engine_lib of the node; key_arguments: arguments of its command with which it accepts all keys.
    programs: the words with which its servers are started by hand, [(program or module, command)].
    workers: the module that reads the counters of its frontend and workers, None for an engine without frontends. It
    has REQUESTS and MOVED, the names of the counters, and count_instances(body of /health), request_count(content of
    /metrics), bytes_moved(content of /metrics).

    The attributes that contain sentences are causes of failures in a verdict. http: [(pattern in the body, cause)],
    checked before the general causes. logs: [(pattern in the log, cause)] of servers that fail before they are ready;
    the first match counts, and its groups are the values of the cause. streamed_call_ends: values of finish_reason that
    may end a streamed tool call. same_call_ids: whether the ids of calls start again with each answer. batch,
    context_length: the arguments for the number of requests that it computes at the same time, and for the context that
    it lists. counted: the names of gauges on /metrics whose sum is the number of requests that a server has and has not
    answered. drain_signal: a process that catches it refuses new requests for some seconds; close_signal: a process
    that catches it closes its port while it refuses requests. responses_known: whether its streams and tools of
    /v1/responses were tested.
    """

    name = ""
    # setproctitle, which engines use, would wipe /proc/PID/environ and the markers with it
    environment: typing.ClassVar = {"SPT_NOENV": "1"}
    api_key = ""
    other_api_keys = ""
    modules = ()
    key_arguments = programs = ()
    workers = None
    http = ()
    logs = ()
    counted = ()
    drain_signal = close_signal = None
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

    def inner(self, entry):
        """The engine whose messages the log of an entry's server has: this engine, or the engine that it wraps."""
        return self

    def config_check(self, entry):
        """(Python program, [arguments]) that checks in the engine's own image whether it accepts an entry's file.

        The program reads the file from its input. It prints a line, its first argument and JSON: {verdict: taken,
        refused or unknown, words}. None for an engine that has no such check.
        """
        return None

    def command_check(self, entry, config):
        """(Python program, question) that checks whether the engine's own parser accepts an entry's command line.

        The program runs in the engine's environment or image, and reads a list of such questions, JSON each, from its
        input. For each question it prints a line as config_check() describes it. config: content of the entry's file,
        or None. None for an engine or a command that has no such check.
        """
        return None

    def config_verdict(self, verdict, words):
        """(verdict, message for a person) from the output of such a program."""
        return verdict, words

    def requests(self, metrics):
        """The number of requests of a server from the content of its /metrics; None if it is not in there."""
        pattern = r"(?m)^(?:%s)(?:\{[^}]*\})?\s+([0-9.eE+-]+)\s*$" % "|".join(map(re.escape, self.counted))
        found = re.findall(pattern, metrics) if self.counted else ()
        try:
            return int(sum(map(float, found))) if found else None
        except (OverflowError, ValueError):  # a server can answer anything
            return None

    def changes_together(self, before, after):
        """Whether a server that changes from one entry to the other does not work with servers of its deployment that
        have not changed yet. The changing servers of such a deployment change together. before: None for a new server.
        """
        return False

    def adapter_model(self, entry, name):
        """The model in requests to a LoRA adapter, which is listed by its name."""
        return name

    def model_cause(self, expected, listed):
        """Why this engine lists its only model by another name than `expected`; None if that is unknown."""
        if listed.startswith("/"):
            return "the server lists the path %s instead of %s: it was started without a served model name" % (
                listed, expected,
            )  # fmt: skip
        return None
