# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The program's commands: the guard, which runs between a service manager and an engine, and the workers of jobs.

    run ENTRY.json --state STATE.json --secrets SECRETS.json --root ROOT
    end ENTRY.json --root ROOT [--state STATE.json] [--remove]
    folders ENTRY.json --user NAME
    watch ETC --state STATES --root ROOT --failures N --timeout S --every S
    work MODULE ...

`run` is the command of service managers. It ends processes of an earlier start of the same server, respects the start
limit and the start order, records its phase in STATE and becomes the engine (execve: its pid is the engine's). For an
engine in a container, the guard becomes the engine's client (docker run, podman run), whose end the service manager
sees. `end` stops the container (--remove: and removes it) when the client has to end; with --state, it does not count
the start of an engine that ends on request.
`folders` creates missing directories of the server; a service manager runs it with the permission to do so.
`work` is main() of a module of this package, the worker of a job; see program.work().
`watch` asks each server of the node for a completion and restarts servers that do not answer.
"""

from __future__ import annotations

import argparse
import importlib
import os
import sys
import time

from .host.server_spec import read_entry
from .supervise.state import BURST, RESTART_DELAY_S, say


def main():
    """Run a command and return the exit status. Each command completes its imports before it waits for anything,
    because this version may be removed in the meantime if the file system has no locks."""
    if sys.argv[1:2] == ["work"]:
        del sys.argv[1]
        return importlib.import_module("." + sys.argv.pop(1), __package__).main()
    options = parsed(sys.argv[1:])
    if options.action == "folders":
        from .supervise.run import make_folders

        os.umask(0o022)
        return make_folders(read_entry(options.entry) or {}, options.user)
    if options.action == "end":
        from .supervise.containers import end

        return end(options)
    if options.action == "watch":
        from .supervise.watchdog import watch

        return watch(options)
    from .supervise.run import run

    options.start_hooks = start_hooks
    try:
        return run(options)
    except Exception as error:  # reported in the server's log, and not repeated at once
        say("%s: %s" % (type(error).__name__, error))
        time.sleep(options.restart_delay)
        return 1


def start_hooks():
    """{name: module} of the platforms' hooks."""
    from .platforms.registry import PLATFORMS  # here: few servers have one

    return {name: module for one in PLATFORMS.values() for name, module in one.start_hooks.items()}


NEEDED = {"required": True}
COMMANDS = {
    "run": {"entry": {}, "--state": NEEDED, "--secrets": NEEDED, "--root": NEEDED,
            "--burst": {"type": int, "default": BURST}, "--restart-delay": {"type": float, "default": RESTART_DELAY_S}},
    "end": {"entry": {}, "--root": NEEDED, "--state": {}, "--remove": {"action": "store_true"}},
    "folders": {"entry": {}, "--user": NEEDED},
    "watch": {"etc": {}, "--state": NEEDED, "--root": NEEDED, "--failures": {"type": int, **NEEDED},
              "--timeout": {"type": float, **NEEDED}, "--every": {"type": float, **NEEDED}},
}  # fmt: skip


def parsed(arguments):
    """The options."""
    parser = argparse.ArgumentParser(prog="fleet_node")
    commands = parser.add_subparsers(dest="action", required=True)
    for name, options in COMMANDS.items():
        command = commands.add_parser(name)
        for option, how in options.items():
            command.add_argument(option, **how)
    return parser.parse_args(arguments)
