# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Checks of a node: hardware, kernel, clock, disks, and what its servers reach."""

from __future__ import annotations

import os
import re
import tempfile
import time
from urllib.parse import urlsplit

from ..errors import FleetError
from ..host.files import existing_parent
from ..platforms.base import used
from ..platforms.host import run_tool
from ..supervise import order
from ..weights.http import proxy_for
from .findings import NotChecked

CLOCK_S = 60  # by which the clocks of the control node and of a node may differ, with the time of a call
FULL = 0.02  # share of a disk that is free
FULL_BYTES = 2 << 30
SAMPLE_BYTES, SAMPLE_S, PIECE = 64 << 20, 4.0, 4 << 20  # of a checkpoint that are read
LINE = 300  # characters of a line of the kernel's log

KILLED = r"[Oo]ut of memory: Killed process \d+ \([^)]*\)|oom_reaper: reaped process"
BROKEN_DISK = r"I/O error, dev |EXT4-fs error|XFS \([^)]*\): (?:Corruption|metadata I/O)|[Rr]emounting filesystem " \
              r"read-only|nfs: server \S+ not responding"  # fmt: skip
BROKEN_HARDWARE = r"\[Hardware Error\]|EDAC \S+: \d+ UE|AER:.* [Uu]ncorrect|INFO: task \S+ blocked for more than"


def hardware(case):
    """Faults that the vendor's tool reports, also of devices of running servers."""
    if case.platform is None:
        raise NotChecked("the plan of this host names no platform")
    if not case.platform.present(case.system):
        raise NotChecked("this node has no such hardware; see the check node_preflight")
    for device in used(case.platform.detect(case.system), case.hardware):
        for sentence in getattr(device, "faults", ()):
            yield FleetError("doctor.device-faulty", "%s", (sentence,))


def kernel(case):
    """What the kernel reported in the last day: memory, disks, devices and drivers."""
    lines = kernel_lines(case.system)
    faults = "|".join((BROKEN_HARDWARE, *(case.platform.kernel_faults if case.platform else ())))

    def last(pattern):
        found = [line for line in lines if re.search(pattern, line)]
        return "%s (%d such lines)" % (found[-1].strip()[:LINE], len(found)) if found else None

    if last(KILLED):
        yield FleetError(
            "doctor.out-of-memory",
            "The kernel ended a process for lack of memory: %s. Stop other programs, plan fewer servers, or raise the "
            "memory limit of the node or container.",
            (last(KILLED),),
        )
    if last(BROKEN_DISK):
        yield FleetError(
            "doctor.disk-error",
            "The kernel reported errors of a disk or file system: %s. Repair or replace the disk, or the server of "
            "the share, then run site.yml with -e model_weights_verify=full.",
            (last(BROKEN_DISK),),
        )
    if last(faults):
        yield FleetError(
            "doctor.hardware-error",
            "The kernel reported an error of a device or its driver: %s. Check the device with its vendor's tool and "
            "reboot the node; if the error returns, list the device in fleet_hardware.exclude.",
            (last(faults),),
        )


def kernel_lines(system):
    """[line] of the kernel's log of the last day. Raises NotChecked."""
    program = system.program("journalctl")
    asked = [program, "--dmesg", "--since=-24h", "--output=short-iso", "--quiet", "--no-pager"]
    status, text = run_tool(asked) if program else (None, "")
    if status != 0 or not text.strip():
        raise NotChecked("the log of the kernel is empty or cannot be read")
    return text.splitlines()


def clock(case):
    """Certificates, tokens and the order of log lines depend on the clock."""
    if not case.now:
        raise NotChecked("the time of the control node is not known")
    ahead = case.received - case.now
    if abs(ahead) > CLOCK_S:
        yield FleetError(
            "doctor.clock",
            "The clock of this node is %d s %s that of the control node. Start chrony or systemd-timesyncd on both: "
            "certificates and tokens are refused with a wrong clock.",
            (abs(ahead), "ahead of" if ahead > 0 else "behind"),
        )


def disk(case):
    """File systems that the servers write to, and those of checkpoints."""
    paths = (case.paths.lib, case.paths.etc, case.paths.log, case.paths.run, tempfile.gettempdir(), *case.weights)
    seen = set()
    for path in map(existing_parent, paths):
        device, found = os.stat(path).st_dev, os.statvfs(path)
        if device in seen:
            continue
        seen.add(device)
        free = found.f_bavail * found.f_frsize
        if free < min(FULL_BYTES, FULL * found.f_blocks * found.f_frsize) or found.f_favail < FULL * found.f_files:
            yield FleetError(
                "doctor.disk-full",
                "The disk of %s has %d MiB left, and %d inodes. Free space: playbooks/clean.yml lists unused files.",
                (path, free >> 20, found.f_favail),
            )


def reading(case):
    """Whether the disk reads checkpoints fast enough for the servers' start budget."""
    for folder, budget_s in sorted(case.weights.items()):
        files = [one for one in os.scandir(folder) if one.is_file()] if os.path.isdir(folder) else []
        total = sum(one.stat().st_size for one in files)
        if not total:
            continue
        rate = read_rate(max(files, key=lambda one: one.stat().st_size).path)
        if total / rate > budget_s:
            yield FleetError(
                "doctor.disk-slow",
                "%s is read at %.1f MB/s, so loading its %.1f GB lasts %d s, longer than the start budget of %d s. "
                "Move the checkpoint to a faster disk (model.path), or raise start.budget_s.",
                (folder, rate / 1e6, total / 1e9, total / rate, budget_s),
            )


def read_rate(path):
    """Bytes per second at which the disk reads a file, without the kernel's cache."""
    began, done = time.monotonic(), 0
    with open(path, "rb", buffering=0) as stream:
        os.posix_fadvise(stream.fileno(), 0, SAMPLE_BYTES, os.POSIX_FADV_DONTNEED)
        while done < SAMPLE_BYTES and time.monotonic() - began < SAMPLE_S:
            piece = stream.read(PIECE)
            if not piece:
                break
            done += len(piece)
    return max(1, done) / max(1e-6, time.monotonic() - began)


def needs(case):
    """Services that servers need, such as etcd and NATS, as this node reaches them."""
    asked = {}
    for name, entry in case.entries.items():
        given = {**entry["environment"], **case.secrets(name)}
        for need in entry["start"].get("needs") or ():
            urls = tuple(need["urls"])
            if urls not in asked:
                asked[urls] = order.away(need, given)
            if asked[urls]:
                yield FleetError(
                    "doctor.service-away",
                    "%s does not answer this node (%s). Start it with playbooks/services.yml, and open its port in "
                    "the firewalls between this node and it.",
                    (need["name"], asked[urls]),
                    {"server": name},
                )


def proxies(case):
    """Proxies of servers that would get requests for services and for the node itself."""
    for name, entry in case.entries.items():
        urls = [url for need in entry["start"].get("needs") or () for url in need["urls"]]
        urls = [re.sub(r"^tcp:", "http:", url) for url in urls] + ["http://127.0.0.1"]
        lost = sorted({urlsplit(url).hostname for url in urls if proxy_for(urlsplit(url), entry["environment"])})
        if lost:
            yield FleetError(
                "doctor.proxy",
                "The environment of %s sends requests for %s to a proxy. Add these to NO_PROXY and no_proxy in the "
                "recipe's environment.",
                (name, ", ".join(lost)),
                {"server": name},
            )


CHECKS = {
    "hardware": hardware, "kernel": kernel, "clock": clock, "disk": disk, "read-rate": reading, "services": needs,
    "proxies": proxies,
}  # fmt: skip
