# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The plan of one run of ansible-playbook: made by its first task, taken by all others as long as it is right.

Tasks run in processes of their own, so it goes through a file in the run's temporary folder, which ansible-playbook
removes at its end. It holds what the lookup returns, and no value of a secret.
"""

from __future__ import annotations

import json
import multiprocessing
import os

from ansible import constants as C
from ansible_collections.inference.fleet.plugins.module_utils.node.files import write_atomic

NAME = "inference-fleet-plan.json"
_loaded = {}  # the file as it was read last: {"stat": …, "hosts": …}; processes of tasks have it from their parent
_settled = {}  # {host: what this process has found to be right}; in the process of a task nothing changes


class RunPlan:
    """Plans of hosts, each with a fingerprint of the variables that it was made from."""

    def __init__(self):
        self._noted = {}

    def recall(self, host, variables_of, deploys):
        """The plan of a host, None where there is none or variables that it read have changed since.

        variables_of: host -> HostVariables.
        """
        found = _settled.get(host) if _in_task() else None
        if found is None:
            found = load().get(host)
            if found is None or any(
                variables_of(one).fingerprint(read) != fingerprint for one, (read, fingerprint) in found["of"].items()
            ):
                return None
            if _in_task():
                _settled[host] = found
        return found["plan"] if found["deploys"] or not deploys else None

    def note(self, host, asked, deploys, plan):
        """Remember a host's plan, for this process, and for others with save(). asked: HostVariables that it read."""
        of = {one.host: [sorted(one.read), one.fingerprint(one.read)] for one in asked}
        self._noted[host] = found = {"of": of, "deploys": deploys, "plan": plan}
        if _in_task():
            _settled[host] = found

    def save(self):
        """Keep what was noted for all tasks that follow."""
        write_atomic(_path(), json.dumps({**load(), **self._noted}), 0o600)


def load():
    """{host: what save() kept}; in the main process also for the processes that it starts."""
    try:
        stat = os.stat(_path())
        key = (stat.st_ino, stat.st_mtime_ns, stat.st_size)
        if _loaded.get("stat") != key:
            with open(_path(), encoding="utf-8") as stream:
                _loaded.update(stat=key, hosts=json.load(stream))
    except FileNotFoundError:
        return {}
    return _loaded["hosts"]


def _path():
    return os.path.join(C.DEFAULT_LOCAL_TMP, NAME)


def _in_task():
    """Whether this is the process of a task, which ends with it."""
    return multiprocessing.parent_process() is not None
