# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Operations of the platform neuron."""

from __future__ import annotations

import os
import shutil

from ...discover import Operation
from ...errors import FleetError
from ...host.packages import (
    check_install,
    check_installed,
    check_packages,
    listed,
    numbers,
    package_manager,
    package_versions,
)
from ..host import System
from . import artifact_archives
from .kinds import DRIVER, RUNTIME, VARIABLE, planned, unfit_driver
from .platform import LOADED, Platform, missing_cores

COMPILED_ARTIFACT = {
    "servers": {"type": "list", "elements": "dict", "required": True},
    "state": {"type": "str", "choices": ["exported", "imported"], "default": "imported"},
    "source": {"type": "path"},
    "remote_source": {"type": "bool", "default": False},
    "destination": {"type": "path"},
    "remote_destination": {"type": "bool", "default": False},
    "force": {"type": "bool", "default": False},
}


def compiled_artifact(params, check_mode):
    """The result of the module. Raises FleetError."""
    try:
        if params["state"] == "exported":
            return artifact_archives.export(
                params["servers"], params["destination"], params["force"], check_mode=check_mode
            )
        return artifact_archives.take_over(params["servers"], params["source"], check_mode=check_mode)
    except (OSError, KeyError) as error:  # KeyError: the user of a server is missing
        raise FleetError("artifact.cannot-copy", error) from error


NEURON_PACKAGES = {
    "packages": {"type": "dict", "required": True},
    "hardware": {"type": "dict", "default": {}},
    "needs": {"type": "dict", "default": {}},
    "servers": {"type": "list", "elements": "dict", "default": []},
    "reboot": {"type": "bool", "default": False},
    "installed": {"type": "bool", "default": False},
}


def neuron_packages_due(result):
    """The reason to install or to reboot, or None."""
    if result["reboot"]:
        return "the node has to be rebooted for its driver"
    return result["message"] if result["due"] else None


def compare(
    packages, hardware=None, needs=None, servers=(), reboot=False, installed=False, check_mode=False, sysroot=""
):
    """{changed, message, packages, due: {name: version}, manager, suite, kernel, load, loaded_driver, reboot, diff}.

    packages: see the role. hardware: fleet_hardware, needs: the recipe's, servers: plan entries. reboot: the role may
    reboot the node. installed: the role has installed and rebooted; now everything must fit. load: no driver is loaded,
    and the role loads the installed driver. reboot of the result: the loaded driver differs from the planned driver and
    cannot be used. Raises FleetError if it cannot work.
    """
    check_packages(packages, VARIABLE)
    hardware, needs, system = hardware or {}, needs or {}, System(sysroot)
    present = package_versions(system, packages)
    missing, future = planned(packages, needs, present)
    if installed:
        check_installed(missing, present)
    check_install(missing, check_mode)
    loaded = system.value(LOADED) or None
    unfit = loaded and unfit_driver(packages, needs, loaded, future.get(RUNTIME))
    other = bool(loaded and DRIVER in future and numbers(loaded) != numbers(future[DRIVER]))
    reboots = bool(unfit and other and reboot and not installed)
    manager, suite = package_manager(system) if missing else (None, None)
    if unfit and not missing and not reboots:
        details = {"packages": present, "loaded_driver": loaded}
        raise FleetError("neuron.driver-unfit", loaded, present.get(DRIVER, "none"), unfit, details=details)
    if installed and not other:
        _check_devices(system, hardware, needs, servers)
    words = "The kernel has loaded the Neuron driver %s, %s is installed; reboot the node to use it."
    return {
        "changed": bool(missing or (unfit and other)) and check_mode,
        "message": "to be installed: %s" % listed(missing) if missing else "nothing to install",
        "packages": present,
        "due": missing,
        "manager": manager,
        "suite": suite,
        "kernel": os.uname().release,
        "load": DRIVER in missing and loaded is None and shutil.which("modprobe", path=MODPROBE_PATH) is not None,
        "loaded_driver": loaded,
        "reboot": reboots,
        "diff": {"before": _lines(packages, present), "after": _lines(packages, future)},
        "warnings": [words % (loaded, present[DRIVER])] if other and not unfit and not missing else [],
    }


MODPROBE_PATH = os.environ.get("PATH", "") + ":/usr/sbin:/sbin"


def _lines(packages, versions):
    return "".join("%s %s\n" % (name, versions.get(name, "missing")) for name in packages)


def _check_devices(system, hardware, needs, servers):
    """Compares the devices that a new driver shows with the declared ones: preflight could not see them."""
    platform = Platform()
    try:
        found = platform.detect(system)
        problems = platform.shortfalls(found, hardware, needs) or list(missing_cores(servers, found))
    except FleetError as error:
        problems = [error]
    if problems:
        raise FleetError("neuron.devices-not-as-declared", " ".join(map(str, problems)))


OPERATIONS = {
    "compiled_artifact": Operation(
        COMPILED_ARTIFACT, compiled_artifact, rules={"required_if": [("state", "exported", ("destination",))]}
    ),
    "neuron_packages": Operation(
        NEURON_PACKAGES,
        lambda params, check_mode: compare(check_mode=check_mode, **params),
        due=neuron_packages_due,
    ),
}
