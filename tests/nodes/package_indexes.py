# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Repositories of files with stand-ins for what the vendor of Neuron publishes. Standard library, gpg and dpkg-deb.

make(FOLDER, SUITE) writes FOLDER/apt, signed with the key of FOLDER/key.asc (other.asc is another's), FOLDER/pypi,
a package index, and FOLDER/pip, the vendor's own, which has what the other has not and nothing else. The driver's
package makes the simulated devices, the tools' brings neuron-ls, the wheel of vLLM runs the simulated engine.
"""

from __future__ import annotations

import contextlib
import gzip
import hashlib
import os
import shutil
import subprocess
import tempfile
import zipfile
from pathlib import Path

SIMULATOR = "/opt/simulated-neuron"
DRIVER_FILE = "/usr/src/simulated-neuron/dkms.conf"  # the simulator looks for it after a reboot
DEBS = {
    "aws-neuronx-dkms": ("2.30.2.0", "2.31.7.0"),
    "aws-neuronx-runtime-lib": ("2.34.10.0-abc12", "2.35.30.0-def34"),
    "aws-neuronx-collectives": ("2.34.10.0-abc12",),
    "aws-neuronx-tools": ("2.32.28.0",),
}
# {package: {path: (mode, text)}}
DEB_FILES = {
    "aws-neuronx-dkms": {
        DRIVER_FILE: (0o644, "PACKAGE_NAME=aws-neuronx\n"),
        "/DEBIAN/postinst": (0o755, "#!/bin/sh\nset -e\npython3 %s/setup.py devices\n" % SIMULATOR),
    },
    "aws-neuronx-tools": {
        "/opt/aws/neuron/bin/neuron-ls": (
            0o755, '#!/bin/sh\nexec /usr/bin/python3 %s/neuron_ls.py "$@"\n' % SIMULATOR),
    },
}  # fmt: skip
VLLM = """
import os
import sys


def main():
    os.execv(sys.executable, [sys.executable, "/opt/simulated-neuron/vllm_server.py", "plugin", *sys.argv[1:]])
"""
# {index: {(name, version): [requirements]}}; those of Neuron as docs/using/trainium.md has them.
WHEELS = {
    "pypi": {("vllm", "0.24.0"): [], ("torch", "2.9.0"): []},
    "pip": {
        ("vllm_neuron", "0.24.0.1.1.0+e8242a9"): ["vllm==0.24.0"],
        ("neuronx_cc", "2.27.5334.0"): [],
        ("torch_neuronx", "2.9.0.2.15.32035"): ["torch==2.9.*", "libneuronxla"],
        ("libneuronxla", "3.0.5356.0"): [],
        ("nki", "0.6.0"): [],
    },
}


def run(*argv, **kwargs):
    return subprocess.run(argv, check=True, capture_output=True, **kwargs).stdout


def make_key(folder):
    """A signing key in a keyring of its own; its environment and armored public half."""
    folder.mkdir(mode=0o700)
    environment = {**os.environ, "GNUPGHOME": str(folder)}
    run("gpg", "--batch", "--passphrase", "", "--quick-gen-key", "test repository", "default", "default", "never",
        env=environment)  # fmt: skip
    return environment, run("gpg", "--armor", "--export", env=environment)


def make_debs(folder, debs, files):
    """Packages below FOLDER/pool, of {name: (versions)} with {name: {path: (mode, text)}}; the text of their list."""
    (folder / "pool").mkdir(parents=True)
    texts = []
    for name, versions in debs.items():
        for version in versions:
            tree = folder / "tree"
            (tree / "DEBIAN").mkdir(parents=True)
            fields = {"Package": name, "Version": version, "Architecture": "all", "Maintainer": "t <t@localhost>",
                      "Description": "stand-in"}  # fmt: skip
            control = "".join("%s: %s\n" % field for field in fields.items())
            (tree / "DEBIAN" / "control").write_text(control)
            for place, (mode, text) in files.get(name, {}).items():
                path = tree / place.lstrip("/")
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(text)
                path.chmod(mode)
            file = "pool/%s_%s_all.deb" % (name, version)
            run("dpkg-deb", "--root-owner-group", "--build", str(tree), str(folder / file))
            shutil.rmtree(tree)
            data = (folder / file).read_bytes()
            texts.append(
                "%sFilename: %s\nSize: %d\nSHA256: %s\n" % (control, file, len(data), hashlib.sha256(data).hexdigest())
            )
    return "\n".join(texts)


def sign(release, lists, environment, suite):
    """Write {name: bytes} of `lists` below the folder of `release`, and a signed Release that has their sums."""
    sums = []
    for name, data in lists.items():
        (release.parent / name).parent.mkdir(parents=True, exist_ok=True)
        (release.parent / name).write_bytes(data)
        sums.append(" %s %d %s" % (hashlib.sha256(data).hexdigest(), len(data), name))
    release.write_text(
        "Origin: test\nSuite: %s\nCodename: %s\nArchitectures: amd64 all\nComponents: main\n"
        "Date: Thu, 01 Jan 2026 00:00:00 UTC\nSHA256:\n%s\n" % (suite, suite, "\n".join(sums))
    )
    run("gpg", "--batch", "--clearsign", "--output", str(release.with_name("InRelease")), str(release), env=environment)


def make_apt(folder, environment, suite):
    """A repository as apt wants it: packages, their list, and a signed Release."""
    content = make_debs(folder, DEBS, DEB_FILES).encode()
    place = "main/binary-amd64/Packages"
    release = folder / "dists" / suite / "Release"
    release.parent.mkdir(parents=True)
    sign(release, {place: content, place + ".gz": gzip.compress(content)}, environment, suite)


@contextlib.contextmanager
def signed(folder):
    """Makes the folder with key.asc, and other.asc of another; the environment in which gpg signs with the first."""
    folder.mkdir(parents=True)
    # gpg's agent has its socket in the keyring, and a socket's path may have 107 bytes: not below the clone
    keyrings = Path(tempfile.mkdtemp(prefix="gpg-", dir="/tmp"))
    try:
        environment, key = make_key(keyrings / "own")
        (folder / "key.asc").write_bytes(key)
        (folder / "other.asc").write_bytes(make_key(keyrings / "other")[1])
        yield environment
    finally:
        shutil.rmtree(keyrings, ignore_errors=True)  # the agent takes its sockets away meanwhile


def make_wheel(folder, name, version, modules, requirements=(), programs=(), fields=()):
    """Write a wheel; returns its name. modules: {path: content}; programs: {name: "module:function"}; fields: further
    lines of its metadata."""
    info = "%s-%s.dist-info/" % (name, version)
    metadata = ["Metadata-Version: 2.1", "Name: " + name, "Version: " + version, *fields]
    files = {
        **modules,
        info + "METADATA": "".join(
            line + "\n" for line in [*metadata, *("Requires-Dist: " + one for one in requirements)]
        ),
        info + "WHEEL": "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    if programs:
        files[info + "entry_points.txt"] = "[console_scripts]\n" + "".join(
            "%s = %s\n" % one for one in programs.items()
        )
    files[info + "RECORD"] = "".join("%s,,\n" % path for path in [*files, info + "RECORD"])
    wheel = folder / ("%s-%s-py3-none-any.whl" % (name, version))
    with zipfile.ZipFile(wheel, "w") as archive:
        for path, content in files.items():
            archive.writestr(path, content)
    return wheel.name


def make_index(folder, wheels):
    """A package index of files (PEP 503)."""
    for (name, version), requirements in wheels.items():
        place = folder / name.replace("_", "-")
        place.mkdir(parents=True)
        modules, programs = {name + "/__init__.py": "__version__ = %r\n" % version}, {}
        if name == "vllm":
            modules["vllm/program.py"], programs = VLLM, {"vllm": "vllm.program:main"}
        wheel = make_wheel(place, name, version, modules, requirements, programs)
        (place / "index.html").write_text('<!DOCTYPE html><a href="%s">%s</a>\n' % (wheel.replace("+", "%2B"), wheel))


def make(folder, suite):
    """All of it, in a folder that does not exist yet."""
    with signed(folder) as environment:
        make_apt(folder / "apt", environment, suite)
    for name, wheels in WHEELS.items():
        make_index(folder / name, wheels)
