# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The bundle of doctor.yml. Files of each host are kept in the run's temporary folder until all hosts were asked."""

from __future__ import annotations

import glob
import io
import json
import os
import re
import tarfile
import time
from urllib.parse import quote

from ansible import __version__ as ansible_version
from ansible import constants as C

from ...module_utils.fleet_node.host.files import write_atomic
from ...module_utils.fleet_node.host.values import now

NAME = "inference-fleet-bundle-%s.json"


def keep(host, report, files):
    """Keep the report of a host and its files {name: content}, which contain no secrets."""
    path = os.path.join(C.DEFAULT_LOCAL_TMP, NAME % quote(host, safe=""))
    write_atomic(path, json.dumps([host, report, files]), 0o600)


def kept():
    """Return [(host, report, files)] of the hosts that were asked."""
    found = []
    for path in sorted(glob.glob(os.path.join(glob.escape(C.DEFAULT_LOCAL_TMP), NAME % "*"))):
        with open(path, encoding="utf-8") as stream:
            found.append(json.load(stream))
    return found


def archive(findings, reports):
    """Return a tar.gz of the findings and the kept files. reports: of kept()."""
    output = io.BytesIO()
    with tarfile.open(fileobj=output, mode="w:gz") as packed:
        _add(packed, "control-node.json", json.dumps({"ansible-core": ansible_version, "time": now()}))
        _add(packed, "doctor.json", findings)
        for host, _report, files in reports:
            for name, text in sorted(files.items()):
                _add(packed, "%s/%s" % (host.replace("/", "_"), name), text)
    return output.getvalue()


def _add(packed, name, text):
    # names come from nodes
    parts = [re.sub(r"[^\w.-]", "_", part) for part in name.split("/") if part.strip(".")]
    data = str(text).encode("utf-8", "surrogatepass")
    member = tarfile.TarInfo("/".join(["bundle", *parts]))
    member.size, member.mtime, member.mode = len(data), int(time.time()), 0o600
    packed.addfile(member, io.BytesIO(data))
