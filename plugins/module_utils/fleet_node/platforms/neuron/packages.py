# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Which packages of AWS Neuron a node needs, and whether the driver that the kernel has loaded is of use.

The role neuron installs them. What a machine image brings stays where it fits: a driver is not changed under an
environment that was built for it.
"""

from __future__ import annotations

import os
import shutil

from ...errors import FleetError
from ...node.packages import (
    at_least,
    check_install,
    check_packages,
    family,
    lacking,
    listed,
    numbers,
    os_release,
    package_versions,
)
from ..host import System
from . import detect, fit
from .driver_files import DRIVER as LOADED
from .kinds import DRIVER, RUNTIME, mismatch

VARIABLE = "neuron_packages"


def _for_recipe(packages, needs):
    """The same, where a driver that the recipe cannot run on does not stay."""
    package, least = packages.get(DRIVER) or {}, needs.get("driver")
    if least and package.get("least") and not at_least(package["least"], least):
        return {**packages, DRIVER: {**package, "least": least}}
    return packages


def planned(packages, needs, installed):
    """({name: version to install}, {name: version afterwards}). Pure.

    installed: {name: version}. FleetError where driver and runtime would not fit each other or the recipe then.
    """
    due = lacking(_for_recipe(packages, needs), installed)
    future = {**installed, **due}
    least = needs.get("driver")
    if least and DRIVER in future and not at_least(future[DRIVER], least):
        raise FleetError(
            "neuron.driver-too-old-for-recipe",
            "The recipe needs driver %s or later (needs.driver), neuron_packages installs %s. Nothing was changed: set "
            "neuron_packages to a newer release.",
            (least, future[DRIVER]),
            details={"packages": installed},
        )
    problem = mismatch(future.get(DRIVER), future.get(RUNTIME))
    if problem:
        raise FleetError(
            "neuron.packages-do-not-fit",
            "%s Nothing was changed: set neuron_packages to the versions of one release, or take a machine image whose "
            "versions fit.",
            (problem,),
            details={"packages": installed},
        )
    return due, future


def check(context):
    """Why the versions do not fit after this run, as messages; a warning where it repairs those that do not now."""
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


def look(packages, hardware=None, needs=None, servers=(), installed=(), reboot_follows=False, check_mode=False,
         sysroot=""):  # fmt: skip
    """What is to be installed on a node, and whether servers can run on the driver that is loaded. Changes nothing.

    packages: {name: {version: to install, least: oldest that stays or None}}. hardware: fleet_hardware, needs: the
    recipe's, servers: plan entries, held against the devices that a new driver shows. installed: names of packages that
    were installed just now, since an earlier call said so. reboot_follows: whoever called reboots the node where the
    result says must_reboot.

    Returns {changed: check_mode and something is due, message, packages: {name: version}, due: {name: version},
    manager: "apt" or "dnf" or None, suite, kernel: its release, load: the driver is to be loaded once it is installed,
    loaded_driver: version or None, reboot: another driver is loaded than is installed, must_reboot: and the loaded one
    is of no use, diff: {before, after}}. FleetError where it cannot work; nothing was changed then, unless `installed`
    says so.
    """
    check_packages(packages, VARIABLE)
    hardware, needs, system = hardware or {}, needs or {}, System(sysroot)
    there = package_versions(system, packages)
    due, future = planned(packages, needs, there)
    loaded = (system.read(LOADED) or "").strip() or None
    result = {
        "changed": bool(due) and check_mode,
        "message": "nothing to install",
        "packages": there,
        "due": due,
        "manager": None,
        "suite": None,
        "kernel": os.uname().release,
        "load": DRIVER in due and loaded is None and _modprobe() is not None,
        "loaded_driver": loaded,
        "reboot": False,
        "must_reboot": False,
        "diff": {"before": _lines(packages, there), "after": _lines(packages, future)},
    }
    if not due:
        if DRIVER in installed and (loaded is None or numbers(loaded) == numbers(there[DRIVER])):
            _check_devices(system, hardware, needs, servers)
        _look_at_loaded(packages, needs, reboot_follows, result)
        return result
    check_install(due, there, installed, check_mode)
    words = ", ".join(
        "%s %s%s" % (name, due[name], " (has %s)" % there[name] if name in there else "") for name in sorted(due)
    )
    result["manager"], result["suite"] = _manager(system)
    result["message"] = "%s %s" % ("would install" if check_mode else "to be installed:", words)
    return result


def _lines(packages, versions):
    return "".join("%s %s\n" % (name, versions.get(name, "missing")) for name in packages)


def _modprobe():
    return shutil.which("modprobe", path=os.environ.get("PATH", "") + ":/usr/sbin:/sbin")


def _look_at_loaded(packages, needs, reboot_follows, result):
    """Fill in reboot and must_reboot. FleetError where the loaded driver is of no use and no reboot follows."""
    loaded, installed = result["loaded_driver"], result["packages"].get(DRIVER)
    unfit = loaded and _unfit(packages, needs, loaded, result["packages"].get(RUNTIME))
    result["reboot"] = bool(loaded and installed and numbers(loaded) != numbers(installed))
    result["must_reboot"] = bool(result["reboot"] and unfit)
    if not unfit or (result["reboot"] and reboot_follows):
        return
    details = {key: value for key, value in result.items() if key != "message"}
    if not result["reboot"]:
        raise FleetError(
            "neuron.driver-unfit",
            "The kernel has the Neuron driver %s loaded: %s. Update it.",
            (loaded, unfit),
            details=details,
        )
    raise FleetError(
        "neuron.reboot-needed",
        "The kernel has the Neuron driver %s loaded, %s is installed: %s. Reboot the node, then run again; or set "
        "neuron_reboot to true, and the run reboots it.",
        (loaded, installed, unfit),
        details=details,
    )


def _unfit(packages, needs, loaded, runtime):
    """Why servers cannot run on the loaded driver, None where they can."""
    package = packages.get(DRIVER)
    if package and lacking({DRIVER: package}, {DRIVER: loaded}):
        least = package.get("least")
        return "%s is the oldest that may stay" % least if least else "only %s fits" % package["version"]
    if needs.get("driver") and not at_least(loaded, needs["driver"]):
        return "the recipe needs %s or later (needs.driver)" % needs["driver"]
    return "it does not fit the runtime %s" % runtime if mismatch(loaded, runtime) else None


def _check_devices(system, hardware, needs, servers):
    """The devices that a new driver shows against what is declared: preflight could not see them."""
    try:
        found = detect.detect(system)
        problems = fit.shortfalls(found, hardware, needs) or list(fit.missing_cores(servers, found))
    except FleetError as error:
        problems = [error.message]
    if problems:
        raise FleetError(
            "neuron.devices-not-as-declared",
            "The Neuron driver was installed, and the devices are not as declared: %s",
            (" ".join(problems),),
        )


def _manager(system):
    """("apt", suite or None) or ("dnf", None); FleetError for a distribution that the vendor has no packages for."""
    release = os_release(system)
    if family(release) & {"debian", "ubuntu"}:
        return "apt", release.get("VERSION_CODENAME")
    if release.get("ID") == "amzn":
        return "dnf", None
    raise FleetError(
        "neuron.distribution-unsupported",
        "There are no Neuron packages for %s; allowed: Ubuntu and Debian (apt), Amazon Linux 2023 (dnf). Take a node "
        "with one of those, best the vendor's Deep Learning AMI.",
        (release.get("PRETTY_NAME") or release.get("ID") or "this distribution",),
    )
