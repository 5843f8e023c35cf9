# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Packages of the operating system: which versions are installed, how they compare, who installs them.

What a platform's role installs is {name: {version, least}}: the version to install, and the oldest that stays.
"""

from __future__ import annotations

import os
import re
import shutil

from ..errors import FleetError
from . import commands

DPKG = "/var/lib/dpkg/status"
NAME = re.compile(r"^[a-z0-9][a-z0-9+.-]*$")
VERSION = re.compile(r"^[0-9]+(\.[0-9]+)*$")


def check_packages(packages, variable):
    """Raise FleetError unless `packages`, which this variable of the role holds, is {name: {version, least}}."""
    for name, package in packages.items():
        fields = package if isinstance(package, dict) else {}
        version, least = fields.get("version"), fields.get("least")
        given = [version] if least is None else [version, least]
        versions = all(isinstance(one, str) and VERSION.match(one) for one in given)
        if not versions or not NAME.match(name) or set(fields) - {"version", "least"}:
            raise FleetError(
                "packages.invalid",
                "%s has %r: %r; allowed: the name of a package with a mapping of version and least, which are strings "
                "such as '2.30' or '1.20.0'.",
                (variable, name, package),
            )
        if least and not at_least(version, least):
            raise FleetError(
                "packages.version-too-old",
                "%s: the version %s of %s is older than its least, %s; install at least that.",
                (variable, version, name, least),
            )


def lacking(packages, installed):
    """{name: version to install} of what is missing or older than its `least`. Pure.

    installed: {name: version}. Without a `least` only that version fits.
    """
    due = {}
    for name, package in packages.items():
        version, least = installed.get(name), package.get("least")
        fits = version is not None and (at_least(version, least) if least else is_version(version, package["version"]))
        if not fits:
            due[name] = package["version"]
    return due


def check_install(due, there, installed, check_mode):
    """Raise FleetError where packages cannot be installed now.

    due, there: {name: version} to install and on the node; installed: names of those that were installed just now.
    """
    if installed:
        raise FleetError(
            "packages.still-missing",
            "Installed, and yet there is no %s on the node; the package manager says: %s. Install them by hand to see "
            "why.",
            (listed(due), listed(there) or "none"),
        )
    if os.geteuid() != 0 and not check_mode:
        raise FleetError(
            "packages.needs-root", "Missing: %s. Installing them needs root; run the play with become.", (listed(due),)
        )


def listed(versions):
    """ "tools 1.2, driver 2.30" of {name: version}, sorted."""
    return ", ".join("%s %s" % item for item in sorted(versions.items()))


def numbers(version):
    """(2, 29, 40, 0) of "2.29.40.0-f954cd7a5" or "1:2.29.40.0": what counts of a package's version."""
    upstream = version.partition(":")[2] or version
    return tuple(int(part) for part in re.findall(r"\d+", re.split(r"[-~+]", upstream)[0]))


def at_least(version, least):
    """Whether a package's version is the given one or newer, by the numbers that both have."""
    return numbers(version)[: len(numbers(least))] >= numbers(least)


def is_version(version, other):
    """Whether a package's version is another; 2.30 means any 2.30.x."""
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
    """The version of an installed package by the program `rpm`, None where it is not installed."""
    try:
        done = commands.run([rpm, "-q", "--qf", "%{VERSION}", name])
    except OSError:
        return None
    version = done.stdout.strip()
    return version if done.returncode == 0 and re.match(r"[0-9]", version) else None


def family(release):
    """Names of a distribution and of those that it derives from, by os_release()."""
    return {release.get("ID"), *release.get("ID_LIKE", "").split()}


def os_release(system):
    """{key: value} of /etc/os-release."""
    return dict(re.findall(r"^([A-Z_]+)=[\"']?(.*?)[\"']?$", system.read("/etc/os-release") or "", re.MULTILINE))
