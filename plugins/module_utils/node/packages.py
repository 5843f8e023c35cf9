# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Packages of the operating system: which versions are installed, how they compare, who installs them."""

from __future__ import annotations

import re
import shutil
import subprocess

DPKG = "/var/lib/dpkg/status"
TIMEOUT_S = 60


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
        done = subprocess.run([rpm, "-q", "--qf", "%{VERSION}", name], stdin=subprocess.DEVNULL, capture_output=True,
                              text=True, timeout=TIMEOUT_S, check=False)  # fmt: skip
    except (OSError, subprocess.TimeoutExpired):
        return None
    version = done.stdout.strip()
    return version if done.returncode == 0 and re.match(r"[0-9]", version) else None


def os_release(system):
    """{key: value} of /etc/os-release."""
    return dict(re.findall(r"^([A-Z_]+)=[\"']?(.*?)[\"']?$", system.read("/etc/os-release") or "", re.MULTILINE))
