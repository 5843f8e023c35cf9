# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Where systemd reads more about a unit than its file: drop-ins of every kind, and units of a higher place."""

from __future__ import annotations

import os
import re
import shlex

from ..node import processes

# systemd.unit(5), UNIT FILE LOAD PATH of the system manager, highest first
FOLDERS = (
    "/etc/systemd/system.control",
    "/run/systemd/system.control",
    "/run/systemd/transient",
    "/run/systemd/generator.early",
    "/etc/systemd/system",
    "/etc/systemd/system.attached",
    "/run/systemd/system",
    "/run/systemd/system.attached",
    "/run/systemd/generator",
    "/usr/local/lib/systemd/system",
    "/usr/lib/systemd/system",
    "/lib/systemd/system",
    "/run/systemd/generator.late",
)
ABOVE = FOLDERS[:4]  # these come before /etc/systemd/system
CONTAINER = re.compile(r"/(?:docker|libpod|cri-containerd|crio|kubepods|containerd)[-/.]")


def drop_in_names(unit):
    """Names of the folders in which systemd looks for drop-ins of a service, the most special first:
    a-b.service gives a-b.service.d, a-.service.d and service.d."""
    stem = unit[: -len(".service")]
    prefixes = [stem[: at + 1] for at in range(len(stem) - 2, -1, -1) if stem[at] == "-"]
    return ["%s.service.d" % name for name in (stem, *prefixes)] + ["service.d"]


def drop_ins_on_disk(unit, folders=FOLDERS):
    """Paths of the unit's drop-ins as they lie on the disk, a link of a folder once."""
    found = {}
    for folder in folders:
        for name in drop_in_names(unit):
            where = "%s/%s" % (folder, name)
            try:
                files = sorted(os.listdir(where))
            except OSError:
                continue
            for file in files:
                path = "%s/%s" % (where, file)
                if file.endswith(".conf") and os.path.realpath(path) != os.devnull:  # such a link masks a drop-in
                    found.setdefault(os.path.realpath(where) + "/" + file, path)
    return list(found.values())


def overrides(unit, folders=ABOVE):
    """Paths of units of this name that systemd prefers to that in /etc/systemd/system."""
    return [path for path in ("%s/%s" % (folder, unit) for folder in folders) if os.path.lexists(path)]


def loaded_paths(text):
    """The paths of a property of systemctl show."""
    try:
        return shlex.split(text or "")
    except ValueError:
        return (text or "").split()


def executed(show):
    """The program of systemctl show's ExecStart, None where it has none."""
    found = re.search(r"path=(.*?) ; argv\[\]=", show or "")
    return found.group(1) if found else None


def executed_in(text):
    """The program of a unit's text, as unit_word() writes it; None where there is none."""
    found = re.search(r'(?m)^ExecStart="((?:[^"\\]|\\.)*)"', text or "")
    return re.sub(r"\\(.)", r"\1", found.group(1)).replace("%%", "%") if found else None


def containers_run():
    """Whether a container runs on this node, whose devices a reload of systemd might take away."""
    for pid in processes.process_table():
        try:
            with open("/proc/%d/cgroup" % pid, encoding="utf-8", errors="replace") as stream:
                if CONTAINER.search(stream.read()):
                    return True
        except OSError:
            continue
    return False
