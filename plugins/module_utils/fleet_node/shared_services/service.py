# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A member of a shared service (etcd, NATS) on its node: its unit, its image and its cluster.

`systemctl daemon-reload` removes devices from running containers (see services/systemd.py), so it is called only if
systemd has loaded an older version of the unit.
"""

from __future__ import annotations

import os
import re
import time

from ..containers.engine import Engine, EngineError, pinned_reference
from ..containers.images import ensure_image
from ..errors import FleetError
from ..host import commands
from ..host.files import read_text, write_atomic
from ..host.processes import port_holder
from ..host.units import is_outdated
from . import certificates

CALL_S = 120
POLL_S = 1
SHOWN = "MainPID,FragmentPath,NeedDaemonReload,UnitFileState,ExecMainStartTimestampMonotonic"


class Service:
    """A member as the parameters of its operation describe it.

    Subclasses add kind; ports(): [(address, port)] that it listens on; fault(): why the running process is not ready,
    "" if it is ready; running_version(): None if it does not answer; healthy_others(): the number of other members of
    the cluster that are healthy.
    """

    def __init__(self, params):
        self.params = params
        self.name, self.unit, self.tls = params["name"], params["unit"], params["tls"]
        self.members = {member["name"]: member["address"] for member in params["members"]}

    def files(self):
        """{path: content} of its configuration and its unit."""
        return self.params["files"]

    def watched(self):
        """Paths of the files that a process reads only at its start."""
        return [*self.files(), *([self.tls["ca"]] if self.tls else [])]


def look(service, check_mode):
    """The differences on this node. Changes nothing and asks no other member. Raises FleetError."""
    params = service.params
    check_members(service.kind, params["members"])
    check_version(service)
    reasons = _reasons(service)
    if "unit" in reasons and not _is_up(shown(service.unit)):
        _check_ports(service)
    if not reasons:
        fault = service.fault()
        if fault:
            reasons["ready"] = fault
    return {
        "due": reasons,
        "name": service.name,
        "authority": os.path.isfile("/etc/%s/tls/%s" % (service.kind, certificates.AUTHORITY_KEY)),
        "message": "; ".join(reasons.values()),
        "changed": bool(check_mode and reasons),
        "diff": _diff(params["files"]),
        "engine_missing": _engine_missing(params["container"]),
    }


def start(service, check_mode):
    """Enable and start the unit without waiting until it is ready. Returns whether that was necessary.

    A member that is not ready gets its files here. The others get them in their turns (restart), so that files with
    which the first does not start are not on the others.
    """
    state = shown(service.unit)
    begins = not _is_up(state) or state.get("UnitFileState") != "enabled"
    diff = _deploy(service, check_mode) if not _is_up(state) or service.fault() else []
    if begins and not check_mode:
        _start(service.unit)
    return {"changed": begins or bool(diff), "diff": diff}


def restart(service, check_mode):
    """Restart a process with other or older files than planned, unless the cluster would lose its quorum.
    Raises FleetError."""
    outdated = _is_outdated(service)
    if check_mode or not outdated:
        return {"changed": outdated}
    others = service.healthy_others()
    if not can_stop(len(service.members), others):
        reason = "the cluster has no quorum without it: %d of %d other members of %s are healthy"
        raise no_quorum(service.name, reason % (others, len(service.members) - 1, service.kind))
    diff = _deploy(service, check_mode)
    _start(service.unit, restart=True)
    _wait(service)
    return {"changed": True, "diff": diff}


def ready(service, _check_mode):
    """Wait until the member is ready; a process that has yet to be restarted is ignored. Raises FleetError."""
    if not _is_outdated(service):
        _wait(service)
    return {}


ACTIONS = {"looked": look, "started": start, "restarted": restart, "ready": ready}


def check_members(kind, members):
    """Raises FleetError if these members, [{name, address}], cannot form a cluster."""
    names = [member["name"] for member in members]
    addresses = [member["address"] for member in members]
    double = sorted({value for values in (names, addresses) for value in values if values.count(value) > 1})
    if double or len(members) == 2:
        why = "several have the value %s" % ", ".join(double) if double else "two members have no quorum without both"
        raise FleetError("service.members-invalid", kind, ", ".join(names), why)


def check_version(service):
    """Raises FleetError if the planned release cannot replace the running one in place."""
    planned = service.params["version"]
    wanted = _release(planned)
    running = service.running_version() if wanted and _is_up(shown(service.unit)) else None
    found = _release(running)
    if found is None:
        return
    steps = wanted[1] - found[1]
    if wanted[0] != found[0] or steps < 0 or (service.kind == "etcd" and steps > 1):
        why = "etcd is upgraded one minor release at a time" if steps > 1 else "downgrades are not supported"
        raise FleetError("service.version-jump", service.name, service.kind, running, planned, why)


def _release(version):
    """(major, minor) of a version or tag; None if it has none."""
    found = re.match(r"v?(\d+)\.(\d+)", version or "")
    return (int(found.group(1)), int(found.group(2))) if found else None


def no_quorum(name, reason):
    """The FleetError for a change that the cluster cannot make without more members."""
    return FleetError("service.no-quorum", name, reason)


def can_stop(count, others):
    """Whether `others` healthy members keep the quorum of `count` while a member restarts. A single member can stop."""
    return count == 1 or others > count // 2


def systemctl(*arguments):
    """The output of systemctl. Raises FleetError."""
    waits = {"start", "restart"}.intersection(arguments)
    try:
        done = commands.run(["systemctl", *arguments], limit_s=CALL_S if waits else commands.LIMIT_S, merged=True)
        failure = done.stdout.strip() if done.returncode else None
    except FileNotFoundError:
        failure = "this node has no systemd"
    if failure is not None:
        raise FleetError("service.command-failed", " ".join(arguments), failure, arguments[-1])
    return done.stdout


def shown(unit):
    """{property: value} of a unit, which may not exist."""
    lines = systemctl("show", "--property", SHOWN, unit).splitlines()
    return dict(line.split("=", 1) for line in lines if "=" in line)


def _is_up(state):
    return state.get("MainPID", "0") != "0"


def is_stale(state, files):
    """Whether the unit with these properties runs a process that is older than a file or its unit."""
    if not _is_up(state):
        return False
    began = time.time() - time.monotonic() + int(state.get("ExecMainStartTimestampMonotonic") or 0) / 1e6
    newer = [path for path in files if os.path.exists(path) and os.stat(path).st_mtime > began]
    return bool(newer) or is_outdated(state, state.get("FragmentPath", ""))


def _is_outdated(service):
    """Whether the unit runs, and its process must be restarted for its files."""
    state = shown(service.unit)
    return _is_up(state) and (bool(_differing(service.params["files"])) or is_stale(state, service.watched()))


def _deploy(service, check_mode):
    """Write the files that differ. Returns the diff. Raises OSError."""
    diff = _diff(service.params["files"])
    for one in () if check_mode else diff:
        write_atomic(one["after_header"], one["after"])
    return diff


def _start(unit, restart=False):
    """Enable and start the unit. A restart waits until the previous process has ended."""
    state = shown(unit)
    if is_outdated(state, state.get("FragmentPath", "")):
        systemctl("daemon-reload")
    systemctl("enable", "--no-reload", unit)
    systemctl("restart" if restart else "start", "--no-block", unit)
    end = time.monotonic() + CALL_S
    while restart and shown(unit).get("MainPID") == state.get("MainPID") != "0" and time.monotonic() < end:
        time.sleep(POLL_S)


def _reasons(service):
    """{part: reason} of what differs from the parameters."""
    params, found = service.params, {}
    missing = [path for path in params["programs"] if not os.access(path, os.X_OK)]
    fault = "%s is missing" % missing[0] if missing else _image_fault(params["container"])
    if fault:
        found["programs"] = fault
    faults = []
    if service.tls:
        faults = certificates.faults_of(
            service.name, service.tls, params["names"], params["renew_days"], params["tls_given"]
        )
    if faults:
        found["certificates"] = faults[0]
    differing = _differing(service.files())
    if differing:
        found["files"] = "%s differs" % ", ".join(differing)
    state = shown(service.unit)
    if not _is_up(state):
        found["unit"] = "%s does not run" % service.unit
    elif state.get("UnitFileState") != "enabled":
        found["unit"] = "%s is not enabled" % service.unit
    elif is_stale(state, service.watched()):
        found["unit"] = "%s has run since before its files changed" % service.unit
    return found


def _differing(files):
    """{path: the present content} of those files {path: content} that differ."""
    found = {path: read_text(path) for path in files}
    return {path: text for path, text in found.items() if text != files[path]}


def _diff(files):
    return [
        {"before": text or "", "after": files[path], "before_header": path, "after_header": path}
        for path, text in _differing(files).items()
    ]


def _check_ports(service):
    """Raises FleetError if another process listens on a port of the stopped service."""
    for address, port in service.ports():
        holder = port_holder(address, port)
        if holder is not None:
            raise FleetError("service.port-held", service.kind, port, address, holder["pid"] or "?", holder["user"])


def _image_fault(container):
    """Why the container cannot start, "" if its image is on the node. container: {engine, image, digest} or {}."""
    if not container:
        return ""
    image, digest = container["image"], container.get("digest")
    if ensure_image(image, digest, container["engine"], check_mode=True)["changed"]:
        return "the image %s is not on this node" % pinned_reference(image, digest)
    return ""


def _engine_missing(container):
    try:
        return bool(container) and not Engine(container["engine"]).program()
    except EngineError:
        return True


def _wait(service):
    limit_s = service.params["timeout_s"]
    end = time.monotonic() + limit_s
    while True:
        fault = service.fault()
        if not fault:
            return
        if time.monotonic() > end:
            argv = ["journalctl", "--unit", service.unit, "--lines", "15", "--no-pager", "--output", "cat"]
            journal = commands.run(argv).stdout.strip()
            raise FleetError("service.not-ready", service.name, service.kind, limit_s, fault, journal)
        time.sleep(POLL_S)
