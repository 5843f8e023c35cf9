# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A simulated Neuron server: its devices, and who holds which logical core.

A core is held by a POSIX lock on one byte of a file, so the kernel itself knows the holder and forgets it when it ends.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import struct

FOLDER = "/run/simulated-neuron"
HARDWARE = FOLDER + "/hardware.json"  # {chips, cores_per_chip, lnc, memory}
CORES = FOLDER + "/cores"
COMPILES = "/var/log/simulated-neuron/compiles.jsonl"
SETTINGS = "/etc/simulated-neuron/settings.json"  # {compile_until, stubborn}
MEMORY = 144 * 1024**3
FLOCK = "hhqqi"


def hardware():
    """The declared shape of this simulated server."""
    with open(HARDWARE, encoding="utf-8") as stream:
        return json.load(stream)


def settings():
    """What a test has set; a file that a compilation waits for."""
    found = {"compile_until": None, "stubborn": False}
    try:
        with open(SETTINGS, encoding="utf-8") as stream:
            found.update(json.load(stream))
    except FileNotFoundError:
        pass
    return found


def logical_cores(shape):
    """How many logical cores the server has."""
    return shape["chips"] * shape["cores_per_chip"] // shape["lnc"]


def parse_cores(text):
    """[0, 1, 2, 3, 8] of "0-3,8". ValueError otherwise."""
    cores = []
    for item in text.split(","):
        first, _dash, last = item.partition("-")
        cores += range(int(first), int(last or first) + 1)
    return cores


def hold(cores):
    """Hold these logical cores until this process ends. Returns those that somebody else holds: then none is held."""
    handle = os.open(CORES, os.O_RDWR)
    taken = []
    for core in cores:
        try:
            fcntl.lockf(handle, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, core)
        except OSError as error:
            if error.errno not in (errno.EACCES, errno.EAGAIN):
                raise
            taken.append(core)
    if taken:
        os.close(handle)  # gives all of this process's locks back
    return taken


def open_devices(cores):
    """Open the devices of these logical cores until this process ends. OSError where one is not to be had."""
    each = hardware()["cores_per_chip"] // hardware()["lnc"]
    for number in sorted({core // each for core in cores}):
        os.open("/dev/neuron%d" % number, os.O_RDWR)


def holders():
    """{core: pid} of the cores that are held."""
    found = {}
    handle = os.open(CORES, os.O_RDWR)
    try:
        for core in range(logical_cores(hardware())):
            asked = struct.pack(FLOCK, fcntl.F_WRLCK, os.SEEK_SET, core, 1, 0)
            kind, _whence, _start, _length, pid = struct.unpack(FLOCK, fcntl.fcntl(handle, fcntl.F_GETLK, asked))
            if kind != fcntl.F_UNLCK:
                found[core] = pid
    finally:
        os.close(handle)
    return found


def command(pid):
    """The process's argv joined by blanks, cut as neuron-ls cuts it."""
    try:
        with open("/proc/%d/cmdline" % pid, "rb") as stream:
            text = stream.read().rstrip(b"\0").replace(b"\0", b" ").decode("utf-8", "replace")
    except OSError:
        text = "gone"
    return text if len(text) <= 80 else text[:77] + "..."


def devices():
    """What `neuron-ls -j` prints, as a list."""
    shape = hardware()
    each = shape["cores_per_chip"] // shape["lnc"]
    held = holders()
    count = shape["chips"]
    cpus = "0-%d" % (os.cpu_count() - 1) if os.cpu_count() > 1 else "0"
    result = []
    for number in range(count):
        cores = list(range(number * each, (number + 1) * each))
        result.append(
            {
                "neuron_device": number,
                "bdf": "%02x:00.0" % (0x10 + number),
                "cpu_affinity": cpus,
                "numa_node": "0",
                "connected_to": sorted({(number + step) % count for step in (-4, -1, 1, 4)} - {number}),
                "nc_count": each,
                "logical_neuroncore_config": shape["lnc"],
                "memory_size": shape["memory"],
                "neuroncore_ids": cores,
                "neuron_processes": [
                    {"pid": pid, "command": command(pid), "neuron_runtime_version": "2.29.40.0"}
                    for pid in sorted({held[core] for core in cores if core in held})
                ],
            }
        )
    return result
