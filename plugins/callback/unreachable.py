# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Adds the reasons of unreachable hosts to the reports, and stores which hosts failed, with any stdout callback."""

from __future__ import annotations

DOCUMENTATION = r"""
name: unreachable
type: aggregate
short_description: Report why hosts were unreachable
version_added: 0.1.0
author:
  - inference.fleet contributors (!UNKNOWN)
description:
  - At the end of a run with verdicts, the reason of each unreachable host is added to the report. With other stdout
    callbacks than P(inference.fleet.fleet#callback) the reasons are also printed.
  - The first host whose running servers change, alone, is one without a failed task.
  - The playbooks of this collection load it. For other playbooks, set
    C(callbacks_enabled = inference.fleet.unreachable) in ansible.cfg.
"""

from ansible.plugins.callback import CallbackBase
from ansible_collections.inference.fleet.plugins.plugin_utils.planning import run_look
from ansible_collections.inference.fleet.plugins.plugin_utils.reporting import screen


class CallbackModule(CallbackBase):
    """The callback inference.fleet.unreachable."""

    CALLBACK_VERSION = 2.0
    CALLBACK_TYPE = "aggregate"
    CALLBACK_NAME = "inference.fleet.unreachable"

    def __init__(self, *arguments, **named):
        super().__init__(*arguments, **named)
        self._reasons = {}
        self._runs = {}
        self._failed = set()

    def v2_runner_on_ok(self, result):
        """Store the reports of this run: the report of kind verification contains their folder."""
        folder, run = result.result.get("reports_dir"), result.result.get("run")
        if isinstance(folder, str) and isinstance(run, dict) and result.task.action.endswith(".report"):
            self._runs[folder] = run["id"]

    def v2_runner_on_start(self, host, _task):
        """Store that a host continues after a failed task, such as with a rescue."""
        if host.get_name() in self._failed:
            self._failed.remove(host.get_name())
            run_look.note_failed(host.get_name(), False)

    def v2_runner_on_failed(self, result, ignore_errors=False):
        """Store that a task of the host failed."""
        if not ignore_errors:
            self._note_failed(result.host.get_name())

    def _note_failed(self, host):
        self._failed.add(host)
        run_look.note_failed(host, True)

    def v2_runner_on_unreachable(self, result):
        """Store the reason."""
        host = result.host.get_name()
        self._note_failed(host)
        self._reasons[host] = screen.reason(result.result.get("msg", ""), host)

    def v2_playbook_on_stats(self, stats):
        """Print the reasons, and add them to the reports."""
        reasons, self._reasons = self._reasons, {}
        if not reasons:
            return
        screen.show(screen.unreachable_table(reasons))
        from ansible_collections.inference.fleet.plugins.plugin_utils.reporting import report  # only for such a run

        for folder, run in self._runs.items():
            try:
                report.say_unreachable(folder, run, reasons)
            except OSError as error:
                self._display.warning("The reasons of unreachable hosts could not be written to %s: %s."
                                      % (folder, error.strerror))  # fmt: skip
