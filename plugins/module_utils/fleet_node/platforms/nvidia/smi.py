# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What nvidia-smi tells: its answers to -q -x, --query-gpu and topo -m, and why it gives none."""

from __future__ import annotations

import re
from xml.etree import ElementTree
from xml.sax import saxutils

from ...errors import FleetError
from ...node.cpu_list import format_cpu_list, parse_cpu_list
from ..vendor_tools import run, whole

FIELDS = ("index", "pci.bus_id", "name", "memory.total", "compute_cap")
LOADED = "/sys/module/nvidia/version"
BUS = re.compile(r"^(?:([0-9a-f]{4,8}):)?([0-9a-f]{2}):([0-9a-f]{2})(?:\.([0-7]))?$")
LOST = re.compile(r"Unable to determine the device handle for GPU ?\d*:? ?([0-9A-Fa-f:.]+): (.*)")
PROCESS_NAME = re.compile(r"(<process_name>)(.*?)(</process_name>)", re.DOTALL)
CONTROL = re.compile(r"\x1b\[[0-9;]*m|[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]")
# What stands in a field that has no value, and in one whose GPU or reader is at fault.
ABSENT = ("", "n/a", "none", "not supported", "not found", "deprecated",
          "requested functionality has been deprecated")  # fmt: skip
BROKEN = {"gpu is lost": "lost", "gpu requires reset": "needs reset", "unknown error": "unreadable",
          "err!": "unreadable", "error": "unreadable"}  # fmt: skip
HIDDEN = ("insufficient permissions", "insufficient permission", "not permitted")


def bus_of(text):
    """ "0000:8f:00.0" of "00000000:8F:00.0", as the kernel writes it; None for what is no PCI address."""
    match = BUS.match((text or "").strip().lower())
    if not match:
        return None
    domain, bus, slot, function = match.groups()
    return "%04x:%s:%s.%s" % (int(domain or "0", 16), bus, slot, function or "0")


def plain(text):
    """A field without brackets and case: "gpu is lost" of "[GPU is lost]"."""
    return " ".join((text or "").strip().strip("[]").lower().split())


class Gpu:
    """What is told of one GPU: fields of the XML by their path. `faults`: words of BROKEN that stand in fields."""

    def __init__(self, element, warn):
        self.element, self.warn, self.faults = element, warn, []
        self.bus = bus_of(element.get("id")) or bus_of(element.findtext("pci/pci_bus_id"))

    def text(self, *paths):
        """The first of these fields that has a value, else None."""
        for path in paths:
            found = self.element.findtext(path)
            word = plain(found)
            if word in BROKEN:
                self.faults.append(BROKEN[word])
            elif word in HIDDEN:
                self.warn("nvidia-smi shows %s of GPU %s to root alone." % (path, self.bus))
            elif word not in ABSENT:
                return " ".join(found.split())
        return None

    def number(self, *paths):
        """The same as a whole number, with or without a unit."""
        text = self.text(*paths)
        match = re.match(r"^([0-9]{1,15})(?: [A-Za-z()]+)?$", text or "")
        if text is not None and not match:
            self.warn("nvidia-smi: %s of GPU %s is not understood: %s" % (paths[0], self.bus, text[:60]))
        return int(match.group(1)) if match else None

    def processes(self):
        """[{pid, command}] of those that compute on it."""
        found = []
        for one in self.element.iterfind("processes/process_info"):
            pid, kind = (one.findtext("pid") or "").strip(), (one.findtext("type") or "C").strip()
            if whole(pid) and "C" in kind:
                found.append({"pid": whole(pid), "command": (one.findtext("process_name") or "").strip()})
            elif whole(pid) is None and plain(pid) not in ABSENT:
                self.warn("nvidia-smi: this process of GPU %s is not understood: %s" % (self.bus, pid[:60]))
        return found


def parse_xml(text):
    """The root of `nvidia-smi -q -x`. ValueError where it is no such document."""
    start = text.find("<nvidia_smi_log")
    if start < 0:
        raise ValueError("no nvidia_smi_log in it")
    # names of processes come as they are: with & and control characters
    body = PROCESS_NAME.sub(
        lambda found: found.group(1) + saxutils.escape(saxutils.unescape(found.group(2))) + found.group(3),
        CONTROL.sub("", text[start:]),
    )
    try:
        return ElementTree.fromstring(body)
    except (ElementTree.ParseError, ValueError) as error:
        raise ValueError(str(error)) from error


def parse_csv(text, warn):
    """{PCI address: {index, name, memory_mib or None, capability or None}} of --query-gpu=FIELDS without header."""
    found = {}
    for line in CONTROL.sub("", text).splitlines():
        cells = [cell.strip() for cell in line.split(",")]
        bus = bus_of(cells[1]) if len(cells) == len(FIELDS) else None
        if bus is None or whole(cells[0]) is None:
            if line.strip() and not LOST.search(line):
                warn("nvidia-smi --query-gpu: this line is not understood: %s" % line.strip()[:120])
            continue
        capability = cells[4] if re.match(r"^[0-9]{1,2}\.[0-9]$", cells[4]) else None
        name = None if plain(cells[2]) in (*ABSENT, *BROKEN) else cells[2]
        found[bus] = {"index": whole(cells[0]), "name": name, "memory_mib": whole(cells[3]) or None,
                      "capability": capability}  # fmt: skip
    return found


def parse_topology(text, warn):
    """{index: (CPUs as text, NUMA node or None)} of `nvidia-smi topo -m`."""
    found, columns = {}, []
    for line in CONTROL.sub("", text).splitlines():
        cells = [cell.strip() for cell in line.split("\t")]
        if "CPU Affinity" in cells:
            columns = cells
        match = re.match(r"^GPU([0-9]{1,4})$", cells[0])
        if not match or not columns or len(cells) <= columns.index("CPU Affinity"):
            continue
        place = columns.index("CPU Affinity")
        numa = cells[place + 1] if len(cells) > place + 1 else ""
        try:
            cpus = "" if plain(cells[place]) in ABSENT else format_cpu_list(parse_cpu_list(cells[place]))
        except ValueError:
            warn("nvidia-smi topo -m: the CPUs of GPU %s are not understood: %s" % (match.group(1), cells[place][:60]))
            cpus = ""
        found[int(match.group(1))] = (cpus, whole(numa))
    return found


def ask(system, program, only=None):
    """(root of the XML or None, {PCI address: row of the CSV}, {PCI address: words} of GPUs that do not answer, what
    was printed instead of XML). only: the PCI address of one GPU."""
    chosen = ["-i", only] if only else []
    status, text = run([program, "-q", "-x", *chosen])
    lost = {bus_of(bus): words.strip() for bus, words in LOST.findall(text) if bus_of(bus)}
    root, problem = None, ""
    try:
        root = parse_xml(text)
    except ValueError as error:
        problem = text.strip() or str(status)
        if "<nvidia_smi_log" in text:
            problem = "its XML is not understood: %s" % error
            system.warn("nvidia-smi -q -x: " + problem)
    csv = run([program, "--query-gpu=" + ",".join(FIELDS), "--format=csv,noheader,nounits", *chosen])
    rows = parse_csv(csv[1], system.warn) if csv[0] == 0 else {}
    return root, rows, lost, problem


def refuse(system, problem):
    """FleetError for what nvidia-smi printed instead of an answer."""
    words = " ".join(problem.split())
    loaded = (system.read(LOADED) or "").strip()
    if "couldn't communicate with the NVIDIA driver" in words:
        raise FleetError(
            "nvidia.driver-not-loaded",
            "The NVIDIA driver is installed on this node and not loaded: nvidia-smi cannot communicate with it. Look "
            "at `modprobe nvidia` and `dkms status`: after a new kernel its module has to be built again, and Secure "
            "Boot refuses one that is not signed. Then reboot.",
        )
    if "version mismatch" in words:
        library = re.search(r"NVML library version: ([0-9.]+)", words)
        raise FleetError(
            "nvidia.library-mismatch",
            "The NVIDIA driver's module is %s, its libraries are %s: it was updated while the old module was loaded. "
            "Reboot the node. Unattended upgrades of the driver cause this; hold its packages.",
            (loaded or "of one version", library.group(1) if library else "of another one"),
        )
    if "couldn't find libnvidia-ml" in words:
        raise FleetError(
            "nvidia.library-missing",
            "This node has nvidia-smi and no libnvidia-ml.so: the NVIDIA driver is installed in parts. Install all of "
            "it again.",
        )
    if "No devices were found" in words:
        raise FleetError(
            "nvidia.no-devices",
            "The NVIDIA driver%s runs and finds no GPU that it can use. Look for NVRM in dmesg: a driver of the wrong "
            "kind (Blackwell needs nvidia-open), a GPU that is given to a virtual machine, or one that has failed.",
            (" " + loaded if loaded else "",),
        )
    if "Insufficient Permissions" in words:
        raise FleetError(
            "nvidia.no-permission",
            "This user may not open the GPUs (/dev/nvidiactl). Run the play with become, or let the user's group have "
            "the device files.",
        )
    raise FleetError(
        "nvidia.no-answer",
        "nvidia-smi gives no answer on this node: %s. Run `nvidia-smi -q` there, and look for NVRM in dmesg; a reboot "
        "clears most of it.",
        (words[:200] or "it printed nothing",),
    )
