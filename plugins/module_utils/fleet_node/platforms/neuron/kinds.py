# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Kinds of chips, the two engines, and packages of AWS Neuron that a node requires.

The role neuron installs the packages. Those of a machine image stay if they fit: a driver is not changed under an
environment that was built for it.
"""

from __future__ import annotations

from ...errors import FleetError
from ...host.packages import at_least, check_packages, lacking, listed, package_versions

# Engines: NxD Inference if the variable has this value, else the vLLM Neuron plugin.
FRAMEWORK, NXDI = "VLLM_NEURON_FRAMEWORK", "neuronx-distributed-inference"

DRIVER, RUNTIME = "aws-neuronx-dkms", "aws-neuronx-runtime-lib"
# name: (physical cores of a chip, its memory in GiB, generation of its cores, first letters of instance types, device
# on the PCI bus); Neuron architecture pages
KINDS = {
    "inferentia1": (4, 8, "v1", "inf1", "0x7064"),
    "trainium1": (2, 32, "v2", "trn1", "0x7164"),
    "inferentia2": (2, 32, "v2", "inf2", "0x7264"),
    "trainium2": (8, 96, "v3", "trn2", "0x7364"),
    "trainium3": (8, 144, "v4", "trn3", None),
}
# (driver from, runtime at least): a newer driver speaks a protocol that an older runtime does not (release notes).
RUNTIME_FOR_DRIVER = (("2.29", "2.33"),)


def kind_of_instance(text):
    """The kind of chip of an instance type ("trn1n.32xlarge"), or None."""
    family = (text or "").strip().lower()[:4]
    return next((name for name, kind in KINDS.items() if kind[3] == family), None)


def uses_nxdi(environment):
    """Whether a server with these variables runs NxD Inference; all others run the vLLM Neuron plugin."""
    return environment.get(FRAMEWORK) == NXDI


def mismatch(driver, runtime, required=None):
    """A sentence if this driver is older than `required` or does not work with this runtime, else None. All are strings
    or None."""
    if driver and required and not at_least(driver, required):
        return "The recipe requires driver %s or later (needs.driver), not %s." % (required, driver)
    for newer, least in RUNTIME_FOR_DRIVER:
        if driver and runtime and at_least(driver, newer) and not at_least(runtime, least):
            return (
                "The Neuron driver %s requires the runtime %s or later, this node has aws-neuronx-runtime-lib %s. "
                "Install driver and runtime of the same SDK release." % (driver, least, runtime)
            )
    return None


VARIABLE = "neuron_packages"


def planned(packages, needs, installed):
    """({name: version to install}, {name: version afterwards}). Pure.

    installed: {name: version}. Raises FleetError if driver and runtime would not fit each other or the recipe then.
    """
    least, package = needs.get("driver"), packages.get(DRIVER) or {}
    if least and package.get("least") and not at_least(package["least"], least):
        packages = {**packages, DRIVER: {**package, "least": least}}
    due = lacking(packages, installed)
    future = {**installed, **due}
    problem = mismatch(future.get(DRIVER), future.get(RUNTIME), least)
    if problem:
        raise FleetError("neuron.packages-do-not-fit", problem, details={"packages": installed})
    return due, future


def check_versions(context):
    """Problems of versions that do not fit after this run; a warning about those that the run repairs."""
    try:
        check_packages(context.installs, VARIABLE)
        there = package_versions(context.system, context.installs)
        due, _future = planned(context.installs, context.needs, there)
    except FleetError as error:
        return [error]
    unfit = mismatch(there.get(DRIVER), there.get(RUNTIME))
    if unfit:
        context.warnings.append("%s This run installs %s." % (unfit, listed(due)))
    return []


def unfit_driver(packages, needs, loaded, runtime):
    """Why servers cannot run on the loaded driver, or None."""
    package = packages.get(DRIVER)
    if package and lacking({DRIVER: package}, {DRIVER: loaded}):
        return "%s is the oldest that fits" % (package.get("least") or package["version"])
    return (mismatch(loaded, runtime, needs.get("driver")) or "").rstrip(".") or None
