# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Adds a device to a container without systemd, like a hook of its engine: hook_device.py PID MAJOR:MINOR

systemd writes its own rules again at its next reload. With cgroups of version 1 the device is added to the container's
rules; with version 2 the program that contains them is detached with bpf(2).
"""

from __future__ import annotations

import ctypes
import os
import platform
import struct
import sys

CALL = {"x86_64": 321, "aarch64": 280}
PROG_DETACH, PROG_GET_FD_BY_ID, PROG_QUERY, CGROUP_DEVICE = 9, 13, 16, 6


def bpf(command, *fields):
    """bpf(2) with the union's fields as 32-bit words: what it returns, and the fields afterwards."""
    libc = ctypes.CDLL(None, use_errno=True)
    attributes = ctypes.create_string_buffer(struct.pack("=%dI" % len(fields), *fields), 120)
    result = libc.syscall(CALL[platform.machine()], command, attributes, len(attributes))
    if result < 0:
        raise OSError(ctypes.get_errno(), "bpf(%d)" % command)
    return result, struct.unpack_from("=%dI" % len(fields), attributes)


def detach(path):
    cgroup = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    numbers = (ctypes.c_uint32 * 64)()
    place = ctypes.addressof(numbers)
    fields = bpf(PROG_QUERY, cgroup, CGROUP_DEVICE, 0, 0, place & 0xFFFFFFFF, place >> 32, len(numbers), 0)[1]
    if not fields[6]:
        raise SystemExit("%s has no device rules" % path)
    for number in numbers[: fields[6]]:
        bpf(PROG_DETACH, cgroup, bpf(PROG_GET_FD_BY_ID, number, 0, 0)[0], CGROUP_DEVICE, 0)


with open("/proc/%s/cgroup" % sys.argv[1], encoding="ascii") as stream:
    cgroups = {name: path for _number, name, path in (line.rstrip("\n").split(":", 2) for line in stream)}
if "devices" in cgroups:
    with open("/sys/fs/cgroup/devices%s/devices.allow" % cgroups["devices"], "w", encoding="ascii") as rules:
        rules.write("c %s rwm" % sys.argv[2])
else:
    detach("/sys/fs/cgroup" + cgroups[""])
