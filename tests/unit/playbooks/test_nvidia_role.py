# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What the tasks of the role nvidia ask of modules, in which order, with modules that only write down calls."""

from __future__ import annotations

import json
import re
import shutil
import sys
from pathlib import Path

import pytest
from ansible_collections.inference.fleet.tests.runs import play

ROLE = Path(__file__).resolve().parents[3] / "roles" / "nvidia"
REPLACED = "apt|command|copy|dnf|file|get_url|replace|yum_repository|node"
# Writes down its arguments, and answers with the next line of `answers` where it is the one that decides.
MODULE = """#!%s
# WANT_JSON
import json, sys
folder, name = %r, sys.argv[0].rsplit("stand_in_", 1)[-1].split(".")[0]
given = {key: value for key, value in json.load(open(sys.argv[1])).items() if not key.startswith("_ansible_")}
if name == "node":
    name, given = given["operation"], given["arguments"]
with open(folder + "/calls", "a") as stream:
    stream.write(json.dumps([name, given]) + "\\n")
answer = {"rc": 0, "stdout": "nvidia.com/gpu=0\\nnvidia.com/gpu=all"}
if name == "nvidia_toolkit":
    lines = open(folder + "/answers").read().splitlines()
    answer = json.loads(lines.pop(0))
    open(folder + "/answers", "w").write("\\n".join(lines))
print(json.dumps({"changed": True, **answer}))
"""
DUE = {"nvidia-container-toolkit": "1.20.0", "libnvidia-container1": "1.20.0"}
NOTHING = {"due": {}, "manager": None, "keep": None, "conflicts": [], "cdi": []}
CONFLICT = {"path": "/etc/apt/sources.list.d/a.list", "regexp": "^(deb x)$", "replace": r"# \1"}


@pytest.fixture
def role(tmp_path):
    """Plays the role with these answers of its decision: ([(module, arguments)], the Run)."""
    shutil.copytree(ROLE, tmp_path / "roles" / "nvidia")
    (tmp_path / "roles" / "engine" / "tasks").mkdir(parents=True)
    (tmp_path / "roles" / "engine" / "tasks" / "main.yml").write_text("- stand_in_engine: {}\n")
    (tmp_path / "library").mkdir()
    names = {"node", "engine"}
    for path in (tmp_path / "roles" / "nvidia" / "tasks").glob("*.yml"):
        text = path.read_text().replace("name: inference.fleet.container_engine", "name: engine")
        names |= set(re.findall(r"^  ansible\.builtin\.(\w+):", text, re.MULTILINE))
        pattern = r"^  (?:ansible\.builtin|inference\.fleet)\.(%s):" % REPLACED
        path.write_text(re.sub(pattern, r"  stand_in_\1:", text, flags=re.MULTILINE))
    for name in names:
        (tmp_path / "library" / ("stand_in_%s.py" % name)).write_text(MODULE % (sys.executable, str(tmp_path)))
    plays = [{"hosts": "localhost", "connection": "local", "gather_facts": False, "roles": ["nvidia"]}]
    (tmp_path / "play.yml").write_text(json.dumps(plays))

    def run(answers, *options, **variables):
        (tmp_path / "calls").write_text("")
        (tmp_path / "answers").write_text("".join(json.dumps({**NOTHING, **one}) + "\n" for one in answers))
        variables = {"fleet_servers": [], "ansible_python_interpreter": sys.executable, **variables}
        done = play(str(tmp_path / "play.yml"), "localhost,", *options, variables=variables)
        calls = [tuple(json.loads(line)) for line in (tmp_path / "calls").read_text().splitlines()]
        return calls, done

    return run


def of(calls, module):
    return [given for name, given in calls if name == module]


def test_a_node_that_is_ready_costs_one_look(role):
    calls, done = role([{}])
    done.ok()
    assert [name for name, _given in calls] == ["nvidia_toolkit"]


def test_check_mode_only_looks(role):
    calls, done = role([{"due": {"packages": DUE, "cdi": "x", "proof": "x"}, "manager": "apt"}], "--check")
    done.ok()
    assert [name for name, _given in calls] == ["nvidia_toolkit"]


def test_dnf(role):
    calls, done = role([{"due": {"packages": DUE}, "manager": "dnf"}, {}])
    done.ok()
    assert [name for name, _given in calls] == ["nvidia_toolkit", "get_url", "yum_repository", "dnf", "nvidia_toolkit"]
    assert of(calls, "get_url")[0]["url"] == "https://nvidia.github.io/libnvidia-container/gpgkey"
    (repository,) = of(calls, "yum_repository")
    assert repository["baseurl"] == "https://nvidia.github.io/libnvidia-container/stable/rpm/$basearch"
    assert (repository["repo_gpgcheck"], repository["gpgkey"]) == (
        True,
        "file:///etc/pki/rpm-gpg/RPM-GPG-KEY-nvidia-container-toolkit",
    )
    assert of(calls, "dnf")[0]["name"] == ["nvidia-container-toolkit-1.20.0*", "libnvidia-container1-1.20.0*"]
    assert of(calls, "nvidia_toolkit")[1]["installed"] == list(DUE)


def test_dnf_from_a_mirror(role):
    """A mirror's certificates are for fetching its key and its list alike; the key stays the one that is trusted."""
    repositories = {"dnf": {"url": "https://mirror.example/nv/rpm/"}, "key": {"url": "https://mirror.example/key"}}
    calls, done = role(
        [{"due": {"packages": DUE}, "manager": "dnf"}, {}], nvidia_repositories=repositories, nvidia_ca_bundle="/ca.pem"
    )
    done.ok()
    (key,) = of(calls, "get_url")
    (repository,) = of(calls, "yum_repository")
    assert (key["url"], key["dest"]) == ("https://mirror.example/key", repository["gpgkey"].partition("file://")[2])
    assert (repository["baseurl"], repository["sslcacert"]) == ("https://mirror.example/nv/rpm", "/ca.pem")
    assert (repository["repo_gpgcheck"], repository["gpgcheck"]) == (True, False)
    (installed,) = of(calls, "dnf")
    assert (installed["allow_downgrade"], installed["lock_timeout"]) == (True, 300)


def test_apt_from_a_mirror_with_other_entries_disabled(role):
    repositories = {"apt": {"url": "https://mirror.example/nv/"}, "key": {"file": "/opt/key.asc"}}
    first = {"due": {"packages": DUE}, "manager": "apt", "conflicts": [CONFLICT]}
    calls, done = role([first, {}], nvidia_repositories=repositories, nvidia_ca_bundle="/ca.pem")
    done.ok()
    assert of(calls, "replace") == [CONFLICT]
    assert of(calls, "get_url")[0]["url"] == "file:///opt/key.asc"
    source, certificates = of(calls, "copy")
    assert source["content"] == (
        "deb [signed-by=/etc/apt/keyrings/nvidia-container-toolkit.asc] https://mirror.example/nv /\n"
    )
    assert certificates["content"] == 'Acquire::https::mirror.example::CAInfo "/ca.pem";\n'
    assert of(calls, "apt")[0]["name"] == ["nvidia-container-toolkit=1.20.0*", "libnvidia-container1=1.20.0*"]


def test_all_steps_in_their_order(role):
    """Docker's settings are kept before packages come, and put back after; then the description, then the proof."""
    left = {"settings": "x", "cdi": "x", "proof": "x"}
    described = {"cdi": ["/etc/cdi/nvidia.yaml", "/var/run/cdi/nvidia.yaml"]}
    calls, done = role(
        [
            {"due": {"packages": DUE, "cdi": "x", "proof": "x"}, "manager": "apt", "keep": "/etc/docker/daemon.json"},
            {"due": left, **described},
            {"due": {"cdi": "x", "proof": "x"}, **described},
            {"due": {"proof": "x"}},
            {},
        ]
    )
    done.ok()
    copies = [(one.get("src"), one["dest"]) for one in of(calls, "copy") if one.get("src")]
    kept = "/etc/docker/daemon.json.before-nvidia-toolkit"
    assert copies == [
        ("/etc/docker/daemon.json", kept),
        (kept, "/etc/docker/daemon.json"),
        ("/etc/cdi/.new/nvidia.yaml", "/etc/cdi/nvidia.yaml"),
        ("/etc/cdi/.new/nvidia.yaml", "/var/run/cdi/nvidia.yaml"),
    ]
    _update, *described = [one["argv"] for one in of(calls, "command")]
    assert described == [
        ["nvidia-ctk", "cdi", "generate", "--output=/etc/cdi/.new/nvidia.yaml"],
        ["nvidia-ctk", "cdi", "list", "--spec-dir=/etc/cdi/.new"],
    ]
    names = [name for name, _given in calls]
    assert names.index("apt") < names.index("engine") == len(names) - 2
    looks = [(bool(one["installed"]), one["generated"], one["prove"]) for one in of(calls, "nvidia_toolkit")]
    assert [look[1:] for look in looks] == [(False, False)] * 3 + [(True, False), (True, True)]
    assert looks[1][0]


def test_a_description_that_cannot_be_read_is_not_put_in_place(role, tmp_path):
    path = tmp_path / "library" / "stand_in_command.py"
    path.write_text(path.read_text().replace("nvidia.com/gpu=all", "none"))
    calls, done = role([{"due": {"cdi": "x"}, "cdi": ["/etc/cdi/nvidia.yaml"]}])
    done.failed("Read the description")
    assert of(calls, "copy") == []
