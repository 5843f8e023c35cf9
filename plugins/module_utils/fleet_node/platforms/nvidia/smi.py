# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Output of nvidia-smi: -q -x and --query-gpu; kinds of GPUs; faults of a GPU; reasons for no output."""

from __future__ import annotations

import re
from xml.etree import ElementTree
from xml.sax import saxutils

from ...errors import FleetError
from ..host import run_tool, whole_number

# name: (compute capability, memory.total of nvidia-smi in MiB, pattern in product names). Capabilities:
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
FIELDS = ("index", "pci.bus_id", "name", "memory.total", "compute_cap")
LOADED = "/sys/module/nvidia/version"
BUS = re.compile(r"^(?:([0-9a-f]{4,8}):)?([0-9a-f]{2}):([0-9a-f]{2})(?:\.([0-7]))?$")
LOST = re.compile(r"Unable to determine the device handle for GPU ?\d*:? ?([0-9A-Fa-f:.]+): (.*)")
PROCESS_NAME = re.compile(r"(<process_name>)(.*?)(</process_name>)", re.DOTALL)
CONTROL = re.compile(r"\x1b\[[0-9;]*m|[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]")
# Values of a field without a value, and of a field whose GPU has a fault or whose reader lacks the rights.
ABSENT = ("", "n/a", "none", "not supported", "not found", "deprecated",
          "requested functionality has been deprecated")  # fmt: skip
BROKEN = {"gpu is lost": "lost", "gpu requires reset": "needs reset", "unknown error": "unreadable",
          "err!": "unreadable", "error": "unreadable"}  # fmt: skip
HIDDEN = ("insufficient permissions", "insufficient permission", "not permitted")


def bus_of(text):
    """ "0000:8f:00.0", the kernel's form, of "00000000:8F:00.0"; None if it is not a PCI address."""
    match = BUS.match((text or "").strip().lower())
    if not match:
        return None
    domain, bus, slot, function = match.groups()
    return "%04x:%s:%s.%s" % (int(domain or "0", 16), bus, slot, function or "0")


def plain(text):
    """A field without brackets and case: "gpu is lost" of "[GPU is lost]"."""
    return " ".join((text or "").strip().strip("[]").lower().split())


class Gpu:
    """Fields of a GPU by their path in the XML. `faults`: the words of BROKEN in fields that were read."""

    def __init__(self, element, warn):
        self.element, self.warn, self.faults = element, warn, []
        self.bus = bus_of(element.get("id")) or bus_of(element.findtext("pci/pci_bus_id"))

    def text(self, path):
        """The value of a field, or None."""
        found = self.element.findtext(path)
        word = plain(found)
        if word in BROKEN:
            self.faults.append(BROKEN[word])
        elif word in HIDDEN:
            self.warn("nvidia-smi shows %s of GPU %s to root alone." % (path, self.bus))
        elif word not in ABSENT:
            return " ".join(found.split())
        return None

    def number(self, path):
        """The same as a whole number, with or without a unit."""
        text = self.text(path)
        match = re.match(r"^([0-9]{1,15})(?: [A-Za-z()]+)?$", text or "")
        if text is not None and not match:
            self.warn("nvidia-smi: %s of GPU %s is not understood: %s" % (path, self.bus, text[:60]))
        return int(match.group(1)) if match else None

    def processes(self):
        """[{pid, command}] of the processes that compute on it."""
        return [
            {"pid": int(process.findtext("pid")), "command": (process.findtext("process_name") or "").strip()}
            for process in self.element.iterfind("processes/process_info")
            if whole_number(process.findtext("pid")) and "C" in (process.findtext("type") or "C")
        ]


def parse_xml(text):
    """The root of `nvidia-smi -q -x`. Raises ValueError for any other output."""
    start = text.find("<nvidia_smi_log")
    if start < 0:
        raise ValueError("no nvidia_smi_log in it")
    # names of processes are not escaped
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
        if bus is None or whole_number(cells[0]) is None:
            if line.strip() and not LOST.search(line):
                warn("nvidia-smi --query-gpu: this line is not understood: %s" % line.strip()[:120])
            continue
        capability = cells[4] if re.match(r"^[0-9]{1,2}\.[0-9]$", cells[4]) else None
        name = None if plain(cells[2]) in (*ABSENT, *BROKEN) else cells[2]
        found[bus] = {"index": whole_number(cells[0]), "name": name, "memory_mib": whole_number(cells[3]) or None,
                      "capability": capability}  # fmt: skip
    return found


def ask(system, program, only=None):
    """(root of the XML or None, {PCI address: row of the CSV}, {PCI address: reason} of GPUs that do not answer, the
    output if it is not XML). only: the PCI address of a GPU."""
    chosen = ["-i", only] if only else []
    status, text = run_tool([program, "-q", "-x", *chosen])
    lost = {bus_of(bus): words.strip() for bus, words in LOST.findall(text) if bus_of(bus)}
    root, problem = None, ""
    try:
        root = parse_xml(text)
    except ValueError as error:
        problem = text.strip() or str(status)
        if "<nvidia_smi_log" in text:
            problem = "its XML is not understood: %s" % error
            system.warn("nvidia-smi -q -x: " + problem)
    csv = run_tool([program, "--query-gpu=" + ",".join(FIELDS), "--format=csv,noheader,nounits", *chosen])
    rows = parse_csv(csv[1], system.warn) if csv[0] == 0 else {}
    return root, rows, lost, problem


# ---- kinds


def kind_of(product, capability):
    """A name of KINDS for a GPU, or None. product: nvidia-smi's name. capability: such as "9.0", or None."""
    for name, (known, _memory, words) in KINDS.items():
        if capability in (None, known) and re.search(words, product or "", re.IGNORECASE):
            return name
    return None


# ---- faults

UNCORRECTABLE = ("sram_uncorrectable_parity", "sram_uncorrectable_secded", "sram_uncorrectable", "dram_uncorrectable",
                 "double_bit/total")  # fmt: skip
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
    ("ecc_errors/channel_repair_pending", "Yes", "repair pending", "has a repair pending until its next reset", RESET),
    ("ecc_errors/tpc_repair_pending", "Yes", "repair pending", "has a repair pending until its next reset", RESET),
    ("ecc_errors/unrepairable_memory", "Yes", "repair failed", "has memory that cannot be repaired", REPLACE),
)  # fmt: skip
MANAGER = ("On a board with NVSwitches enable and restart nvidia-fabricmanager, of exactly the driver's version, and "
           "look at its log; otherwise look at the rack's fabric manager.")  # fmt: skip


def faults_of(index, bus, gpu, lost=None):
    """[(word, sentence)] of faults that prevent servers from using a GPU, the worst first.

    gpu: Gpu, None for a GPU that does not answer. lost: nvidia-smi's reason.
    """
    name = "GPU %d (%s)" % (index, bus)
    replace = REPLACE.format(index)
    if gpu is None:
        words = "%s does not answer: %s. Reboot the node; if that does not help: %s"
        return [("lost", words % (name, lost.strip(" ."), replace))] if lost else []
    errors = sum(gpu.number("ecc_errors/volatile/" + key) or 0 for key in UNCORRECTABLE)
    found = {}
    for field, bad, word, words, remedy in FAULTS:
        value = gpu.text(field) if field else errors and bad
        if value and bad in (None, value) and word not in found:
            detail = value.lower() if field else errors
            found[word] = "%s %s. %s" % (name, words.format(index, detail), remedy.format(index))
    found.update(_fabric(name, gpu))
    # fields that every GPU has; an answer of "GPU is lost" in one of them is the GPU's own
    gpu.text("product_name"), gpu.number("fb_memory_usage/total")
    if "lost" in gpu.faults:
        return [("lost", "%s is lost: the driver does not reach it. Reboot the node; if that does not help: %s"
                 % (name, replace))]  # fmt: skip
    reset = RESET.format(index)
    if "needs reset" in gpu.faults:
        found = {"needs reset": "%s requires a reset. %s" % (name, reset), **found}
    elif gpu.faults and not found:
        found["unreadable"] = "nvidia-smi cannot read all fields of %s. %s" % (name, reset)
    return list(found.items())


def _fabric(name, gpu):
    """The same for NVLink between boards."""
    state, status = gpu.text("fabric/state"), gpu.text("fabric/status")
    if state in ("In Progress", "Not Started"):
        words = "is not ready (state %s), and CUDA does not start before it is (error 802)" % state
    elif state == "Completed" and status not in (None, "Success"):
        words = "has failed: %s" % status
    elif gpu.text("fabric/health/summary") == "Unhealthy":
        words = "is unhealthy"
    else:
        return {}
    return {"fabric": "The NVLink fabric of %s %s. %s" % (name, words, MANAGER)}


# ---- no answer

# code: part of what nvidia-smi prints
NO_ANSWER = {
    "nvidia.driver-not-loaded": "couldn't communicate with the NVIDIA driver",
    "nvidia.driver-versions-differ": "version mismatch",
    "nvidia.driver-incomplete": "couldn't find libnvidia-ml",
    "nvidia.no-devices": "No devices were found",
    "nvidia.no-permission": "Insufficient Permissions",
    "nvidia.access-blocked": "access blocked by the operating system",
}


def refuse(system, problem):
    """Raises FleetError for what nvidia-smi printed instead of an answer."""
    words = " ".join(problem.split())
    code = next((code for code, mark in NO_ANSWER.items() if mark in words), "nvidia.no-answer")
    raise FleetError(code, system.value(LOADED) or "none", words[:200] or "it printed nothing")
