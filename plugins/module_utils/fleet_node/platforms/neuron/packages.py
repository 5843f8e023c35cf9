# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Packages of AWS Neuron that a node requires.

The role neuron installs them. Packages of a machine image stay if they fit: a driver is not changed under an
environment that was built for it.
"""

from __future__ import annotations

from ...errors import FleetError
from ...host.packages import at_least, check_packages, lacking, listed, package_versions
from .kinds import DRIVER, RUNTIME, mismatch

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
    problem = mismatch(future.get(DRIVER), future.get(RUNTIME))
    if least and DRIVER in future and not at_least(future[DRIVER], least):
        problem = "The recipe requires driver %s or later (needs.driver), not %s." % (least, future[DRIVER])
    if problem:
        raise FleetError(
            "neuron.packages-do-not-fit",
            "%s Nothing was changed. Set neuron_packages to the versions of a newer release, or use a machine image "
            "whose versions fit.",
            (problem,),
            details={"packages": installed},
        )
    return due, future


def check(context):
    """Messages about versions that do not fit after this run; a warning about those that the run repairs."""
    try:
        check_packages(context.installs, VARIABLE)
        there = package_versions(context.system, context.installs)
        due, _future = planned(context.installs, context.needs, there)
    except FleetError as error:
        return [error.message]
    unfit = mismatch(there.get(DRIVER), there.get(RUNTIME))
    if unfit:
        context.warnings.append("%s This run installs %s." % (unfit, listed(due)))
    return []


def unfit_driver(packages, needs, loaded, runtime):
    """Why servers cannot run on the loaded driver, or None."""
    package = packages.get(DRIVER)
    if package and lacking({DRIVER: package}, {DRIVER: loaded}):
        return "%s is the oldest that fits" % (package.get("least") or package["version"])
    if needs.get("driver") and not at_least(loaded, needs["driver"]):
        return "the recipe requires %s or later (needs.driver)" % needs["driver"]
    return "it does not fit the runtime %s" % runtime if mismatch(loaded, runtime) else None
