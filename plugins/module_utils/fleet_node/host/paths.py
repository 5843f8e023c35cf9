# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Paths on a node, below a root that is empty for the system's /etc, /var and /run."""

from __future__ import annotations

import os

from ..errors import FleetError
from . import trust

PREFIX = "inference-fleet-"  # of this collection's units, containers and programs
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"  # where system programs are


class NodePaths:
    """The folders of a node below `root` ("" for the system's own).

    All attributes are absolute path strings; nothing is created here.
    """

    def __init__(self, root=""):
        root = root.rstrip("/")
        if root and not os.path.isabs(root):
            raise ValueError("fleet_root must be an absolute path or empty, got %r" % root)
        self.root = root
        self.etc = root + "/etc/inference-fleet"
        self.lib = root + "/var/lib/inference-fleet"
        self.log = root + "/var/log/inference-fleet"
        self.run = root + "/run/inference-fleet"
        self.servers = self.etc + "/servers"
        self.secrets = self.etc + "/secrets"
        self.configs = self.etc + "/config"
        self.toolkit = self.lib + "/toolkit"
        self.venvs = self.lib + "/venvs"
        self.models = self.lib + "/models"
        self.encodings = self.lib + "/encodings"
        self.metrics = self.lib + "/metrics"
        self.program = self.lib + "/program"  # see program_check.py
        self.guard = self.program + "/current"  # what service managers start servers with
        self.plans = self.lib + "/plans.json"  # the last verified plans, of the role serve
        self.state = self.run + "/servers"
        self.servers_lock = self.run + "/engine_servers.lock"
        self.engine_lib = self.lib + "/lib/engine"  # modules that engines import

    @classmethod
    def of_parameter(cls, root):
        """The folders below a module's parameter root. Raises FleetError if it is not absolute, or not safe for
        root."""
        try:
            paths = cls(root)
        except ValueError as error:
            raise FleetError("node.root-not-absolute", root) from error
        trust.check_root(paths)
        return paths

    def folders(self):
        """[(folder that several servers share, whether it may be a link to another disk)]."""
        fixed = (self.etc, self.servers, self.secrets, self.configs, self.lib + "/lib",
                 self.engine_lib, self.program, self.run, self.state, self.run + "/ready")  # fmt: skip
        movable = (self.lib, self.log, self.toolkit, self.venvs, self.models, self.encodings, self.lib + "/jobs",
                   self.lib + "/servers")  # fmt: skip
        return [(path, path in movable) for path in sorted((*fixed, *movable))]

    def entry(self, name):
        """The deployed plan entry of a server (JSON without secrets)."""
        return "%s/%s.json" % (self.servers, name)

    def secret(self, name):
        """The secret environment of a server (JSON object ENV -> value, 0600)."""
        return "%s/%s.json" % (self.secrets, name)

    def client_tls(self, service):
        """The folder with this node's certificate as a client of a service: ca.crt, tls.crt, tls.key."""
        return "%s/tls/%s" % (self.etc, service)

    def server_state(self, name):
        """The guard's record of the start of the engine (JSON)."""
        return "%s/%s.json" % (self.state, name)

    def ready(self, name):
        """The process of a server that was ready (JSON)."""
        return "%s/ready/%s.json" % (self.run, name)

    def log_file(self, name):
        """The log of the engine under supervisord."""
        return "%s/%s.log" % (self.log, name)

    def directories(self, name):
        """The server's own folders: {work, compile, artifact, cache}."""
        base = "%s/servers/%s" % (self.lib, name)
        return {kind: "%s/%s" % (base, kind) for kind in ("work", "compile", "artifact", "cache")}
