# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""One evaluation of the servers of a node, as a job that outlives the call which starts it.

The folder of a job is named after all that its result depends on: what is asked, how, of which planned servers. It
holds the tool's files, `status` (its exit status) once the tool has ended, and result.json once that has been read. A
result without a failure is given again; a job that was killed goes on where its tool can, and else begins again.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import time

from ..errors import FleetError
from ..node import files, http_client
from ..node.jobs import DetachedJob
from ..node.server_spec import canonical, check_entries
from ..servers import identity
from ..servers.model import Node
from . import datasets, result, starts

ROLES = ("server", "frontend")  # that answer chats
CONTEXT = ("max_model_len", "context_window")  # what engines call it in their lists of models
PROMPT_TOKENS = 1024  # that the longest question of a dataset takes, with the chat template around it
LOG_LINES = 12
# The tool gets its time and 30 s to end; what it dumps of its settings may hold the API key.
JOB = (
    'umask 077; cd "$1" && folder=$1 seconds=$2; shift 2; timeout -k 30 "$seconds" "$@"; status=$?; '
    'rm -rf "$folder"/work/*/configs "$folder"/tmp; '
    'echo $status >"$folder/.status" && mv "$folder/.status" "$folder/status"'
)
TIMED_OUT = (124, 137)


def run(params, check_mode):
    """What evaluation_run returns: {changed, finished, message, progress, measured}; measured is null until the end.

    measured: {id, began, ended, eval, effort, tool, servers, plan_hash, void} and the keys of the tool's read().
    Raises FleetError before a request is sent, where the servers are not the planned ones, a dataset is wrong, or the
    context is too short.
    """
    tool = datasets.tool_of(params["eval"])
    if params["effort"] not in tool.EFFORTS:
        raise FleetError(
            "evaluate.effort-unknown",
            "The effort of %s is %r; allowed: %s.",
            (params["eval"], params["effort"], ", ".join(tool.EFFORTS)),
        )
    entries = [one for one in check_entries(params["servers"]).values() if one["role"] in ROLES and one["port"]]
    if not entries:
        raise FleetError("evaluate.no-server", "No server of this host answers chats; there is nothing to evaluate.")
    entries = entries[: tool.SERVERS]
    node = Node.of_parameters(params)
    if check_mode and not os.path.exists(_python(params)):
        return _answer(True, "would evaluate %s" % params["eval"])
    folder = os.path.join(params["datasets"] or node.paths.lib + "/datasets")
    data = datasets.look(folder, [params["eval"]], params["checksums"] or {}).get(params["eval"])
    job = DetachedJob("%s/measurements/evaluation-%s" % (node.paths.lib, _key(params, entries, data)))
    one = _Evaluation(job, tool, params, entries, node, folder, data)
    if check_mode:
        return one.predicted()
    with job.judging():  # so that of two calls one reads it
        return one.advance()


class _Evaluation:
    """A job, and what it is for."""

    def __init__(self, job, tool, params, entries, node, folder, data):
        self.job, self.tool, self.params, self.entries = job, tool, params, entries
        self.node, self.folder, self.data = node, folder, data
        self.name = params["eval"]

    def begun(self):
        """Whether it is at work, or has ended and is not read yet."""
        return self.job.alive() or os.path.exists(self.job.path("status"))

    def kept(self):
        """The result of before that counts; None where there is none, or another one is wanted."""
        kept = files.read_json(self.job.path("result.json"))
        return kept if kept and kept["complete"] and not self.params["refresh"] else None

    def tokens(self):
        """answer_tokens(), when the servers answer as planned."""
        who_answers(self.node, self.params, self.entries)
        return answer_tokens(self.params, self.entries)

    def predicted(self):
        """The answer of check mode."""
        if self.begun():
            return _answer(True, "would wait for the evaluation %s" % self.name)
        kept = self.kept()
        if kept:
            return _answer(False, "%s was evaluated before" % self.name, kept)
        self.tokens()
        return _answer(True, "would evaluate %s" % self.name)

    def advance(self):
        """One look, with the start lock held."""
        if not self.begun():
            kept = self.kept()
            if kept:
                return _answer(False, "%s was evaluated before" % self.name, kept)
            _start(self.job, self.tool, self.params, self.entries, self.node, self.folder, self.data, self.tokens())
        if not self.job.gone(self.params["wait_s"]):
            progress = _progress(self.job, self.tool, self.name)
            return _answer(True, "%s is being evaluated" % self.name, progress=progress)
        measured = _finish(self.job, self.tool, self.params, self.entries, self.node)
        return _answer(True, "%s was evaluated" % self.name, measured)


def _answer(changed, message, measured=None, progress=None):
    return {
        "changed": changed,
        "finished": progress is None,
        "message": message,
        "progress": progress,
        "measured": measured and {key: value for key, value in measured.items() if key != "complete"},
    }


def _python(params):
    return os.path.join(params["venv"], "bin", "python")


def _key(params, entries, data):
    """16 digits over all that a result depends on."""
    asked = {key: params[key] for key in ("eval", "effort", "examples", "max_tokens", "temperature", "tool_version")}
    asked.update(plan=result.plan_hash(entries), dataset=data and data["sha256"])
    return hashlib.sha256(canonical(asked)).hexdigest()[:16]


def who_answers(node, params, entries):
    """starts_of() the servers, which answer as planned. Raises FleetError where another one does, or none."""
    watch = identity.Watch(node).over({entry["name"]: entry for entry in entries})
    for entry in entries:
        try:
            watch(entry)
        except identity.Stranger as stranger:
            raise FleetError(
                "evaluate.not-verified",
                "%s is not the planned server, so nothing is asked: %s. Run site.yml or verify.yml first.",
                (entry["name"], stranger),
            ) from None
        found = http_client.request("GET", _url(entry) + "/models", timeout=30, headers=_headers(params))
        listed = [one.get("id") for one in ((found.json() or {}).get("data") or [])] if found.ok else []
        if entry["model_id"] not in listed:
            raise FleetError(
                "evaluate.no-answer",
                "%s does not list the model %s at %s/models: %s. Run verify.yml first.",
                (entry["name"], entry["model_id"], _url(entry), found.describe(200)),
            )
    return _starts(node, entries)


def _starts(node, entries):
    return starts.starts_of(node, {entry["name"]: entry for entry in entries})


def answer_tokens(params, entries):
    """How many tokens an answer may have: what is asked for, as far as every server's context allows.

    For a tool that cannot be given less a context that is too short is a FleetError.
    """
    contexts = []
    for entry in entries:
        found = http_client.request("GET", _url(entry) + "/models", timeout=30, headers=_headers(params)).json() or {}
        lengths = [one.get(key) for one in found.get("data") or [] for key in CONTEXT]
        contexts += [length for length in lengths if isinstance(length, int)]
    allowed = min(contexts) - PROMPT_TOKENS if contexts else params["max_tokens"]
    if params["max_tokens"] <= allowed:
        return params["max_tokens"]
    if params["shorten"] and allowed > 0:
        return allowed
    raise FleetError(
        "evaluate.context-too-short",
        "%s wants answers of %d tokens, and a server's context of %d has room for %d beside a question. Choose an "
        "overlay with a longer context, or lower max_tokens of the recipe's evaluate; an answer that is cut off counts "
        "as failed.",
        (params["eval"], params["max_tokens"], min(contexts), max(allowed, 0)),
    )


def _url(entry):
    return http_client.base_url(entry["bind"], entry["port"]) + "/v1"


def _headers(params):
    return {"Authorization": "Bearer " + params["api_key"]} if params["api_key"] else {}


def _start(job, tool, params, entries, node, folder, data, tokens):
    request = job.request()
    if not request or os.path.exists(job.path("result.json")):
        shutil.rmtree(job.folder, ignore_errors=True)  # one that ended, or none; a killed one goes on
        request = {}
    os.makedirs(job.path("work"), mode=0o700, exist_ok=True)
    os.chmod(job.folder, 0o700)
    settings = {
        **{key: params[key] for key in ("eval", "effort", "threads", "temperature", "examples", "retries")},
        "model": entries[0]["model_id"],
        "urls": [_url(entry) for entry in entries],
        "host": http_client.connect_host(entries[0]["bind"]),
        "port": entries[0]["port"],
        "python": _python(params),
        "config": params["config"],
        "datasets": folder,
        "files": data["files"] if data else {},
        "folder": job.path("work"),
        "max_tokens": tokens,
    }
    environment = {
        **{name: value for name, value in os.environ.items() if name in ("PATH", "LANG", "LC_ALL", "TZ")},
        "HOME": job.path("work"),
        "HF_HUB_OFFLINE": "1",
        "NO_PROXY": "*",  # all requests go to this node
        "OPENAI_API_KEY": params["api_key"] or tool.NO_KEY,
    }
    argv, asked = tool.prepare(job, settings, environment)
    job.launch(
        ["/bin/sh", "-c", JOB, "sh", job.folder, str(params["budget_s"]), *argv],
        {
            "id": request.get("id") or result.new_id(),
            "began": request.get("began") or result.now(),
            "began_s": request.get("began_s") or time.time(),
            "command": argv,
            "asked": asked,
            "dataset": data and data["sha256"],
            "processes": request.get("processes") or _starts(node, entries),
        },
        environment,
    )


def _progress(job, tool, name):
    done, total = tool.progress(job.path("work"))
    return {
        "phase": "%s: %d%s answers" % (name, done, " of %d" % total if total else ""),
        "percent": int(100 * done / total) if total else None,
    }


def _finish(job, tool, params, entries, node):
    """Read a job that has ended, and write result.json. Raises FleetError where the tool left nothing that counts."""
    request, status = job.request(), files.read_text(job.path("status"))
    if status is None:
        raise FleetError(
            "evaluate.killed",
            "The evaluation %s was killed after %d answers. Run again: it goes on where its tool can, and begins anew "
            "else.",
            (params["eval"], tool.progress(job.path("work"))[0]),
        )
    try:
        changed = starts.changed(request["processes"], who_answers(node, params, entries))
        void = "%s changed or restarted during the run" % ", ".join(changed) if changed else None
    except FleetError as error:
        void = error.message
    timed_out = int(status) in TIMED_OUT
    try:
        measured = tool.read(job.path("work"), params["eval"], request["asked"])
    except (FleetError, OSError, ValueError, ArithmeticError, LookupError, TypeError, AttributeError) as error:
        _done, total = tool.progress(job.path("work"))
        why = "it was ended after %d s" % params["budget_s"] if timed_out else _tail(job.log())
        said = error.message if isinstance(error, FleetError) else "The files of %s cannot be read: %r." % (
            tool.NAME, error,
        )  # fmt: skip
        message = "%s Status %s: %s" % (said, status.strip(), why)
        measured = nothing(message, total)
    measured.update(
        id=request["id"],
        began=request["began"],
        ended=result.now(),
        eval=params["eval"],
        effort=params["effort"],
        tool={"name": tool.NAME, "version": params["tool_version"], "command": request["command"]},
        servers=[entry["name"] for entry in entries],
        plan_hash=result.plan_hash(entries),
        dataset=request["dataset"],
        whole=tool.whole(request["asked"]),
        void=void,
    )
    measured["complete"] = not measured["failed"] and measured["score"] is not None and void is None
    files.write_atomic(job.path("result.json"), json.dumps(measured, indent=1) + "\n", mode=0o600)
    os.unlink(job.path("status"))
    return measured


def nothing(message, asked):
    """The numbers of an evaluation that came to no result."""
    return {
        "score": None, "questions": 0, "answered": 0, "correct": 0, "failed": asked or 1, "asked": asked or 1,
        "interval": None, "errors": [{"message": message[:2000], "count": asked or 1}],
    }  # fmt: skip


def _tail(text):
    lines = [line for line in text.replace("\r", "\n").splitlines() if line.strip()]
    return "\n".join(lines[-LOG_LINES:]) or "(nothing was printed)"
