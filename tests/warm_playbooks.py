# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""ansible-playbook in forks of a process that has imported it, so that hundreds of short runs cost half as much.

A fork does all that the command does after its imports: settings, arguments, inventory, plugins, plays. What is
decided by the imports (ansible.cfg, variables that IMPORTED names and LATER does not) is the same for all forks; runs
that change it, and those that need a terminal, start the command itself. Payloads of modules are built once, and those
of plays on this machine run in forks too (warm_modules.py).
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import pkgutil
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import traceback
from pathlib import Path

if __name__ == "__main__":
    import warm_modules

IMPORTED = ("ANSIBLE_", "LANG", "LC_", "PYTHON", "TMPDIR")
LATER = (
    "ANSIBLE_CALLBACK_RESULT_FORMAT", "ANSIBLE_CALLBACKS_ENABLED", "ANSIBLE_NOCOLOR", "ANSIBLE_SHOW_CUSTOM_STATS",
    "ANSIBLE_SSH_RETRIES", "ANSIBLE_STDOUT_CALLBACK",
)  # fmt: skip
PLUGINS = ("action", "callback", "connection", "filter", "inventory", "lookup", "shell", "strategy", "test", "vars")
OURS = "ansible_collections.inference.fleet.plugins"
SHARED = (
    "ansible.modules.",
    "ansible_collections.inference.fleet.",
)  # payloads: of no playbook's or role's own modules
LONGEST = 1 << 20  # bytes of a request: arguments and environment


class Server:
    """The process that forks, started by its first run; it ends with the one that started it."""

    def __init__(self, environment, folder):
        """folder: where it is started; without ANSIBLE_CONFIG its ansible.cfg counts, not that of a run's folder."""
        self.connection, self.folder = None, folder
        self.alone = threading.Lock()
        self.environment = environment

    def takes(self, environment):
        return imported(environment) == imported(self.environment)

    def stop(self):
        if self.connection:
            self.connection.close()

    def run(self, arguments, folder, environment, timeout):
        """(exit status, screen, seconds of processors), or None where another thread is using it.

        subprocess.TimeoutExpired after `timeout` seconds, when it is killed.
        """
        if not self.alone.acquire(blocking=False):
            return None
        try:
            if self.connection is None:
                self._start()
            with tempfile.TemporaryFile() as screen:
                request = json.dumps([list(arguments), str(folder), dict(environment)]).encode()
                socket.send_fds(self.connection, [request], [screen.fileno()])
                process = int(self.connection.recv(64))
                self.connection.settimeout(timeout)
                try:
                    status, seconds = json.loads(self.connection.recv(64))
                except TimeoutError:
                    os.killpg(process, signal.SIGKILL)
                    self.connection.settimeout(60)
                    self.connection.recv(64)
                    raise subprocess.TimeoutExpired(arguments, timeout) from None
                finally:
                    self.connection.settimeout(None)
                screen.seek(0)
                return status, screen.read().decode(errors="replace"), seconds
        finally:
            self.alone.release()

    def _start(self):
        self.connection, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        for end in (self.connection, other):
            end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, LONGEST)
        with other:
            subprocess.Popen(
                [sys.executable, __file__, str(other.fileno())], pass_fds=[other.fileno()], stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL, env=self.environment, cwd=self.folder,
            )  # fmt: skip


def imported(environment):
    return {key: value for key, value in environment.items() if key.startswith(IMPORTED) and key not in LATER}


def serve(connection):
    """Forks for each request until the other side is gone."""
    import_everything()
    gc.disable()  # runs are short, and a collection writes to all pages that a fork shares with this process
    with tempfile.TemporaryDirectory(prefix="payloads-") as payloads, warm_modules.forking():
        while True:
            request, screens, _flags, _address = socket.recv_fds(connection, LONGEST, 1)
            if not request:
                return
            process = os.fork()
            if not process:
                connection.close()
                run_here(json.loads(request), screens[0], payloads)
            os.close(screens[0])
            connection.send(b"%d" % process)
            _process, status, used = os.wait4(process, 0)
            answer = [os.waitstatus_to_exitcode(status), used.ru_utime + used.ru_stime]
            connection.send(json.dumps(answer).encode())


def import_everything():
    """What the command imports before and while it plays; the collection's plugins through Ansible's own loader."""
    import ansible.plugins
    from ansible.cli import playbook
    from ansible.plugins.loader import init_plugin_loader

    assert playbook
    init_plugin_loader()
    names = []
    for kind in PLUGINS:
        folder = Path(ansible.plugins.__file__).parent / kind
        names += ["ansible.plugins.%s.%s" % (kind, module.name) for module in pkgutil.iter_modules([str(folder)])]
    names += [module.name for module in pkgutil.walk_packages(importlib.import_module(OURS).__path__, OURS + ".")]
    for name in names:
        if ".modules." not in name and not name.endswith("__main__"):
            importlib.import_module(name)


def run_here(request, screen, payloads):
    """The run, in the fork; it never returns."""
    status = 250  # as the command's, for what nobody expected
    try:
        arguments, folder, environment = request
        os.setsid()
        for number in (1, 2):
            os.dup2(screen, number)
        os.chdir(folder)
        os.environ.clear()
        os.environ.update(environment)
        status = run_playbook(arguments, Path(payloads))
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


def run_playbook(arguments, payloads):
    """The exit status of ansible-playbook with these arguments, with a temporary folder of its own."""
    import random
    import warnings

    from ansible import constants
    from ansible.cli import playbook
    from ansible.utils import vars as unique

    warnings.filterwarnings("ignore", message="AnsibleCollectionFinder has already been configured")
    random.seed()
    unique.random_int = "%08x" % random.randrange(1 << 32)  # of names that no other run gives
    sys.argv = ["ansible-playbook", *arguments]
    for setting in constants.config.get_configuration_definitions():  # as ansible.constants does at its end
        constants.set_constant(setting, constants.config.get_config_value(setting, variables=vars(constants)))
    built = Path(constants.DEFAULT_LOCAL_TMP, "ansiballz_cache")
    built.mkdir()
    for payload in payloads.iterdir():
        (built / payload.name).symlink_to(payload)
    try:
        playbook.main()
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else int(end.code is not None)
    finally:
        for payload in built.iterdir():
            if payload.name.startswith(SHARED) and payload.suffix != ".lock" and not payload.is_symlink():
                payload.rename(payloads / payload.name)
        shutil.rmtree(constants.DEFAULT_LOCAL_TMP, ignore_errors=True)
    return 0


if __name__ == "__main__":
    with socket.socket(fileno=int(sys.argv[1])) as mine:
        serve(mine)
