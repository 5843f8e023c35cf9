# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Output of nvidia-smi: -q -x, --query-gpu and topo -m; kinds of GPUs; faults of a GPU; reasons for no output."""

from __future__ import annotations

import re
from xml.etree import ElementTree
from xml.sax import saxutils

from ...errors import FleetError
from ...host.cpu_list import format_cpu_list, parse_cpu_list
from ...host.packages import at_least
from ..vendor_tools import run, whole

# name: (compute capability, memory.total of nvidia-smi in MiB, what product names hold). Capabilities:
# developer.nvidia.com/cuda-gpus. Memory as nvidia-smi prints it: captures in NVIDIA/k8s-test-infra
# (tests/e2e/go/assertions/nvidiasmi/testdata/hardware), for A100 80GB, H200, B300 and RTX PRO 6000 in issues of vLLM.
KINDS = {
    "a100": ("8.0", 81920, r"\bA100\b"),
    "l40s": ("8.9", 46068, r"\bL40S\b"),
    "h100": ("9.0", 81559, r"\bH100\b"),
    "h200": ("9.0", 143771, r"\bH200\b"),
    "b200": ("10.0", 183359, r"\bB200\b"),
    "gb200": ("10.0", 189471, r"\bGB200\b"),
    "b300": ("10.3", 275040, r"\bB300\b"),
    "gb300": ("10.3", 284208, r"\bGB300\b"),
    "rtx-pro-6000": ("12.0", 97887, r"\bRTX PRO 6000 Blackwell\b"),
}
SAME = 0.01  # memory that differs by less is equal
# CUDA release: oldest driver branch on Linux (CUDA Toolkit release notes, table 2; minor version compatibility aside).
DRIVER_FOR_CUDA = (("13.3", "610"), ("13.2", "595"), ("13.1", "590"), ("13.0", "580"), ("12.9", "575"), ("12.8", "570"),
                   ("12.6", "560"), ("12.4", "550"), ("12.0", "525"))  # fmt: skip
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


# ---- kinds


def kind_of(product, capability, memory_mib):
    """A name of KINDS for a GPU, or None. If the product name has no number, its memory decides.

    product: nvidia-smi's name. capability: such as "9.0", or None. memory_mib: or None.
    """
    fitting = {name: one for name, one in KINDS.items() if capability in (None, one[0])}
    named = [name for name, one in fitting.items() if re.search(one[2], product or "", re.IGNORECASE)]
    if named:
        return named[0]
    if capability is None or not memory_mib or re.search(r"\d", product or ""):
        return None  # another model by its name, such as H20 or GH200
    near = [name for name, one in fitting.items() if abs(memory_mib - one[1]) <= one[1] * SAME]
    return near[0] if len(near) == 1 else None


def cuda_of_driver(driver):
    """The newest CUDA release that a driver runs, such as "12.9", or None if the driver is older or unknown."""
    return next((cuda for cuda, branch in DRIVER_FOR_CUDA if driver and at_least(driver, branch)), None)


# ---- faults

UNCORRECTABLE = ("sram_uncorrectable_parity", "sram_uncorrectable_secded", "sram_uncorrectable", "dram_uncorrectable",
                 "double_bit/total")  # fmt: skip
SLOWDOWNS = (("hw_thermal_slowdown", "heat (hardware)"), ("sw_thermal_slowdown", "heat (driver)"),
             ("hw_power_brake_slowdown", "the power brake"), ("hw_slowdown", "heat or power (hardware)"))  # fmt: skip
# Both schemas: the name of the block and of its fields.
REASONS = ("clocks_event_reasons/clocks_event_reason_", "clocks_throttle_reasons/clocks_throttle_reason_")
RESET = "Stop its processes and run `nvidia-smi --gpu-reset -i {0}`, or reboot the node."
REPLACE = "List {0} in fleet_hardware.exclude and have the board replaced."
NO_MIG = "Run `nvidia-smi -i {0} -mig 0`, and reboot if it reports pending."
# (field, value that is a fault, word for it, sentence, remedy), the worst first
FAULTS = (
    ("mig_mode/current_mig", "Enabled", "MIG", "is divided by MIG, but servers use complete GPUs", NO_MIG),
    ("mig_mode/pending_mig", "Enabled", "MIG", "will be divided by MIG after its next reset", NO_MIG),
    ("gpu_recovery_action", None, "needs reset", "has failed, and the driver requires: {1}", RESET),
    ("gpu_reset_status/reset_required", "Yes", "needs reset", "has failed, and the driver requires: reset", RESET),
    ("", "ECC", "ECC", "has had {1} uncorrectable memory error(s) since its last reset",
     RESET + " If they come back: " + REPLACE),
    ("ecc_errors/aggregate/sram_threshold_exceeded", "Yes", "ECC", "exceeds the limit of uncorrectable SRAM errors",
     REPLACE),
    ("remapped_rows/remapped_row_failure", "Yes", "remap failed", "cannot replace failed rows of its memory", REPLACE),
    ("remapped_rows/remapped_row_pending", "Yes", "remap pending", "has failed rows of memory until its next reset",
     RESET),
    ("retired_pages/pending_retirement", "Yes", "retirement pending", "has failed pages of memory until its next reset",
     RESET),
    ("retired_pages/pending_blacklist", "Yes", "retirement pending", "has failed pages of memory until its next reset",
     RESET),
    ("ecc_errors/channel_repair_pending", "Yes", "repair pending", "has a repair pending until its next reset", RESET),
    ("ecc_errors/tpc_repair_pending", "Yes", "repair pending", "has a repair pending until its next reset", RESET),
)  # fmt: skip
MANAGER = ("On a board with NVSwitches enable and restart nvidia-fabricmanager, of exactly the driver's version, and "
           "look at its log; otherwise look at the rack's fabric manager.")  # fmt: skip


def faults_of(number, bus, gpu, lost=None):
    """[(word, sentence)] of what stops a server on a GPU, the worst first; [] for a healthy GPU.

    gpu: Gpu, None for a GPU that does not answer. lost: what nvidia-smi prints about that.
    """
    name = "GPU %d (%s)" % (number, bus)
    replace = REPLACE.format(number)
    if gpu is None:
        words = "%s does not answer: %s. Reboot the node; if that does not help: %s"
        return [("lost", words % (name, lost.strip(" ."), replace))] if lost else []
    errors = sum(gpu.number("ecc_errors/volatile/" + key) or 0 for key in UNCORRECTABLE)
    found = {}
    for field, bad, word, words, remedy in FAULTS:
        value = gpu.text(field) if field else errors and bad
        if value and bad in (None, value) and word not in found:
            detail = value.lower() if field else errors
            found[word] = "%s %s. %s" % (name, words.format(number, detail), remedy.format(number))
    found.update(_fabric(name, gpu))
    # fields that every GPU has; an answer of "GPU is lost" in one of them is the GPU's own
    gpu.text("product_name"), gpu.number("fb_memory_usage/total")
    if "lost" in gpu.faults:
        return [("lost", "%s is lost: the driver does not reach it. Reboot the node; if that does not help: %s"
                 % (name, replace))]  # fmt: skip
    reset = RESET.format(number)
    if "needs reset" in gpu.faults:
        found = {"needs reset": "%s requires a reset. %s" % (name, reset), **found}
    elif gpu.faults and not found:
        found["unreadable"] = "nvidia-smi cannot read all fields of %s. %s" % (name, reset)
    return list(found.items())


def _fabric(name, gpu):
    """The same for NVLink between boards."""
    state, status = gpu.text("fabric/state"), gpu.text("fabric/status")
    unhealthy = [key for key in ("route_unhealthy", "incorrect_configuration", "access_timeout_recovery")
                 if gpu.text("fabric/health/" + key) not in (None, "False", "Not Started")]  # fmt: skip
    if state in ("In Progress", "Not Started"):
        words = "is not ready (state %s), and CUDA does not start before it is (error 802)" % state
    elif state == "Completed" and status not in (None, "Success"):
        words = "has failed: %s" % status
    elif gpu.text("fabric/health/summary") == "Unhealthy":
        words = "is unhealthy (%s)" % (", ".join(unhealthy) or "no reason given")
    else:
        return {}
    return {"fabric": "The NVLink fabric of %s %s. %s" % (name, words, MANAGER)}


def slowdowns(gpu):
    """What slows a GPU down now, as words."""
    if gpu is None:
        return []
    found = [words for key, words in SLOWDOWNS if gpu.text(*(reason + key for reason in REASONS)) == "Active"]
    return found[:-1] if len(found) > 1 and found[-1] == SLOWDOWNS[-1][1] else found  # it comes with its cause


# ---- no answer

# (part of what nvidia-smi prints, cause and remedy)
REASONS_FOR_NO_ANSWER = (
    ("couldn't communicate with the NVIDIA driver",
     "the driver is installed and not loaded. Look at `modprobe nvidia` and `dkms status`: after a new kernel its "
     "module has to be built again, and Secure Boot refuses a module that is not signed"),
    ("version mismatch",
     "the driver's module and its libraries have different versions, because the driver was updated while the old "
     "module was loaded. Hold its packages: unattended upgrades cause this"),
    ("couldn't find libnvidia-ml", "libnvidia-ml.so is missing. Install the complete driver again"),
    ("No devices were found",
     "the driver finds no GPU that it can use. Look for NVRM in dmesg: a driver of the wrong kind (Blackwell requires "
     "nvidia-open), a GPU that is passed to a virtual machine, or a GPU that has failed"),
    ("Insufficient Permissions",
     "this user may not open the GPUs (/dev/nvidiactl). Run the play with become, or give the user's group access to "
     "the device files"),
)  # fmt: skip


def refuse(system, problem):
    """Raises FleetError for what nvidia-smi printed instead of an answer."""
    words = " ".join(problem.split())
    cause = next((cause for mark, cause in REASONS_FOR_NO_ANSWER if mark in words), "look for NVRM in dmesg")
    raise FleetError(
        "nvidia.no-answer",
        "nvidia-smi gives no answer on this node (loaded driver: %s): %s: %s. Check `nvidia-smi -q` there, and reboot "
        "the node.",
        ((system.read(LOADED) or "").strip() or "none", words[:200] or "it printed nothing", cause),
    )
