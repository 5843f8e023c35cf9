# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Nodes with Trainium, by recorded output of neuron-ls."""

from __future__ import annotations

import json
import pathlib

from ansible_collections.inference.fleet.tests.unit.detected_node import DetectedNode

FIXTURES = pathlib.Path(__file__).resolve().parents[1] / "fixtures" / "neuron"


def records(name):
    return json.loads((FIXTURES / (name + ".json")).read_text())


class NeuronNode(DetectedNode):
    vendor = "neuron"

    def lists(self, output, script="cat"):
        """`neuron-ls -j` prints this string, or these records."""
        self.write("/opt/aws/neuron/bin/output", output if isinstance(output, str) else json.dumps(output))
        text = '#!/bin/sh\n[ "$1" = -j ] && %s "$(dirname "$0")/output"\n' % script
        self.write("/opt/aws/neuron/bin/neuron-ls", text, 0o755)

    def loads(self, version):
        """The kernel has this driver."""
        self.write("/sys/module/neuron/version", version + "\n")
