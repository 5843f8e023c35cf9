# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A gpt-oss checkpoint on a node, wherever it comes from: what is quick is done here, what takes long by a job."""

from __future__ import annotations

import json
import os
import re
import shutil
import time
from dataclasses import asdict, replace

from ..errors import FleetError
from ..host.directories import existing_parent
from ..host.paths import NodePaths
from ..host.redact import PROXY_LIKE, TOKEN_LIKE, checked_variables, clean_token, proxy_address
from . import checkpoints, jobs, known, selection, sha256sums
from . import local as local_weights
from . import wanted as hub
from .lock import WAITING, Busy
from .manifest import amount, cannot_bring, compare_status, listing_text, own_manifest
from .progress import Progress

REPO = re.compile(r"^[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*$")
UNSHOWN = ("token", "sums")
AS_GIVEN = ("format", "workers", "retries", "timeout_s", "verify", "refresh", "min_rate", "min_rate_window_s")
LOOK_S = 10
PATIENCE_S = 600  # for another run that makes the stand-in, which takes seconds
# What takes longer than a few seconds gets a job of its own, which outlives a broken connection.
JOB_FROM = 1 << 30  # bytes
ENDPOINT = re.compile(r"^https?://[^\s/@?#]+(/[^\s@?#]*)?$")


def bring(parameters, check_mode=False):
    """What the module model_weights does with its parameters. Returns its result; raises FleetError."""
    _check_texts(parameters)
    paths = NodePaths.of_parameter(parameters["root"])
    by = _bring_from_hub if parameters["source"] in hub.SOURCES else _bring_local
    try:
        result = by(parameters, paths, check_mode)
    except OSError as error:
        raise cannot_bring(parameters["repo"], parameters["destination"], error) from error
    if check_mode and result["changed"]:
        promised = sum(one["size"] for one in (parameters.get("expected") or {}).values())
        result["space"] = _space(parameters["destination"], result.get("to_fetch_bytes", promised or None))
    return result


def _space(destination, needed):
    """What is to come, and what is free where it goes, for a person."""
    folder = existing_parent(destination)
    free = "the file system of %s has %s free" % (folder, amount(shutil.disk_usage(folder).free))
    return free if needed is None else "%s to come, %s" % (amount(needed), free)


def _check_texts(parameters):
    """Raise FleetError where a parameter that is shown holds what no name, path or address does."""
    for name, value in parameters.items():
        for text in value if isinstance(value, list) else [value]:
            bad = re.search(r"[\x00-\x1f\x7f]", text) if isinstance(text, str) and name not in UNSHOWN else None
            if bad:
                raise FleetError(
                    "weights.argument-invalid",
                    "%s is %s; it holds a control character, which is no part of any name, path or address. Remove it.",
                    (name, json.dumps(_without_secrets(text) if name == "endpoint" else text)),
                )


def _bring_from_hub(parameters, paths, check_mode):
    """Weights of a hub, and before them their draft if a hub has that too."""
    token = clean_token("token (in a play: %s)" % hub.TOKEN_VARIABLES[parameters["source"]], parameters["token"])
    wanted = wanted_from(parameters, check_mode)
    variables, ca_bundle = variables_from(parameters["environment"]), parameters["ca_bundle"]
    if ca_bundle:
        check_certificates(ca_bundle)
    given = {"token": token, "variables": variables, "ca_bundle": ca_bundle}

    def advance(part):
        job = jobs.Job(paths.lib + "/jobs", part.destination)
        return ensure_from_hub(part, job, given, parameters["wait_s"], parameters.get("caller") or "")

    if not parameters["draft_repo"]:
        local_weights.check_draft(parameters["draft"], parameters["draft_eagle3"])
        result = advance(_with_draft(wanted, parameters["draft"]))
        if not parameters["draft"] or not result["finished"]:
            return result
        draft = local_weights.look_at_draft(parameters["draft"], wanted.verify, check_mode)
        return local_weights.joined(draft, result)
    draft = draft_from(parameters, wanted)
    # Another model at the destination is an error before the draft is downloaded.
    own_manifest(wanted.destination, wanted.repo, wanted.source, adopt=True)
    first = advance(draft)
    if not first["finished"]:
        return first
    result = advance(_with_draft(wanted, parameters["draft"]))
    return local_weights.joined(first, result) if result["finished"] else result


def check_certificates(path):
    """Raise FleetError unless this file contains certificates to trust."""
    import ssl  # takes as long as all else that a quick check imports

    try:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.load_verify_locations(cafile=path)
        why = "" if context.cert_store_stats()["x509"] else "it holds none"
    except ssl.SSLError as error:
        why = error.reason.lower().replace("_", " ") if error.reason else str(error)
    except OSError as error:
        why = error.strerror
    if why or not os.path.isabs(path):
        raise FleetError(
            "weights.ca-bundle-unreadable",
            "ca_bundle is %s, which is not a file with certificates (PEM) on this node: %s. Set the absolute path of a "
            "bundle (in a play: fleet_ca_bundle), or none for the system's.",
            (path, why or "it is relative"),
        )


def _bring_local(parameters, paths, check_mode):
    """Weights that need no hub; where gigabytes are to be copied or read, by a job."""
    request = local_weights.from_parameters({**parameters, "sums": sums_from(parameters) or None})
    given = {key: parameters[key] for key in ("verify", "draft", "draft_eagle3")}
    if check_mode or request.source != "path":
        return local_weights.ensure(request, check_mode=check_mode, patience_s=PATIENCE_S, **given)
    destination = os.path.realpath(request.destination)
    job = jobs.Job(paths.lib + "/jobs", destination)
    caller = parameters.get("caller") or ""

    def at_once():
        if job.pending(caller) or local_weights.effort(request, given["verify"], given["draft"]) >= JOB_FROM:
            return None
        try:
            return local_weights.ensure(request, patience_s=0, **given)
        except Busy:
            return None  # a job waits for the other run

    task = jobs.Task(
        name="%s from %s" % (request.repo, request.path),
        destination=destination,
        identity={key: value for key, value in request._asdict().items() if key not in ("packed", "expected")},
        request={"local": {"request": request._asdict(), **given}},
        verify=given["verify"],
    )
    local_weights.check_draft(given["draft"], given["draft_eagle3"])
    return _until_ended(at_once, job, task, parameters["wait_s"], caller, _names(request))


def _until_ended(at_once, job, task, wait_s, caller, names):
    """The result of at_once(), or of the job; again where another call was given its end."""
    end = time.monotonic() + wait_s
    while True:
        result = at_once()
        if result is not None:
            return result
        state = job.advance(task, max(0.0, end - time.monotonic()), caller)
        if state is not None:
            return _result_of(names, task.name, state)


def wanted_from(parameters, check_mode=False):
    """The hub.Desired of the model from a module's parameters. Raises FleetError where one of them cannot be."""
    source, repo = parameters["source"], parameters["repo"]
    for name in ("repo", "draft_repo"):
        if parameters[name] and not REPO.fullmatch(parameters[name]):
            raise FleetError(
                "weights.argument-invalid",
                "%s is %r; allowed: a repository of %s, ORG/NAME.",
                (name, parameters[name], hub.SOURCES[source]),
            )
    endpoint = (parameters["endpoint"] or hub.DEFAULT_ENDPOINTS[source]).rstrip("/")
    if not ENDPOINT.fullmatch(endpoint):
        raise FleetError(
            "weights.argument-invalid",
            "endpoint is %r; allowed: the http or https address of a hub, without a user, such as %s.",
            (_without_secrets(endpoint), hub.DEFAULT_ENDPOINTS[source]),
        )
    for name, least in (
        ("workers", 1),
        ("retries", 0),
        ("timeout_s", 1),
        ("wait_s", 0),
        ("min_rate", 0),
        ("min_rate_window_s", 1),
    ):
        if parameters[name] < least:
            raise FleetError(
                "weights.argument-invalid", "%s is %d; allowed: %d or more.", (name, parameters[name], least)
            )
    if parameters["draft_repo"] and not parameters["draft"]:
        raise FleetError(
            "weights.path-invalid",
            "draft_repo is %s, but draft, its directory, is not set. Set draft.",
            (parameters["draft_repo"],),
        )
    return hub.Desired(
        source=source,
        repo=repo,
        revision=parameters["revision"] or hub.default_revision(source, repo),
        destination=_real("destination", parameters["destination"]),
        endpoint=endpoint,
        include=tuple(parameters["include"]),
        exclude=tuple(parameters["exclude"]),
        check_mode=check_mode,
        sums=sums_from(parameters),
        **{name: parameters[name] for name in AS_GIVEN},
    )


def sums_from(parameters):
    """{path: sha256} of the user's list; {} for none. Raises FleetError."""
    if parameters["sums"] is not None:
        return sha256sums.parse(parameters["sums"], parameters["sha256sums"])
    return sha256sums.read(parameters["sha256sums"]) if parameters["sha256sums"] else {}


def variables_from(given):
    """The variables of a job from the parameter `environment`. Raises FleetError where one of them cannot be."""
    found = checked_variables(given)
    for name, value in found.items():
        if TOKEN_LIKE.search(name):
            raise FleetError(
                "weights.argument-invalid",
                "environment sets %s; a token is given by `token`, which keeps it out of logs. environment is for "
                "proxies and the like.",
                (name,),
            )
        if PROXY_LIKE.search(name) and name.lower() != "no_proxy":
            found[name] = proxy_address("environment: " + name, value)
    return found


def draft_from(parameters, wanted):
    """The hub.Desired of the draft of the model `wanted`: all files of its repository. Raises FleetError."""
    destination = _real("draft", parameters["draft"])
    if destination == wanted.destination:
        raise FleetError(
            "weights.path-invalid",
            "draft and destination are the same directory %s. Set another directory for one of them.",
            (destination,),
        )
    return replace(
        wanted,
        repo=parameters["draft_repo"],
        revision=parameters["draft_revision"] or hub.default_revision(wanted.source, parameters["draft_repo"]),
        destination=destination,
        include=(),
        exclude=hub.DEFAULT_EXCLUDE,
        sums={},
        format=None,
        draft=True,
        eagle3=parameters["draft_eagle3"],
        target={
            key: getattr(wanted, key) for key in ("repo", "revision", "destination", "include", "exclude", "format")
        },
    )


def _with_draft(wanted, draft):
    """The Desired with the sizes of its draft, where that is there."""
    if not draft or not os.path.isfile(os.path.join(draft, checkpoints.CONFIG)):
        return wanted
    return replace(wanted, draft_sizes={"name": draft, **checkpoints.describe_draft(draft)})


def _without_secrets(address):
    """An address that may be no address at all, without what stands before a user's @ and after a question mark."""
    return re.sub(r"[^/]*@", "***@", re.split(r"[?#]", address)[0])


def _real(name, path):
    if not os.path.isabs(path) or os.path.normpath(path) == "/":
        raise FleetError("weights.path-invalid", "%s is %r. Set the absolute path of a directory.", (name, path))
    return os.path.realpath(path)


def ensure_from_hub(wanted, job, given, wait_s, caller):
    """Bring the wanted weights from a hub by a job, or see that they are there, which needs no job.

    wanted: hub.Desired. job: jobs.Job. given: {token, variables, ca_bundle}. Returns what `ensure` returns, and
    {finished, progress, commit, fetched, fetched_bytes, to_fetch_bytes}. Where it is not finished, call again.
    """

    def at_once():
        if wanted.verify == "quick" and not wanted.refresh and not job.pending(caller):
            result = _as_recorded(wanted)
            if result is not None:
                return result
        return _foreseen(wanted, job, given) if wanted.check_mode else None

    numbers = [wanted.workers, wanted.retries, wanted.timeout_s, wanted.min_rate, wanted.min_rate_window_s]
    task = jobs.Task(
        name=wanted.name,
        destination=wanted.destination,
        identity={
            **wanted.identity(),
            **{key: getattr(wanted, key) for key in ("destination", "format", "draft", "refresh")},
        },
        request={"wanted": asdict(wanted), **given},
        settings=[wanted.endpoint, sorted(given.items(), key=str), *numbers],
        verify=wanted.verify,
    )
    return _until_ended(at_once, job, task, wait_s, caller, _names(wanted))


NO_PROGRESS = Progress().snapshot()


def _names(wanted):
    """What a result says of a request, a hub's or another."""
    return {
        "path": wanted.destination, "source": wanted.source, "repo": wanted.repo, "revision": wanted.revision
    }  # fmt: skip


def _result_of(names, what, state):
    """The result for the state of a job; the FleetError of one that failed."""
    if state["state"] == "running":
        progress = state.get("progress") or dict(NO_PROGRESS)
        waiting = progress["phase"].startswith(WAITING)
        message = "%s%s %s" % (progress["phase"], " to bring" if waiting else "", what)
        return {**names, "changed": False, "finished": False, "progress": progress, "message": message}
    if state["state"] == "failed":
        raise FleetError(
            state["error"]["details"].get("code", "weights.job-failed"),
            state["error"]["message"],
            details=state["error"]["details"],
        )
    return {**names, **state["result"], "finished": True, "progress": state["progress"]}


def _as_recorded(wanted):
    """The result where sizes and times are as the manifest of the wanted weights says; None otherwise."""
    manifest = own_manifest(wanted.destination, wanted.repo, wanted.source, adopt=True)
    if manifest is None or not wanted.is_in(manifest):
        return None
    recorded = manifest["files"]
    wrong, touched = compare_status(wanted.destination, recorded)
    pinned = known.find(wanted.source, wanted.repo, manifest["commit"])
    if wrong or touched or (pinned and known.differences(pinned, recorded)):
        return None
    selection.check_sums(wanted, recorded)
    found = selection.describe(wanted, wanted.destination)
    text = listing_text(recorded)
    total = sum(record["size"] for record in recorded.values())
    return {
        **_names(wanted),
        **found,
        "changed": False,
        "finished": True,
        "message": "up to date",
        "verified": "quick",
        "commit": manifest["commit"],
        "fetched": [],
        "fetched_bytes": 0,
        "to_fetch_bytes": 0,
        "repaired": [],
        "progress": {**NO_PROGRESS, "phase": "done", "percent": 100.0, "bytes_done": total, "bytes_total": total},
        "diff": {"before": text, "after": text},
    }


def _foreseen(wanted, job, given):
    """What a run would do, in check mode."""
    result = {
        **_names(wanted), "changed": True, "finished": True, "verified": None, "progress": dict(NO_PROGRESS),
        "diff": {"before": "", "after": ""},
    }  # fmt: skip
    if job.alive():
        state = job.state() or {}
        message = "a job brings %s to %s already" % (wanted.name, wanted.destination)
        return {**result, "message": message, "progress": state.get("progress") or result["progress"]}
    from . import worker  # here, since a quick check does without most of it

    impatient = replace(wanted, retries=0, timeout_s=min(wanted.timeout_s, LOOK_S))
    try:
        found = worker.download(impatient, progress=Progress(), **given).run()
        return {**_names(wanted), **found, "finished": True, "progress": dict(NO_PROGRESS)}
    except FleetError as error:
        if error.details.get("problem") not in ("network", "busy"):
            raise
        unknown = error.message
    manifest = own_manifest(wanted.destination, wanted.repo, wanted.source, adopt=True)
    text = listing_text(manifest["files"]) if manifest else ""
    message = "would bring %s in %s; how much is not known" % (wanted.name, wanted.destination)
    return {
        **result, "message": message, "warnings": ["Not checked: " + unknown], "diff": {"before": text, "after": text}
    }  # fmt: skip
