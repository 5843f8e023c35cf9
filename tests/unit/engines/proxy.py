# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""HAProxy with the configuration of the role endpoint, on loopback."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import time
from pathlib import Path

import jinja2
import pytest
import yaml
from ansible_collections.inference.fleet.plugins.plugin_utils.planning import endpoint

PROGRAMS = ("haproxy", "socat")
ROLE = Path(__file__).resolve().parents[3] / "roles" / "endpoint"


def require_haproxy():
    """Skip the test without haproxy and socat, which the role asks with; with CI set, install Debian's or fail."""
    if all(map(shutil.which, PROGRAMS)):
        return
    if not os.environ.get("CI"):
        pytest.skip("This machine lacks a program (Debian: apt-get install %s); CI has them." % " ".join(PROGRAMS))
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    for command in (["update"], ["install", "--no-install-recommends", *PROGRAMS]):
        subprocess.run(["apt-get", "-q", "-y", *command], env=environment, check=True, timeout=300)


def rendered(folder, plans, variables_of, host="proxy", **settings):
    """Write the role's files to `folder` and return the path of the configuration. settings: the role's variables."""
    values = yaml.safe_load((ROLE / "defaults/main.yml").read_text())
    values.update(settings)
    ports = [values["endpoint_port"], values["endpoint_metrics_port"]]
    groups = endpoint.backends(plans, variables_of, host, values["endpoint_alias"], ports)
    routes = {group["model"]: group["name"] for group in groups}
    names = endpoint.key_names(values["endpoint_keys"])
    maps = {
        "keys.map": names,
        "limits.map": values["endpoint_rate_limits"],
        "models.map": routes,
        "server-keys.map": endpoint.server_keys(groups, variables_of),
    }
    for name, lines in maps.items():
        (folder / name).write_text("".join("%s %s\n" % line for line in lines.items()))
    values.update(
        endpoint_backends=groups, endpoint_routes=routes, endpoint_key_names=names, endpoint_directory=str(folder),
        endpoint_socket=str(folder / "admin.sock"), endpoint_state=str(folder / "state"),
        endpoint_pem=(folder / "tls.pem").exists(),
    )  # fmt: skip
    templates = jinja2.Environment(trim_blocks=True, undefined=jinja2.StrictUndefined, keep_trailing_newline=True)
    templates.filters["to_json"] = json.dumps
    path = folder / "haproxy.cfg"
    path.write_text(templates.from_string((ROLE / "templates/haproxy.cfg.j2").read_text()).render(values))
    return path


def check(path):
    """Fail the test if `haproxy -c` refuses the configuration or warns, except about a missing state."""
    done = subprocess.run(["haproxy", "-c", "-f", str(path)], capture_output=True, text=True, check=False)
    warnings = [line for line in done.stderr.splitlines() if "WARNING" in line and "server state file" not in line]
    assert (done.returncode, warnings) == (0, []), done.stderr


class Proxy:
    """A running HAProxy for a `with` statement: master and worker, as Debian's unit starts them."""

    def __init__(self, path):
        self.path = path

    def __enter__(self):
        log = open(self.path.with_suffix(".log"), "ab")
        self.process = subprocess.Popen(["haproxy", "-W", "-f", str(self.path)], stdout=log, stderr=log)
        log.close()
        self.wait()
        return self

    def __exit__(self, *unused):
        self.process.send_signal(signal.SIGTERM)
        self.process.wait(20)

    def ask(self, command):
        """Return the answer of the runtime socket."""
        with socket.socket(socket.AF_UNIX) as client:
            client.connect(str(self.path.parent / "admin.sock"))
            client.sendall(command.encode() + b"\n")
            return b"".join(iter(lambda: client.recv(65536), b"")).decode()

    def wait(self, old=None):
        end = time.monotonic() + 20
        while time.monotonic() < end:
            try:
                if self.pid() != old:
                    return
            except OSError:
                pass
            time.sleep(0.05)
        raise AssertionError(self.path.with_suffix(".log").read_text())

    def pid(self):
        lines = self.ask("show info").splitlines()
        return next(line.partition(": ")[2] for line in lines if line.startswith("Pid:"))

    def states(self):
        """Return {"backend/server": status}, such as UP, DOWN or MAINT."""
        rows = [line.split(",") for line in self.ask("show stat").splitlines() if line and not line.startswith("#")]
        return {"%s/%s" % (row[0], row[1]): row[17].split()[0] for row in rows if row[1] not in ("FRONTEND", "BACKEND")}

    def admit(self, state, *names):
        """Drain servers or make them ready, as the tasks of the role do."""
        template = jinja2.Template((ROLE / "templates/admission.sh.j2").read_text())
        given = {"endpoint_server_state": state, "endpoint_names": names}
        script = template.render(endpoint_socket=self.path.parent / "admin.sock", **given)
        return subprocess.run(["sh", "-c", script], capture_output=True, text=True, check=True, timeout=60).stdout

    def reload(self):
        """Keep the state of the servers and reload, as the unit of the role does."""
        old = self.pid()
        (self.path.parent / "state").write_text(self.ask("show servers state"))
        self.process.send_signal(signal.SIGUSR2)
        self.wait(old)
