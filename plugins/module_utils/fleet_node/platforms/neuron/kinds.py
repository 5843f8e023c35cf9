# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Kinds of chips, the two engines, and the versions of driver and runtime that work together."""

from __future__ import annotations

from ...host.packages import at_least

# Engines: NxD Inference if the variable has this value, else the vLLM Neuron plugin.
FRAMEWORK, NXDI = "VLLM_NEURON_FRAMEWORK", "neuronx-distributed-inference"

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
# (driver from, runtime at least): a newer driver speaks a protocol that an older runtime does not (release notes).
RUNTIME_FOR_DRIVER = (("2.29", "2.33"),)


def kind_of_instance(text):
    """The kind of chip of an instance type ("trn1n.32xlarge"), or None."""
    return FAMILIES.get((text or "").strip().lower()[:4])


def uses_nxdi(environment):
    """Whether a server with these variables runs NxD Inference; all others run the vLLM Neuron plugin."""
    return environment.get(FRAMEWORK) == NXDI


def mismatch(driver, runtime):
    """A sentence if this driver and this runtime (strings or None) do not work together, else None."""
    for newer, least in RUNTIME_FOR_DRIVER:
        if driver and runtime and at_least(driver, newer) and not at_least(runtime, least):
            return (
                "The Neuron driver %s requires the runtime %s or later, this node has aws-neuronx-runtime-lib %s. "
                "Install driver and runtime of the same SDK release." % (driver, least, runtime)
            )
    return None
