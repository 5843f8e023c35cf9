# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The operation model_weights: short work is done in the call, long work by a job that outlives it."""

from __future__ import annotations

import json
import os
import re
import shutil
from dataclasses import replace

from ..errors import FleetError
from ..host.files import existing_parent
from ..host.paths import NodePaths
from ..host.redact import PROXY_LIKE, TOKEN_LIKE, checked_variables, clean_token, proxy_address, without_secrets
from . import checkpoints, jobs, selection
from . import wanted as wanted_files
from .manifest import amount, failed, own_manifest
from .run import NotOnNode, Run, TakesLong, names_of
from .staging import Busy
from .transfer import Progress
from .wanted import DEFAULT_ENDPOINTS, DEFAULT_EXCLUDE, HUBS, Wanted, default_revision

REPO = re.compile(r"^[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*$")
ENDPOINT = re.compile(r"https?://(\[[0-9a-fA-F:.]+\]|[^\s/@?#:\[\]]+)(:\d{1,5})?(/[^\s@?#]*)?")
CONTROL = re.compile(r"[\x00-\x1f\x7f]")
UNSHOWN = ("token", "sums")
MINIMUM = {"workers": 1, "retries": 0, "timeout_s": 1, "wait_s": 0, "min_rate": 0}
SAME = (
    "source", "repo", "revision", "format", "family", "adapter", "verify", "refresh", "workers", "retries", "timeout_s",
    "min_rate",
)  # fmt: skip
CHECK_S = 10  # time limit of a request in check mode


def model_weights(parameters, check_mode=False):
    """The operation. Returns its result; raises FleetError.

    Returns {changed: False, archive_needed: True} if the archive of the stand-in must be copied to the node first.
    """
    wanted = wanted_from(parameters, check_mode)
    try:
        draft, settings = draft_from(parameters, wanted), settings_from(parameters)
        if draft:
            # another model at the destination is an error before the draft is downloaded
            if not wanted.in_place:
                own_manifest(wanted.destination, wanted.repo, wanted.source)
            before = ensure(draft, settings, parameters)
            if not before["finished"]:
                return before
            wanted = replace(wanted, draft_sizes=_sizes(draft))
        result = ensure(wanted, settings, parameters)
        if not result["finished"]:
            return result
        if draft:
            result = joined(before, result)
        if wanted.check_mode and result["changed"]:
            folder = existing_parent(wanted.destination)
            free = "the file system of %s has %s free" % (folder, amount(shutil.disk_usage(folder).free))
            needed = result.get("to_fetch_bytes")
            result["space"] = free if needed is None else "%s to transfer, %s" % (amount(needed), free)
        return result
    except NotOnNode:
        return {"changed": False, "archive_needed": True}
    except OSError as error:
        raise failed(wanted, error) from error


def ensure(wanted, settings, parameters):
    """Install the wanted weights, by a job if that takes long. settings: {token, variables, ca_bundle}.

    Returns the result of the operation, with {finished, progress}; if it is not finished, call again.
    """
    caller = parameters.get("caller") or ""
    job = jobs.Job(NodePaths.of_parameter(parameters["root"]).lib + "/jobs", wanted.destination)
    if not (wanted.refresh and wanted.from_hub) and (wanted.check_mode or not job.pending(caller)):
        try:
            return _ended(Run(wanted, limited=True).run())
        except (TakesLong, Busy):
            pass  # a job does it, or waits for the other run
    if wanted.check_mode:
        impatient = replace(wanted, retries=0, timeout_s=min(wanted.timeout_s, CHECK_S))
        return _ended(Run(impatient, jobs.hub_of(impatient, settings)).run())
    state = job.advance(wanted, settings, parameters["wait_s"], caller)
    if state["state"] == "running":
        progress = state.get("progress") or Progress().snapshot()
        message = "%s %s" % (progress["phase"], wanted.name)
        return {**names_of(wanted), "changed": False, "finished": False, "progress": progress, "message": message}
    if state["state"] == "failed":
        details = state["error"]["details"]
        raise FleetError.written(details.get("code", "weights.job-failed"), state["error"]["message"], details=details)
    return {**state["result"], "finished": True, "progress": state["progress"]}


def _ended(result):
    return {**result, "finished": True, "progress": {**Progress().snapshot(), "phase": "done", "percent": 100.0}}


def joined(draft, result):
    """The result of a model with that of its draft, which gets a separate key."""
    both = (draft, result)
    messages = [part["message"] for part in both if part["changed"]]
    found = {
        **result,
        "changed": bool(messages),
        "message": "; ".join(messages) or result["message"],
        "repaired": [name for part in both for name in part["repaired"]],
        "warnings": [text for part in both for text in part.get("warnings", [])],
        "draft": {key: draft.get(key) for key in ("path", "repo", "revision", "commit", "changed", "verified")},
        "diff": {key: draft["diff"][key] + result["diff"][key] for key in ("before", "after")},
    }
    if "to_fetch_bytes" in result:
        found["to_fetch_bytes"] = draft.get("to_fetch_bytes", 0) + result["to_fetch_bytes"]
    return found


# ---- parameters


def wanted_from(parameters, check_mode=False):
    """The Wanted of the model from the parameters. Raises FleetError if one of them is invalid."""
    _check_values(parameters)
    source, repo = parameters["source"], parameters["repo"]
    given = {name: parameters[name] for name in SAME}
    given.update(path=parameters["archive"], destination=_real("destination", parameters["destination"]))
    if source in HUBS:
        endpoint = (parameters["endpoint"] or DEFAULT_ENDPOINTS[source]).rstrip("/")
        if not ENDPOINT.fullmatch(endpoint):
            raise _invalid("endpoint", without_secrets(endpoint), "http(s)://HOST[:PORT][/PATH] without a user")
        given.update(endpoint=endpoint, revision=given["revision"] or default_revision(source, repo))
        given.update({key: tuple(parameters[key]) for key in ("include", "exclude")})
    if source == "path":
        given["path"] = _source_path(parameters)
    if source == "standin":
        given["format"] = None  # it has only one, whatever the recipe's weights have
    else:
        given["sums"] = sums_from(parameters)
    return Wanted(check_mode=check_mode, **given)


def _check_values(parameters):
    for name, value in parameters.items():
        for text in value if isinstance(value, list) else [value]:
            if isinstance(text, str) and name not in UNSHOWN and CONTROL.search(text):
                shown = json.dumps(without_secrets(text) if name == "endpoint" else text)
                raise _invalid(name, shown, "no control characters")
    if parameters["source"] in HUBS:
        for name in ("repo", "draft_repo"):
            if parameters[name] and not REPO.fullmatch(parameters[name]):
                raise _invalid(name, parameters[name], "a repository, ORG/NAME")
        if parameters["draft_repo"] and not parameters["draft"]:
            raise _invalid("draft", "not set", "the directory for draft_repo")
    for name, least in MINIMUM.items():
        if parameters[name] < least:
            raise _invalid(name, parameters[name], "%d or more" % least)


def _invalid(name, value, allowed):
    return FleetError("weights.argument-invalid", name, value, allowed)


def _source_path(parameters):
    """The directory of a source of type path: the destination itself unless it is copied."""
    path, destination = parameters["path"], parameters["destination"]
    if not path:
        raise _invalid("path", "not set", "the directory with the checkpoint")
    if (os.path.realpath(path) == os.path.realpath(destination)) == parameters["copy"]:
        what = "another directory than destination, if copy is true, and otherwise the same"
        raise _invalid("path", path, what)
    return path


def _real(name, path):
    if not os.path.isabs(path) or os.path.normpath(path) == "/":
        raise _invalid(name, path, "the absolute path of a directory")
    return os.path.realpath(path)


def sums_from(parameters):
    """{path: sha256} of the user's list; {} for none. Raises FleetError."""
    if parameters["sums"] is not None:
        return selection.parse_sums(parameters["sums"], parameters["sha256sums"])
    return selection.read_sums(parameters["sha256sums"]) if parameters["sha256sums"] else {}


def settings_from(parameters):
    """{token, variables, ca_bundle} for requests. Raises FleetError if one of them is invalid."""
    if parameters["source"] not in HUBS:
        return {"token": None, "variables": {}, "ca_bundle": None}
    variable = wanted_files.TOKEN_VARIABLES[parameters["source"]]
    found = checked_variables(parameters["environment"])
    for name, value in found.items():
        if TOKEN_LIKE.search(name):
            raise _invalid("environment", "with " + name, "proxies and the like; set a token by `token`")
        if PROXY_LIKE.search(name) and name.lower() != "no_proxy":
            found[name] = proxy_address("environment: " + name, value)
    if parameters["ca_bundle"]:
        check_certificates(parameters["ca_bundle"])
    token = clean_token("token (in a play: %s)" % variable, parameters["token"])
    return {"token": token, "variables": found, "ca_bundle": parameters["ca_bundle"]}


def check_certificates(path):
    """Raises FleetError unless this file contains certificates to trust."""
    import ssl  # its import takes as long as all others of a quick check

    try:
        if not os.path.isabs(path):
            raise OSError("it is relative")
        ssl.create_default_context(cafile=path)
    except OSError as error:  # of ssl, too
        why = error.strerror or error
        raise _invalid(
            "ca_bundle", "%s (%s)" % (path, why), "the absolute path of certificates (PEM) on this node"
        ) from error


def draft_from(parameters, wanted):
    """The Wanted of the model's draft, None for none. Raises FleetError."""
    path = parameters["draft"]
    if not path:
        return None
    destination = _real("draft", path)
    if destination == wanted.destination:
        raise _invalid("draft", destination, "another directory than destination")
    more = {"source": "path", "repo": None, "revision": None, "path": path}
    if parameters["draft_repo"] and wanted.from_hub:
        revision = parameters["draft_revision"] or default_revision(wanted.source, parameters["draft_repo"])
        more = {"repo": parameters["draft_repo"], "revision": revision, "include": (), "exclude": DEFAULT_EXCLUDE}
    more.update(draft=True, eagle3=parameters["draft_eagle3"], destination=destination, format=None, sums={})
    return replace(wanted, **more)


def _sizes(draft):
    """The sizes of a draft that is on the node; {} if it is not."""
    if not os.path.isfile(os.path.join(draft.destination, checkpoints.CONFIG)):
        return {}
    return {"name": draft.destination, **checkpoints.inspect_draft(draft.destination, complete=False)}
