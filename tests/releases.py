# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The release before this one as an operator has it installed: what the upgrade tests deploy with."""

from __future__ import annotations

import os
import subprocess

import pytest
from ansible_collections.inference.fleet.tests.runs import CLONE

BEFORE = "0d109d0d0d9285d93f54b4745d164b971ba576a7"


def before(folder):
    """{folder, environment} for runs.play(): the release before, unpacked below `folder` from this clone's history.

    A clone without that commit, a shallow one, skips the test.
    """
    clone = folder / "before"
    link = clone / ".ansible" / "collections" / "ansible_collections" / "inference" / "fleet"
    link.parent.mkdir(parents=True)
    link.symlink_to(os.path.relpath(clone, link.parent))
    archive = folder / "before.tar"
    done = subprocess.run(["git", "-C", str(CLONE), "archive", "--output", str(archive), BEFORE],
                          stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)  # fmt: skip
    if done.returncode:
        words = "this clone lacks the release before, commit %s (git fetch --unshallow): %s" % (BEFORE, done.stderr)
        pytest.skip(words)
    subprocess.run(["tar", "-C", str(clone), "-xf", str(archive)], check=True)
    collections = str(clone / ".ansible" / "collections")
    environment = {"ANSIBLE_HOME": str(clone / ".ansible"), "ANSIBLE_COLLECTIONS_PATH": collections,
                   "ANSIBLE_CONFIG": str(clone / "ansible.cfg"), "PYTHONPATH": collections}  # fmt: skip
    return {"folder": clone, "environment": environment}
