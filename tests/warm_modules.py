# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Modules of plays on this machine in forks of a process that has imported Ansible's module_utils.

Starting Python and these imports are most of the time of a short module. Only payloads of ansible-core and of this
collection run here, and only where the command is the interpreter of the tests without a prefix: no escalation, no
environment of a task, no module of a playbook's own.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import gc
import importlib
import json
import os
import re
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import traceback

PLAIN = "/bin/sh -c '%s && sleep 0'" % sys.executable
SHARED = re.compile(rb"^module_fqn='(ansible\.modules|ansible_collections\.inference\.fleet)\.", re.MULTILINE)
IMPORTS = ("ansible.module_utils.basic", "ansible.module_utils._internal._ansiballz._loader", "shutil", "tempfile",
           "zipfile", "subprocess", "typing")  # fmt: skip


@contextlib.contextmanager
def forking():
    """Modules that forks of this process start run in forks of a second one for the block."""
    from ansible.plugins.connection import local

    with tempfile.TemporaryDirectory(prefix="modules-") as folder, socket.socket(socket.AF_UNIX) as listener:
        place = os.path.join(folder, "socket")
        listener.bind(place)
        listener.listen(128)
        server = subprocess.Popen(
            [sys.executable, __file__, str(listener.fileno())], pass_fds=[listener.fileno()], stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL, cwd="/",
        )  # fmt: skip
        original = local.Connection.exec_command

        @functools.wraps(original)
        def exec_command(self, cmd, in_data=None, sudoable=True):
            if cmd != PLAIN or not in_data or not SHARED.search(in_data):
                return original(self, cmd, in_data=in_data, sudoable=sudoable)
            local.display.vvv("EXEC %s" % cmd, host=self._play_context.remote_addr)
            return ask(place, in_data, os.fsdecode(self.cwd or os.getcwd()))

        local.Connection.exec_command = exec_command
        try:
            yield
        finally:
            local.Connection.exec_command = original
            server.stdin.close()
            server.wait(60)


def ask(place, payload, folder):
    """(exit status, stdout, stderr) of a module, as those of the command."""
    out, err = os.pipe(), os.pipe()
    with (
        tempfile.TemporaryFile() as file,
        tempfile.TemporaryFile() as where,
        socket.socket(socket.AF_UNIX) as connection,
    ):
        for stream, content in ((file, payload), (where, json.dumps([folder, dict(os.environ)]).encode())):
            stream.write(content)
            stream.flush()
        connection.connect(place)
        socket.send_fds(connection, [b"m"], [file.fileno(), where.fileno(), out[1], err[1]])
        os.close(out[1])
        os.close(err[1])
        texts = {out[0]: b"", err[0]: b""}
        open_ends = set(texts)
        while open_ends:
            for end in select.select(open_ends, [], [])[0]:
                block = os.read(end, 1 << 16)
                texts[end] += block
                if not block:
                    open_ends.remove(end)
                    os.close(end)
        status = connection.recv(16)
    return int(status or -signal.SIGKILL), texts[out[0]], texts[err[0]]


def serve(listener):
    """Fork for each connection until stdin is closed."""
    for name in IMPORTS:
        importlib.import_module(name)
    gc.disable()  # as in warm_playbooks.py
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    while True:
        ready = select.select([listener, 0], [], [])[0]
        if 0 in ready:
            return
        connection = listener.accept()[0]
        if not os.fork():
            listener.close()
            run(connection)
        connection.close()


def run(connection):
    """The module, in the fork; it never returns."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    status = 1
    try:
        payload, where, out, err = socket.recv_fds(connection, 1, 4)[1]
        folder, environment = json.loads(content_of(where))
        text = content_of(payload)
        os.dup2(out, 1)
        os.dup2(err, 2)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        for number in (payload, where, out, err):
            os.close(number)
        os.setsid()
        os.chdir(folder)
        os.environ.clear()
        os.environ.update(environment)
        sys.argv = [""]
        exec(compile(text, "<stdin>", "exec"), {"__name__": "__main__"})
        status = 0
    except SystemExit as end:
        status = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:
        traceback.print_exc()
    finally:
        for thread in threading.enumerate():
            if thread is not threading.main_thread() and not thread.daemon:
                thread.join()
        atexit._run_exitfuncs()
        sys.stdout.flush()
        sys.stderr.flush()
        connection.send(b"%d" % status)
        os._exit(status & 0xFF)


def content_of(number):
    """The bytes of a file by its descriptor."""
    return os.pread(number, os.fstat(number).st_size, 0)


if __name__ == "__main__":
    with socket.socket(fileno=int(sys.argv[1])) as mine:
        serve(mine)
