# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Written by tools/platforms.py: every operation, shipped to nodes and imported there when it is used."""

from __future__ import annotations

# Arguments of operations that say no_log.
SECRETS = {
    "container_image": ("auth",),
    "engine_servers": ("secrets",),
    "model_weights": ("token",),
    "service_certificate": ("authority_key",),
}


def operation_of(name):
    """The module of what `name` does, with ARGUMENTS and run(); None where there is none."""
    if name == "compiled_artifact":
        from ansible_collections.inference.fleet.plugins.module_utils.platforms.neuron.operations import (
            compiled_artifact,
        )

        return compiled_artifact
    if name == "container_engine":
        from ansible_collections.inference.fleet.plugins.module_utils.operations import container_engine

        return container_engine
    if name == "container_image":
        from ansible_collections.inference.fleet.plugins.module_utils.operations import container_image

        return container_image
    if name == "engine_servers":
        from ansible_collections.inference.fleet.plugins.module_utils.operations import engine_servers

        return engine_servers
    if name == "model_weights":
        from ansible_collections.inference.fleet.plugins.module_utils.operations import model_weights

        return model_weights
    if name == "neuron_packages":
        from ansible_collections.inference.fleet.plugins.module_utils.platforms.neuron.operations import neuron_packages

        return neuron_packages
    if name == "node_layout":
        from ansible_collections.inference.fleet.plugins.module_utils.operations import node_layout

        return node_layout
    if name == "node_preflight":
        from ansible_collections.inference.fleet.plugins.module_utils.operations import node_preflight

        return node_preflight
    if name == "nvidia_toolkit":
        from ansible_collections.inference.fleet.plugins.module_utils.platforms.nvidia.operations import nvidia_toolkit

        return nvidia_toolkit
    if name == "python_environment":
        from ansible_collections.inference.fleet.plugins.module_utils.operations import python_environment

        return python_environment
    if name == "service_certificate":
        from ansible_collections.inference.fleet.plugins.module_utils.operations import service_certificate

        return service_certificate
    if name == "shared_libraries":
        from ansible_collections.inference.fleet.plugins.module_utils.operations import shared_libraries

        return shared_libraries
    if name == "tiktoken_encodings":
        from ansible_collections.inference.fleet.plugins.module_utils.operations import tiktoken_encodings

        return tiktoken_encodings
    return None
