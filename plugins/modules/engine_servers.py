#!/usr/bin/python
# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

DOCUMENTATION = r"""
module: engine_servers
short_description: Bring the inference servers of a node to the plan
version_added: 0.1.0
description:
  - Compares the plan's entries with what is deployed and what runs, and changes only what differs. Missing servers are
    started, changed ones restarted, and servers of an earlier plan that are no longer in it are stopped and removed.
  - It starts and returns; the operation C(engine_ready) waits. A stop takes up to 20 seconds (systemd stops a leader
    after those that start after it), is sent to the whole process group or cgroup, TERM and then KILL, and is proven by
    the absence of processes and the free port.
  - All new files are checked and written beside the old ones, and ports are looked up, before anything is stopped.
  - A server is restarted when its weights were repaired or updated since it was started. The guard records at the start
    what the manifest beside them says; without a manifest there is nothing to compare.
  - With O(state=started) a server that runs and does not serve is restarted, of several one for each run
    (RV(repaired), RV(pending)). It was ready and does not answer any more, its health path within 10 seconds or one
    token within 60, or a signal stopped it; it does not answer and its start budget is over; the record of its start is
    gone; or its vocabulary (E(TIKTOKEN_ENCODINGS_BASE)) came after its start.
  - A server whose unit of systemd was disabled, or has another text, is enabled again without a restart. A masked unit
    is an error.
  - A server is also restarted if it runs as another user, if its unit executes another program, or if its container
    runs another image than the planned image's name means now. The reasons are in the diff.
  - Files with another mode or owner, and units that systemd holds in an older version, are corrected without a restart.
    The units are read again only where no container runs on the node, whose devices that might take away; elsewhere
    systemd does so before the next start.
  - Drop-ins and other files that somebody added for these servers stay; M(inference.fleet.engine_servers_info) returns
    them as notes.
  - A server restarts by itself when it ends, up to five times within ten start budgets; then it is C(failed), and the
    next run with O(state=started) starts it again.
options:
  state:
    description:
      - V(started) deploys the entries and starts what does not run as planned.
      - V(stopped) ends the processes and keeps the files; V(started) starts them again.
      - V(restarted) is V(started), and restarts those that run as planned as well.
      - V(absent) stops the servers and removes their entry, service definition, secrets, config, record and log.
      - V(verified) deletes the definitions that O(changes=wave) replaced, as the servers with the new ones are
        verified. V(rolled_back) puts them back instead and starts them, those of containers with the image that their
        name meant before. Where none are kept it does nothing.
    type: str
    default: started
    choices: [started, stopped, restarted, absent, verified, rolled_back]
  changes:
    description:
      - What becomes of servers that run and have to be stopped, since their definition changed, they are restarted, or
        another server needs their devices or ports.
      - V(at_once) stops and starts them all now.
      - V(one_by_one) leaves them as they are and returns the order in which to change them, RV(waves). Everything else
        is done. V(together) does the same with one wave, except for repairs, which take turns.
      - V(wave) changes the servers that O(only) names, and removes those of them that are not in the plan. The
        definitions that it replaces are kept on the node until O(state=verified) or O(state=rolled_back).
    type: str
    default: at_once
    choices: [at_once, wave, one_by_one, together]
  drain_s:
    description:
      - Seconds that a server which is to be changed has to finish its requests before it is stopped, as its engine
        counts them on C(/metrics), or by the connections of clients. It is stopped as soon as it has none.
      - A server whose command says how long it finishes its requests when it is asked to end has that time on top.
    type: float
    default: 0
  secrets:
    description:
      - The values of the secrets, by the name of the variable that an entry's C(secrets) names.
      - They reach the engine through a file with mode 0600 and its environment, never through a command line.
    type: dict
  user:
    description:
      - The user that servers run as whose entry names none. Whoever runs the module by default.
    type: str
  deployment:
    description:
      - The recipe as resolved for this host, C(lookup('inference.fleet.plan', field='deployment')). Its name is written
        down with the servers. For the action plugin.
    type: dict
  deployer:
    description:
      - What is written down on the node with each deployed server, so that another run can name this one. C(by), C(at),
        C(run) and C(recipe). The action plugin of the same name fills it in.
    type: dict
  reports_dir:
    description:
      - Directory on the controller with the reports. The verdicts of the servers that were started, restarted, stopped
        or removed are voided there, as they are no longer true. By default C(verify_reports_dir), or
        C(fleet_reports_dir), or C(reports/) and the inventory's name. Empty voids none. For the action plugin.
    type: path
  restarted:
    description:
      - Names of servers that an earlier task restarted, such as a restart of their container engine. Their verdicts are
        voided as well. For the action plugin.
    type: list
    elements: str
    default: []
  purge:
    description:
      - With O(state=absent), also delete the directories of the servers (work, compile, artifact, cache) that no other
        server here uses. An artifact outside the root's own C(var/lib/inference-fleet), or on a file system of its own,
        stays, since it may be that of a whole fleet, which other nodes mount.
    type: bool
    default: false
  watchdog:
    description:
      - Have the node itself restart servers that do not answer, by a timer of systemd
        (C(inference-fleet-watchdog.timer)) or a program of supervisord. Without it there is none, and with
        O(state=absent) it is removed. O(state=stopped) leaves it as it is, and so does O(only).
      - It asks each server for one completion of one token. A server that answers with a status below 500, or goes on
        counting tokens on its C(/metrics) meanwhile, is alive. Of one that clients do not talk to, such as a decode
        worker, the health path is asked.
      - Left alone are servers that do not run, whoever stopped them, and those that have not answered since their start
        and are within their start budget. A restart counts as a start for the start limit.
      - The API key is read from the server's file of secrets, and is in no argument.
      - What it finds and does is in the journal (C(journalctl -t inference-fleet-watchdog)), or in
        C(var/log/inference-fleet/watchdog.log) below the root.
    type: dict
    suboptions:
      interval:
        description: Seconds from the end of one round to the next.
        type: int
        default: 60
      failures:
        description: After how many failures in a row a server is restarted.
        type: int
        default: 3
      timeout:
        description: Seconds for each answer.
        type: int
        default: 60
  logs:
    description:
      - How much the servers may log. It is remembered on the node; without it that stays as it is.
      - A change takes effect at the next start of each server.
    type: dict
    suboptions:
      rate:
        description:
          - Under systemd, lines of a server that the journal takes in 30 seconds; what is over that is dropped and
            counted there, so that no server displaces what others wrote. 0 for no limit.
        type: int
        default: 10000
      file_mb:
        description: Under supervisord, size at which a log file is rotated, in MB.
        type: int
        default: 50
      files:
        description: Under supervisord, how many log files of a server there are, the current one included.
        type: int
        default: 4
  start_on_boot:
    description:
      - What starts supervisord, and the servers with it, after a reboot. Units of systemd start by themselves, and this
        does nothing there.
      - V(crontab) adds one line to the crontab of whoever runs this, and leaves all others as they are. V(user-unit)
        adds a unit to the user's own systemd and lets the user linger, so that it runs without a login. V(auto) takes
        the one that is open to the user, V(none) removes what an earlier run added, as O(state=absent) does.
      - Where it cannot be done the module succeeds with a warning.
      - Servers that were stopped stay stopped. O(state=stopped) and O(only) leave it as it is.
    type: str
    default: none
    choices: [none, auto, crontab, user-unit]
  purge_artifacts:
    description:
      - With O(purge=true), also delete artifacts outside the root's own folder, for all nodes that mount them.
    type: bool
    default: false
extends_documentation_fragment:
  - inference.fleet.node
  - inference.fleet.node.servers
attributes:
  check_mode:
    description: Everything is decided, nothing is done. What an earlier task would have installed may be missing.
    support: full
  diff_mode:
    description: For each server its state and the fields of its entry that change. Secrets appear by name and version.
    support: full
  idempotent:
    description: A second run changes nothing, except with O(state=restarted) and for servers that have failed.
    support: partial
notes:
  - On a root of its own the module needs no privileges. For the system's own root, or where servers run as another
    user, run it with become.
author:
  - inference.fleet contributors (!UNKNOWN)
"""

EXAMPLES = r"""
- name: The servers run as planned
  inference.fleet.engine_servers:
    servers: "{{ query('inference.fleet.plan') | flatten }}"
    secrets:
      fleet_hf_token: "{{ fleet_hf_token }}"
    root: "{{ fleet_root }}"

- name: Stop one server and leave the others alone
  inference.fleet.engine_servers:
    servers: "{{ query('inference.fleet.plan') | flatten }}"
    only: [server-1]
    state: stopped
    root: "{{ fleet_root }}"

- name: Nothing of the fleet is left on the node
  inference.fleet.engine_servers:
    servers: []
    root: "{{ fleet_root }}"
"""

RETURN = r"""
servers:
  description:
    - One element for each entry, or for each name in O(only). In check mode as they are now, with what would be done as
      RV(servers[].reason).
  returned: success
  type: list
  elements: dict
  contains:
    name:
      description: Name of the server.
      type: str
      sample: server-0
    state:
      description:
        - V(running), V(waiting) (for another server, or for its next start), V(failed) (it is not started again),
          V(stopped) or V(missing) (not deployed).
      type: str
      sample: running
    ready:
      description: Always null here; the operation C(engine_ready) finds it out.
      type: bool
    since:
      description: When the state began, ISO 8601 in UTC.
      type: str
      sample: "2026-01-15T10:32:05Z"
    restarts:
      description: How often it has restarted by itself since it was last started on purpose.
      type: int
      sample: 0
    pid:
      description: The engine's process; of a server in a container that of the container engine's client.
      type: int
      sample: 4711
    hash:
      description: Hash of the entry that runs, of the deployed one where none does.
      type: str
      sample: 6f1c5bd1f1cd5b8b7e3f35a6b18de5c6b2c0a7e7c0e6d37a1fe1bde6bc7b1c37
    reason:
      description: Why it waits, has failed, or what would be done.
      type: str
      sample: waiting for server-0
    log_tail:
      description: The last 15 lines of the log of a server that has failed.
      type: list
      elements: str
      sample: []
repaired:
  description:
    - What was wrong with servers that ran and did not serve, by the name of the server. They were restarted; where only
      the record of their start was gone and they run what is deployed, it was made anew instead.
  returned: success
  type: dict
  sample: {"server-0": "it was ready and does not answer any more: health: no answer: no whole answer in time (10 s)"}
pending:
  description:
    - Why servers that were left as they are have a turn later, by the name of the server, see RV(waves).
  returned: success
  type: dict
  sample: {}
waves:
  description:
    - The turns, each a list of names that are changed together. Run it for each with O(changes=wave) and these names in
      O(only), when those before are ready. In check mode RV(actions) has them as well.
  returned: success
  type: list
  elements: list
  sample: [[server-0], [server-1]]
back:
  description: Names of the servers that run their old definition again.
  returned: with O(state=rolled_back) and O(state=verified)
  type: list
  elements: str
  sample: [server-0]
versions:
  description:
    - Which version of its definition each server has, C(new) (the plan's), C(old), C(old, rolled back) or
      C(not deployed).
  returned: with O(state=rolled_back) and O(state=verified)
  type: dict
  sample: {"server-0": "new", "server-1": "old, rolled back"}
actions:
  description: What was done, or would be in check mode, with which server and why, C(name), C(kind) and C(reason).
  returned: always, once it began
  type: list
  elements: dict
  sample: [{"name": "server-0", "kind": "restart", "reason": "state is restarted"}]
answering:
  description:
    - Whether nothing was changed and every server runs and answers 200 on its health path. That is no verdict; it only
      says that the operation C(engine_ready) has nothing to wait for.
  returned: success
  type: bool
  sample: false
held:
  description:
    - Processes that hold an accelerator of the stopped servers and are none of ours, C(pid), C(command), C(user) and
      C(devices). What was left of the servers themselves was ended. On a CPU there is nothing to hold.
    - Null where the devices could not be asked, since the driver is broken, not loaded or not there; a warning says so.
  returned: with O(state=stopped) and O(state=absent), outside check mode
  type: list
  elements: dict
  sample: []
kept:
  description: Directories of artifacts that O(purge) left, see O(purge_artifacts).
  returned: success
  type: list
  elements: str
  sample: []
removed:
  description: Names of the servers that were removed, orphaned ones included.
  returned: success
  type: list
  elements: str
  sample: [server-2]
"""
