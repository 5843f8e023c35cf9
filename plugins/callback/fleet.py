# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The output for a fleet: the default output with readable progress, tables and failures."""

from __future__ import annotations

DOCUMENTATION = r"""
name: fleet
type: stdout
short_description: Default output with progress, tables and readable failures
version_added: 0.1.0
author:
  - inference.fleet contributors (!UNKNOWN)
description:
  - Extends ansible-core's default callback. Polling tasks show the state of each server instead of retries that look
    like failures. Tables (plan, status, verdicts) of all hosts are printed once, at the end of the run. A failure
    shows its message once, as plain text.
  - The last line is the path of the last page that a task has written (C(fleet_page) of its result).
  - For a polling task with C(progress) in its result, such as M(inference.fleet.model_weights), the progress and
    remaining time of each host are shown. On a terminal a line per host is updated; elsewhere, and with C(-v), lines
    are repeated at intervals and when a host starts another phase.
  - Use it with C(stdout_callback = inference.fleet.fleet) in ansible.cfg. Every playbook works without it as well; then
    the tasks print their tables themselves, each host's for itself.
options:
  progress_interval:
    description:
      - Without a terminal, seconds until the second equal line of a host. The pause doubles each time, up to five
        minutes.
    type: float
    default: 10
    version_added: 0.1.0
    env:
      - name: INFERENCE_FLEET_PROGRESS_INTERVAL
    ini:
      - section: callback_fleet
        key: progress_interval
extends_documentation_fragment:
  - default_callback
  - result_format_callback
"""

import contextlib
import os
import re
import sys
import textwrap
import time

from ansible import constants as C
from ansible.plugins.callback.default import CallbackModule as Default
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.errors import visible, visible_all
from ansible_collections.inference.fleet.plugins.plugin_utils.planning.run_look import NOBODY
from ansible_collections.inference.fleet.plugins.plugin_utils.reporting.screen import (
    LiveLines,
    duration,
    gather,
    lines,
    progress_line,
    reason,
    transfer_line,
)

LONGEST_PAUSE_S = 300  # between two equal lines

COLORS = re.compile(r"(\x1b\[[0-9;]*m)")
# Results for programs, which are not displayed without -v.
BULKY = (
    "accelerators", "diff", "look_line", "fleet_page", "fleet_report", "plan", "progress", "servers", "steps",
    "verdict", "verdicts",
)  # fmt: skip


def with_stderr(result):
    """Return a result's message with the stderr of its command."""
    message = visible(result["msg"], lines=True)
    for words in ("module_stderr", "stderr"):
        said = visible(str(result.get(words) or ""), lines=True).strip()
        message += "\n" + said if said and said not in message else ""
    return message


class CallbackModule(Default):
    """The stdout callback inference.fleet.fleet."""

    CALLBACK_VERSION = 2.0
    CALLBACK_TYPE = "stdout"
    CALLBACK_NAME = "inference.fleet.fleet"

    def __init__(self):
        super().__init__()
        self._reports, self._page = {}, None
        self._last_progress = {}
        self._begun = {}
        self._live = None
        self._shown = False
        self._nobody = False
        self.own_colors = False

    def set_options(self, task_keys=None, var_options=None, direct=None):
        """Set the options, and find out whether the output is a terminal."""
        super().set_options(task_keys=task_keys, var_options=var_options, direct=direct)
        if not self._shown:
            self._shown = True
            show_unseen(self._display, self)
        # lines of a terminal can be replaced
        terminal = sys.stdout.isatty() and os.environ.get("TERM") not in (None, "", "dumb")
        if self._live is None and self._display.verbosity == 0 and terminal:
            self._live = LiveLines(sys.stdout)
            clear_before(self._display, self._live)

    def v2_playbook_on_play_start(self, play):
        """Show nothing of a play whose hosts are all converged."""
        self._nobody = play.hosts == NOBODY
        if not self._nobody:
            super().v2_playbook_on_play_start(play)

    def v2_playbook_on_no_hosts_matched(self):
        """Show nothing if the play has no hosts because all are converged."""
        if not self._nobody:
            super().v2_playbook_on_no_hosts_matched()

    def v2_runner_retry(self, result):
        """Show the progress in the result, or the default's line."""
        host = result.host.get_name()
        progress = result.result.get("progress")
        if isinstance(progress, dict):
            self._tell_progress(host, progress.get("phase"), transfer_line(progress))
            return
        line = progress_line(result.result)
        if line is None:
            super().v2_runner_retry(result)
            return
        # A line that differs only in seconds is not shown again.
        self._tell_progress(host, re.sub(r"\d+ s\b", "", line), line)

    def v2_runner_on_start(self, host, task):
        """Record the task of a host, which polls of the task do not contain."""
        self._begun[host.get_name()] = (task, time.monotonic())
        super().v2_runner_on_start(host, task)

    def v2_runner_on_async_poll(self, result):
        """Show how long a task has run, and its expected duration (its variable …_takes)."""
        host = result.host.get_name()
        task, began = self._begun.get(host, (result.task, time.monotonic()))
        name = task.get_name().rpartition(" : ")[2]
        takes = next((value for key, value in task.vars.items() if key.endswith("_takes")), None)
        line = "%s, %s" % (name, duration(time.monotonic() - began))
        self._tell_progress(host, name, line + (" (%s)" % takes if takes else ""))

    def v2_runner_on_async_ok(self, result):
        """Show nothing: the task's own result follows."""

    v2_runner_on_async_failed = v2_runner_on_async_ok

    def _tell_progress(self, host, gist, line):
        """Show a line when its gist changes, and otherwise at increasing intervals,
        so that a long task does not appear to hang."""
        said, when, pause = self._last_progress.get(host, (None, 0.0, 0.0))
        line = "%s: %s" % (host, line)
        if self._live:
            self._live.update(host, line)
        if gist == said and time.monotonic() - when < pause:
            return
        pause = min(2 * pause, LONGEST_PAUSE_S) if gist == said else self.get_option("progress_interval")
        self._last_progress[host] = (gist, time.monotonic(), max(pause, self.get_option("progress_interval")))
        self._display.display(line, color=C.COLOR_DEBUG, log_only=self._live is not None)
        sys.stdout.flush()  # a pipe would buffer the line

    def _progress_ends(self, result, well=False):
        """End the progress of this host; if it succeeded, show its last line."""
        host = result.host.get_name()
        shown = self._last_progress.pop(host, None)
        if self._live:
            self._live.drop(host)
        progress = result.result.get("progress")
        if well and shown and isinstance(progress, dict):
            self._display.display("%s: %s" % (host, transfer_line(progress)), color=C.COLOR_DEBUG)

    def _gather(self, result):
        """Keep a result's table and page for the end."""
        gather(self._reports, result.get("fleet_report"))
        self._page = result.get("fleet_page") or self._page

    def v2_runner_on_ok(self, result):
        """Keep the result's table for the end."""
        self._progress_ends(result, well=True)
        self._gather(result.result)
        super().v2_runner_on_ok(result)
        if result.result.get("look_line"):
            self._display.display(result.result["look_line"], color=C.COLOR_CHANGED)

    def v2_runner_on_failed(self, result, ignore_errors=False):
        """Show the message once, unescaped, instead of twice and escaped."""
        self._progress_ends(result)
        if not self._show_failure(result, "fatal: [%s]: FAILED!" % self.host_label(result)):
            super().v2_runner_on_failed(result, ignore_errors)
        elif ignore_errors:
            self._display.display("...ignoring", color=C.COLOR_SKIP)

    def _show_failure(self, result, title):
        """Keep the table of a failed task or item, and show its message. Returns False if the default shows it."""
        self._gather(result.result)
        message = result.result.get("msg")
        if self._display.verbosity or not isinstance(message, str) or "results" in result.result:
            return False
        if self._last_task_banner != result.task._uuid:
            self._print_task_banner(result.task)
        self._handle_warnings(result.result)
        text = "%s\n%s" % (title, textwrap.indent(with_stderr(result.result), "    "))
        self._display.display(text, color=C.COLOR_ERROR, stderr=self.get_option("display_failed_stderr"))
        return True

    def v2_runner_item_on_ok(self, result):
        """Keep the table of an item of a loop."""
        self._gather(result.result)
        super().v2_runner_item_on_ok(result)

    def v2_runner_item_on_failed(self, result):
        """Keep the table of an item of a loop, and show its message once, unescaped."""
        title = "failed: [%s] (item=%s)" % (self.host_label(result), self._get_item_label(result.result))
        if not self._show_failure(result, title):
            super().v2_runner_item_on_failed(result)

    def v2_runner_on_unreachable(self, result):
        """Show the reason as a sentence instead of ssh's output, which -v adds.
        Keep the known state of the host for the end."""
        self._progress_ends(result)
        self._gather(result.result)
        if self._display.verbosity:
            super().v2_runner_on_unreachable(result)
        elif self._last_task_banner != result.task._uuid:
            self._print_task_banner(result.task)
        why = reason(result.result.get("msg", ""), result.host.get_name())
        text = "fatal: [%s]: UNREACHABLE!\n%s" % (self.host_label(result), textwrap.indent(why, "    "))
        self._display.display(text, color=C.COLOR_UNREACHABLE, stderr=self.get_option("display_failed_stderr"))

    def _get_diff(self, difflist):
        return super()._get_diff(visible_all(difflist))

    def v2_on_file_diff(self, result):
        """Show the difference in colors if the output has colors."""
        with self._in_colors():
            super().v2_on_file_diff(result)

    @contextlib.contextmanager
    def _in_colors(self):
        self.own_colors = True
        try:
            yield
        finally:
            self.own_colors = False

    def v2_playbook_on_stats(self, stats):
        """Show the kept tables, then the recap."""
        for report in self._reports.values():
            self._display.banner(report["title"].upper())
            for line in lines(report):
                self._display.display(line)
        with self._in_colors():
            super().v2_playbook_on_stats(stats)
        if self._page:
            self._display.display("Page: %s" % self._page)

    def _dump_results(self, result, *args, **kwargs):
        if self._display.verbosity < 2:
            result = {key: value for key, value in result.items() if key not in BULKY}
        return super()._dump_results(visible_all(result), *args, **kwargs)


def show_unseen(display, callback):
    """Escape invisible characters in all output, which contains strings of servers, their logs and programs on nodes.
    Ansible's colors are kept while `callback.own_colors` is true."""
    show = display.display

    def show_visibly(msg, *arguments, **named):
        parts = COLORS.split(msg) if callback.own_colors else [msg]
        parts[::2] = [visible(one, lines=True) for one in parts[::2]]
        return show("".join(parts), *arguments, **named)

    display.display = show_visibly


def clear_before(display, live):
    """Clear the live lines before any other output, including warnings."""
    show, pid = display.display, os.getpid()

    def clear_and_show(*arguments, **named):
        # A worker process passes its messages to the main process, which calls this function again.
        if os.getpid() == pid and not named.get("log_only"):
            live.clear()
        return show(*arguments, **named)

    display.display = clear_and_show
