# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The archive of the collection: what is in it, what it needs, a playbook of it without a clone around it; and what it
says of its version."""

from __future__ import annotations

import shutil
import subprocess

import pytest
import tomllib
import yaml
from ansible_collections.inference.fleet.plugins.plugin_utils.recipe import schema as recipe_schema
from ansible_collections.inference.fleet.tests.runs import BIN, without_ansible
from ansible_collections.inference.fleet.tests.runs import CLONE as ROOT

INSTALLED = {
    "CHANGELOG.rst", "CONTRIBUTING.md", "FILES.json", "LICENSE", "MANIFEST.json", "README.md", "SECURITY.md",
    "changelogs", "docs", "meta", "playbooks", "plugins", "recipes", "requirements.txt", "roles",
}  # fmt: skip
# What collects in a clone, of tools and of runs.
JUNK = (
    ".ansible/tmp/x", ".cache/nodes/x", ".hypothesis/unicode/x", ".pytest_cache/x", ".ruff_cache/x", ".venv/bin/x",
    "artifacts/0123456789abcdef.tar", "build/home/x", "inference-fleet-0.0.1.tar.gz", "inventories/mine/hosts.yml",
    "docs/.cache/x", "plugins/__pycache__/x.pyc", "plugins/filter/.servers.py.swp", "plugins/filter/servers.py~",
    "reports/local/verdict.json", "roles/cpu/.ansible/x",
)  # fmt: skip


def run(*arguments, folder):
    """A tool of .venv in a folder, without anything that the clone or the user have set for Ansible; its output."""
    environment = without_ansible(ANSIBLE_CONFIG=str(folder / "empty.cfg"), ANSIBLE_HOME=str(folder / "home"),
                                  ANSIBLE_COLLECTIONS_PATH=str(folder / "collections"))  # fmt: skip
    done = subprocess.run(
        [str(BIN / arguments[0]), *map(str, arguments[1:])],
        cwd=folder, env=environment, capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def installed(tmp_path_factory):
    """A folder with collections/, where the archive of a clone that was worked in is installed."""
    folder = tmp_path_factory.mktemp("installed")
    (folder / "empty.cfg").touch()
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT, check=True, capture_output=True,
    ).stdout.decode()  # fmt: skip
    for name in filter(None, listed.split("\0")):
        if (ROOT / name).is_file():
            (folder / "clone" / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, folder / "clone" / name)
    for name in JUNK:
        (folder / "clone" / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / "clone" / name).write_text("")
    run("ansible-galaxy", "collection", "build", "clone", "--output-path", folder, folder=folder)
    (archive,) = folder.glob("*.tar.gz")
    run("ansible-galaxy", "collection", "install", archive, "--no-deps", "-p", "collections", folder=folder)
    return folder


def test_what_is_installed(installed):
    collection = installed / "collections" / "ansible_collections" / "inference" / "fleet"
    assert {path.name for path in collection.iterdir()} == INSTALLED
    assert [name for name in JUNK if (collection / name).exists()] == []
    assert [str(path) for path in collection.rglob("*") if path.name.startswith(".")] == []


def test_the_plan_is_shown_without_a_configuration(installed):
    inventory = {"cpu": {"hosts": {"node-1": {
        "fleet_recipe": "cpu-tiny", "fleet_hardware": {"accelerator": "cpu", "count": 1, "cores": 2},
    }}}}  # fmt: skip
    (installed / "hosts.yml").write_text(yaml.safe_dump(inventory))
    output = run("ansible-playbook", "inference.fleet.plan", "-i", "hosts.yml", folder=installed)
    assert "\nPLAN *" in output
    assert "\nnode-1  server-1  server  127.0.0.1:8001 " in output
    assert "\nCAPACITY *" in output


def test_the_requirements_are_those_of_the_clone():
    """Without what ansible-core brings, and ansible-core itself, which meta/runtime.yml wants."""
    lines = (ROOT / "requirements.txt").read_text().splitlines()
    named = [line for line in lines if not line.startswith("#")]
    clone = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
    assert [text for text in clone if not text.startswith(("ansible-core", "jinja2", "pyyaml"))] == named
    assert recipe_schema.REQUIREMENT in named


# -- versions ----------------------------------------------------------------------------------------------------------

VERSION = yaml.safe_load((ROOT / "galaxy.yml").read_text())["version"]
RELEASES = yaml.safe_load((ROOT / "changelogs" / "changelog.yaml").read_text())["releases"]


def test_the_version_is_new_while_there_are_fragments_and_the_clone_has_it():
    assert VERSION not in RELEASES or not list((ROOT / "changelogs" / "fragments").glob("*.y*ml"))
    assert tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"] == VERSION
