# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The plan of a run of ansible-playbook, and plans of earlier runs. The first task of a run makes its plan, and all
other tasks use it while it is valid.

Each task runs in a separate process, so the plan is stored in a file in the run's temporary folder, which
ansible-playbook removes at its end. The file contains the result of the lookup, and no secrets. A plan is valid while
the variables of its host are unchanged; those of other hosts count when the run begins.

A run with the plan of an earlier run does not import the planner. The cache has a file for each question (arguments,
code, folder) with the last plan, the names of the variables and the paths of the files that it was made from, and a
digest of their values. The plan is used again while the digest is the same. Files and the folder must belong to this
account alone. Without a folder to write to there is no cache; nothing there is an error.
"""

from __future__ import annotations

import contextlib
import json
import multiprocessing
import os
import sys

from ansible import constants as C
from ansible.release import __version__ as ansible_version

from ...module_utils.fleet_node.host.files import write_atomic
from ...module_utils.fleet_node.host.server_spec import digest
from .. import cache_folder, seen_files
from ..seen_files import COLLECTION
from .inventory import cluster_of

NAME = "inference-fleet-plan.json"
ELSEWHERE = "workers_elsewhere"  # of a deployment: the workers of the cluster without the host's own
_loaded = {}  # the file when it was last read: {"stat": …, "found": …}; processes of tasks inherit it
_settled = {}  # {host: (deploys, plan)} that this process has found valid; nothing changes during the process of a task


class RunPlan:
    """Plans of hosts. packed: as JSON, {hosts: {host: {deploys, plan, names, cluster}}, workers: {cluster: [worker]}};
    names are those of the host's variables that were read."""

    def __init__(self, recalls=True):
        """recalls: whether the results of an earlier task are used."""
        self._recalls = recalls
        self.packed = {"hosts": {}, "workers": {}}

    def recall(self, host, others, deploys):
        """Return the plan of a host, None if there is none or if its variables that were read have changed since.
        others: Hosts."""
        if not self._recalls:
            return None
        if host not in _settled:
            kept = load()
            found = kept["hosts"].get(host)
            if found is None or found["plan"] is None or others(host).fingerprint(found["names"]) != found["print"]:
                return None
            plan = found["plan"]
            if found["cluster"] is not None:
                workers = [one for one in kept["workers"][found["cluster"]] if one["host"] != host]
                plan = {**plan, "deployment": {**plan["deployment"], ELSEWHERE: workers}}
            if not _in_task():
                return plan if found["deploys"] or not deploys else None
            _settled[host] = found["deploys"], plan
        good, plan = _settled[host]
        return plan if good or not deploys else None

    def note(self, variables, deploys, plan, workers):
        """Store a host's plan. variables: its HostVariables. workers: all of its cluster, if the plan has workers of
        other hosts. Their number would grow with the square of the number of hosts, so they are stored once."""
        host, deployment, cluster = variables.host, plan["deployment"], None
        if _in_task():
            _settled[host] = deploys, plan
        if ELSEWHERE in (deployment or ()):
            cluster = cluster_of(variables)
            self.packed["workers"][cluster] = workers
            plan = {**plan, "deployment": {key: one for key, one in deployment.items() if key != ELSEWHERE}}
        names = sorted(variables.read)
        self.packed["hosts"][host] = {"deploys": deploys, "plan": plan, "names": names, "cluster": cluster}

    def refuse(self, reasons):
        """Store that hosts cannot be planned. reasons: {host: reason}."""
        self.packed["hosts"].update({host: {"plan": None, "why": why} for host, why in reasons.items()})


def save(packed, others):
    """Save the plans of a RunPlan for all following tasks. others: Hosts."""
    kept = load()
    for host, found in packed["hosts"].items():
        if found["plan"] is not None:
            found = {**found, "print": others(host).fingerprint(found["names"])}
        kept["hosts"][host] = found
    kept["workers"].update(packed["workers"])
    write_atomic(_path(), json.dumps(kept), 0o600)


def recalled(hosts, others, deploys):
    """Return {host: plan} if all hosts have a valid plan, else None. others: Hosts."""
    found = {host: RunPlan().recall(host, others, deploys) for host in hosts}
    return None if None in found.values() else found


def plans_of(hosts, others, deploys):
    """Return {host: plan} of the hosts, from this run or newly made. The planner is imported only to make plans.
    Raises FleetError."""
    found = recalled(hosts, others, deploys)
    if found is None:
        from . import fleet

        found = fleet.plan_hosts(hosts, others, deploys, RunPlan())
    return found


def load():
    """Return the content that save() wrote; in the main process also for the processes that it starts."""
    try:
        stat = os.stat(_path())
        key = (stat.st_ino, stat.st_mtime_ns, stat.st_size)
        if _loaded.get("stat") != key:
            with open(_path(), encoding="utf-8") as stream:
                _loaded.update(stat=key, found=json.load(stream))
    except FileNotFoundError:
        return {"hosts": {}, "workers": {}}
    return _loaded["found"]


def refused():
    """Return {host: reason} of the hosts that the run's first task could not plan."""
    return {host: found["why"] for host, found in load()["hosts"].items() if found["plan"] is None}


def _path():
    return os.path.join(C.DEFAULT_LOCAL_TMP, NAME)


def _in_task():
    """Return whether this is the process of a task, which ends with the task."""
    return multiprocessing.parent_process() is not None


VARIABLE = "INFERENCE_FLEET_PLAN_CACHE"  # environment variable: another folder; empty: no cache
KEPT = 50  # plans
MOST = 64 << 20  # bytes of all plans, and of one plan
# Files that determine plans, in addition to the Python code that the planner imports: its data, the roles and the
# steps' playbooks.
CODE = ("playbooks/steps", "plugins/action", "plugins/lookup", "plugins/module_utils", "plugins/plugin_utils",
        "recipes", "roles")  # fmt: skip


def folder():
    """Return the folder of the plans, None if there is none."""
    given = os.environ.get(VARIABLE, cache_folder.folder("plans"))
    return os.path.abspath(given) if given else None


class PlanCache:
    """The kept plan for a question."""

    def __init__(self, question):
        """question: the arguments of the plan, as JSON."""
        self._path, where = None, folder()
        if where:
            with contextlib.suppress(OSError, TypeError, ValueError):  # no permission, or a question that is not JSON
                cache_folder.prepare(where)
                base = [sys.version, ansible_version, code(), os.getcwd(), os.path.expanduser("~"), question]
                self._path = os.path.join(where, digest(base) + ".json")

    def recall(self, others):
        """Return the kept answer, None if there is none or something has changed. others: Hosts."""
        data = cache_folder.read(self._path, MOST) if self._path else None
        # a host that was removed, or a damaged file
        with contextlib.suppress(OSError, KeyError, ValueError, TypeError, AttributeError, RecursionError):
            kept = json.loads(data or b"null")
            if kept is not None and kept["digest"] == _digest(kept, others, seen_files.state):
                os.utime(self._path)  # plans in use are not removed
                return kept["answer"]
        return None

    def keep(self, others, answer):
        """Keep an answer, as JSON. others: Hosts that it was made from."""
        if self._path is None:
            return
        variables = {}
        for one in others.asked():
            variables.setdefault(frozenset(one.read | one.looked), []).append(one.host)
        kept = {
            "variables": [{"names": sorted(names), "hosts": hosts} for names, hosts in variables.items()],
            "files": sorted(seen_files.seen),
            "answer": answer,
        }
        with contextlib.suppress(OSError, KeyError, ValueError, TypeError, AttributeError):
            kept["digest"] = _digest(kept, others, seen_files.seen.get)
            body = json.dumps(kept)
            if len(body) < MOST:
                write_atomic(self._path, body, 0o600)
                cache_folder.prune(os.path.dirname(self._path), KEPT, MOST)


def _digest(kept, others, state):
    """Return a digest of the variables and files that a plan was made from. state(path) -> of a file or folder."""
    values = [[host, others(host).fingerprint(one["names"])] for one in kept["variables"] for host in one["hosts"]]
    return digest([values, [[path, state(path)] for path in kept["files"]]])


def code():
    """Return a digest of the collection's files that determine plans."""
    files = {top: seen_files.files_below(os.path.join(COLLECTION, top)) for top in CODE}
    return seen_files.digest_of(COLLECTION, [os.path.join(top, name) for top, names in files.items() for name in names])
