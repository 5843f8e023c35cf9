# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Makes the control node's environment .venv from pyproject.toml,
and the link through which Ansible finds the collection.

    python3 tools/make_venv.py          # what playbooks need
    python3 tools/make_venv.py tests    # also what the tests need

Runs under the system's Python with only the standard library and this collection. uv installs the packages. pip
installs uv, which uses the package indexes that are configured for pip.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
VENV = ROOT / ".venv"
LINK = ROOT / ".ansible" / "collections" / "ansible_collections" / "inference" / "fleet"


def fail(message):
    """Exit with status 1 and a line with the error and its remedy."""
    sys.exit("make .venv: " + message)


def link_collection():
    """Create .ansible/collections/ansible_collections/inference/fleet → the clone, whatever the name of its folder."""
    LINK.parent.mkdir(parents=True, exist_ok=True)
    target = os.path.relpath(ROOT, LINK.parent)
    if not LINK.is_symlink() or os.readlink(LINK) != target:
        if LINK.is_symlink():
            LINK.unlink()
        LINK.symlink_to(target)


def main():
    """Make or renew .venv. .venv/.ready and .venv/.tests are written last, so that an incomplete environment is made
    again."""
    tests = sys.argv[1:] == ["tests"]
    if sys.version_info < (3, 11):
        fail("Python 3.11 or newer is needed, this is %s. Try: make PYTHON=python3.12 …" % sys.version.split()[0])
    if not sys.platform.startswith("linux"):
        fail("Linux is needed, this is %s." % sys.platform)
    if shutil.which("git") is None:
        fail("git is needed on PATH.")
    link_collection()
    sys.path.insert(0, str(ROOT / ".ansible" / "collections"))
    from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.host import python_environment as uv_tool

    python, pyproject, environment = VENV / "bin" / "python", ROOT / "pyproject.toml", dict(os.environ)
    if not python.exists():
        uv_tool.run([sys.executable, "-m", "venv", "--without-pip", str(VENV)], environment)
    made = uv_tool.install_uv(sys.executable, str(VENV), "uv>=0.9,<0.14", environment)
    if made.returncode:
        fail(".venv with uv cannot be made; on Debian and Ubuntu install python3-pip or python3-venv.\n" + made.stderr)
    uv = VENV / "bin" / "uv"
    places, flags = uv_tool.places(uv_tool.pip_configuration([sys.executable, str(python)], environment), environment)
    environment.update(places)
    wanted = ["-r", str(pyproject), *(["--group", str(pyproject) + ":test"] if tests else [])]
    subprocess.run([uv, "pip", "install", "--quiet", "--python", python, *flags, *wanted], check=True, env=environment)
    packages = subprocess.run([uv, "pip", "freeze", "--python", python], check=True, capture_output=True).stdout
    for name in (".ready", ".tests") if tests else (".ready",):
        (VENV / name).write_bytes(packages)


if __name__ == "__main__":
    main()
