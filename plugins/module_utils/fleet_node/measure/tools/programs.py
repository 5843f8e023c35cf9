# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""How each tool is started on a node: in an environment of its own, in the engine's, or in the engine's container."""

from __future__ import annotations

import glob
import os
import shutil

from ...containers.engine import engine_of_entry
from ...containers.launcher import container_name
from ...errors import FleetError
from ...node.files import write_atomic
from ...program import work
from ...supervise import containers
from ...supervise.run import engine_environment
from . import llmperf_worker, trtllm_serving

OWN = {"aiperf": "aiperf", "aisbench": "ais_bench", "llmperf": "python"}
SOURCE = "-source"  # beside the environment
METADATA = "Metadata-Version: 2.1\nName: vllm\nVersion: %s\n"


def program(tool, environment, entry, root, folder, version=None):
    """(argv before the tool's own arguments, variables, the Python that can load a tokenizer or None).

    environment: folder of the tool's own environment. entry: the first measured server. folder: for files of ours,
    which is there. version: of the engine.
    Raises FleetError where the tool is not there.
    """
    if tool in OWN:
        python, variables = os.path.join(environment, "bin", "python"), {}
        argv = [os.path.join(environment, "bin", OWN[tool])]
        if tool == "llmperf":  # no package: a script beside its modules
            script = os.path.join(environment + SOURCE, "token_benchmark_ray.py")
            _there([*argv, script], tool)
            return (
                [*argv, *work(folder, llmperf_worker), script],
                {"PYTHONPATH": os.path.join(environment + SOURCE, "src")},
                python,
            )
        _there(argv, tool)
        return argv, variables, python
    if entry["container"]:
        inner = list(trtllm_serving.SCRIPT) if tool == trtllm_serving.NAME else ["vllm", "bench", "serve"]
        argv = engine_of_entry(entry).argv("exec", "-e", "OPENAI_API_KEY", container_name(entry["name"], root), *inner)
        return argv, {}, None
    if tool == trtllm_serving.NAME:
        raise FleetError(
            "measure.tool-in-container",
            "%s is part of the engine's image, and %s does not run in a container. Choose another tool.",
            (tool, entry["name"]),
        )
    argv, python = _vllm(entry, tool, folder, version)
    variables = {name: value for name, value in entry["environment"].items() if name != "PATH"}
    return [*argv, "bench", "serve"], {**variables, "PYTHONPATH": folder}, python


def own_engine(tool, action, entry, root, folder, version=None):
    """program() of a tool that starts an engine like that of an entry, in its place: on its cores, in its container.

    The next start of the server finds and ends what may be left of it, as of an earlier start of its own.
    """
    if entry["container"]:
        argv = ["vllm", "bench", action]
        launch = [*entry["launch"][: len(entry["launch"]) - len(entry["command"])], *argv]
        argv = containers.launch_command({**entry, "launch": launch, "command": argv})
        return argv, containers.client_environment(entry, {}, root), None
    argv, python = _vllm(entry, tool, folder, version)
    argv += ["bench", action]
    if entry["cpus"]:
        argv = ["taskset", "--cpu-list", entry["cpus"], *argv]
    variables = {**engine_environment(entry, {}, root), "PYTHONPATH": folder}
    if entry["user"]:  # what it writes into the engine's folders is the server's
        argv = ["runuser", "-u", entry["user"], "--", *argv]
    return argv, variables, python


def _vllm(entry, tool, folder, version):
    """(argv of the engine's own command line, its Python)."""
    python = entry["command"][0]
    if os.path.basename(python) == "vllm":
        python = os.path.join(os.path.dirname(python), "python")
    _there([python], tool)
    # a version that does not say so is not taken for a CPU's: kernels for AVX-512 are loaded then, whatever the CPU has
    _write_metadata(folder, (version or "0") + ("+cpu" if entry["platform"] == "cpu" else ""))
    return [python, "-m", "vllm.entrypoints.cli.main"], python


def _write_metadata(folder, version):
    """The distribution that the command line wants, where the engine was installed under another name. OSError."""
    for other in glob.glob(os.path.join(glob.escape(folder), "vllm-*.dist-info")):
        shutil.rmtree(other, ignore_errors=True)
    path = os.path.join(folder, "vllm-%s.dist-info" % version)
    os.makedirs(path, exist_ok=True)
    write_atomic(os.path.join(path, "METADATA"), METADATA % version)


def _there(paths, tool):
    for path in paths:
        if not os.path.exists(path):
            raise FleetError(
                "measure.tool-missing",
                "%s is not installed: %s is not there. playbooks/benchmark.yml installs those of benchmark_tools.",
                (tool, path),
            )
