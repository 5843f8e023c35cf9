# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Runs ansible-test sanity on a copy of the collection below build/, at the path that ansible-test requires.

Its home is build/home, so that the user's files are not changed; pip's configuration is linked into it.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
COPY = ROOT / "build" / "ansible_collections" / "inference" / "fleet"
HOME = ROOT / "build" / "home"
# ansible-test downloads get-pip.py from a host that may be unreachable; Python includes pip.
GET_PIP = """import subprocess, sys
subprocess.run([sys.executable, "-m", "ensurepip", "--upgrade"], check=True)
"""


def copy_tree():
    """Copy the files that git tracks or would track, and remove copies of files that no longer exist."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT, check=True, capture_output=True,
    ).stdout.decode()  # fmt: skip
    names = [name for name in listed.split("\0") if name and (ROOT / name).is_file()]
    shutil.rmtree(COPY, ignore_errors=True)
    for name in names:
        target = COPY / name
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / name, target)
    # ansible-test asks git for its targets; the clone's own git ignores build/.
    subprocess.run(["git", "init", "--quiet", str(COPY)], check=True)
    (COPY / ".git" / "info" / "exclude").write_text("/tests/output/\n")


def prepare_home():
    """Prepare a home for ansible-test: its cache with the pip shim, and the user's pip configuration."""
    cache = HOME / ".ansible" / "test" / "cache"
    cache.mkdir(parents=True, exist_ok=True)
    (cache / "get_pip_24_2.py").write_text(GET_PIP)
    for name in (".config", ".pip"):
        real, link = Path.home() / name, HOME / name
        if real.exists() and not link.is_symlink():
            link.symlink_to(real)


def main(arguments):
    """Return the exit status of ansible-test."""
    copy_tree()
    prepare_home()
    environment = {key: value for key, value in os.environ.items() if not key.startswith(("ANSIBLE_", "PYTHON"))}
    environment.update(HOME=str(HOME), PATH=str(ROOT / ".venv" / "bin") + os.pathsep + environment["PATH"])
    version = "%d.%d" % sys.version_info[:2]
    command = [str(ROOT / ".venv" / "bin" / "ansible-test"), "sanity", "--venv", "--python", version, "--color", "no"]
    return subprocess.run([*command, *arguments], cwd=COPY, env=environment, check=False).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
