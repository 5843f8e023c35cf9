# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Checks of a converged site.yml as operations and facts of pyinfra; tools/bench_noop.py writes expected.json."""

import json
import os
from pathlib import Path

from pyinfra import host
from pyinfra.facts.files import File, FindDirectories, Sha256File
from pyinfra.facts.server import Command
from pyinfra.operations import files, server, systemd

expected = json.loads(Path(os.environ["EXPECTED"]).read_text())["expected"]

server.user(name="Account", user=expected["account"])
for folder in expected["folders"]:
    files.directory(
        name="Folder " + folder["path"],
        path=folder["path"],
        user=folder["owner"],
        group=folder["group"],
        mode=folder["mode"],
    )
for one in expected["checksums"]:
    if host.get_fact(Sha256File, path=one["path"]) != one["sha256"]:
        raise SystemExit("%s differs" % one["path"])
packages = host.get_fact(FindDirectories, path=expected["packages"]["folder"], fname="*.dist-info", maxdepth=1)
if sorted(map(os.path.basename, packages)) != expected["packages"]["names"]:
    raise SystemExit("packages differ")
for path, size in expected["checkpoint"]["files"].items():
    if (host.get_fact(File, path=path) or {}).get("size") != size:
        raise SystemExit("%s differs" % path)
for unit in expected["units"]:
    systemd.service(name="Unit " + unit, service=unit, running=True, enabled=True)
answers = "import urllib.request as r; [r.urlopen('http://127.0.0.1:%%d/health' %% p) for p in %s]" % expected["ports"]
host.get_fact(Command, '/usr/bin/python3 -c "%s" && echo all' % answers)
