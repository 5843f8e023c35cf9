# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Runs a tool of .venv so that it finds the collection in this clone: python tools/run.py pytest tests/unit."""

from __future__ import annotations

import os
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def environment():
    """Return the environment in which ansible, ansible-lint, molecule and pytest find this clone as inference.fleet."""
    result = dict(os.environ)
    result.pop("PYTHONDONTWRITEBYTECODE", None)  # as in the Makefile
    collections = str(ROOT / ".ansible" / "collections")
    result.update(
        ANSIBLE_HOME=str(ROOT / ".ansible"),
        ANSIBLE_COLLECTIONS_PATH=collections,
        ANSIBLE_CONFIG=str(ROOT / "ansible.cfg"),
        PYTHONPATH=collections,
        PATH=str(ROOT / ".venv" / "bin") + os.pathsep + result["PATH"],
    )
    return result


if __name__ == "__main__":
    os.chdir(ROOT)
    tool = ROOT / ".venv" / "bin" / sys.argv[1]
    os.execve(tool, [str(tool), *sys.argv[2:]], environment())
