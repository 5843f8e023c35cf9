# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Operations on the servers of a node: verdicts, which are written here or become invalid, and tables."""

from __future__ import annotations

import os

from ansible.errors import AnsibleConnectionFailure
from ansible.module_utils.parsing.convert_bool import boolean

from ...module_utils.fleet_node.host.files import fits, readable_json
from ...module_utils.fleet_node.host.redact import TOKEN_LENGTH
from ...module_utils.fleet_node.host.server_spec import digest
from ...module_utils.fleet_node.host.values import items_of
from ..base.checks import clean
from ..planning import run_look
from ..reporting import report
from ..reporting.runs import collection_version, reports_folder
from ..reporting.screen import amount, of_candidate, progress_line, show, status_report, unreachable_report

# The effect of each kind of action on a server; other kinds do not change running servers.
ENDS = {
    "create": "started", "change": "restarted", "start": "started", "restart": "restarted", "stop": "stopped",
    "remove": "removed",
}  # fmt: skip
# Calls after which running servers may be changed.
TURNS = ("wave", "one_by_one", "together")
STOPPED = "servers of %s could not be changed, so the run ends; those of %s are left as they are."


def engine_servers(action, arguments, task_vars):
    """Return the result of the operation. Verdicts of the servers that it changes become void."""
    host, stopped = task_vars["inventory_hostname"], run_look.stopped()
    check_mode = action._task.check_mode
    if stopped and arguments.get("changes") in TURNS and not check_mode:
        return {"failed": True, "msg": STOPPED % (stopped, host)}
    if arguments.get("state") == "rolled_back" and not check_mode:
        run_look.note_stopped(host)
    folder = None if check_mode else reports_folder(arguments.get("reports_dir"), task_vars, action._templar)
    try:
        result = action.call("engine_servers", engine_servers_sent(action, arguments), task_vars)
    except AnsibleConnectionFailure:
        if folder:
            void({}, folder, host, _unknown(arguments))
        raise
    done = result.get("actions")
    actions = {one["name"]: ENDS[one["kind"]] for one in done or () if one["kind"] in ENDS}
    if done is None and result.get("failed") and not result.get("code"):  # the program itself was ended
        actions = _unknown(arguments)
    if folder:
        void(result, folder, host, actions)
    return result


def _unknown(arguments):
    """Return {server: what was done} of a call without an answer."""
    names = arguments.get("only") or [one["name"] for one in items_of(arguments.get("servers"))]
    return dict.fromkeys(names, "in a change without an answer of the node")


def void(result, folder, host, actions):
    """Void the verdicts of servers {name: what was done}. If that is not possible, the result has a warning."""
    try:
        if actions:
            report.void_verdicts(folder, host, actions)
    except OSError as error:
        result.setdefault("warnings", []).append(
            "The verdicts of %s are no longer true, and the reports in %s still have them: %s."
            % (", ".join(sorted(actions)), folder, error.strerror)
        )


def engine_servers_sent(_action, arguments):
    """Return the arguments for the managed node."""
    return {name: value for name, value in arguments.items() if name != "reports_dir"}


def engine_servers_info(action, arguments, task_vars):
    """Return the state of the servers, and fleet_report if it shows a table."""
    host = task_vars["inventory_hostname"]
    arguments = dict(arguments)
    shown = boolean(arguments.pop("report", None) or not action._task.register)
    if arguments.get("secrets") is None:
        arguments["secrets"] = _known_secrets(action, arguments.get("servers"), task_vars)
    try:
        result = action.call("engine_servers_info", arguments, task_vars)
    except AnsibleConnectionFailure as error:
        result = {"unreachable": True, "msg": str(error)}
    if shown and result.get("unreachable"):
        result["fleet_report"] = unreachable_report(host)
    elif shown and "servers" in result:
        result["fleet_report"] = status_report(host, result["servers"])
    if arguments.get("probe") and not all(server.get("ready") for server in result.get("servers") or ()):
        result.setdefault("msg", progress_line(result))  # until a task's retries end, Ansible has no other reason
    if "fleet_report" in result:
        show(result["fleet_report"])
    return result


def readable(action, task_vars, name):
    """Return the value of a variable, None if it cannot be read here: a locked vault, an undefined variable."""
    try:
        return action._templar.template(task_vars[name])
    except Exception:  # the templating engine may raise anything
        return None


def _known_secrets(action, servers, task_vars):
    """Return {variable: value} of the servers' secrets, except those that cannot be read, which is not an error here.

    The values are masked in the module's entire output. Short values would match everywhere, so they are left out.
    """
    given = [entry["secrets"] for entry in items_of(servers) if isinstance(entry.get("secrets"), dict)]
    known = {}
    for name in {name for secrets in given for name in secrets.values() if name in task_vars}:
        value = readable(action, task_vars, name)
        values = value if isinstance(value, list) else [] if value is None else [str(value)]
        if values and all(len(str(one)) >= TOKEN_LENGTH for one in values):
            known[name] = value if isinstance(value, list) else str(value)
    return known


def foreign_servers(action, arguments, task_vars):
    """Return the servers that were started by hand, each with the recipe of its arguments. Raises FleetError."""
    # imports the planner, which a converged run does not need
    from ..recipe.imported import recipe_of

    result = action.call("foreign_servers", arguments, task_vars)
    planned = {entry["name"]: entry for entry in arguments["servers"]}
    for one in result.get("found") or ():
        one["name"] = "%s-%s" % (task_vars["inventory_hostname"], one["server"])
        base = str(action._templar.template(task_vars["fleet_recipe"]))
        one["recipe"] = recipe_of(one["name"], base, planned[one["server"]], one)
    return result


def unused_files(action, arguments, task_vars):
    """Return the files that no planned server needs, and fleet_report."""
    result = action.call("unused_files", arguments, task_vars)
    if "unused" in result:
        result["fleet_report"] = unused_table(task_vars["inventory_hostname"], result, action._task.check_mode)
        show(result["fleet_report"])
    return result


def unused_table(host, result, check):
    """Return {title, columns, rows} of the module's result."""
    gone = "would be deleted" if check else "deleted"
    rows = []
    for one in result["unused"]:
        state = gone if one["path"] in result["removed"] else _state_of(one)
        rows.append([host, one["path"], one["kind"], amount(one["size"]), state, one["why"]])
    if rows:
        total = sum(one["size"] for one in result["unused"])
        rows.append([host, "all of it", "-", amount(total), "-", "-"])
    return {"title": "Unused files", "columns": ["host", "path", "what", "size", "state", "why"], "rows": rows}


def _state_of(one):
    """Return the state of a file that is not deleted."""
    if one["mounted"]:
        return "stays: something is mounted in it"
    return "other nodes may use it" if one["shared"] else "there"


HERE = ("deployment", "problem", "reports_dir", "simulated")  # not needed on the node
ASKED = ("probes", "effort_parameter", "responses_api", "timeout")  # what else a full verification depends on


def endpoint_verify(action, arguments, task_vars):
    """Return the verdicts, and fleet_report; see modules/endpoint_verify.py."""
    host = task_vars["inventory_hostname"]
    folder = arguments.get("reports_dir")
    folder = os.path.abspath(os.path.expanduser(folder)) if folder else None
    asked = verification_arguments(arguments, host, folder, run_look.unchanged(host))
    result = action.call("endpoint_verify", asked, task_vars)
    if result.get("failed") or "verdicts" not in result:
        return result
    if result["mode"] == "full":
        asked = digest_of(arguments)
        result["verdicts"] = [{**verdict, "asked": asked} for verdict in result["verdicts"]]
    problems = [report.failure_message(host, result["verdicts"])] if result["ok"] is False else []
    if problems and arguments.get("problem"):  # the reason for the servers' answers
        problems.insert(0, arguments["problem"])
    if not action._task.check_mode:
        plan = [clean(arguments.get(name), name) for name in ("servers", "deployment")]
        what = report.deployed(*plan, arguments.get("simulated"))
        written = (result["mode"], result["verdicts"], task_vars["groups"]["all"], what, arguments.get("problem"))
        verdict, warning = _report(folder, host, *written)
        result["verdict"] = report.summary(verdict[host])
        # For AWX and callbacks that write data. Ansible discards the statistics of a failed task; the role sets them
        # then.
        data = {"fleet_verdict": {host: result["verdict"]}}
        result["ansible_stats"] = {"data": data, "per_host": False, "aggregate": True}
        if warning:
            result.setdefault("warnings", []).append(warning)
        elif folder:
            result["fleet_page"] = report.page_path(folder)
            places = (report.host_path(folder, host), report.page_path(folder))
            problems += ["The complete report: %s\nThe same as a page: %s" % places] if problems else []
    result["fleet_report"] = of_candidate(report.table(host, result["verdicts"]), task_vars)
    show(result["fleet_report"])
    if problems:
        result.update(failed=True, msg="\n".join(problems))
    return result


def verification_arguments(arguments, host, folder, unchanged):
    """Return the arguments for the managed node. folder: of the reports, or None.
    unchanged: the run changes nothing."""
    found = {name: value for name, value in arguments.items() if name not in HERE}
    if unchanged:
        found["servers_changed"] = False
    if folder and found.get("mode", "auto") == "auto":
        changed = found.get("servers_changed")
        changed = None if changed is None else boolean(changed, strict=False)
        before = readable_json(report.host_path(folder, host))
        before = before if fits(before, report.HOST, complete=True) else None
        found["mode"] = report.settle_auto(changed, found["servers"], before, digest_of(arguments))
    return found


def digest_of(arguments):
    """Return the sha256 of what a full verification asks, without the plan entries, and of the collection's version."""
    asked = clean([arguments.get(name) for name in ASKED], "the verification")
    asked = [one if isinstance(one, list) else str(one) for one in asked]  # words, if Ansible has no native templates
    return digest([*asked, collection_version()])


def _report(folder, host, mode, verdicts, inventory_hosts, what, problem):
    """Return ({host: report}, warning or None). The report is written below `folder`, if it is set and writable."""
    verified = {host: (mode, verdicts, what, problem)}
    try:
        return report.write_all(folder, verified, inventory_hosts), None
    except OSError as error:
        return report.write_all(None, verified, inventory_hosts), report.not_written(folder, error)
