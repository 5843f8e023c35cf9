# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Programs of Debian's packages, unpacked and not installed."""

from __future__ import annotations

import subprocess


def unpack(folder, *packages):
    """Download the packages to `folder`, a pathlib.Path that does not exist yet, unpack them to its folder `root`, and
    return that. Raises RuntimeError if apt-get cannot download them."""
    folder.mkdir(parents=True)
    folder.chmod(0o777)  # apt's own account writes here
    for command in (["download", "-q", *packages], ["update", "-q"], ["download", "-q", *packages]):
        done = subprocess.run(["apt-get", *command], cwd=folder, capture_output=True, text=True, check=False)
        if command[0] == "download" and not done.returncode:
            break
    else:
        raise RuntimeError("apt-get download: " + done.stderr.strip()[-500:])
    for deb in folder.glob("*.deb"):
        subprocess.run(["dpkg-deb", "-x", str(deb), str(folder / "root")], check=True)
    return folder / "root"
