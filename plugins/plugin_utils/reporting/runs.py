# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The folder for the reports of an inventory, and its last runs: history/<time>-<id>.json, a file for each run that
verifies.

A file contains {schema, ok, generated, run, hosts: {host: summary}, versions: {collection, inventory, software}}.
"""

from __future__ import annotations

import functools
import hashlib
import json
import os
import re
import subprocess
import urllib.parse

import yaml
from ansible import constants as C

from ...module_utils.fleet_node.host.files import fits, names_in, read_json, read_text, readable_json, write_atomic
from ..seen_files import COLLECTION

COMMON_NAMES = ("hosts", "inventories", "inventory")
VARIABLES = ("verify_reports_dir", "fleet_reports_dir")
SCHEMA = 1
FOLDER = "history"
KEPT = 50  # runs
NAME = re.compile(r"^[0-9]{8}T[0-9]{6}Z-[0-9a-f]{12}\Z")
TEXT, STATE = (str, None), (bool, None)
FORM = {
    "schema": int, "ok": STATE, "generated": TEXT, "run": {"id": str, "began": str},
    "hosts": {"*": {"ok": STATE, "mode": TEXT, "servers": {"*": {"ok": STATE}}}},
    "versions": {"collection": TEXT, "inventory": TEXT, "software": [str]},
}  # fmt: skip
GIT = ("git", "-c", "core.fsmonitor=false", "describe", "--always", "--exclude=*", "--abbrev=12", "--dirty")


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


def keep(folder, record, versions=None):
    """Write or replace the file of a run, and remove the oldest beyond KEPT. Raises OSError.

    record: as above, without the versions except software. versions: versions() when the run begins; later the known
    versions remain. Runs without an id, or with another form of it, are not kept.
    """
    name = "%s-%s" % (re.sub("[-:]", "", str(record["run"].get("began"))), record["run"].get("id"))
    if not NAME.match(name):
        return
    kept = os.path.join(folder, FOLDER)
    os.makedirs(kept, exist_ok=True)
    known = _read(os.path.join(kept, name + ".json"))
    found = versions or (known["versions"] if known else {"collection": None, "inventory": None})
    record = {**record, "versions": {**found, **record["versions"]}}
    write_atomic(os.path.join(kept, name + ".json"), json.dumps(record) + "\n")
    for old in list(filter(NAME.match, names_in(kept, suffix=".json")))[:-KEPT]:
        os.unlink(os.path.join(kept, old + ".json"))


def history(folder):
    """(runs, warnings): the kept runs, the oldest first. Unreadable files are left out with a warning."""
    kept, found, warnings = os.path.join(folder, FOLDER), [], []
    for name in names_in(kept, suffix=".json") if os.path.isdir(kept) else ():
        path = os.path.join(kept, name + ".json")
        run = _read(path) if NAME.match(name) else None
        if run:
            found.append(run)
        else:
            warnings.append("%s is not the record of a run. Remove the file." % path)
    return found, warnings


def _read(path):
    """The record in a file, None if it has another form."""
    value = readable_json(path)
    return value if fits(value, FORM, complete=True) and value["schema"] == SCHEMA else None


def versions(sources):
    """{collection, inventory}: the version of this collection, and the revision of the inventory; None if unknown.

    sources: the values of -i. The revision is that of the git repository with the first of them, with -dirty if it has
    changes that are not committed.
    """
    found = (_revision(source) for source in sources if "," not in source)
    return {"collection": collection_version(), "inventory": next(filter(None, found), None)}


def _revision(source):
    folder = source if os.path.isdir(source) else os.path.dirname(os.path.abspath(source))
    try:
        done = subprocess.run(
            GIT, cwd=folder, env={**os.environ, "GIT_OPTIONAL_LOCKS": "0"}, stdin=subprocess.DEVNULL,
            capture_output=True, timeout=10, check=False, text=True,
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() or None


@functools.cache
def collection_version():
    """Return the version of this collection, None if it is not known."""
    manifest = read_json(os.path.join(COLLECTION, "MANIFEST.json"))
    if isinstance(manifest, dict):
        return manifest["collection_info"]["version"]
    text = read_text(os.path.join(COLLECTION, "galaxy.yml"))
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    return str(yaml.load(text, Loader=loader)["version"]) if text else None
