# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

import os
import pathlib
import re
import shutil
import sys

import pytest
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.errors import FleetError
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.host.packages import (
    missing_libraries,
)

NAME = "libfleettest.so.1"


def any_library():
    """A shared library that loads here: the C library of this process."""
    return re.search(r"(/\S*/libc[.-]\S*)$", pathlib.Path("/proc/self/maps").read_text(), re.MULTILINE).group(1)


def test_only_what_does_not_resolve_is_missing(tmp_path, monkeypatch):
    shutil.copy(any_library(), tmp_path / NAME)
    (tmp_path / "libbroken.so.1").write_text("no library")
    system = os.path.basename(any_library())
    assert missing_libraries([]) == []
    assert missing_libraries([system, "libnone.so.7", NAME]) == ["libnone.so.7", NAME]
    monkeypatch.setenv("LD_LIBRARY_PATH", str(tmp_path))
    assert missing_libraries(["libbroken.so.1", NAME]) == ["libbroken.so.1"]


def test_a_python_that_cannot_load_libraries(tmp_path, monkeypatch):
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\necho \"ModuleNotFoundError: No module named '_ctypes'\" >&2\nexit 1\n")
    python.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(python))
    with pytest.raises(FleetError) as caught:
        missing_libraries([NAME])
    reason = "ModuleNotFoundError: No module named '_ctypes'"
    assert caught.value.code == "libraries.lookup-failed"
    assert caught.value.values == ("libfleettest.so.1", str(python), reason)
