# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Operations that run on a node, by subject; platforms/X/operations.py and engines/X/operations.py have more.

Each file has OPERATIONS, {name: Operation}. It is imported when the first of its operations is called.
"""

from __future__ import annotations

FILES = {
    "servers": (
        "node_preflight", "engine_servers", "engine_servers_info", "engine_ready", "endpoint_verify", "unused_files",
        "foreign_servers",
    ),
    "measure": ("benchmark_run", "evaluation_datasets", "evaluation_run"),
    "weights": ("model_weights", "tiktoken_encodings"),
    "services": ("etcd_member", "nats_server", "service_certificate", "certificate_expiry"),
    "host": (
        "accelerator_info", "container_engine", "container_image", "node_exporter", "node_layout", "python_environment",
        "shared_libraries",
    ),
    "check": ("check",),
    "doctor": ("doctor",),
}  # fmt: skip
FILE_OF = {name: file for file, names in FILES.items() for name in names}
