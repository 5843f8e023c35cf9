# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A repository of files with stand-ins for the packages of NVIDIA's container toolkit, as apt reads the vendor's own.

make(FOLDER) writes FOLDER/apt, flat and signed with the key of FOLDER/key.asc (other.asc is another's). What is
installed writes docker's daemon.json anew and has systemd reload.
"""

from __future__ import annotations

import gzip

import package_indexes

SOURCES = ("nvidia_packages.py", "package_indexes.py")
VERSIONS = ("1.20.0-1", "1.17.7-1")
NAMES = ("nvidia-container-toolkit", "nvidia-container-toolkit-base", "libnvidia-container-tools",
         "libnvidia-container1")  # fmt: skip
CTK = '#!/bin/sh\nexec /usr/bin/python3 /opt/simulated-nvidia/nvidia_ctk.py "$@"\n'
POSTINST = "#!/bin/sh\nset -e\n/usr/bin/nvidia-ctk runtime configure --runtime=docker\nsystemctl daemon-reload\n"
FILES = {
    "nvidia-container-toolkit": {"/DEBIAN/postinst": (0o755, POSTINST)},
    "nvidia-container-toolkit-base": {"/usr/bin/nvidia-ctk": (0o755, CTK)},
}


def make(folder):
    """All of it, in a folder that does not exist yet."""
    with package_indexes.signed(folder) as environment:
        debs = dict.fromkeys(NAMES, VERSIONS)
        content = package_indexes.make_debs(folder / "apt", debs, FILES).encode()
        lists = {"Packages": content, "Packages.gz": gzip.compress(content)}
        package_indexes.sign(folder / "apt" / "Release", lists, environment, "stable")
