# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The environments with engines that all tests of this clone share: .cache/e2e-venv. Standard library only.

    python tools/engine_venv.py [RECIPE]      # makes it if it is missing or outdated, and prints its path

The collection itself makes them (playbooks/prepare.yml), as in deployments. FLEET_TEST_VENV (FLEET_TEST_DYNAMO_VENV)
names another environment, which is used unchanged: a second clone need not install 2.4 GB again.
"""

from __future__ import annotations

import fcntl
import json
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
CACHE = ROOT / ".cache"
TINY = "cpu-tiny"
# {recipe: (the variable that names another environment, the folder of this clone's)}
PLACES = {TINY: ("FLEET_TEST_VENV", "e2e-venv"), "cpu-dynamo": ("FLEET_TEST_DYNAMO_VENV", "e2e-venv-dynamo")}


def borrowed(recipe=TINY):
    """Return whether the recipe's variable names an environment outside of this clone, which must not be changed."""
    return bool(os.environ.get(PLACES[recipe][0]))


def path(recipe=TINY):
    """Return the path of the recipe's environment, whether or not it exists."""
    variable, folder = PLACES[recipe]
    return Path(os.environ.get(variable) or CACHE / folder)


def ensure(recipe=TINY):
    """Return the path of the recipe's environment, made or updated.
    Raises RuntimeError with the cause if that fails."""
    venv = path(recipe)
    if borrowed(recipe):
        if not (venv / "bin" / "python").exists():
            raise RuntimeError("%s: %s has no bin/python." % (PLACES[recipe][0], venv))
        return venv
    sys.path.insert(0, str(ROOT / "tools"))
    import run

    CACHE.mkdir(exist_ok=True)
    variables = {"fleet_recipe": recipe, "fleet_override_venv": {"venv": {"path": str(venv)}}}
    environment = {**run.environment(), "FLEET_ROOT": str(CACHE / "engine")}
    with open(CACHE / "e2e-venv.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        done = subprocess.run(
            [str(ROOT / ".venv" / "bin" / "ansible-playbook"), "playbooks/prepare.yml", "-i", "inventories/local",
             "-e", json.dumps(variables)],
            cwd=ROOT, env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False,
        )  # fmt: skip
    if done.returncode:
        raise RuntimeError("the environment of %s was not made:\n" % recipe + done.stdout + done.stderr)
    return venv


def base_prefix(venv):
    """Return the folder of the Python that an environment was made with."""
    code = "import sys; print(sys.base_prefix)"
    python = Path(venv) / "bin" / "python"
    done = subprocess.run([str(python), "-I", "-c", code], capture_output=True, text=True, check=True)
    return Path(done.stdout.strip())


if __name__ == "__main__":
    print(ensure(*sys.argv[1:]))
