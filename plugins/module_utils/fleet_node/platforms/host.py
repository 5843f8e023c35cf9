# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What the kernel says of a node: processors, memory and this process's limits, from /proc and /sys below one root."""

from __future__ import annotations

import os
import re

from ..host.cpu_list import parse_cpu_list
from ..host.files import read_text

# "MemTotal:  24684092 kB"; the memory of a NUMA node has "Node 0 " before it, and HugePages_* have no unit.
MEMORY_LINE = re.compile(r"^(?:Node\s+[0-9]+\s+)?([\w()]+):\s*([0-9]+)(?:\s+kB)?$")
# A cgroup v1 without a limit says the largest multiple of a page below 2^63.
NO_LIMIT = 1 << 60
MIB = 1 << 20


class System:
    """Reads /proc and /sys below `sysroot` ("" for this machine's own).

    `warnings` gathers what could not be understood, once each; an absent file is no warning, its reader returns None.
    """

    def __init__(self, sysroot=""):
        self.sysroot = sysroot.rstrip("/")
        self.warnings = []

    def warn(self, text):
        """Keep a warning; each once."""
        if text not in self.warnings:
            self.warnings.append(text)

    def read(self, path):
        """The text of `path`, or None where there is none."""
        try:
            return read_text(self.sysroot + path)
        except OSError as error:
            self.warn("%s cannot be read: %s" % (path, error.strerror))
            return None

    def numa_nodes(self):
        """The kernel's numbers of the NUMA nodes, ascending; [] where there is no such folder."""
        try:
            names = os.listdir(self.sysroot + "/sys/devices/system/node")
        except OSError:
            return []
        return sorted(int(name[4:]) for name in names if re.match(r"^node[0-9]+$", name))

    def cpu_list(self, path, line=None):
        """The set of CPUs in the file `path`, or in its line "<line>: …"; None where there is none to be understood."""
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
            if not line.strip():
                continue
            name, colon, value = (part.strip() for part in line.partition(":"))
            if not colon or (name == "processor" and not value.isdigit()):
                self.warn("/proc/cpuinfo: this line is not understood: %s" % line.strip()[:120])
            elif name == "processor":
                processors.add(int(value))
            else:
                first.setdefault(name, value)
                if name in ("flags", "Features"):
                    flags = set(value.split()) if flags is None else flags & set(value.split())
        return first, processors, flags or set()

    def memory(self, path="/proc/meminfo"):
        """{name: KiB} of a meminfo file; {} where it is absent."""
        values = {}
        for line in (self.read(path) or "").splitlines():
            match = MEMORY_LINE.match(line.strip())
            if match:
                values[match.group(1)] = int(match.group(2))
            elif line.strip():
                self.warn("%s: this line is not understood: %s" % (path, line.strip()[:120]))
        return values

    def _cgroups(self, controller):
        """Folders [(version, path)] of this process's cgroup and of all above it; limits of any of them hold."""
        paths = {}
        for line in (self.read("/proc/self/cgroup") or "").splitlines():
            fields = line.split(":", 2)
            if len(fields) != 3:
                self.warn("/proc/self/cgroup: this line is not understood: %s" % line[:120])
            elif line.startswith("0::"):
                paths[2] = fields[2]
            elif controller in fields[1].split(","):
                paths[1] = fields[2]
        folders = []
        for line in (self.read("/proc/self/mountinfo") or "").splitlines():
            before, dash, after = (part.split() for part in line.partition(" - "))
            if not dash or len(before) < 5 or len(after) < 3 or after[0] not in ("cgroup", "cgroup2"):
                continue
            version = 2 if after[0] == "cgroup2" else 1
            if version not in paths or (version == 1 and controller not in after[2].split(",")):
                continue
            # In a container the mount shows only a part of the hierarchy, while the path may start at the host's top.
            inside = os.path.relpath(paths[version], before[3])
            parts = [] if inside == "." or inside.startswith("..") else inside.split("/")
            for depth in range(len(parts), -1, -1):
                folders.append((version, "/".join([before[4].rstrip("/"), *parts[:depth]])))
        return folders

    def _number(self, path, special=("max", "-1")):
        """The number in a one-number file; None where it is absent or says that there is no limit."""
        text = self.read(path)
        if text is None or text.strip() in special:
            return None
        if not text.strip().isdigit():
            self.warn("%s is not understood: %s" % (path, text.strip()[:120]))
            return None
        return int(text)

    def memory_limits(self):
        """Memory limits on this process: [(limit MiB, MiB in use less what can be given back, file of the limit)]."""
        limits = []
        for version, folder in self._cgroups("memory"):
            limit, usage, idle = (
                ("/memory.max", "/memory.current", "inactive_file")
                if version == 2
                else ("/memory.limit_in_bytes", "/memory.usage_in_bytes", "total_inactive_file")
            )
            most = self._number(folder + limit)
            if most is None or most >= NO_LIMIT:
                continue
            match = re.search(r"^%s ([0-9]+)$" % idle, self.read(folder + "/memory.stat") or "", re.MULTILINE)
            used = (self._number(folder + usage) or 0) - (int(match.group(1)) if match else 0)
            limits.append((most // MIB, max(used, 0) // MIB, folder + limit))
        return limits

    def memory_available(self):
        """MiB that new processes can use, by MemAvailable and by what cgroup limits leave; None where unknown."""
        values = self.memory()
        room = [values["MemAvailable"] // 1024] if "MemAvailable" in values else []
        room += [max(limit - used, 0) for limit, used, _file in self.memory_limits()]
        return min(room) if room else None

    def cpu_quota(self):
        """The least CPU quota on this process: (CPUs as float, file that sets it), or None where there is none."""
        quotas = []
        for version, folder in self._cgroups("cpu"):
            if version == 2:
                path = folder + "/cpu.max"
                quota, period = self._cpu_max(path)
            else:
                path = folder + "/cpu.cfs_quota_us"
                quota, period = self._number(path), self._number(folder + "/cpu.cfs_period_us")
            if quota is not None and period:
                quotas.append((quota / period, path))
        return min(quotas) if quotas else None

    def _cpu_max(self, path):
        """(quota, period) in µs from a cgroup v2 cpu.max such as "400000 100000" or "max 100000"."""
        text = self.read(path)
        match = re.match(r"^([0-9]+|max) ([0-9]+)$", (text or "max 1").strip())
        if not match:
            self.warn("%s is not understood: %s" % (path, text.strip()[:120]))
            return None, None
        return (None if match.group(1) == "max" else int(match.group(1))), int(match.group(2))
