# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The Python that starts a node's servers. It must stay when the environment that Ansible ran with is removed.

Service managers start the servers by a link on the node to the interpreter that was chosen here. The link is the record
of that choice: it is kept as long as the interpreter works. If it must lead to another interpreter, no unit changes and
no server restarts.
"""

from __future__ import annotations

import contextlib
import glob
import os
import pwd
import re
import sys

from ..errors import FleetError
from . import commands, trust

OLDEST = (3, 9)
DIRECTORIES = ("/usr/bin", "/usr/local/bin", "/bin")
# Modules that the program imports and a minimal Python may lack.
PROBE = (
    "import sys, argparse, fcntl, http.client, importlib.util, json, pwd, resource, tempfile, threading\n"
    "print('%d %d %d' % (sys.version_info[0], sys.version_info[1], sys.prefix != sys.base_prefix))"
)


def link(paths):
    """The link that service managers execute."""
    return paths.lib + "/lib/python3"


def base_executable():
    """The interpreter from which the virtual environment of this interpreter was made; itself if it is in none."""
    if sys.prefix == sys.base_prefix:
        return sys.executable
    versioned = "python%d.%d" % sys.version_info[:2]
    known = [getattr(sys, "_base_executable", None)]
    known += [os.path.join(sys.base_prefix, "bin", name) for name in (versioned, "python3")]
    for path in filter(None, known):
        if os.access(path, os.X_OK) and not os.path.abspath(path).startswith(os.path.join(sys.prefix, "")):
            return os.path.realpath(path)
    return sys.executable


def choose(paths, users=()):
    """The target of link(): its present target if that works, else the system's interpreter, else the base of the
    environment that Ansible runs in, or of an environment of this collection. Never an interpreter in a virtual
    environment.

    users: accounts that must be able to execute it. Raises FleetError.
    """
    refused = []
    for python in _candidates(paths):
        problem = _problem(python, users)
        if problem is None:
            return python
        refused.append("%s %s" % (python, problem))
    why = "; ".join(refused) or "there is none in %s" % ", ".join(DIRECTORIES)
    raise FleetError("node.python-missing", *OLDEST, why)


def _candidates(paths):
    found = []
    with contextlib.suppress(OSError):
        found.append(os.readlink(link(paths)))
    found += [folder + "/python3" for folder in DIRECTORIES]
    for folder in DIRECTORIES:
        numbered = [path for path in glob.glob(folder + "/python3.*") if re.search(r"/python3\.\d+$", path)]
        found += sorted(numbered, key=lambda path: -int(path.rpartition(".")[2]))
    found.append(base_executable())
    found += sorted(os.path.realpath(path) for path in glob.glob(glob.escape(paths.lib) + "/*/bin/python"))
    return [path for path in dict.fromkeys(found) if os.path.exists(path)]


def _problem(python, users):
    """Why this interpreter cannot be used, as a clause; None if it can."""
    others = trust.fault(python) if os.geteuid() == 0 else None
    if others:
        return "may be replaced by others than root: " + others
    try:
        if sys.prefix == sys.base_prefix and os.path.realpath(sys.executable) == os.path.realpath(python):
            major, minor, virtual = (*sys.version_info[:2], False)  # this process proves that it works
        else:
            done = commands.run([python, "-I", "-S", "-c", PROBE])
            major, minor, virtual = map(int, done.stdout.split())
    except (OSError, ValueError, commands.TimedOut):
        return "does not work"
    if (major, minor) < OLDEST:
        return "is Python %d.%d" % (major, minor)
    if virtual or os.path.exists(os.path.dirname(os.path.dirname(python)) + "/pyvenv.cfg"):
        return "is in a virtual environment"
    refused = [user for user in users if not can_execute(user, python)]
    return "may not be executed by the user '%s'" % refused[0] if refused else None


def can_execute(user, python):
    """Whether the user can execute this interpreter. Only root can test it; others run servers as themselves."""
    if os.getuid() != 0:
        return True
    try:
        found = pwd.getpwnam(user)
    except KeyError:
        return True  # a missing account is reported elsewhere
    if _open_to_all(os.path.realpath(python)):
        return True
    try:
        done = commands.run([python, "-I", "-S", "-c", ""], user=found.pw_uid, group=found.pw_gid, extra_groups=[])
    except (OSError, commands.TimedOut):
        return False
    return done.returncode == 0


def _open_to_all(path):
    """Whether the modes of a file and its folders let every account execute it."""
    folders = [path]
    while os.path.dirname(folders[-1]) != folders[-1]:
        folders.append(os.path.dirname(folders[-1]))
    return all(os.stat(one).st_mode & 0o001 for one in folders) and bool(os.stat(path).st_mode & 0o004)
