# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""How each tool is started on a node: in an environment of its own, in the engine's, or in the engine's container."""

from __future__ import annotations

import os

from ansible_collections.inference.fleet.plugins.module_utils.containers.engine import engine_of_entry
from ansible_collections.inference.fleet.plugins.module_utils.errors import FleetError
from ansible_collections.inference.fleet.plugins.module_utils.launchers.container import container_name
from ansible_collections.inference.fleet.plugins.module_utils.measure.tools import trtllm_serving
from ansible_collections.inference.fleet.plugins.module_utils.node.files import write_atomic

OWN = ("aiperf", "llmperf")
SOURCE = "-source"  # beside the environment
BENCH = ("bench", "serve")
METADATA = "Metadata-Version: 2.1\nName: vllm\nVersion: %s\n"


def program(tool, environment, entry, root, folder, version=None):
    """(argv before the tool's own arguments, variables, the Python that can load a tokenizer or None).

    environment: folder of the tool's own environment. entry: the first measured server. folder: for files of ours,
    which is there. version: of the engine.
    Raises FleetError where the tool is not there.
    """
    if tool in OWN:
        python, variables = os.path.join(environment, "bin", "python"), {}
        argv = [os.path.join(environment, "bin", tool)]
        if tool == "llmperf":  # no package: a script beside its modules
            argv = [python, os.path.join(environment + SOURCE, "token_benchmark_ray.py")]
            variables = {"PYTHONPATH": os.path.join(environment + SOURCE, "src")}
        _there(argv, tool)
        return argv, variables, python
    if entry["container"]:
        inner = list(trtllm_serving.SCRIPT) if tool == trtllm_serving.NAME else ["vllm", *BENCH]
        argv = engine_of_entry(entry).argv("exec", "-e", "OPENAI_API_KEY", container_name(entry["name"], root), *inner)
        return argv, {}, None
    if tool == trtllm_serving.NAME:
        raise FleetError(
            "measure.tool-in-container",
            "%s is part of the engine's image, and %s does not run in a container. Choose another tool.",
            (tool, entry["name"]),
        )
    python = entry["command"][0]
    if os.path.basename(python) == "vllm":
        python = os.path.join(os.path.dirname(python), "python")
    _there([python], tool)
    variables = {name: value for name, value in entry["environment"].items() if name != "PATH"}
    _write_metadata(folder, version or "0")
    return [python, "-m", "vllm.entrypoints.cli.main", *BENCH], {**variables, "PYTHONPATH": folder}, python


def _write_metadata(folder, version):
    """The distribution that the command line wants, where the engine was installed under another name. OSError."""
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
