# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The folder for the reports of an inventory, the id of a run, and the version of this collection."""

from __future__ import annotations

import functools
import hashlib
import os
import re
import urllib.parse

import yaml
from ansible import constants as C

from ...module_utils.fleet_node.host.files import read_json, read_text
from ..seen_files import COLLECTION

COMMON_NAMES = ("hosts", "inventories", "inventory")
VARIABLES = ("verify_reports_dir", "fleet_reports_dir")


def reports_folder(given, task_vars, templar):
    """The absolute path of ``given``, a task's reports_dir; None if it is empty. By default that of VARIABLES, then
    reports_dir()."""
    for name in VARIABLES:
        if given is None and name in task_vars:
            given = templar.template(task_vars[name])
    if given is None:
        given = reports_dir(task_vars.get("ansible_inventory_sources") or ())
    return os.path.abspath(os.path.expanduser(given)) if given else None


def reports_dir(sources):
    """The default folder for the reports of an inventory, below the working directory.

    sources: the values of -i: folders, files, lists of hosts. "reports/local" for inventories/local, for
    inventories/local/hosts.yml and for local.yml; several are joined with "+".
    """
    names = []
    for source in sources:
        if "," in source:  # hosts, not a path
            name = "-".join(part.strip() for part in source.split(",") if part.strip())
        else:
            folder, name = os.path.split(os.path.abspath(source))
            name = os.path.splitext(name)[0]
            if name in COMMON_NAMES:  # the folder distinguishes them
                name = os.path.basename(folder)
        names.append(re.sub(r"[^\w.-]", "-", name).strip(".") or "inventory")
    return os.path.join("reports", "+".join(dict.fromkeys(names))[:100] or "inventory")


def host_path(folder, host):
    """The path of a host's report below `folder`; slashes in names are quoted."""
    return os.path.join(folder, "hosts", urllib.parse.quote(host, "@:[]+,~ ", errors="replace") + ".json")


def run_id():
    """An id of this run of ansible-playbook, from the name of its temporary folder."""
    return hashlib.sha256(os.fsencode(C.DEFAULT_LOCAL_TMP)).hexdigest()[:12]


@functools.cache
def collection_version():
    """Return the version of this collection, None if it is not known."""
    manifest = read_json(os.path.join(COLLECTION, "MANIFEST.json"))
    if isinstance(manifest, dict):
        return manifest["collection_info"]["version"]
    text = read_text(os.path.join(COLLECTION, "galaxy.yml"))
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    return str(yaml.load(text, Loader=loader)["version"]) if text else None
