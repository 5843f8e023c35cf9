# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Weights from the stand-in and from a local folder, as the module is called."""

from __future__ import annotations

import json
from pathlib import Path

from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.weights import local as local_weights
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.weights import manifest as weight_manifest
from ansible_collections.inference.fleet.tests.unit.node_helpers import (
    four_steps,
    run_module,
)
from ansible_collections.inference.fleet.tests.unit.operating import Operation

module = Operation("model_weights")

PACKAGE = local_weights.__name__.rpartition(".weights.")[0]
SHARD = "model-00001-of-00002.safetensors"
REPO = "openai/gpt-oss-tiny"


def manifest_of(folder):
    return json.loads((folder / weight_manifest.MANIFEST).read_text())


def promised_by(packed):
    return json.loads(Path(packed, "standin.json").read_text())["files"]


def snapshot(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()} if folder.exists() else None


class Weights:
    """Runs of the module with the same arguments."""

    def __init__(self, capsys, destination, **arguments):
        self.capsys = capsys
        self.destination = destination
        self.arguments = dict(arguments, destination=str(destination))

    def run(self, check_mode=False, **changes):
        return run_module(self.capsys, module, check_mode, **{**self.arguments, **changes})

    def four_steps(self, **changes):
        return four_steps(self.capsys, module, **{**self.arguments, **changes})


NAMES = [
    "config.json",
    "model-00000-of-00002.safetensors",
    SHARD,
    "model-00002-of-00002.safetensors",
    "model.safetensors.index.json",
    "tokenizer.json",
]


def snapshot_files(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}
