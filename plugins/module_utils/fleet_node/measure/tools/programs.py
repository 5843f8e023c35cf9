# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""How each tool is started on a node: in a separate environment, in the engine's, or in the engine's container."""

from __future__ import annotations

import glob
import os
import shutil

from ...containers.engine import engine_of_entry
from ...containers.launcher import container_name
from ...errors import FleetError
from ...host.files import write_atomic
from ...program import start
from ...supervise import containers
from ...supervise.run import engine_environment

METADATA = "Metadata-Version: 2.1\nName: vllm\nVersion: %s\n"


def outside(spec):
    """Whether a tool does not run in the engine's environment or container."""
    return spec["program"][0] in ("environment", "worker", "node")


def program(point, environment, entry, root, folder, version=None):
    """(argv before the tool's own arguments, variables, the Python that can load a tokenizer or None).

    point: has `tool`, the name, and `spec`. environment: folder of the tool's environment. entry: the first measured
    server. folder: for this collection's files; it exists. version: of the engine. Raises FleetError if the tool is not
    installed.
    """
    kind, *inner = point.spec["program"]
    if kind == "node":
        return [], {}, None
    if kind == "environment":
        # a configuration file of the tool is next to its environment
        argv = [os.path.join(environment, "bin", inner[0]), *(environment + name for name in inner[1:])]
        return _installed(argv, point), {}, os.path.join(environment, "bin", "python")
    if kind == "worker":
        python, worker, *script = [os.path.join(environment, "bin", "python"), *inner]
        source = environment + "-source"  # LLMPerf is not a package: a script and its modules
        script = [os.path.join(source, name) for name in script]
        _installed([python, *script], point)
        argv = [python, *([] if script else ["-I"]), start(folder), "work", worker, *script]
        return argv, {"PYTHONPATH": os.path.join(source, "src")} if script else {}, python
    if kind == "instead":
        return _instead(point, entry, root, folder, version)
    if entry["container"]:
        inner = ["vllm", "bench", *inner] if kind == "engine" else inner
        argv = engine_of_entry(entry).argv("exec", "-e", "OPENAI_API_KEY", container_name(entry["name"], root), *inner)
        return argv, {}, None
    if kind == "container":
        _missing(point, "%s does not run in a container" % entry["name"])
    argv, python = _vllm(entry, point, folder, version)
    variables = {name: value for name, value in entry["environment"].items() if name != "PATH"}
    return [*argv, "bench", *inner], {**variables, "PYTHONPATH": folder}, python


def _instead(point, entry, root, folder, version):
    """program() of a tool that starts an engine in place of that of an entry: on its cores, in its container.

    The next start of the server ends processes that the tool left, like those of a previous start.
    """
    action = point.spec["program"][1]
    if entry["container"]:
        argv = ["vllm", "bench", action]
        launch = [*entry["launch"][: len(entry["launch"]) - len(entry["command"])], *argv]
        argv = containers.launch_command({**entry, "launch": launch, "command": argv}, root)
        return argv, containers.client_environment(entry, {}, root), None
    argv, python = _vllm(entry, point, folder, version)
    argv += ["bench", action]
    if entry["cpus"]:
        argv = ["taskset", "--cpu-list", entry["cpus"], *argv]
    variables = {**engine_environment(entry, {}, root), "PYTHONPATH": folder}
    if entry["user"]:  # files that it writes into the engine's folders belong to the server
        argv = ["runuser", "-u", entry["user"], "--", *argv]
    return argv, variables, python


def _vllm(entry, point, folder, version):
    """(argv of the engine's command line, its Python). Its distribution is written into the folder, because the command
    line requires it even if the engine was installed under another name. Raises OSError."""
    python = entry["command"][0]
    if os.path.basename(python) == "vllm":
        python = os.path.join(os.path.dirname(python), "python")
    _installed([python], point)
    # without +cpu the command line loads kernels for AVX-512, whatever the CPU has
    version = (version or "0") + ("+cpu" if entry["platform"] == "cpu" else "")
    for other in glob.glob(os.path.join(glob.escape(folder), "vllm-*.dist-info")):
        shutil.rmtree(other, ignore_errors=True)
    path = os.path.join(folder, "vllm-%s.dist-info" % version)
    os.makedirs(path, exist_ok=True)
    write_atomic(os.path.join(path, "METADATA"), METADATA % version)
    return [python, "-m", "vllm.entrypoints.cli.main"], python


def _installed(argv, point):
    for path in argv:
        if not os.path.exists(path):
            _missing(point, "%s does not exist" % path)
    return argv


def _missing(point, why):
    raise FleetError(
        "measure.tool-missing",
        "%s is not installed: %s. Run playbooks/benchmark.yml, which installs the tools of benchmark_tools, or choose "
        "another tool if it is part of an engine's image.",
        (point.tool, why),
    )
