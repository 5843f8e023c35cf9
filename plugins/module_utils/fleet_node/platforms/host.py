# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a node reports about itself: processors, memory, limits of this process, PCI devices and vendors' tools."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil

from ..host import commands
from ..host.files import read_text
from ..host.paths import PATH
from ..host.values import parse_cpu_list

# "MemTotal:  24684092 kB"; the memory of a NUMA node has "Node 0 " before it, and HugePages_* have no unit.
MEMORY_LINE = re.compile(r"^(?:Node\s+[0-9]+\s+)?([\w()]+):\s*([0-9]+)(?:\s+kB)?$")
MIB = 1 << 20
CGROUPS = "/sys/fs/cgroup"
PCI = "/sys/bus/pci/devices"
JSON = re.compile(r"^\s*(?=\[\s*[{\]]|\{)", re.MULTILINE)


def whole_number(text):
    """The number in a string of digits, None for any other string."""
    return int(text) if re.match(r"^[0-9]{1,15}$", text or "") else None


def run_tool(argv):
    """(exit status or the reason why there is none, both outputs of the program). Raises TimedOut."""
    try:
        done = commands.run(argv, merged=True, env={**os.environ, "LC_ALL": "C"})
    except OSError as error:
        return str(error.strerror), ""
    return done.returncode, done.stdout


def json_of(text):
    """The list of mappings, or the mapping, in a tool's output between warnings; None if there is none."""
    for start in JSON.finditer(text):
        with contextlib.suppress(ValueError):
            return json.JSONDecoder().raw_decode(text, start.end())[0]
    return None


class System:
    """Reads a node below `sysroot` ("" for this machine).

    `warnings` contains what is not understood, each once; an absent file is no warning, its reader returns None.
    """

    def __init__(self, sysroot=""):
        self.sysroot = sysroot.rstrip("/")
        self.warnings = []

    def warn(self, text):
        """Add a warning unless it exists already."""
        if text not in self.warnings:
            self.warnings.append(text)

    def read(self, path):
        """The content of `path`, or None if there is no such file."""
        try:
            return read_text(self.sysroot + path)
        except OSError as error:
            self.warn("%s cannot be read: %s" % (path, error.strerror))
            return None

    def value(self, path):
        """The content of a file with one value, "" if there is no such file."""
        return (self.read(path) or "").strip()

    def exists(self, path):
        """Whether the node has this file or folder."""
        return os.path.exists(self.sysroot + path)

    def listed(self, folder):
        """Names in a folder, sorted; [] if there is no such folder."""
        try:
            return sorted(os.listdir(self.sysroot + folder))
        except OSError:
            return []

    def program(self, name, folder=None):
        """Path of a program in `folder` or a system folder, or None if it is not installed."""
        folders = [self.sysroot + "/usr/bin"] if self.sysroot else [PATH]
        return shutil.which(name, path=":".join(([self.sysroot + folder] if folder else []) + folders))

    def pci_devices(self, vendor):
        """[(address, class, device)] of the vendor's ("0x10de") devices on the PCI bus, also those without a driver."""
        found = []
        for address in self.listed(PCI):
            folder = "%s/%s/" % (PCI, address)
            if self.value(folder + "vendor") == vendor:
                found.append((address, self.value(folder + "class"), self.value(folder + "device")))
        return found

    def numa_nodes(self):
        """The kernel's numbers of the NUMA nodes, ascending."""
        names = self.listed("/sys/devices/system/node")
        return sorted(int(name[4:]) for name in names if re.match(r"^node[0-9]+$", name))

    def cpu_list(self, path, line=None):
        """The set of CPUs in the file `path`, or in its line "<line>: …"; None if it is absent or not understood."""
        text = self.read(path)
        if text is not None and line is not None:
            match = re.search(r"^%s:(.*)$" % re.escape(line), text, re.MULTILINE)
            text = match.group(1) if match else None
        if text is None:
            return None
        try:
            return parse_cpu_list(text)
        except ValueError as error:
            self.warn("%s is not understood: %s" % (path, error))
            return None

    def cpu_info(self):
        """/proc/cpuinfo: ({name: value of the first processor}, {processor numbers}, {flags that all have})."""
        first, processors, flags = {}, set(), None
        for line in (self.read("/proc/cpuinfo") or "").splitlines():
            name, colon, value = (part.strip() for part in line.partition(":"))
            if not colon:
                continue
            if name == "processor":
                processors |= {int(value)} if value.isdigit() else set()
                continue
            first.setdefault(name, value)
            if name in ("flags", "Features"):
                flags = set(value.split()) if flags is None else flags & set(value.split())
        return first, processors, flags or set()

    def memory(self, path="/proc/meminfo"):
        """{name: KiB} of a meminfo file; {} if it is absent."""
        lines = (MEMORY_LINE.match(line.strip()) for line in (self.read(path) or "").splitlines())
        return {match.group(1): int(match.group(2)) for match in lines if match}

    def _cgroups(self):
        """Folders of this process's cgroup (version 2) and of those above it, whose limits apply as well."""
        match = re.search(r"^0::(/.*)$", self.read("/proc/self/cgroup") or "", re.MULTILINE)
        parts = [part for part in match.group(1).split("/") if part] if match else []
        return ["/".join([CGROUPS, *parts[:depth]]) for depth in range(len(parts), -1, -1)]

    def _limit(self, path):
        """The number in a cgroup's file, None if it is absent or "max"."""
        text = self.value(path)
        if text not in ("", "max") and whole_number(text) is None:
            self.warn("%s is not understood: %s" % (path, text[:120]))
        return whole_number(text)

    def memory_limits(self):
        """Memory limits on this process: [(limit MiB, MiB in use less what can be reclaimed, file of the limit)]."""
        limits = []
        for folder in self._cgroups():
            most = self._limit(folder + "/memory.max")
            if most is not None:
                match = re.search(r"^inactive_file ([0-9]+)$", self.read(folder + "/memory.stat") or "", re.MULTILINE)
                used = (self._limit(folder + "/memory.current") or 0) - (int(match.group(1)) if match else 0)
                limits.append((most // MIB, max(used, 0) // MIB, folder + "/memory.max"))
        return limits

    def memory_available(self):
        """MiB that new processes can use, by MemAvailable and the limits of cgroups; None if unknown."""
        values = self.memory()
        room = [values["MemAvailable"] // 1024] if "MemAvailable" in values else []
        room += [max(limit - used, 0) for limit, used, _file in self.memory_limits()]
        return min(room) if room else None

    def cpu_quota(self):
        """The least CPU quota on this process: (CPUs as float, file that sets it), or None."""
        quotas = []
        for folder in self._cgroups():
            path = folder + "/cpu.max"
            text = self.value(path) or "max 1"
            match = re.match(r"^([0-9]+|max) ([1-9][0-9]*)$", text)
            if not match:
                self.warn("%s is not understood: %s" % (path, text[:120]))
            elif match.group(1) != "max":
                quotas.append((int(match.group(1)) / int(match.group(2)), path))
        return min(quotas) if quotas else None
