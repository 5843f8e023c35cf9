# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Operations on accounts, folders, Python environments, container engines and the hardware of a node."""

from __future__ import annotations

import operator
import os

from ..containers.engine import ENGINES
from ..containers.host_settings import Host, check, record, remove
from ..containers.images import ensure_image, remove_image
from ..discover import Operation, lists, options, required
from ..host import accounts, commands
from ..host import python_environment as environments
from ..host.metrics import file_in
from ..host.os_errors import os_error
from ..host.packages import missing_libraries
from ..host.paths import NodePaths
from ..host.redact import checked_variables
from ..platforms.registry import detect


def accelerator_info(params, check_mode):
    """The accelerators of the node. Raises FleetError."""
    return {"changed": False, **detect(params["vendor"]).as_dict()}


NODE_LAYOUT = {
    **options("str", "user", root=""),
    "state": {"type": "str", "default": "present", "choices": ["present", "absent"]},
}


def node_layout(params, check_mode):
    """The result of the module. Raises FleetError."""
    if params["state"] == "absent":
        return accounts.remove(params["root"], check_mode)
    return accounts.ensure(params["root"], params["user"] or None, check_mode=check_mode)


PYTHON_ENVIRONMENT = {
    **required("path", "path"),
    **options("path", "uv", "ca_bundle"),
    **options("str", "python", "index_url"),
    **options("bool", create=True),
    **options("dict", environment={}),
    **lists("str", "packages", "excludes", "overrides", "find_links", "extra_index_urls", "verify_imports"),
    **lists("dict", "fallback_indexes"),
}


def python_environment(params, check_mode):
    """The result of the module. Raises FleetError."""
    return environments.ensure(environments.from_parameters(params), check_mode=check_mode)


NODE_EXPORTER = "prometheus-node-exporter"


def shared_libraries(params, check_mode):
    """The result of the module: {changed, message, missing: [names]}. Raises FleetError. Nothing is changed."""
    missing = missing_libraries(tuple(params["libraries"]))
    message = "missing: %s" % ", ".join(missing) if missing else "all are there"
    return {"changed": bool(missing) and check_mode, "message": message, "missing": missing}


TEXTFILES = "/var/lib/prometheus/node-exporter/inference-fleet.prom"  # of Debian's package


def node_exporter(params, check_mode):
    """Whether node exporter runs and reads the metrics of this node's servers: {changed, message}. Nothing is changed.
    Raises FleetError if systemd hangs."""
    metrics = file_in(NodePaths().metrics)
    message = ""
    if not os.path.isfile(metrics) or os.path.realpath(TEXTFILES) != os.path.realpath(metrics):
        message = "node exporter does not read the metrics of the servers"
    elif commands.run(["systemctl", "is-active", "--quiet", NODE_EXPORTER]).returncode:
        message = "node exporter does not run"
    return {"changed": bool(message) and check_mode, "message": message}


# ---- container engines and images


INPUTS = ("settings", "registry_mirrors", "insecure_registries", "registries", "ca_bundle", "proxy_env")

CONTAINER_ENGINE = {
    "engine": {"type": "str", "default": "docker", "choices": list(ENGINES)},
    "state": {"type": "str", "default": "present", "choices": ["present", "applied", "absent"]},
    **options("str", ca_bundle="", root=""),
    **options("dict", settings={}, proxy_env={}),
    **lists("str", "registry_mirrors", "insecure_registries", "registries"),
}


def container_engine(params, check_mode):
    """The state of a container engine for the role container_engine, which applies the settings. Raises FleetError.

    state: present compares the settings with those of the last run and changes nothing; applied records them; absent
    removes the files of the role.
    """
    host = Host(params["engine"], params["root"])
    inputs = {key: params[key] for key in INPUTS}
    result = {"changed": False, "engine": host.kind, "due": None, "missing": []}
    try:
        if params["state"] == "present":
            checked_variables(inputs["proxy_env"])
            return {**result, **check(host, inputs)}
        if params["state"] == "applied":
            if not check_mode:
                record(host, inputs)
            return result
        removed = remove(host, check_mode)
        return {**result, "changed": bool(removed), "removed": removed}
    except OSError as error:
        raise os_error("The container engine cannot be set up", error) from error


CONTAINER_IMAGE = {
    "engine": {"type": "str", "default": "docker", "choices": list(ENGINES)},
    "state": {"type": "str", "default": "present", "choices": ["present", "absent"]},
    "auth": {"type": "dict", "no_log": False},  # Module hides its passwords, not its usernames
    **required("str", "image"),
    **options("str", "digest", "address"),
    **options("raw", "mirror"),
    **options("dict", environment={}),
    **options("int", wait_s=3600),
    **options("path", root=""),
}


def container_image(params, check_mode):
    """The result of the module. Raises FleetError."""
    given = dict(params)
    if given.pop("state") == "absent":
        named = {key: given[key] for key in ("image", "digest", "engine", "address", "mirror")}
        return remove_image(check_mode=check_mode, **named)
    return ensure_image(check_mode=check_mode, **given)


def container_image_due(result):
    """Why the module has something to do; None if it has nothing."""
    if result["changed"]:
        return result["msg"]
    return "files of an ended pull must be removed" if result.get("ended") else None


OPERATIONS = {
    "accelerator_info": Operation(options("str", vendor="auto"), accelerator_info, reads=True),
    "container_engine": Operation(CONTAINER_ENGINE, container_engine, due=operator.itemgetter("due")),
    "container_image": Operation(CONTAINER_IMAGE, container_image, due=container_image_due),
    "node_exporter": Operation({}, node_exporter, reads=True),
    "node_layout": Operation(NODE_LAYOUT, node_layout),
    "python_environment": Operation(PYTHON_ENVIRONMENT, python_environment),
    "shared_libraries": Operation(required("list", "libraries", elements="str"), shared_libraries),
}
