# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A NATS server: its login, and when it is ready."""

from __future__ import annotations

from ..host import http_client
from .service import ACTIONS, Service

CALL_S = 10
LOGIN = "/etc/nats/login.conf"  # included by the configuration, which may be shown
STATES = tuple(ACTIONS)


class Server(Service):
    """A server as the parameters of nats_server describe it."""

    kind = "nats"

    def files(self):
        return {**self.params["files"], LOGIN: self.params["login"]}

    def watched(self):
        return [*super().watched(), *([self.tls["certificate"]] if self.tls else [])]

    def ports(self):
        address = self.members[self.name]
        names = ["client_port", "cluster_port"] if len(self.members) > 1 else ["client_port"]
        return [*((address, self.params[name]) for name in names), ("127.0.0.1", self.params["monitor_port"])]

    def monitored(self, path):
        """The Response of the monitoring port, which listens on loopback."""
        return http_client.request("GET", "http://127.0.0.1:%d%s" % (self.params["monitor_port"], path), None, CALL_S)

    def running_version(self):
        return (self.monitored("/varz").json() or {}).get("version")

    def fault(self):
        answer = self.monitored("/healthz")
        if not answer.ok:
            return answer.describe()
        if self.params["jetstream"]:
            answer = self.monitored("/jsz")
            if not answer.ok or (answer.json() or {}).get("disabled"):
                return "JetStream is not enabled: %s" % answer.describe(100)
        others = self.healthy_others()
        if others < len(self.members) // 2:
            return "it is connected with %d of %d other servers" % (others, len(self.members) - 1)
        return ""

    def healthy_others(self):
        routes = (self.monitored("/routez").json() or {}).get("routes") or ()
        return len({route.get("remote_id") for route in routes} - {None})  # names only since 2.10


def run(params, check_mode):
    """The result of the operation. Raises FleetError."""
    return {"changed": False, **ACTIONS[params["state"]](Server(params), check_mode)}
