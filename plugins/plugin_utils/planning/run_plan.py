# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The plan of a run of ansible-playbook, and plans of earlier runs. The first task of a run makes its plan, and all
other tasks use it while it is valid.

Each task runs in a separate process, so the plan is stored in a file in the run's temporary folder, which
ansible-playbook removes at its end. The file contains the result of the lookup, and no secrets. Data that many hosts
share, such as the hosts and workers of their cluster, is stored once.

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
from .inventory import one_machine

NAME = "inference-fleet-plan.json"
ELSEWHERE = "workers_elsewhere"  # of a deployment: the workers of the cluster without the host's own
_loaded = {}  # the file when it was last read: {"stat": …, "found": …}; processes of tasks inherit it
_settled = {}  # {host: plan that this process has found valid}; nothing changes during the process of a task
_right = set()  # (host, fingerprint) of hosts of clusters that were valid when the play began


class RunPlan:
    """Plans of hosts, and the variables that each was made from."""

    def __init__(self, recalls=True):
        """recalls: whether the results of an earlier task are used;
        otherwise everything that this object plans is recorded."""
        self._recalls = recalls
        self._noted = {}  # host → {deploys, plan, of: hosts whose variables it was made from, workers: of its cluster}
        self._read = {}  # host → (HostVariables, names of those that were read)

    def recall(self, host, others, deploys):
        """Return the plan of a host, None if there is none or if variables that it read have changed since.
        others: Hosts."""
        if not self._recalls:
            return None
        found = _settled.get(host) if _in_task() else None
        if found is None:
            kept = load()
            found = kept["hosts"].get(host)
            if found is None or found["plan"] is None:
                return None
            if not all(_holds(kept, one, others, host) for one in kept["lists"][found["of"]]):
                return None
            found = {**found, "plan": _unpacked(host, found, kept["lists"])}
            if _in_task():
                _settled[host] = found
        return found["plan"] if found["deploys"] or not deploys else None

    def note(self, host, asked, deploys, plan, workers=None):
        """Store a host's plan for this process, and with save() for other processes.

        asked: HostVariables that it read. workers: all of the host's cluster, if the plan contains workers of other
        hosts.
        """
        self._read.update((one.host, (one, one.read)) for one in asked)
        self._noted[host] = {"deploys": deploys, "plan": plan, "of": [one.host for one in asked], "workers": workers}
        if _in_task():
            _settled[host] = self._noted[host]

    def refuse(self, reasons):
        """Store that hosts cannot be planned. reasons: {host: reason}."""
        for host, why in reasons.items():
            self._noted[host] = {"deploys": False, "plan": None, "of": [], "workers": None, "why": why}

    def packed(self):
        """Return the stored plans as JSON: {hosts: {host: {deploys, plan, of, workers}}, lists, names}.

        The host's `of` and `workers` are names in `lists`, so data that many hosts share is stored once.
        """
        lists, hosts = {}, {}
        for host, found in self._noted.items():
            plan, everyone, name = found["plan"], found["workers"], None
            if everyone is not None:
                plan, name = own_part(plan), _named(lists, everyone)
            hosts[host] = {**found, "plan": plan, "of": _named(lists, sorted(found["of"])), "workers": name}
        names = {host: sorted(names) for host, (_variables, names) in self._read.items()}
        return {"hosts": hosts, "lists": lists, "names": names}

    def take(self, packed, others):
        """Store the result of packed() in an earlier run. others: Hosts. Return {host: plan}."""
        for host, names in packed["names"].items():
            self._read[host] = others(host), names
        for host, found in packed["hosts"].items():
            everyone = found["workers"] and packed["lists"][found["workers"]]
            plan = _unpacked(host, found, packed["lists"])
            self._noted[host] = {**found, "plan": plan, "of": packed["lists"][found["of"]], "workers": everyone}
        return self.planned()

    def planned(self):
        """Return {host: plan} of all hosts that could be planned."""
        return {host: found["plan"] for host, found in self._noted.items() if found["plan"] is not None}

    def save(self):
        """Save the plans for all following tasks."""
        packed, kept = self.packed(), load()
        for host, names in packed["names"].items():  # a plan that was made before may have read more
            packed["names"][host] = sorted({*names, *kept["names"].get(host, ())})
        packed["prints"] = {host: self._read[host][0].fingerprint(names) for host, names in packed["names"].items()}
        write_atomic(_path(), json.dumps({key: {**kept[key], **packed[key]} for key in kept}), 0o600)


def _named(table, value):
    """Return the name of the value in `table`, a digest."""
    name = digest(value)
    table[name] = value
    return name


def own_part(plan):
    """Return a host's plan without the workers of other hosts: their number would grow with the square of the number of
    hosts."""
    deployment = plan["deployment"] or {}
    kept = {key: one for key, one in deployment.items() if key != ELSEWHERE}
    return {**plan, "deployment": kept} if ELSEWHERE in deployment else plan


def _elsewhere(workers, host):
    return [one for one in workers if one["host"] != host]


def _unpacked(host, found, lists):
    """Return the plan of a host in its original form. lists: of the file or of packed()."""
    plan = found["plan"]
    if found["workers"] is None:
        return plan
    deployment = {**plan["deployment"], ELSEWHERE: _elsewhere(lists[found["workers"]], host)}
    return {**plan, "deployment": deployment}


def _holds(kept, one, others, host):
    """Return whether the variables of the host `one`, which the plan of `host` was made from, are unchanged. The
    variables of other hosts are checked once per play, because a check for each task of each host would grow with the
    square of the number of hosts."""
    found = kept["prints"][one]
    return (one != host and (one, found) in _right) or others(one).fingerprint(kept["names"][one]) == found


def recalled(hosts, others, deploys):
    """Return {host: plan} if all hosts have a valid plan and no two of them are the same machine, else None; planning
    then reports the reason. others: Hosts."""
    run_plan, found = RunPlan(), {}
    for host in hosts:
        found[host] = run_plan.recall(host, others, deploys)
        if found[host] is None:
            return None
    return None if any(one_machine(found, others)) else found


def plans_of(hosts, others, deploys):
    """Return {host: plan} of the hosts, from this run or newly made. The planner is imported only to make plans.
    Raises FleetError."""
    found = recalled(hosts, others, deploys)
    if found is None:
        from . import fleet

        found = fleet.plan_hosts(hosts, others, deploys, RunPlan())
    return found


def settle(others):
    """Check the variables that plans of other hosts depend on, once for the processes of all tasks of a play."""
    kept = load()
    of = [kept["lists"][name] for name in {found["of"] for found in kept["hosts"].values()}]
    shared = {one for hosts in of if len(hosts) > 1 for one in hosts}
    _right.clear()
    _right.update((one, kept["prints"][one]) for one in sorted(shared) if _holds(kept, one, others, None))


def load():
    """Return the content that save() wrote: that of packed(), and {host: fingerprint of its variables} as `prints`; in
    the main process also for the processes that it starts."""
    try:
        stat = os.stat(_path())
        key = (stat.st_ino, stat.st_mtime_ns, stat.st_size)
        if _loaded.get("stat") != key:
            with open(_path(), encoding="utf-8") as stream:
                _loaded.update(stat=key, found=json.load(stream))
    except FileNotFoundError:
        return {"hosts": {}, "lists": {}, "names": {}, "prints": {}}
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
    given = os.environ.get(VARIABLE)
    if given is None:
        return cache_folder.folder("plans")
    return os.path.abspath(os.path.expanduser(given)) if given else None


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
            if kept is not None and kept["digest"] == _digest(kept, others, seen_files.now):
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
        seen = seen_files.seen()
        kept = {
            "variables": [{"names": sorted(names), "hosts": hosts} for names, hosts in variables.items()],
            "files": sorted(map(list, seen)),
            "answer": answer,
        }
        with contextlib.suppress(OSError, KeyError, ValueError, TypeError, AttributeError):
            kept["digest"] = _digest(kept, others, lambda kind, path: seen[kind, path])
            body = json.dumps(kept)
            if len(body) < MOST:
                write_atomic(self._path, body, 0o600)
                cache_folder.prune(os.path.dirname(self._path), KEPT, MOST)


def _digest(kept, others, content):
    """Return a digest of the variables and files that a plan was made from. content(kind, path) -> of a file."""
    values = [[host, others(host).fingerprint(one["names"])] for one in kept["variables"] for host in one["hosts"]]
    files = [[kind, path, content(kind, path)] for kind, path in kept["files"]]
    return digest([values, files])


def code():
    """Return a digest of the collection's files that determine plans."""
    files = {top: seen_files.files_below(os.path.join(COLLECTION, top)) for top in CODE}
    return seen_files.digest_of(COLLECTION, [os.path.join(top, name) for top, names in files.items() for name in names])
