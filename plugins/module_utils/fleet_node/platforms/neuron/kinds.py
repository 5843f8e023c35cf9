# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What each kind of chip has, and which versions of driver and runtime belong together."""

from __future__ import annotations

from ...node import commands
from ..vendor_tools import version_numbers

DRIVER, RUNTIME = "aws-neuronx-dkms", "aws-neuronx-runtime-lib"
# Physical cores of a chip and its memory in GiB (Neuron architecture pages).
KINDS = {
    "inferentia1": (4, 8),
    "trainium1": (2, 32),
    "inferentia2": (2, 32),
    "trainium2": (8, 96),
    "trainium3": (8, 144),
}
GENERATIONS = {"inferentia1": "v1", "trainium1": "v2", "inferentia2": "v2", "trainium2": "v3", "trainium3": "v4"}
FAMILIES = {"inf1": "inferentia1", "inf2": "inferentia2", "trn1": "trainium1", "trn2": "trainium2", "trn3": "trainium3"}
PCI_KINDS = {"0x7064": "inferentia1", "0x7164": "trainium1", "0x7264": "inferentia2", "0x7364": "trainium2"}
LNC = 2  # what a Trainium2 or 3 runs at unless it is configured otherwise
# (driver from, runtime at least): a newer driver speaks a protocol that an older runtime does not (release notes).
RUNTIME_FOR_DRIVER = (((2, 29), (2, 33)),)


def kind_of_instance(text):
    """The kind that an instance type has ("trn1n.32xlarge"), None for another one."""
    return FAMILIES.get((text or "").strip().lower()[:4])


def mismatch(driver, runtime):
    """A sentence where this driver and this runtime (strings or None) do not work together, else None."""
    for newer, least in RUNTIME_FOR_DRIVER:
        if driver and runtime and version_numbers(driver) >= newer and version_numbers(runtime) < least:
            return (
                "The Neuron driver %s needs a runtime of %s or later, this node has aws-neuronx-runtime-lib %s. "
                "Install driver and runtime of the same SDK release."
                % (driver, ".".join(str(part) for part in least), runtime)
            )
    return None


def run(argv):
    """(exit status or a string that says why there is none, standard output). Raises TimedOut."""
    try:
        done = commands.run(argv)
    except OSError as error:
        return str(error.strerror), ""
    if done.returncode:
        lines = (done.stderr or done.stdout).strip().splitlines()
        return "status %d%s" % (done.returncode, ": " + lines[-1][:120] if lines else ""), done.stdout
    return 0, done.stdout
