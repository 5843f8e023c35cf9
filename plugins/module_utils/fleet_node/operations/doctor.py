# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The operation doctor: the operations of check, none of which ends the others, and checks of the node and servers."""

from __future__ import annotations

import functools
import time

from ..discover import Operation, options
from ..doctor import CHECKS, NotChecked, advised, bundle, findings
from ..errors import FleetError
from ..host.commands import hangs
from ..host.paths import NodePaths
from ..platforms.host import System
from ..platforms.registry import PLATFORMS
from ..servers.model import Node
from ..servers.observe import given_redactor, read_secrets
from ..servers.status import status
from .check import CHECK, SERVERS, VERIFY, unpacked, why

DOCTOR = {
    **CHECK,
    **options("float", "now"),
    **options("bool", bundle=False),
}
PREFLIGHT = "node_preflight"
PROBE_S = 20


class Case:
    """What the checks know of a node.

    paths: NodePaths. system: host.System. platform: Detector or None. hardware: fleet_hardware. entries: {name: plan
    entry}. weights: {folder: start budget}. now: the time when the control node sent the call; received: the time of
    this node then.
    """

    def __init__(self, params, looks, servers, validated, operation_of):
        self.now, self.received = params["now"], time.time()
        self.paths, self.system = NodePaths.of_parameter(params["root"]), System()
        given = {one["operation"]: one["arguments"] for one in looks}
        self.platform = PLATFORMS.get(given.get(PREFLIGHT, {}).get("platform"))
        self.hardware = given.get(PREFLIGHT, {}).get("hardware") or {}
        self.entries = {one["name"]: one for one in servers}
        self.weights = {}
        for entry in servers:
            for folder in entry["weights"]:
                self.weights[folder] = max(entry["health"]["budget_s"], self.weights.get(folder, 0))
        self.given = validated(operation_of(SERVERS), given.get(SERVERS, {"servers": servers}))

    @functools.cached_property
    def redactor(self):
        """Masks the secrets that the run was given, and those in the servers' files."""
        known = {name: list(self.secrets(name).values()) for name in self.entries}
        return given_redactor({**known, "": list((self.given["secrets"] or {}).values())})

    def node(self):
        """The Node. Raises FleetError."""
        return Node.of_parameters(self.given)

    def secrets(self, name):
        """{variable: value} in a server's file, {} without one."""
        return read_secrets(self.paths, name) or {}

    @functools.cached_property
    def rows(self):
        """The rows of engine_servers_info, with answers. Raises FleetError."""
        if not self.entries:
            raise NotChecked("the plan of this host has no servers")
        only, secrets = self.given["only"], self.given["secrets"]
        return status(self.node(), list(self.entries.values()), only, 0, True, PROBE_S, secrets)


def doctor(params, check_mode, operation_of, validated):
    """{findings, bundle}: see ../doctor.py. Raises FleetError only for a root that is no absolute path."""
    looks, verification, servers = unpacked(params)
    case, found, hanging = Case(params, looks, servers, validated, operation_of), [], []
    for one in looks:
        if one["operation"] != SERVERS:  # the check servers has more words
            found += findings(one["operation"], functools.partial(_step, one, operation_of, validated, hanging))
    for name, run in CHECKS.items():
        found += findings(name, functools.partial(run, case))
    found += findings("verification", functools.partial(_verify, verification, case, operation_of, validated))
    found = case.redactor.value(found)
    return {
        "changed": False,
        "findings": found,
        "healthy": not any(one["ok"] is False for one in found),
        "bundle": bundle(case, servers, found) if params["bundle"] else {},
    }


def _step(one, operation_of, validated, hanging):
    """Why an operation of a step would change this node, or its error."""
    operation = operation_of(one["operation"])
    if operation is None:
        raise NotChecked("it is not known before its step runs")
    if hanging:
        raise NotChecked("a program of this node hangs: see the check %s" % hanging[0])
    try:
        result = operation.run(validated(operation, one["arguments"]), True)
    except FleetError as error:
        if hangs(error):
            hanging.append(one["operation"])
        raise
    reason = why(one["operation"], operation, result)
    if reason:
        yield FleetError("doctor.step-differs", one["step"], reason.rstrip("."))


def _verify(arguments, case, operation_of, validated):
    """The probes that running servers fail."""
    runs = {row["name"] for row in case.rows if row["state"] == "running"}
    servers = [one for one in (arguments or {}).get("servers") or () if one["name"] in runs]
    if not servers:
        raise NotChecked("no planned server runs")
    operation = operation_of(VERIFY)
    verdicts = operation.run(validated(operation, {**arguments, "servers": servers}), False)["verdicts"]
    for verdict in verdicts:
        for probe in verdict["probes"]:
            if probe["ok"] is False:
                yield FleetError(
                    "doctor.probe-failed",
                    verdict["server"],
                    probe["name"],
                    *advised(probe["cause"]),
                    details={"server": verdict["server"]},
                )


OPERATIONS = {"doctor": Operation(DOCTOR, doctor, reads=True, nested=True)}
