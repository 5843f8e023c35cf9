# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Service managers: they start the servers, restart them and stop them. One file for each."""

from __future__ import annotations

import os

from ..errors import argument_invalid
from . import supervisord, systemd
from .base import SYSTEMD_RUNS

MANAGERS = ("auto", "systemd", "supervisord")


def get_manager(name, paths, toolkit=None):
    """The service manager `name`: systemd, supervisord, or auto.

    auto is systemd if the node was booted with it and the root is empty, otherwise supervisord. paths: NodePaths.
    toolkit: the virtual environment with supervisord; paths.toolkit by default.
    """
    chosen = name
    if name == "auto":
        chosen = "systemd" if os.path.isdir(SYSTEMD_RUNS) and not paths.root else "supervisord"
    if chosen == "systemd":
        if paths.root:
            raise argument_invalid("manager", name, "auto and supervisord, because there is a root (%s)" % paths.root)
        return systemd.Systemd(paths)
    return supervisord.Supervisord(paths, toolkit or paths.toolkit)
