# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The screen of a fleet: the default output with progress, tables and failures that a person can read."""

from __future__ import annotations

DOCUMENTATION = r"""
name: fleet
type: stdout
short_description: Default output with progress, tables and readable failures
version_added: 0.1.0
author:
  - inference.fleet contributors (!UNKNOWN)
description:
  - Prints what ansible-core's default callback prints, and more. Polling tasks show which server is doing what and
    since when instead of retries that look like failures. Results that carry a table (plan, status, verdicts) are
    gathered from all hosts and printed once, at the end. A failure shows its message once, as text.
  - Use it with C(stdout_callback = inference.fleet.fleet) in ansible.cfg. Every playbook works without it as well.
extends_documentation_fragment:
  - default_callback
  - result_format_callback
"""

import re
import textwrap
import time

from ansible import constants as C
from ansible.plugins.callback.default import CallbackModule as Default
from ansible_collections.inference.fleet.plugins.plugin_utils.tables import gather, progress_line, render, status_report

# Of use to machines, of no use on a screen; -v shows them.
BULKY = ("accelerators", "diff", "fleet_report", "plan", "servers", "verdicts")
PROGRESS_S = 10.0


class CallbackModule(Default):
    """The stdout callback inference.fleet.fleet."""

    CALLBACK_VERSION = 2.0
    CALLBACK_TYPE = "stdout"
    CALLBACK_NAME = "inference.fleet.fleet"

    def __init__(self):
        super().__init__()
        self._reports = {}
        self._last_progress = {}

    def v2_playbook_on_no_hosts_matched(self):
        """A platform that an inventory doesn't have is nothing to report."""
        if self._display.verbosity:
            super().v2_playbook_on_no_hosts_matched()

    def v2_runner_retry(self, result):
        """What the servers are doing, where the result says so; the default's line elsewhere."""
        line = progress_line(result.result)
        if line is None:
            super().v2_runner_retry(result)
            return
        host = result.host.get_name()
        said, when = self._last_progress.get(host, (None, 0.0))
        # Seconds alone are no news; they are told every ten seconds so that silence is not taken for a hang.
        gist = re.sub(r"\d+ s\b", "", line)
        if gist != said or time.monotonic() - when >= PROGRESS_S:
            self._last_progress[host] = (gist, time.monotonic())
            self._display.display("%s: %s" % (host, line), color=C.COLOR_DEBUG)

    def v2_runner_on_ok(self, result):
        """Keep the result's table for the end."""
        gather(self._reports, result.result.get("fleet_report"))
        if result.task.resolved_action == "inference.fleet.engine_servers_info" and not result.task.register:
            gather(self._reports, status_report(result.host.get_name(), result.result["servers"]))
        super().v2_runner_on_ok(result)

    def v2_runner_on_failed(self, result, ignore_errors=False):
        """The message once, as text, instead of twice and escaped."""
        gather(self._reports, result.result.get("fleet_report"))
        message = result.result.get("msg")
        if self._display.verbosity or not isinstance(message, str) or "results" in result.result:
            super().v2_runner_on_failed(result, ignore_errors)
            return
        if self._last_task_banner != result.task._uuid:
            self._print_task_banner(result.task)
        self._handle_warnings(result.result)
        if result.result.get("module_stderr"):
            message += "\n" + str(result.result["module_stderr"])
        text = "fatal: [%s]: FAILED!\n%s" % (self.host_label(result), textwrap.indent(message, "    "))
        self._display.display(text, color=C.COLOR_ERROR, stderr=self.get_option("display_failed_stderr"))
        if ignore_errors:
            self._display.display("...ignoring", color=C.COLOR_SKIP)

    def v2_playbook_on_stats(self, stats):
        """The gathered tables, then the recap."""
        for report in self._reports.values():
            self._display.banner(report["title"].upper())
            for line in render(report["columns"], report["rows"]):
                self._display.display(line)
        super().v2_playbook_on_stats(stats)

    def _dump_results(self, result, *args, **kwargs):
        if self._display.verbosity < 2:
            result = {key: value for key, value in result.items() if key not in BULKY}
        return super()._dump_results(result, *args, **kwargs)
