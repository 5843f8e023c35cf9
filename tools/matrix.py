# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Runs the playbooks under each supported release of ansible-core for which this machine has a Python.

    .venv/bin/python tools/matrix.py            # all releases
    .venv/bin/python tools/matrix.py 2.20 2.22  # these releases
    .venv/bin/python tools/matrix.py --other    # one release, preferably not that of .venv (part of `make test`)

Each release has a separate environment, .cache/matrix/RELEASE, made by uv. It runs the plan of the Trainium inventory;
site.yml on this machine with scripted servers in place of vLLM; status.yml; site.yml once more, which must change
nothing; and stop.yml. A deprecation warning is a failure, because it announces an error in the next release but one. A
release without a Python here is listed and left out; at least one release must have run.
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import json
import os
import re
import shutil
import socket
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
CACHE = ROOT / ".cache" / "matrix"
VENV = ROOT / ".venv"
# Each release, with the oldest and the newest Python of its control node (docs.ansible.com, "ansible-core support
# matrix"). A test compares docs/using/support.md and pyproject.toml with it.
RELEASES = {
    "2.19": ((3, 11), (3, 13)),
    "2.20": ((3, 12), (3, 14)),
    "2.21": ((3, 12), (3, 14)),
    "2.22": ((3, 13), (3, 15)),
}
SUSPECT = re.compile(r"\[DEPRECATION WARNING\]|does not support Ansible version")
ENGINES = ROOT / "tests" / "unit" / "engines"
# The local inventory with scripted servers: all roles run, but nothing large is installed.
LAYER = {
    "venv": {"path": str(VENV), "create": False, "packages": [], "torch": None, "verify_imports": ["openai_harmony"]},
    "needs": {"cpu_flags": None, "libraries": None, "host_memory_gib": None},
    "command": [str(VENV / "bin" / "python"), str(ROOT / "tests" / "nodes" / "engine.py")],
    "arguments": {"model": "${model_id}"},
    "environment": {"PYTHONPATH": str(ENGINES)},
    "start": {"budget_s": 120},
}


def pythons():
    """Return {(3, 11): path of an interpreter} of the interpreters on PATH, in pyenv, and the running interpreter."""
    places = [Path(sys.base_prefix) / "bin" / "python3"]
    places += [Path(folder) / name for folder in os.get_exec_path() for name in _names()]
    pyenv = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv")
    places += sorted(pyenv.glob("versions/3.*/bin/python3"), reverse=True)
    found = {}
    for place in places:
        if not os.access(place, os.X_OK):
            continue
        asked = subprocess.run(
            [str(place), "-c", "import sys; print(*sys.version_info[:2])"],
            stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False,
        )  # fmt: skip
        if asked.returncode == 0:  # a shim of a Python that is not active fails
            found.setdefault(tuple(int(number) for number in asked.stdout.split()), place)
    return found


def _names():
    return ["python3", *("python3.%d" % minor for minor in range(11, 20))]


def choose(releases, available):
    """Return ({release: interpreter}, {release: why it is left out}),
    with the oldest Python that each release supports."""
    chosen, missing = {}, {}
    for release in releases:
        oldest, newest = RELEASES[release]
        fitting = [version for version in available if oldest <= version <= newest]
        if fitting:
            chosen[release] = available[min(fitting)]
        else:
            missing[release] = "needs Python %s to %s, found %s" % (
                dotted(oldest), dotted(newest), ", ".join(dotted(one) for one in sorted(available)) or "none",
            )  # fmt: skip
    return chosen, missing


def dotted(version):
    return "%d.%d" % version


def own_release():
    """Return the release of ansible-core in .venv, which runs this tool."""
    return ".".join(importlib.metadata.version("ansible-core").split(".")[:2])


def other(chosen, own):
    """Return the newest of the chosen releases except `own`; `own` if there is no other."""
    others = [release for release in chosen if release != own]
    return max(others or chosen, key=lambda release: [int(part) for part in release.split(".")])


def make(release, python):
    """Return the environment of a release, made or updated. Raises CalledProcessError if that fails."""
    from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.host import python_environment as uv_tool

    venv = CACHE / release
    mark = venv / "made-with"
    uv = str(VENV / "bin" / "uv")
    if not mark.exists() or mark.read_text(encoding="utf-8") != str(python):
        subprocess.run([uv, "venv", "--quiet", "--clear", "--python", str(python), str(venv)], check=True)
    environment = dict(os.environ)
    places, flags = uv_tool.places(uv_tool.pip_configuration([sys.executable], environment), environment)
    subprocess.run(
        [uv, "pip", "install", "--quiet", "--upgrade-package", "ansible-core", "--prerelease",
         "if-necessary-or-explicit", "--python", str(venv / "bin" / "python"), *flags,
         "ansible-core>=%s.0b1,<%s.999" % (release, release), "-r", str(ROOT / "requirements.txt")],
        check=True, env={**environment, **places},
    )  # fmt: skip
    mark.write_text(str(python), encoding="utf-8")
    return venv


class Failed(Exception):
    """The error of a run, for people."""


class Controller:
    """The playbooks of this clone, run by a release of ansible-core; all files are below `folder`."""

    def __init__(self, release, venv):
        self.release, self.venv = release, venv
        self.folder = CACHE / ("run-" + release)

    def play(self, playbook, inventory, *arguments):
        """Run a playbook and return its output.
        Raises Failed if it fails, or if it warns of features that later releases remove."""
        variables = {
            "fleet_override_matrix": {**LAYER, "servers": {"server": {"port": self.port}}},
            "fleet_reports_dir": str(self.folder / "reports"),
            "fleet_verify": "quick",
        }
        if inventory != "inventories/local":
            del variables["fleet_override_matrix"]
        environment = {
            **{key: value for key, value in os.environ.items() if not key.startswith(("ANSIBLE_", "PYTHON"))},
            "ANSIBLE_DEPRECATION_WARNINGS": "1",
            "ANSIBLE_NOCOLOR": "1",
            "FLEET_ROOT": str(self.folder / "r"),
            "PATH": str(self.venv / "bin") + os.pathsep + os.environ["PATH"],
        }
        done = subprocess.run(
            [str(self.venv / "bin" / "ansible-playbook"), playbook, "-i", inventory, "-e", json.dumps(variables),
             *arguments],
            cwd=ROOT, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            text=True, errors="replace", check=False,
        )  # fmt: skip
        if done.returncode or SUSPECT.search(done.stdout):
            what = "exit status %d" % done.returncode if done.returncode else SUSPECT.search(done.stdout).group()
            raise Failed("%s\n%s under ansible-core %s: %s" % (done.stdout, playbook, self.release, what))
        return done.stdout

    def run(self):
        """Raises Failed if the release does not pass."""
        shutil.rmtree(self.folder, ignore_errors=True)
        self.port = free_ports(2)
        self.play("playbooks/plan.yml", "inventories/trn3")
        try:
            self.play("site.yml", "inventories/local")
            self.play("playbooks/status.yml", "inventories/local")
            output = self.play("site.yml", "inventories/local")
            if re.search(r"\bchanged=[1-9]", output):
                raise Failed(
                    "%s\nThe second site.yml under ansible-core %s changed something." % (output, self.release)
                )
        finally:
            self.play("playbooks/stop.yml", "inventories/local")
        shutil.rmtree(self.folder)


def free_ports(count):
    """Return the first of `count` consecutive free ports of the loopback interface."""
    for first in range(24000, 32000, 10):
        with contextlib.ExitStack() as stack:
            try:
                for port in range(first, first + count):
                    stack.enter_context(socket.socket()).bind(("127.0.0.1", port))
            except OSError:
                continue
            return first
    raise Failed("no free ports on 127.0.0.1")


def main(arguments):
    """Return the exit status: 0 if at least one release has a Python here and all of those passed."""
    one = arguments == ["--other"]
    unknown = [] if one else [name for name in arguments if name not in RELEASES]
    if unknown:
        print("matrix: %s is not supported; known: %s." % (unknown[0], ", ".join(RELEASES)), file=sys.stderr)
        return 2
    sys.path.insert(0, str(ROOT / ".ansible" / "collections"))
    chosen, missing = choose(list(RELEASES) if one or not arguments else arguments, pythons())
    if one and chosen:
        release = other(chosen, own_release())
        chosen = {release: chosen[release]}
    lines, failed = [], not chosen
    for release, python in chosen.items():
        began = time.monotonic()
        try:
            venv = make(release, python)
            Controller(release, venv).run()
            verdict = "ok"
        except (Failed, subprocess.CalledProcessError) as error:
            print(error, flush=True)
            verdict, failed = "FAILED", True
        lines.append("ansible-core %s, %s: %s, %d s" % (release, python, verdict, time.monotonic() - began))
        print("matrix: " + lines[-1], flush=True)
    for release, why in missing.items():
        print("matrix: ansible-core %s: left out, %s" % (release, why))
    if not chosen:
        print("matrix: no release could be run.", file=sys.stderr)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
