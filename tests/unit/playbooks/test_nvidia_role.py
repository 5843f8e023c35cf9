# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What the tasks of the role nvidia ask of modules, with modules that only write down calls; molecule/trtllm runs all
steps of it for real."""

from __future__ import annotations

import re

import pytest
from ansible_collections.inference.fleet.tests.unit.playbooks.stand_ins import Tasks

REPLACED = ("apt", "command", "copy", "dnf", "file", "find", "get_url", "replace", "yum_repository", "node")
# The comparison answers with its packages.
CHANGES = """
answer.update(rc=0, stdout="nvidia.com/gpu=0\\nnvidia.com/gpu=all")
if name == "nvidia_toolkit":
    answer.update(given["packages"])
if name == "find":
    answer["files"] = [{"path": "/etc/apt/sources.list.d/" + one} for one in ("a.list", "b.sources")]
"""
DUE = {"nvidia-container-toolkit": "1.20.0", "libnvidia-container1": "1.20.0"}
NOTHING = {"due": {}, "manager": None, "keep": False, "cdi": []}


@pytest.fixture
def role(tmp_path):
    """Plays the role with this answer of its comparison: ([(module, arguments)], the Run)."""
    tasks = Tasks(tmp_path, "nvidia", REPLACED, CHANGES)

    def run(answer, *options, **variables):
        variables = {"fleet_servers": [], "nvidia_packages": {**NOTHING, **answer}, **variables}
        return tasks.run(*options, variables=variables)

    return run


def of(calls, module):
    return [given for name, given in calls if name == module]


def test_check_mode_costs_one_comparison(role):
    calls, done = role({"due": {"packages": DUE, "cdi": "x", "proof": "x"}, "manager": "apt"}, "--check")
    done.ok()
    assert [name for name, _given in calls] == ["nvidia_toolkit"]


def test_dnf(role):
    """A mirror's certificates are for fetching its key and its list; only that key is trusted."""
    repositories = {"dnf": {"url": "https://mirror.example/nv/rpm/"}, "key": {"url": "https://mirror.example/key"}}
    given = {"nvidia_repositories": repositories, "nvidia_ca_bundle": "/ca.pem"}
    calls, done = role({"due": {"packages": DUE}, "manager": "dnf"}, **given)
    done.ok()
    names = ["nvidia_toolkit", "get_url", "yum_repository", "dnf", "file", "nvidia_toolkit"]
    assert [name for name, _given in calls] == names
    (key,), (repository,), (installed,) = (of(calls, name) for name in ("get_url", "yum_repository", "dnf"))
    assert (key["url"], repository["baseurl"]) == ("https://mirror.example/key", "https://mirror.example/nv/rpm")
    assert (key["dest"], repository["sslcacert"]) == (repository["gpgkey"].partition("file://")[2], "/ca.pem")
    assert (repository["repo_gpgcheck"], repository["gpgcheck"]) == (True, False)
    assert installed["name"] == ["nvidia-container-toolkit-1.20.0*", "libnvidia-container1-1.20.0*"]
    assert (installed["allow_downgrade"], installed["lock_timeout"]) == (True, 300)


def test_apt_from_a_mirror_with_other_entries_disabled(role):
    repositories = {"apt": {"url": "https://mirror.example/nv/$(ARCH)"}, "key": {"file": "/opt/key.asc"}}
    calls, done = role(
        {"due": {"packages": DUE}, "manager": "apt"}, nvidia_repositories=repositories, nvidia_ca_bundle="/ca.pem"
    )
    done.ok()
    assert of(calls, "get_url")[0]["url"] == "file:///opt/key.asc"
    source, certificates = of(calls, "copy")
    assert source["content"] == (
        "deb [signed-by=/etc/apt/keyrings/nvidia-container-toolkit.asc] https://mirror.example/nv/$(ARCH) /\n"
    )
    trusted = certificates["content"].splitlines()[1:]
    assert trusted == ['Acquire::https::mirror.example::CAInfo "/ca.pem";']
    assert of(calls, "apt")[0]["name"] == ["nvidia-container-toolkit=1.20.0*", "libnvidia-container1=1.20.0*"]
    # the expressions do what their module does with them, and nothing a second time
    (found,) = of(calls, "find")
    for_list, for_source = of(calls, "replace")
    plain = "deb https://mirror.example/debian trixie main\n# deb https://nvidia.github.io/nvidia-docker/x /\n"
    own = "deb [signed-by=/x] https://nvidia.github.io/libnvidia-container/stable/deb/$(ARCH) /\n"
    assert [bool(re.match(found["contains"], line)) for line in (plain + own).splitlines()] == [False, False, True]
    assert apply(for_list, plain + own) == plain + "# " + own == apply(for_list, plain + "# " + own)
    deb822 = "Types: deb\nURIs: https://mirror.example/nv/amd64\nSuites: /\n"
    disabled = "Types: deb\nEnabled: no\nURIs: https://mirror.example/nv/amd64\nSuites: /\n"
    assert apply(for_source, deb822) == disabled == apply(for_source, disabled)


def apply(task, text):
    """The result of the module replace."""
    return re.sub(task["regexp"], task["replace"], text, flags=re.MULTILINE)


def test_settings_of_a_killed_run_are_restored_and_no_specification_that_cannot_be_read_is_installed(role, tmp_path):
    path = tmp_path / "library" / "stand_in_command.py"
    path.write_text(path.read_text().replace("nvidia.com/gpu=all", "none"))
    due = {"packages": DUE, "settings": "x", "cdi": "x"}
    calls, done = role({"due": due, "manager": "apt", "cdi": ["/etc/cdi/nvidia.yaml"]})
    done.failed("Check the CDI specification")
    _source, certificates, restored = of(calls, "copy")
    assert certificates["content"].splitlines()[1:] == []  # of an earlier run
    kept = "/etc/docker/daemon.json.before-nvidia-toolkit"
    assert (restored["src"], restored["dest"]) == (kept, "/etc/docker/daemon.json")
    assert {"path": kept, "state": "absent"} in of(calls, "file")
