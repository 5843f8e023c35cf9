# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Asking the tool of an accelerator's vendor, and what the kernel says of a device on the PCI bus."""

from __future__ import annotations

import os
import re
import shutil

from ..host import commands
from ..host import paths as host_paths
from ..host.cpu_list import format_cpu_list

PCI = "/sys/bus/pci/devices"


def tool(system, name):
    """Path of a program of the node, None where it is not installed."""
    return shutil.which(name, path=system.sysroot + "/usr/bin" if system.sysroot else host_paths.PATH)


def run(argv):
    """(exit status or a string that says why there is none, what it printed on both outputs). Raises TimedOut."""
    try:
        done = commands.run(argv, merged=True, env={**os.environ, "LC_ALL": "C"})
    except OSError as error:
        return str(error.strerror), ""
    return done.returncode, done.stdout


def whole(text):
    """The number in a string of digits, None for any other string."""
    return int(text) if re.match(r"^[0-9]{1,12}$", text or "") else None


def listed(system, folder):
    """Names in a folder of the node, sorted; [] where there is none."""
    try:
        return sorted(os.listdir(system.sysroot + folder))
    except OSError:
        return []


def on_the_bus(system, vendor, classes):
    """PCI addresses of the node's devices of a vendor ("0x10de") and of classes ("0x0302", …), whoever drives them."""

    def starts(name, key, words):
        return (system.read("%s/%s/%s" % (PCI, name, key)) or "").strip().startswith(words)

    return [name for name in listed(system, PCI) if starts(name, "vendor", vendor) and starts(name, "class", classes)]


def place(system, device):
    """Set `numa` and `cpus` of a device that has an `address`, as the kernel has them."""
    folder = "%s/%s" % (PCI, device.address)
    device.numa = whole((system.read(folder + "/numa_node") or "").strip())
    cpus = system.cpu_list(folder + "/local_cpulist")
    device.cpus = format_cpu_list(cpus) if cpus else ""
