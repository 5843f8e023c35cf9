# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Packages of the operating system: installed versions, and those that a platform's role installs; shared libraries.

The role installs {name: {version, least}}: the version to install, and the oldest that is kept.
"""

from __future__ import annotations

import functools
import json
import os
import re
import shutil
import sys

from ..errors import FleetError
from . import commands

DPKG = "/var/lib/dpkg/status"
NAME = re.compile(r"^[a-z0-9][a-z0-9+.-]*$")
VERSION = re.compile(r"^[0-9]+(\.[0-9]+)*$")
PRERELEASES = ("rc", "beta", "alpha")


def check_packages(packages, variable):
    """Raises FleetError unless `packages`, the value of this variable of a role, is {name: {version, least}}."""
    for name, package in packages.items():
        fields = package if isinstance(package, dict) else {}
        version, least = fields.get("version"), fields.get("least")
        given = [version] if least is None else [version, least]
        versions = all(isinstance(one, str) and VERSION.match(one) for one in given)
        unknown = set(fields) - {"version", "least"}
        if unknown or not versions or not NAME.match(name) or (least and not at_least(version, least)):
            raise FleetError("packages.invalid", variable, name, package)


def lacking(packages, installed):
    """{name: version to install} of packages that are missing or older than `least`. Pure.

    installed: {name: version}. Without `least`, only that version fits.
    """
    due = {}
    for name, package in packages.items():
        version, least = installed.get(name), package.get("least")
        fits = version is not None and (at_least(version, least) if least else is_version(version, package["version"]))
        if not fits:
            due[name] = package["version"]
    return due


def check_installed(due, present):
    """Raises FleetError if packages are missing after their installation. due, present: {name: version}."""
    if due:
        raise FleetError("packages.still-missing", listed(due), listed(present) or "none")


def check_install(due, check_mode):
    """Raises FleetError if packages are due ({name: version}) and this account cannot install them."""
    if due and os.geteuid() != 0 and not check_mode:
        raise FleetError("packages.needs-root", listed(due))


def listed(versions):
    """ "tools 1.2, driver 2.30" of {name: version}, sorted."""
    return ", ".join("%s %s" % item for item in sorted(versions.items()))


def numbers(version):
    """A version as a tuple that compares, () if the string is no version.

    An epoch and the part after "-", "~" or "+" do not count: "1:2.29.40.0-f954cd7a5" is 2.29.40.0. "25.0.rc1.1" is
    older than "25.0.0".
    """
    upstream = re.split(r"[-~+]", (version or "").strip().rpartition(":")[2])[0]
    if not re.match(r"[0-9]", upstream):
        return ()
    parts = []
    for word in filter(None, upstream.split(".")):
        letters, digits = re.match(r"^([A-Za-z]*)([0-9]{0,9})", word).groups()
        parts.append((0 if letters.lower() in PRERELEASES else 1, int(digits or 0)))
    return tuple(parts)


def at_least(version, least):
    """Whether a version is `least` or newer, by as many parts as `least` has: 25.0.rc1.1 is at least 25.0.rc1."""
    return numbers(version)[: len(numbers(least))] >= numbers(least)


def is_version(version, other):
    """Whether a version is another; 2.30 means any 2.30.x."""
    return numbers(version)[: len(numbers(other))] == numbers(other)


def package_versions(system, names):
    """{name: version} of those Debian or RPM packages that are installed. system: platforms.host.System."""
    found = {}
    for block in (system.read(DPKG) or "").split("\n\n"):
        match = re.search(r"^Package: (.*)$", block, re.MULTILINE)
        if match and match.group(1) in names and re.search(r"^Status: .* installed$", block, re.MULTILINE):
            found[match.group(1)] = re.search(r"^Version: (.*)$", block, re.MULTILINE).group(1)
    rpm = None if system.sysroot else shutil.which("rpm")
    for name in sorted(set(names) - set(found)) if rpm else ():
        version = rpm_version(rpm, name)
        if version:
            found[name] = version
    return found


def rpm_version(rpm, name):
    """The version of an installed package by the program `rpm`, None if it is not installed."""
    try:
        done = commands.run([rpm, "-q", "--qf", "%{VERSION}", name])
    except OSError:
        return None
    version = done.stdout.strip()
    return version if done.returncode == 0 and re.match(r"[0-9]", version) else None


def package_manager(system):
    """("apt" or "dnf", codename of the release or None). Raises FleetError for other distributions."""
    release = dict(re.findall(r"^([A-Z_]+)=[\"']?(.*?)[\"']?$", system.read("/etc/os-release") or "", re.MULTILINE))
    family = {release.get("ID"), *release.get("ID_LIKE", "").split()}
    if family & {"debian", "ubuntu"}:
        return "apt", release.get("VERSION_CODENAME")
    if family & {"rhel", "fedora", "centos", "amzn"}:
        return "dnf", None
    raise FleetError(
        "packages.distribution-unsupported", release.get("PRETTY_NAME") or release.get("ID") or "this distribution"
    )


# -- shared libraries that engines load at run time -------------------------------------------------------------------

# A child loads them: the loader keeps what it once looked up, and a library may do anything when it is loaded.
LOADER = """
import ctypes, json, sys
missing = []
for name in json.loads(sys.argv[1]):
    try:
        ctypes.CDLL(name)
    except OSError:
        missing.append(name)
sys.stdout.write(json.dumps(missing))
"""


@functools.cache  # a process that looks at several things starts one child
def missing_libraries(names):
    """Those of `names`, a tuple of sonames such as "libnuma.so.1", that the dynamic loader does not find, in their
    order. Raises FleetError if this Python cannot load libraries."""
    if not names:
        return []
    try:
        child = commands.run([sys.executable, "-I", "-S", "-c", LOADER, json.dumps(names)])
        return json.loads(child.stdout)
    except ValueError:
        reason = (child.stderr.strip().splitlines() or ["exit status %d" % child.returncode])[-1]
    raise FleetError("libraries.lookup-failed", ", ".join(names), sys.executable, reason)
