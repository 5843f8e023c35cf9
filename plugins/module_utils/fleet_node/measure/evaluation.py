# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""One evaluation of the servers of a node."""

from __future__ import annotations

import os

from ..errors import FleetError
from ..host import http_client
from ..host.server_spec import check_entries
from ..servers.model import Node
from . import datasets, result
from .run import LONGEST, TIMED_OUT, UNREADABLE, Run

ROLES = ("server", "frontend")  # that answer chats
CONTEXT = ("max_model_len", "context_window")  # the engines' names of it in their lists of models
PROMPT_TOKENS = 1024  # of the longest question of a dataset, with the chat template


def run(params, check_mode):
    """{changed, finished, progress, measured}: the result of an evaluation, or its state; see Run.look().

    measured: {id, began, ended, eval, effort, tool, servers, plan_hash, void} and the keys of the tool's read().
    Raises FleetError before a request is sent if the servers are not the planned ones, a dataset is wrong, or the
    context is too short.
    """
    tool = datasets.tool_of(params["eval"], params["command"])
    entries = [one for one in check_entries(params["servers"]).values() if one["role"] in ROLES and one["port"]]
    if not entries:
        raise FleetError(
            "measure.no-server",
            "%s: no planned server of this host answers requests. Choose hosts with servers by fleet_play_hosts or "
            "--limit.",
            (params["eval"],),
        )
    node = Node.of_parameters(params)
    folder = params["datasets"] or node.paths.lib + "/datasets"
    installed = params["command"] or os.path.exists(os.path.join(params["venv"], "bin", "python"))
    if check_mode and not installed:
        return {"changed": True, "finished": True, "measured": None}
    data = datasets.look(folder, [params["eval"]], params["checksums"] or {}) if not params["command"] else {}
    found = Evaluation(params, node, tool, entries[: tool.SERVERS], folder, data.get(params["eval"])).look(check_mode)
    return {**{key: found[key] for key in ("changed", "finished", "progress")}, "measured": found["document"]}


class Evaluation(Run):
    """A call of an evaluation tool. data: its entry of datasets.look()."""

    def __init__(self, params, node, tool, entries, folder, data):
        self.tool, self.datasets, self.data = tool, folder, data
        planned = {entry["name"]: entry for entry in entries}
        self.plan_hash = result.plan_hash(entries)
        names = ("eval", "effort", "examples", "max_tokens", "temperature", "tool_version", "command")
        key = {name: params[name] for name in names}
        key.update(plan=self.plan_hash, dataset=data and data["sha256"])
        super().__init__(params, node, planned, "evaluations", key, params["budget_s"], params["refresh"])
        self.resumes, self.clean = tool.RESUMES, tool.CLEAN

    def prepare(self):
        """(argv, environment)."""
        params = self.params
        settings = {
            **{name: params[name] for name in ("eval", "effort", "threads", "temperature", "examples", "retries")},
            "model": self.first["model_id"],
            "urls": [self.url(entry) + "/v1" for entry in self.planned.values()],
            "host": http_client.connect_host(self.first["bind"]),
            "port": self.first["port"],
            "python": os.path.join(params["venv"], "bin", "python"),
            "config": params["config"],
            "datasets": self.datasets,
            "files": self.data["files"] if self.data else {},
            "folder": self.output,
            "max_tokens": self.answer_tokens(),
        }
        return self.tool.prepare(self.job.folder, settings)

    @staticmethod
    def url(entry):
        """The address of a server."""
        return http_client.base_url(entry["bind"], entry["port"])

    def answer_tokens(self):
        """The number of tokens that an answer may have: max_tokens, or less if the servers' context requires it and
        `shorten` is set. Raises FleetError if it is not."""
        wanted, contexts = self.params["max_tokens"], []
        headers = {"Authorization": "Bearer " + self.key()} if self.key() else {}
        for entry in self.planned.values():
            found = http_client.request("GET", self.url(entry) + "/v1/models", timeout=30, headers=headers).json() or {}
            lengths = [one.get(key) for one in found.get("data") or [] for key in CONTEXT]
            contexts += [length for length in lengths if isinstance(length, int)]
        allowed = min(contexts) - PROMPT_TOKENS if contexts else wanted
        if wanted <= allowed:
            return wanted
        if self.params["shorten"] and allowed > 0:
            return allowed
        raise FleetError(
            "evaluate.context-too-short",
            "%s requires answers of %d tokens, and a server's context of %d has room for %d after a question; a "
            "shortened answer counts as failed. Choose an overlay with a longer context, or lower max_tokens of the "
            "recipe's evaluate.",
            (self.params["eval"], wanted, min(contexts), max(allowed, 0)),
        )

    def progress(self):
        """{phase, percent} for the screen."""
        done, total = self.tool.progress(self.output)
        return {
            "phase": "%s: %d%s answers" % (self.params["eval"], done, " of %d" % total if total else ""),
            "percent": int(100 * done / total) if total else None,
        }

    def document(self, request, status, void):
        """The result: measured of run(), with ok."""
        name = self.params["eval"]
        try:
            numbers = self.tool.read(self.job.folder, self.output, name)
        except UNREADABLE as error:
            numbers = nothing(self.why(error, status), self.tool.progress(self.output)[1])
        return {
            **numbers,
            "id": request["id"],
            "began": request["began"],
            "ended": self.ended(),
            "eval": name,
            "effort": self.params["effort"],
            "tool": {
                "name": self.tool.NAME,
                "version": self.params["tool_version"],
                "command": request["command"],
            },
            "servers": list(self.planned),
            "plan_hash": self.plan_hash,
            "void": void,
            "ok": not numbers["failed"] and numbers["score"] is not None and void is None,
        }

    def why(self, error, status):
        """The reason why there is no result."""
        if status is None:
            return "The evaluation was killed after %d answers." % self.tool.progress(self.output)[0]
        read = "The files of %s cannot be read: %s." % (self.tool.NAME, error or repr(error))
        if status in TIMED_OUT:
            return "%s The time limit of %d s ended it." % (read, self.limit_s)
        return "%s Status %s: %s" % (read, status, self.last_words())


def nothing(message, asked):
    """The numbers of an evaluation without a result."""
    return {
        "score": None, "questions": 0, "answered": 0, "correct": 0, "failed": asked or 1, "asked": asked or 1,
        "interval": None, "errors": [{"message": message[:LONGEST], "count": asked or 1}],
    }  # fmt: skip
