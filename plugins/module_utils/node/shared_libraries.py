# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Shared libraries that engines load at run time: which of them resolve, and the packages that hold them."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys

from ansible_collections.inference.fleet.plugins.module_utils.errors import FleetError
from ansible_collections.inference.fleet.plugins.module_utils.node.files import read_text

# ID and ID_LIKE of /etc/os-release.
FAMILIES = {
    "debian": ("debian", "ubuntu"),
    "redhat": ("rhel", "fedora", "centos", "rocky", "almalinux", "amzn", "ol", "openeuler", "kylin"),
    "suse": ("suse", "opensuse", "sles"),
}
MANAGERS = {
    "debian": (("apt-get", "-y", "-o", "DPkg::Lock::Timeout=300", "install", "--no-install-recommends"),),
    "redhat": (("dnf", "-y", "install"), ("yum", "-y", "install")),
    "suse": (("zypper", "--non-interactive", "install", "--no-recommends"),),
}
INSTALL_TIMEOUT_S = 900

# A child loads them: the loader keeps what it once looked up, and a library may do anything when it is loaded.
LOADER = """
import ctypes, json, os, sys
folders, names = json.loads(sys.argv[1])
missing = []
for name in names:
    for path in [name] + [os.path.join(folder, name) for folder in folders]:
        try:
            ctypes.CDLL(path)
            break
        except OSError:
            pass
    else:
        missing.append(name)
sys.stdout.write(json.dumps(missing))
"""


def missing_libraries(names, search_paths=()):
    """Those of `names` (sonames such as "libnuma.so.1") that the dynamic loader does not find, in their order.

    search_paths: folders to look in besides the loader's own. FleetError where this Python cannot load libraries.
    """
    names = list(names)
    if not names:
        return []
    try:
        child = subprocess.run(
            [sys.executable, "-c", LOADER, json.dumps([list(search_paths), names])],
            capture_output=True, text=True, timeout=60, check=False,
        )  # fmt: skip
        return json.loads(child.stdout)
    except subprocess.TimeoutExpired:
        reason = "no answer within 60 s"
    except ValueError:
        reason = (child.stderr.strip().splitlines() or ["exit status %d" % child.returncode])[-1]
    raise FleetError(
        "libraries.lookup-failed",
        "Whether the shared libraries %s are there cannot be found out: %s -c 'import ctypes' fails (%s). Install the "
        "full Python of the distribution.",
        (", ".join(names), sys.executable, reason),
    )


def distribution_family(sysroot=""):
    """(family, name) of the distribution by /etc/os-release: a key of FAMILIES or None, and a name for messages."""
    values = {}
    for line in (read_text(sysroot + "/etc/os-release") or "").splitlines():
        match = re.match(r"^([A-Z_]+)=[\"']?(.*?)[\"']?$", line.strip())
        if match:
            values[match.group(1)] = match.group(2)
    words = {word.lower() for word in [values.get("ID", ""), *values.get("ID_LIKE", "").split()]}
    family = next((name for name, members in FAMILIES.items() if words & set(members)), None)
    return family, values.get("PRETTY_NAME") or values.get("ID") or "this distribution"


def _manager(family):
    """The argv that installs packages, of the family's first manager that is on PATH, else of its first."""
    return next((argv for argv in MANAGERS[family] if shutil.which(argv[0])), MANAGERS[family][0])


def run_manager(argv, environment=None, seconds=None, lines=8):
    """(exit status, last lines of the output) of a package manager and its kin, in an English locale, asking nothing.

    Status 124: no end after `seconds`; 127: it cannot be run.
    """
    seconds = seconds or INSTALL_TIMEOUT_S
    variables = {**os.environ, "DEBIAN_FRONTEND": "noninteractive", "LC_ALL": "C", **(environment or {})}
    try:
        done = subprocess.run(
            argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=variables,
            text=True, errors="replace", timeout=seconds, check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return 124, "no end after %d s" % seconds
    except OSError as error:
        return 127, error.strerror
    return done.returncode, "\n".join(done.stdout.strip().splitlines()[-lines:])


def install_packages(family, packages):
    """Install `packages` with the family's manager; FleetError with its last words where that fails."""
    argv = _manager(family)
    status, output = run_manager([*argv, *packages])
    if status and family == "debian":
        # A fresh image has no package lists, or old ones that name files which are gone.
        run_manager(["apt-get", "update"])
        status, output = run_manager([*argv, *packages])
    if status:
        raise FleetError(
            "libraries.install-failed",
            "Installing %s failed: '%s' ended with %d: %s",
            (", ".join(packages), " ".join([*argv, *packages]), status, output or "no output"),
            details={"packages": packages},
        )
