# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Service managers: who starts the servers, keeps them up and stops them. One file for each."""

from __future__ import annotations

import os

from ..errors import FleetError
from . import supervisord, systemd
from .base import SYSTEMD_RUNS

MANAGERS = ("auto", "systemd", "supervisord")


def get_manager(name, paths, toolkit=None):
    """The service manager `name`: systemd, supervisord, or auto.

    auto is systemd where the node was booted with it and the servers are the system's own (an empty root), supervisord
    otherwise. paths: NodePaths. toolkit: the virtual environment that holds supervisord; paths.toolkit by default.
    """
    if name not in MANAGERS:
        raise _invalid(name, "allowed are %s" % ", ".join(MANAGERS))
    chosen = name
    if name == "auto":
        chosen = "systemd" if os.path.isdir(SYSTEMD_RUNS) and not paths.root else "supervisord"
    if chosen == "systemd":
        if paths.root:
            raise _invalid(name, "systemd runs only the system's own servers, but the root is %s" % paths.root)
        return systemd.Systemd(paths)
    return supervisord.Supervisord(paths, toolkit or paths.toolkit)


def _invalid(name, reason):
    return FleetError(
        "services.manager-invalid",
        "manager is '%s': %s. Use auto, supervisord, or systemd with an empty root.",
        (name, reason),
    )
