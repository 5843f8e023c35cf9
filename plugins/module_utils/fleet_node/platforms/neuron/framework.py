# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Which of the two engines a server on Neuron runs."""

from __future__ import annotations

FRAMEWORK, NXDI = "VLLM_NEURON_FRAMEWORK", "neuronx-distributed-inference"


def uses_nxdi(environment):
    """Whether a server with these variables runs NxD Inference; all others run the vLLM Neuron plugin."""
    return environment.get(FRAMEWORK) == NXDI
