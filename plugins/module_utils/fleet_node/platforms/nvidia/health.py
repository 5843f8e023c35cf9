# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What is wrong with a GPU, by what nvidia-smi tells of it. Pure."""

from __future__ import annotations

UNCORRECTABLE = ("sram_uncorrectable_parity", "sram_uncorrectable_secded", "sram_uncorrectable", "dram_uncorrectable",
                 "double_bit/total")  # fmt: skip
SLOWDOWNS = (("hw_thermal_slowdown", "heat (hardware)"), ("sw_thermal_slowdown", "heat (driver)"),
             ("hw_power_brake_slowdown", "the power brake"), ("hw_slowdown", "heat or power (hardware)"))  # fmt: skip
# Both schemas: the name of the block and of its fields.
REASONS = ("clocks_event_reasons/clocks_event_reason_", "clocks_throttle_reasons/clocks_throttle_reason_")
RESET = "Stop what runs on it and run `nvidia-smi --gpu-reset -i %d`, or reboot the node."
REPLACE = "List %d in fleet_hardware.exclude and have the board replaced."


def look(number, bus, gpu, lost=None):
    """[(word, sentence)] of what stops a server on a GPU, the worst first; [] for one that is well.

    gpu: smi.Gpu, None for one that does not answer. lost: what nvidia-smi says of that.
    """
    name = "GPU %d (%s)" % (number, bus)
    if gpu is None:
        if lost is None:
            return []  # the CSV alone tells of it
        return [("lost", "%s does not answer: %s. Reboot the node; where that does not help: %s"
                 % (name, lost.strip(" ."), REPLACE % number))]  # fmt: skip
    text, count = gpu.text, gpu.number
    found = []

    def add(word, words, remedy):
        found.append((word, "%s %s. %s" % (name, words, remedy)))

    if text("mig_mode/current_mig") == "Enabled":
        slices = len(gpu.element.findall("mig_devices/mig_device"))
        add("MIG", "is divided by MIG (%d instance%s); servers get whole GPUs" % (slices, "" if slices == 1 else "s"),
            "Run `nvidia-smi -i %d -mig 0`, and reboot where it says pending." % number)  # fmt: skip
    elif text("mig_mode/pending_mig") == "Enabled":
        add("MIG", "will be divided by MIG after its next reset", "Run `nvidia-smi -i %d -mig 0`." % number)
    action = text("gpu_recovery_action")
    if action or text("gpu_reset_status/reset_required") == "Yes":
        add("needs reset", "has failed, and the driver wants: %s" % (action or "reset").lower(), RESET % number)
    wrong = sum(count("ecc_errors/volatile/" + key) or 0 for key in UNCORRECTABLE)
    if wrong:
        add("ECC", "has had %d uncorrectable memory error%s since its last reset" % (wrong, "" if wrong == 1 else "s"),
            RESET % number + " Where they come back: " + REPLACE % number)  # fmt: skip
    if text("ecc_errors/aggregate/sram_threshold_exceeded") == "Yes":
        add("ECC", "has had more uncorrectable SRAM errors than it may", REPLACE % number)
    if text("remapped_rows/remapped_row_failure") == "Yes":
        add("remap failed", "cannot replace failed rows of its memory any more", REPLACE % number)
    elif text("remapped_rows/remapped_row_pending") == "Yes":
        add("remap pending", "has failed rows of memory that are replaced by its next reset", RESET % number)
    if "Yes" in (text("retired_pages/pending_retirement"), text("retired_pages/pending_blacklist")):
        add("retirement pending", "has failed pages of memory that are retired by its next reset", RESET % number)
    if "Yes" in (text("ecc_errors/channel_repair_pending"), text("ecc_errors/tpc_repair_pending")):
        add("repair pending", "has a repair pending that its next reset makes", RESET % number)
    found += _fabric(name, gpu)
    # fields that every GPU has; an answer of "GPU is lost" in one of them is the GPU's own
    text("product_name"), count("fb_memory_usage/total")
    for word in sorted(set(gpu.faults)):
        if word == "lost":
            found = [("lost", "%s is lost: the driver does not reach it. Reboot the node; where that does not help: %s"
                      % (name, REPLACE % number))]  # fmt: skip
            break
        if word == "needs reset":
            found.insert(0, (word, "%s requires a reset. %s" % (name, RESET % number)))
        elif not found:
            found.append((word, "nvidia-smi cannot read what it should of %s. %s" % (name, RESET % number)))
    return found


def _fabric(name, gpu):
    """The same for NVLink between boards. A state or health that the GPU does not have is none."""
    state, status = gpu.text("fabric/state"), gpu.text("fabric/status")
    wrong = [key for key in ("route_unhealthy", "incorrect_configuration", "access_timeout_recovery")
             if gpu.text("fabric/health/" + key) not in (None, "False", "Not Started")]  # fmt: skip
    if state in ("In Progress", "Not Started"):
        yield (
            "fabric",
            "The NVLink fabric of %s is not ready (state %s), and CUDA does not start before it is (error 802). On a "
            "board with NVSwitches run `systemctl enable --now nvidia-fabricmanager`, of the driver's very version; "
            "otherwise the rack's own manager has it to do." % (name, state),
        )
    elif state == "Completed" and status not in (None, "Success"):
        yield (
            "fabric",
            "The NVLink fabric of %s has failed: %s. Restart nvidia-fabricmanager and look at its log; it has to be of "
            "the driver's very version." % (name, status),
        )
    elif gpu.text("fabric/health/summary") == "Unhealthy":
        yield (
            "fabric",
            "The NVLink fabric of %s is unhealthy%s. Restart nvidia-fabricmanager, or have the rack's manager look at "
            "its routes." % (name, " (%s)" % ", ".join(wrong) if wrong else ""),
        )


def slowdowns(gpu):
    """What slows a GPU down now, as words."""
    if gpu is None:
        return []
    found = [words for key, words in SLOWDOWNS if gpu.text(*(reason + key for reason in REASONS)) == "Active"]
    return found[:-1] if len(found) > 1 and found[-1] == SLOWDOWNS[-1][1] else found  # it comes with its cause
